import ignore, { type Ignore } from "ignore";
import { readFileSync, realpathSync } from "node:fs";
import { join, resolve } from "node:path";
import { type FileStat, isShortEnough, MAX_ID_BYTES } from "../../core/pipelines/work.ts";
import { fileGlobs, type Glob, ignoreGlobs, leadingFolders } from "../../core/text/glob.ts";
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
  /** The database, its companion files and the artifacts are no targets. */
  skip: readonly string[];
  /** Lists only ids after this one. */
  after?: string | undefined;
  /** Called before a folder is read. */
  onFolder?: (path: string) => void;
  /** Called for a matching file that is an open database. */
  onSkipped?: (file: SkippedFile) => void;
}

/**
 * The files of a source, ordered by the UTF-8 bytes of their ids. It throws unless it saw everything. Only the names in the
 * folders from the root to the current one are in memory. Decision 030 says what is listed.
 */
export async function* listFiles(
  source: FilesSource,
  { cwd, skip, after, onFolder = () => {}, onSkipped = () => {} }: ListOptions,
): AsyncGenerator<ListedFile> {
  const root = new Root(resolve(cwd, source.root ?? "."), skip, leadingFolders(source.globs));
  const choice = new Choice(root, fileGlobs(source.globs, source.dot), ignoreGlobs(source.ignore), after);
  const databases = new OpenDatabases();
  onFolder(root.path);
  const open = [await enter(root, "", IgnoreFiles.none)];
  for (let folder = open.at(-1); folder !== undefined; folder = open.at(-1)) {
    const entry = folder.entries.next();
    if (entry.done) {
      open.pop();
      continue;
    }
    if (isOver()) await turn();
    const { name, kind } = entry.value;
    const id = `${folder.prefix}${name}`;
    if (!choice.takes(entry.value, id, folder.ignored)) continue;
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
  ignored: IgnoreFiles;
}

async function enter(root: Root, id: string, ignored: IgnoreFiles): Promise<Folder> {
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
    ignored: ignored.below(id, paths),
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

class Choice {
  readonly #root: Root;
  readonly #globs: Glob;
  readonly #ignore: Glob;
  readonly #after: string | undefined;

  constructor(root: Root, globs: Glob, ignore: Glob, after: string | undefined) {
    this.#root = root;
    this.#globs = globs;
    this.#ignore = ignore;
    this.#after = after;
  }

  /** Cheap checks first: globs exclude most names. */
  takes({ name, kind }: Entry, id: string, ignored: IgnoreFiles): boolean {
    const [wanted, comes, path] =
      kind === "folder"
        ? [this.#globs.mayMatchBelow(id), this.#comesBelow(`${id}/`), `${id}/`]
        : [this.#globs.matches(id), this.#comes(id), id];
    return wanted && comes && !this.#root.skips(name, id) && !this.#ignore.matches(id) && !ignored.ignores(path);
  }

  #comes(id: string): boolean {
    return this.#after === undefined || compareIds(id, this.#after) > 0;
  }

  #comesBelow(prefix: string): boolean {
    return this.#comes(prefix) || (this.#after as string).startsWith(prefix);
  }
}

/** Null: the file is gone, or cannot be read as a file. */
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

/** In a folder, the later one takes precedence. */
const IGNORE_FILES: ReadonlySet<string> = new Set([".gitignore", ".holdfastignore"]);

/** The rules of the ignore files from the root to one folder. */
class IgnoreFiles {
  static readonly none = new IgnoreFiles(null);
  readonly #rules: Ignore | null;

  private constructor(rules: Ignore | null) {
    this.#rules = rules;
  }

  /** The parent folders are known not to be ignored. */
  ignores(id: string): boolean {
    return this.#rules?.ignores(id) ?? false;
  }

  /** Copies the rules for each folder, because they cache every path that they were asked about. */
  below(folder: string, paths: readonly string[]): IgnoreFiles {
    if (this.#rules === null && paths.length === 0) return this;
    const rules = ignore({ ignorecase: false });
    if (this.#rules !== null) rules.add(this.#rules);
    for (const path of paths) rules.add(readLines(path).map((line) => fromRoot(line, folder)));
    return new IgnoreFiles(rules);
  }
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

/**
 * Rewrites a rule relative to the root: `*.log` in `a/b` becomes `/a/b/**\/*.log`. All rules form one list in which the last
 * match decides, as in git.
 */
function fromRoot(line: string, folder: string): string {
  if (folder === "" || line.trim() === "" || line.startsWith("#")) return line;
  const [not, rule] = line.startsWith("!") ? ["!", line.slice(1)] : ["", line];
  // Only a leading "!" or "#" needs the escape, and it is no longer leading.
  const body = /^\\[!#]/.test(rule) ? rule.slice(1) : rule;
  const anchored = body.trimEnd().slice(0, -1).includes("/");
  const where = folder.replace(/[\\*?[\]]/g, "\\$&");
  return `${not}/${where}/${anchored ? body.replace(/^\//, "") : `**/${body}`}`;
}
