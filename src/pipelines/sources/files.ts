import ignore, { type Ignore } from "ignore";
import { readFileSync, realpathSync } from "node:fs";
import { join, resolve } from "node:path";
import { type FileStat, isShortEnough, MAX_ID_BYTES } from "../../core/pipelines/work.ts";
import { fileGlobs, ignoreGlobs, leadingFolders } from "../../core/text/glob.ts";
import { compareIds } from "../../core/text/ids.ts";
import type { FilesSource } from "../../core/pipelines/source.ts";
import { invalidName, isGone, isOver, statFile, turn, unreadable } from "./fingerprint-file.ts";
import {
  checkName,
  databasesIn,
  type Entry,
  hasCompanion,
  isDoubtful,
  OpenDatabases,
  readFolder,
  Root,
  type SkippedFile,
} from "./root.ts";

export interface ListedFile {
  /** Path from the root, with "/" on every platform. */
  id: string;
  path: string;
  stat: FileStat;
}

export interface ListOptions {
  cwd: string;
  /** Files that are never targets: the database, its companion files and the artifacts. */
  skip: readonly string[];
  after?: string | undefined;
  onFolder?: (path: string) => void;
  onSkipped?: (file: SkippedFile) => void;
}

/** Lists files in the order of the ids' UTF-8 bytes, with few names in memory; throws unless it saw all. See decision 030. */
export async function* listFiles(
  source: FilesSource,
  { cwd, skip, after, onFolder = () => {}, onSkipped = () => {} }: ListOptions,
): AsyncGenerator<ListedFile> {
  const root = new Root(resolve(cwd, source.root ?? "."), skip, leadingFolders(source.globs));
  const isChosen = chooser(root, source, after);
  const databases = new OpenDatabases();
  onFolder(root.path);
  const open = [await enter(root, "", null)];
  for (let folder = open.at(-1); folder !== undefined; folder = open.at(-1)) {
    const entry = folder.entries.next();
    if (entry.done) {
      open.pop();
      continue;
    }
    if (isOver()) await turn();
    const { name, kind } = entry.value;
    const id = `${folder.prefix}${name}`;
    if (!isChosen(entry.value, id, folder.ignored)) continue;
    const reason = folder.databases.get(name);
    if (reason !== undefined) {
      if (reason !== null) onSkipped({ id, reason });
      continue;
    }
    if (isDoubtful(name)) await checkName(folder.path, name);
    if (kind === "folder") {
      onFolder(join(folder.path, name));
      open.push(await enter(root, id, folder.ignored));
      continue;
    }
    const path = join(folder.path, name);
    const stat = look(root, path, kind);
    if (stat === null) continue;
    if (databases.has(path, stat.inode)) onSkipped({ id, reason: "this process has it open as a database" });
    else if (kind === "link" && leadsToDatabase(path)) onSkipped({ id, reason: "it leads to a database" });
    else yield { id: checkId(id, path), path, stat };
  }
  root.checkThere();
}

interface Folder {
  path: string;
  prefix: string;
  entries: Iterator<Entry, undefined>;
  databases: ReadonlyMap<string, string | null>;
  /** The rules of the ignore files from the root to this folder; null if there are none. */
  ignored: Ignore | null;
}

async function enter(root: Root, id: string, ignored: Ignore | null): Promise<Folder> {
  const path = id === "" ? root.path : root.pathOf(id);
  const entries = await readFolder(path);
  if (entries === null) root.checkThere();
  const rules = (entries ?? []).filter(({ name, kind }) => kind !== "folder" && IGNORE_FILES.has(name));
  const paths = rules.filter(({ name, kind }) => look(root, join(path, name), kind)).map(({ name }) => join(path, name));
  return {
    path,
    prefix: id === "" ? "" : `${id}/`,
    entries: (entries ?? []).values(),
    databases: databasesIn(entries ?? []),
    ignored: rulesBelow(ignored, id, paths),
  };
}

function leadsToDatabase(link: string): boolean {
  try {
    return hasCompanion(realpathSync(link));
  } catch (error) {
    if (isGone(error)) return false;
    throw unreadable(link, error);
  }
}

/** Decides whether an entry is listed, or a folder entered. Cheap checks come first, because globs exclude most names. */
function chooser(root: Root, source: FilesSource, after: string | undefined) {
  const globs = fileGlobs(source.globs, source.dot);
  const ignore = ignoreGlobs(source.ignore);
  const comes = (id: string) => after === undefined || compareIds(id, after) > 0;
  return ({ name, kind }: Entry, id: string, ignored: Ignore | null): boolean => {
    const isFolder = kind === "folder";
    const path = isFolder ? `${id}/` : id;
    const isWanted = isFolder
      ? globs.mayMatchBelow(id) && (comes(path) || (after as string).startsWith(path))
      : globs.matches(id) && comes(id);
    // The parent folders are known not to be ignored.
    return isWanted && !root.skips(name, id) && !ignore.matches(id) && !(ignored?.ignores(path) ?? false);
  };
}

function look(root: Root, path: string, kind: Entry["kind"]): FileStat | null {
  const stat = statWithin(root, path, kind);
  if (stat === null) root.checkThere();
  return stat;
}

function statWithin(root: Root, path: string, kind: Entry["kind"]): FileStat | null {
  try {
    return kind === "link" && !root.holds(path) ? null : statFile(path);
  } catch (error) {
    if (isGone(error)) return null;
    throw unreadable(path, error);
  }
}

function checkId(id: string, path: string): string {
  if (isShortEnough(id)) return id;
  throw invalidName(path, `has more than ${MAX_ID_BYTES} bytes with its path`);
}

/** If a folder has both files, the rules of the later one take precedence. */
const IGNORE_FILES: ReadonlySet<string> = new Set([".gitignore", ".holdfastignore"]);

/** Adds a folder's rules to a copy of its parent's, because rules cache every path that they were asked about. */
function rulesBelow(above: Ignore | null, folder: string, paths: readonly string[]): Ignore | null {
  if (above === null && paths.length === 0) return null;
  const rules = ignore({ ignorecase: false });
  if (above !== null) rules.add(above);
  for (const path of paths) rules.add(readLines(path).map((line) => fromRoot(line, folder)));
  return rules;
}

function readLines(path: string): string[] {
  try {
    return readFileSync(path, "utf8")
      .replace(/^\u{feff}/u, "")
      .split(/\r?\n/);
  } catch (error) {
    if (isGone(error)) return [];
    throw unreadable(path, error);
  }
}

/** Rewrites a rule relative to the root (`*.log` in `a/b`: `/a/b/**\/*.log`). In one list the last match decides, as in git. */
function fromRoot(line: string, folder: string): string {
  if (folder === "" || line.trim() === "" || line.startsWith("#")) return line;
  const [not, rule] = line.startsWith("!") ? ["!", line.slice(1)] : ["", line];
  // Only a leading "!" or "#" needs the escape, and it is no longer leading.
  const body = /^\\[!#]/.test(rule) ? rule.slice(1) : rule;
  const anchored = body.trimEnd().slice(0, -1).includes("/");
  const where = folder.replace(/[\\*?[\]]/g, "\\$&");
  return `${not}/${where}/${anchored ? body.replace(/^\//, "") : `**/${body}`}`;
}
