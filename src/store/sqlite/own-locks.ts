import { statSync } from "node:fs";
import { fileId, openFile, type OpenFile, openFiles } from "./open-files.ts";

/** A byte that SQLite keeps locked for as long as a connection is open. */
export interface WatchedLock {
  path: string;
  byte: number;
}

/** SQLite's shared lock on a database in WAL mode, its lock on the `-shm` file, and the lock of an open write transaction. */
export const SHARED_BYTE = 0x4000_0002;
export const SHM_BYTE = 128;
export const RESERVED_BYTE = 0x4000_0001;

/**
 * The POSIX locks that this process holds on a database. Closing any descriptor of a file drops them all, and SQLite does not
 * notice: other processes then take this one for closed or dead. Linux lists them; elsewhere none is watched.
 */
export class OwnLocks {
  readonly #held: { path: string; byte: number; id: string; fd: number }[] = [];

  /** Watches those of `wanted` that this process holds now. */
  constructor(wanted: readonly WatchedLock[]) {
    const files = openFiles() ?? [];
    for (const { path, byte } of wanted) {
      const stat = statSync(path, { throwIfNoEntry: false });
      const id = stat === undefined ? null : fileId(stat);
      const file = files.find((one) => one.id === id && hasLocked(one, byte));
      if (id !== null && file !== undefined) this.#held.push({ path, byte, id, fd: file.fd });
    }
  }

  /** The files on which this process held a lock after opening, and holds none now. */
  vanished(): string[] {
    return this.#held.filter((one) => !this.#holds(one)).map(({ path }) => path);
  }

  #holds(held: { byte: number; id: string; fd: number }): boolean {
    const isIt = (file: OpenFile | null): file is OpenFile => file?.id === held.id && hasLocked(file, held.byte);
    if (isIt(openFile(held.fd))) return true;
    // Another connection of this process may have taken it over, through a descriptor of its own.
    const other = (openFiles() ?? []).find(isIt);
    if (other !== undefined) held.fd = other.fd;
    return other !== undefined;
  }
}

function hasLocked({ locks }: OpenFile, byte: number): boolean {
  return locks.some(({ from, to }) => from <= byte && byte <= to);
}
