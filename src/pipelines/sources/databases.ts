import { existsSync, statSync } from "node:fs";
import type { Entry } from "./folder.ts";
import { DatabaseFiles, fileId, openFiles } from "../../store/sqlite/maintenance/open-files.ts";

/** What a live database has beside it, by the end of its name; `-alive` is a folder. */
const SIGNS = ["-wal", "-shm", "-journal", "-alive"] as const;
/** All that SQLite and Holdfast put beside a database. */
export const COMPANIONS: readonly string[] = [
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
