import ignore, { type Ignore } from "ignore";
import { readFileSync, realpathSync } from "node:fs";
import { join, resolve } from "node:path";
import type { FileStat } from "../../core/pipelines/context-hash.ts";
import { fileGlobs, type Glob, ignoreGlobs, leadingFolders } from "../../core/text/glob.ts";
import { compareIds } from "../../core/text/ids.ts";
import type { FilesSource } from "../../core/pipelines/source.ts";
import { fits, ID_BYTES } from "../../core/pipelines/work.ts";
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
  /** Its path from the root, with "/" on every platform. */
  id: string;
  /** Absolute. */
  path: string;
  stat: FileStat;
}

export interface ListOptions {
  /** What a root is relative to. */
  cwd: string;
  /** Files and folders that are no targets: the database (with what lies beside it), the artifacts. */
  skip: readonly string[];
  /** Only what comes after this id, whether or not there is such a file any more. */
  after?: string | undefined;
  /** Called with each folder before it is read. */
  onFolder?: (path: string) => void;
  /** Called for each file that would be a target if it were not a database in use. */
  onSkipped?: (file: SkippedFile) => void;
}

/**
 * The files of a source, in the order of their ids' UTF-8 bytes. It ends well only if all was seen; what is in memory is the
 * names in the folders from the root to where it is. docs/decisions/030 says what is listed and what is not.
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

/** A folder that is being listed. */
interface Folder {
  path: string;
  /** What the ids in it begin with. */
  prefix: string;
  entries: Iterator<Entry, undefined>;
  databases: ReadonlyMap<string, string | null>;
  ignored: IgnoreFiles;
}

async function enter(root: Root, id: string, ignored: IgnoreFiles): Promise<Folder> {
  const path = id === "" ? root.path : root.pathOf(id);
  const entries = await readFolder(path);
  if (entries === null) root.checkThere();
  const rules = (entries ?? []).filter(({ name, kind }) => kind !== "folder" && isIgnoreFile(name));
  const readable = rules
    .map(({ name, kind }) => ({ path: join(path, name), kind }))
    .filter((one) => look(root, one.path, one.kind));
  const paths = readable.map((one) => one.path);
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

function isIgnoreFile(name: string): boolean {
  return (IGNORE_FILES as readonly string[]).includes(name);
}

/** Which of the names that are met belong to the listing. */
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

  /** What is cheap to say is said first: most names are passed over by their globs. */
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

  /** Whether anything that begins so comes after it. */
  #comesBelow(prefix: string): boolean {
    return this.#comes(prefix) || (this.#after as string).startsWith(prefix);
  }
}

/** Null: it is gone, or is nothing that can be read as a file from here. */
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
  if (fits(id)) return id;
  throw invalidName(path, `has more than ${ID_BYTES} bytes with its path`);
}

/** Later ones count more. */
const IGNORE_FILES = [".gitignore", ".holdfastignore"] as const;

/** What the ignore files from the root down to one folder say about what is in it. */
class IgnoreFiles {
  static readonly none = new IgnoreFiles(null);
  readonly #rules: Ignore | null;

  private constructor(rules: Ignore | null) {
    this.#rules = rules;
  }

  /** Of a path from the root; a folder's ends with "/". Those above it are known not to be ignored. */
  ignores(id: string): boolean {
    return this.#rules?.ignores(id) ?? false;
  }

  /**
   * For a folder below, with its own ignore files. The rules are copied for each folder, since they remember all they were
   * ever asked about.
   */
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
 * The rule of a file in a folder as if it stood in the root: `*.log` in `a/b` is `/a/b/**\/*.log`. So all rules are one list,
 * in which the last one that matches decides, as git has it.
 */
function fromRoot(line: string, folder: string): string {
  if (folder === "" || line.trim() === "" || line.startsWith("#")) return line;
  const [not, rule] = line.startsWith("!") ? ["!", line.slice(1)] : ["", line];
  // Only a first character needs that escape, and it is not the first any more.
  const body = /^\\[!#]/.test(rule) ? rule.slice(1) : rule;
  const anchored = body.trimEnd().slice(0, -1).includes("/");
  const where = folder.replace(/[\\*?[\]]/g, "\\$&");
  return `${not}/${where}/${anchored ? body.replace(/^\//, "") : `**/${body}`}`;
}
