import { type Dirent, existsSync, lstatSync, realpathSync, statSync } from "node:fs";
import { readdir } from "node:fs/promises";
import { basename, dirname, join, relative, resolve, sep } from "node:path";
import { compareIds } from "../../core/text/ids.ts";
import { DatabaseFiles, fileId, openFiles } from "../../store/sqlite/maintenance/open-files.ts";
import { invalidName, isGone, missingFolder, missingFolders, missingRoot, unreadable } from "./fingerprint-file.ts";

const NEVER = new Set([".git", ".holdfast"]);

export class Root {
  readonly path: string;
  readonly #real: string;
  readonly #identity: string;
  /** The folders that the globs begin with, with their identities, as far as they existed when the listing started. */
  readonly #leading = new Map<string, string>();
  readonly #skipped: ReadonlySet<string>;

  constructor(path: string, skip: readonly string[], leading: readonly string[] = []) {
    this.path = path;
    this.#identity = identify(path);
    for (const id of leading) {
      const identity = identifyBelow(path, id);
      if (identity !== null) this.#leading.set(id, identity);
    }
    // If none of them exists, nothing is known about their files; if one does, others may be missing.
    if (leading.length > 0 && this.#leading.size === 0) throw missingFolders(leading.map((id) => join(path, id)));
    this.#real = realpathSync(path);
    const skipped = skip.flatMap((one) => ["", ...COMPANIONS].map((end) => this.#idOf(realpathOf(resolve(one)) + end)));
    this.#skipped = new Set(skipped.filter((id) => id !== null));
  }

  pathOf(id: string): string {
    return join(this.path, id);
  }

  skips(name: string, id: string): boolean {
    return NEVER.has(name) || this.#skipped.has(id);
  }

  /** Whether a link may be followed. Throws the system's error if it leads nowhere. */
  holds(link: string): boolean {
    const id = this.#idOf(realpathSync(link));
    if (id === null) return false;
    const names = id.split("/");
    return !names.some((name, i) => this.skips(name, names.slice(0, i + 1).join("/")));
  }

  /** Throws if the root or a leading folder disappeared (an unmounted disk, say): nothing is known about its files then. */
  checkThere(): void {
    if (identify(this.path) !== this.#identity) throw missingRoot(this.path, "was replaced while it was listed");
    for (const [id, identity] of this.#leading) {
      const now = identifyBelow(this.path, id);
      if (now !== identity) throw missingFolder(join(this.path, id), now === null ? "went away" : "was replaced");
    }
  }

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

function realpathOf(path: string): string {
  try {
    return realpathSync(path);
  } catch {
    const above = dirname(path);
    return above === path ? path : join(realpathOf(above), basename(path));
  }
}

/** Returns null if there is no such folder, or if a link leads to it, which is not followed. */
function identifyBelow(root: string, id: string): string | null {
  // The listing checks the root itself.
  if (id === "") return "";
  const names = id.split("/");
  let identity: string | null = null;
  for (const i of names.keys()) {
    identity = identityOf(join(root, ...names.slice(0, i + 1)));
    if (identity === null) return null;
  }
  return identity;
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

/** Endings of files beside a database that is in use. `-alive` is a folder. */
const SIGNS = ["-wal", "-shm", "-journal", "-alive"] as const;
/** Endings of all files that SQLite and Holdfast create beside a database. */
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
const MAX_AGE_MS = 100;

export interface SkippedFile {
  id: string;
  reason: string;
}

export function describeSkipped({ id, reason }: SkippedFile): string {
  return `Skipped ${id}: ${reason}. Reading a database that is in use can corrupt it.`;
}

/** Returns for each database its reason for being skipped, and for its companions null. */
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

export function hasCompanion(path: string): boolean {
  return SIGNS.some((sign) => existsSync(path + sign));
}

/** Databases that this process has open, by inode. Reading and closing one would drop the process's POSIX locks on it. */
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

  /** Lists open databases. Only Linux lists files of other libraries. A file that is only read or only written is no database. */
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
  /** Sort key: a folder's name ends with "/", so that folders and files come in the order of ids. */
  key: string;
}

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

function kindOf(dirent: Dirent): EntryKind | null {
  if (dirent.isFile()) return "file";
  if (dirent.isDirectory()) return "folder";
  return dirent.isSymbolicLink() ? "link" : null;
}

/** Whether a name may not be UTF-8. File names are bytes, and invalid UTF-8 is read as U+FFFD. */
export function isDoubtful(name: string): boolean {
  return name.includes("\u{fffd}") || !name.isWellFormed();
}

/** Rejects names that are not UTF-8. U+FFFD can also be part of a valid name. */
export async function checkName(folder: string, name: string): Promise<void> {
  const path = join(folder, name);
  if (!name.isWellFormed()) throw invalidName(path, "has half a character (a lone surrogate)");
  const raw = await readdir(folder, { encoding: "buffer" });
  const spelled = Buffer.from(name);
  if (raw.some((bytes) => bytes.toString() === name && !bytes.equals(spelled))) throw invalidName(path, "is not UTF-8");
}
