import { type BigIntStats, constants, fstatSync, openSync, statSync } from "node:fs";
import type { FileStat } from "../../core/fingerprint.ts";

export function toFileStat({ size, mtimeNs, ctimeNs, ino }: BigIntStats): FileStat {
  return { size: Number(size), mtime: String(mtimeNs), ctime: String(ctimeNs), inode: String(ino) };
}

/** Of a regular file, also through a link; null: something else is there, or nothing. Other errors are the system's. */
export function statFile(path: string): FileStat | null {
  const stat = statSync(path, { bigint: true, throwIfNoEntry: false });
  return stat?.isFile() ? toFileStat(stat) : null;
}

/** Of an open file. */
export function statOpen(fd: number): FileStat | null {
  const stat = fstatSync(fd, { bigint: true });
  return stat.isFile() ? toFileStat(stat) : null;
}

/** It does not wait for somebody to write into it, should a pipe have taken the file's place. */
export const READ: number = constants.O_RDONLY | (constants.O_NONBLOCK ?? 0);

export function openNow(path: string): number {
  return openSync(path, READ);
}
