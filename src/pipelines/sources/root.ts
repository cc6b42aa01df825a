import { type Dirent, existsSync, lstatSync, realpathSync, statSync } from "node:fs";
import { readdir } from "node:fs/promises";
import { basename, dirname, join, relative, resolve, sep } from "node:path";
import { compareIds } from "../../core/text/ids.ts";
import { DatabaseFiles, fileId, openFiles } from "../../store/sqlite/maintenance/open-files.ts";
import { invalidName, isGone, missingFolder, missingFolders, missingRoot, unreadable } from "./fingerprint-file.ts";

/** Holdfast's own, and git's: never targets, wherever they lie. */
const NEVER = new Set([".git", ".holdfast"]);

/** The folder that a source lists, as it was when the listing began. */
export class Root {
  readonly path: string;
  readonly #real: string;
  readonly #identity: string;
  readonly #leading: LeadingFolders;
  /** Paths from the root, with "/". */
  readonly #skipped: ReadonlySet<string>;

  /** `leading`: the folders in it of which one has to be there. */
  constructor(path: string, skip: readonly string[], leading: readonly string[] = []) {
    this.path = path;
    this.#identity = identify(path);
    this.#leading = new LeadingFolders(path, leading);
    this.#real = realpathSync(path);
    const skipped = skip.flatMap((one) => ["", ...COMPANIONS].map((end) => this.#idOf(realpathOf(resolve(one)) + end)));
    this.#skipped = new Set(skipped.filter((id) => id !== null));
  }

  pathOf(id: string): string {
    return join(this.path, id);
  }

  /** Whether it is no target, and nothing below it is: by its name, or because it was said so. */
  skips(name: string, id: string): boolean {
    return NEVER.has(name) || this.#skipped.has(id);
  }

  /** Whether a link may be followed: what it leads to could be a target itself. Throws the system's error when there is nothing. */
  holds(link: string): boolean {
    const id = this.#idOf(realpathSync(link));
    if (id === null) return false;
    const names = id.split("/");
    return !names.some((name, i) => this.skips(name, names.slice(0, i + 1).join("/")));
  }

  /**
   * Something has gone: if it was the root itself (a disk that was unmounted), or a folder that a glob begins with, then
   * nothing is known about what is in it.
   */
  checkThere(): void {
    if (identify(this.path) !== this.#identity) throw missingRoot(this.path, "was replaced while it was listed");
    this.#leading.checkThere();
  }

  /** Null: it is the root itself, or not in it. */
  #idOf(real: string): string | null {
    const path = relative(this.#real, real);
    if (path === "" || path === ".." || path.startsWith(`..${sep}`) || resolve(path) === path) return null;
    return path.split(sep).join("/");
  }
}

function identify(path: string): string {
  let stat;
  try {
    stat = statSync(path, { bigint: true });
  } catch (error) {
    throw isGone(error) ? missingRoot(path, "does not exist", error) : unreadable(path, error);
  }
  if (!stat.isDirectory()) throw missingRoot(path, "is not a folder");
  return `${stat.dev}:${stat.ino}`;
}

/** Of something that may not be there yet. */
function realpathOf(path: string): string {
  try {
    return realpathSync(path);
  } catch {
    const above = dirname(path);
    return above === path ? path : join(realpathOf(above), basename(path));
  }
}

/**
 * The folders that a source's globs begin with, as they were when the listing began. If none is there (a disk that was
 * unmounted), nothing is known about what is in them; where one is, the others may be missing.
 */
class LeadingFolders {
  /** Of those that were there, by path from the root. */
  readonly #identities = new Map<string, string>();
  readonly #root: string;

  /** `ids`: paths from the root, which is "" itself. */
  constructor(root: string, ids: readonly string[]) {
    this.#root = root;
    for (const id of ids) {
      const identity = this.#identify(id);
      if (identity !== null) this.#identities.set(id, identity);
    }
    if (ids.length > 0 && this.#identities.size === 0) throw missingFolders(ids.map((id) => join(root, id)));
  }

  /** Whether all that were there still are, and are the same. */
  checkThere(): void {
    for (const [id, identity] of this.#identities) {
      const now = this.#identify(id);
      if (now !== identity) throw missingFolder(join(this.#root, id), now === null ? "went away" : "was replaced");
    }
  }

  /** Null: there is no such folder, or a link is on the way to it, which is not followed. */
  #identify(id: string): string | null {
    // The listing of the root checks it, and may reach it through a link.
    if (id === "") return "";
    const names = id.split("/");
    let identity: string | null = null;
    for (const i of names.keys()) {
      identity = identityOf(join(this.#root, ...names.slice(0, i + 1)));
      if (identity === null) return null;
    }
    return identity;
  }
}

function identityOf(path: string): string | null {
  try {
    const stat = lstatSync(path, { bigint: true });
    return stat.isDirectory() ? `${stat.dev}:${stat.ino}` : null;
  } catch (error) {
    if (isGone(error)) return null;
    throw unreadable(path, error);
  }
}

/** What a live database has beside it, by the end of its name; `-alive` is a folder. */
const SIGNS = ["-wal", "-shm", "-journal", "-alive"] as const;
/** All that SQLite and Holdfast put beside a database. */
const COMPANIONS: readonly string[] = [
  ...SIGNS,
  "-artifacts",
  "-backups",
  "-changes",
  "-checked",
  "-findings",
  "-restore",
  "-witness",
];
/** How long a list of open files is used. */
const MAX_AGE_MS = 100;

/** A file that was not listed, and why. */
export interface SkippedFile {
  id: string;
  reason: string;
}

/** For people who expect the file among the targets. */
export function describeSkipped({ id, reason }: SkippedFile): string {
  return `Skipped ${id}: ${reason}. Reading a database that is in use can corrupt it.`;
}

/** The names in a folder that belong to databases: of a database itself, why it is taken for one; of its companions, null. */
export function databasesIn(entries: readonly Entry[]): Map<string, string | null> {
  const found = new Map<string, string | null>();
  if (!entries.some(({ name }) => SIGNS.some((sign) => name.endsWith(sign)))) return found;
  const kinds = new Map(entries.map(({ name, kind }) => [name, kind]));
  for (const { name, kind } of entries) {
    if (kind === "folder") continue;
    const sign = SIGNS.find((one) => kinds.has(name + one) && (kinds.get(name + one) === "folder") === (one === "-alive"));
    if (sign === undefined) continue;
    found.set(name, `it is a database, since ${name}${sign} is beside it`);
    for (const one of COMPANIONS) if (kinds.has(name + one)) found.set(name + one, null);
  }
  return found;
}

/** Whether a file, named by its real path, has a live database's files beside it. */
export function hasCompanion(path: string): boolean {
  return SIGNS.some((sign) => existsSync(path + sign));
}

/**
 * The databases that this process has open. To read and close one of them would drop all POSIX locks of this process on it,
 * so they are recognized by their inode, and never opened.
 */
export class OpenDatabases {
  #ids = new Set<string>();
  #inodes = new Set<string>();
  #listedAt = Number.NEGATIVE_INFINITY;

  has(path: string, inode: string): boolean {
    if (performance.now() - this.#listedAt > MAX_AGE_MS) this.#list();
    if (!this.#inodes.has(inode)) return false;
    const stat = statSync(path, { throwIfNoEntry: false });
    return stat !== undefined && this.#ids.has(fileId(stat) ?? "");
  }

  /** Linux lists every open file, also of other libraries; elsewhere Holdfast knows its own. What is only read, or only written, is no database. */
  #list(): void {
    const others = (openFiles() ?? []).filter(({ isReadWrite, locks }) => isReadWrite || locks.length > 0);
    this.#ids = new Set([...others.map(({ id }) => id), ...DatabaseFiles.openIds()]);
    this.#inodes = new Set([...this.#ids].map((id) => id.slice(id.indexOf(":") + 1)));
    this.#listedAt = performance.now();
  }
}

type EntryKind = "file" | "folder" | "link";

export interface Entry {
  name: string;
  kind: EntryKind;
  /** What it is sorted by. A folder has a slash behind its name, as its files' ids have: so these come out in their order. */
  key: string;
}

/** What is in a folder, in the order in which ids are listed; null: it is gone. */
export async function readFolder(path: string): Promise<Entry[] | null> {
  let found: Dirent[];
  try {
    found = await readdir(path, { withFileTypes: true });
  } catch (error) {
    if (isGone(error)) return null;
    throw unreadable(path, error);
  }
  const entries: Entry[] = [];
  for (const dirent of found) {
    const kind = kindOf(dirent);
    if (kind !== null) entries.push({ name: dirent.name, kind, key: kind === "folder" ? `${dirent.name}/` : dirent.name });
  }
  return entries.sort((a, b) => compareIds(a.key, b.key));
}

/** Null: a pipe, a socket, a device. */
function kindOf(dirent: Dirent): EntryKind | null {
  if (dirent.isFile()) return "file";
  if (dirent.isDirectory()) return "folder";
  return dirent.isSymbolicLink() ? "link" : null;
}

/** Names are bytes to most systems. Those that are no UTF-8 come with U+FFFD in the place of what is wrong. */
export function isDoubtful(name: string): boolean {
  return name.includes("\u{fffd}") || !name.isWellFormed();
}

/** U+FFFD may also be a character of the name. */
export async function checkName(folder: string, name: string): Promise<void> {
  const path = join(folder, name);
  if (!name.isWellFormed()) throw invalidName(path, "has half a character (a lone surrogate)");
  const raw = await readdir(folder, { encoding: "buffer" });
  const spelled = Buffer.from(name);
  if (raw.some((bytes) => bytes.toString() === name && !bytes.equals(spelled))) throw invalidName(path, "is not UTF-8");
}
