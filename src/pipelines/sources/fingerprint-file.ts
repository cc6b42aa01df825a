import { createHash, hash as hashNow } from "node:crypto";
import { type BigIntStats, closeSync, constants, fstatSync, openSync, readSync, statSync } from "node:fs";
import { open } from "node:fs/promises";
import { setImmediate } from "node:timers/promises";
import { faultOf } from "../../artifacts/folder.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import { type FileStat, type Fingerprint, isSameStat, toFingerprint } from "../../core/pipelines/work.ts";

/** Smaller files are read synchronously, in one call. */
export const SMALL_FILE_BYTES: number = 64 * 1024;
const PIECE = 256 * 1024;
const MAX_TRIES = 4;

/** Hashes a file, or returns null if it is gone. A write within one tick of the file system's clock stays unnoticed. */
export function fingerprintFile(path: string, stat: FileStat, clock: { now(): number }): Promise<Fingerprint | null> {
  return whileStill(path, stat, clock, hashFile);
}

export interface Reading {
  hash: string;
  size: number;
  after: FileStat;
}

export async function whileStill(
  path: string,
  stat: FileStat,
  clock: { now(): number },
  read: (path: string, size: number) => Promise<Reading | null>,
): Promise<Fingerprint | null> {
  let before: FileStat | null = stat;
  for (let tries = 0; tries < MAX_TRIES; tries++) {
    const hashedAt = clock.now();
    const reading = await read(path, before.size).catch(orGone(path));
    if (reading === null) return null;
    const { hash, size, after } = reading;
    if (isSameStat(before, after) && size === before.size) return toFingerprint(before, hash, hashedAt);
    before = statNow(path);
    if (before === null) return null;
  }
  throw bytesChanged(path, "it was written to each time that it was read");
}

export async function hashFile(path: string, size: number): Promise<Reading | null> {
  if (size > SMALL_FILE_BYTES) return hashLarge(path, size);
  await turn();
  return hashSmall(path);
}

export function statNow(path: string): FileStat | null {
  try {
    return statFile(path);
  } catch (error) {
    return orGone(path)(error);
  }
}

export function orGone(path: string): (error: unknown) => null {
  return (error) => {
    if (error instanceof HoldfastError) throw error;
    if (isGone(error)) return null;
    throw unreadable(path, error);
  };
}

const buffer = Buffer.allocUnsafe(SMALL_FILE_BYTES + 1);

function hashSmall(path: string): Reading | null {
  const fd = openNow(path);
  try {
    let size = 0;
    for (let read = -1; read !== 0 && size < buffer.length; size += read) {
      read = readSync(fd, buffer, size, buffer.length - size, null);
    }
    const after = statOpen(fd);
    // If the file has grown, the stat after the read shows it.
    return after === null ? null : { hash: hashNow("sha256", buffer.subarray(0, size)), size, after };
  } finally {
    closeSync(fd);
  }
}

async function hashLarge(path: string, expected: number): Promise<Reading | null> {
  const handle = await open(path, READ);
  try {
    const digest = createHash("sha256");
    const piece = Buffer.allocUnsafe(PIECE);
    let size = 0;
    // Stop when the file grows as fast as it is read.
    while (size <= expected) {
      const { bytesRead } = await handle.read(piece, 0, PIECE, null);
      if (bytesRead === 0) break;
      digest.update(piece.subarray(0, bytesRead));
      size += bytesRead;
    }
    const after = await handle.stat({ bigint: true });
    return after.isFile() ? { hash: digest.digest("hex"), size, after: toFileStat(after) } : null;
  } finally {
    await handle.close();
  }
}

export function toFileStat({ size, mtimeNs, ctimeNs, ino }: BigIntStats): FileStat {
  return { size: Number(size), mtime: String(mtimeNs), ctime: String(ctimeNs), inode: String(ino) };
}

/** Follows links. Returns null for anything but a regular file. */
export function statFile(path: string): FileStat | null {
  const stat = statSync(path, { bigint: true, throwIfNoEntry: false });
  return stat?.isFile() ? toFileStat(stat) : null;
}

export function statOpen(fd: number): FileStat | null {
  const stat = fstatSync(fd, { bigint: true });
  return stat.isFile() ? toFileStat(stat) : null;
}

/** Opens without blocking, in case a pipe took the file's place. */
export const READ: number = constants.O_RDONLY | (constants.O_NONBLOCK ?? 0);

export function openNow(path: string): number {
  return openSync(path, READ);
}

const MAX_TURN_MS = 10;

let begun = 0;
let next: Promise<void> | null = null;

/** Yields to the event loop now and then. Small files are read synchronously: a thread takes five times as long for each. */
export async function turn(): Promise<void> {
  while (isOver()) await (next ??= giveOthers());
}

/** Whether this turn has lasted too long. The check is synchronous, which saves a promise per file. */
export function isOver(): boolean {
  return performance.now() - begun > MAX_TURN_MS;
}

async function giveOthers(): Promise<void> {
  await setImmediate();
  begun = performance.now();
  next = null;
}

const CHECK = "Check `root` of files(), the working directory, and that the disk is mounted.";

/** Returns the error for a missing root, which is no empty source: otherwise every target would be removed. */
export function missingRoot(path: string, is: string, cause?: unknown): HoldfastError {
  return new HoldfastError("SOURCE_MISSING", `The root of the source, ${path}, ${is}.`, CHECK, { cause });
}

/** Returns the error if no folder that the globs begin with exists, which is as bad as a missing root. */
export function missingFolders(paths: readonly string[]): HoldfastError {
  return new HoldfastError(
    "SOURCE_MISSING",
    paths.length === 1
      ? `The folder of the source's glob, ${paths[0]}, does not exist.`
      : `None of the folders of the source's globs exists: ${paths.join(", ")}.`,
    `${CHECK} If the source is meant to be empty, create an empty folder.`,
  );
}

export function missingFolder(path: string, happened: string): HoldfastError {
  return new HoldfastError("SOURCE_MISSING", `A folder of the source, ${path}, ${happened} while it was listed.`, CHECK);
}

export function unreadable(path: string, cause: unknown): HoldfastError {
  return new HoldfastError(
    "SOURCE_UNREADABLE",
    `${path} cannot be read: ${(cause as Error).message}.`,
    "Check its owner and permissions, or leave it out with `ignore` of files().",
    { cause },
  );
}

export function invalidName(path: string, is: string): HoldfastError {
  return new HoldfastError(
    "SOURCE_NAME_INVALID",
    `The name of ${JSON.stringify(path)} ${is}, so it cannot be the id of a target.`,
    "Rename it, or leave it out with `ignore` of files().",
  );
}

export function bytesChanged(path: string, happened: string, cause?: unknown): HoldfastError {
  return new HoldfastError(
    "BYTES_CHANGED",
    `${path} changed after it was claimed: ${happened}.`,
    "Start a new build, which processes the new bytes. With `snapshot: true` a build keeps the old ones.",
    { cause },
  );
}

/** Whether the file disappeared: it was deleted, or replaced by something that is no file. */
export function isGone(error: unknown): boolean {
  return GONE.has(faultOf(error) ?? "");
}

const GONE = new Set(["ENOENT", "ENOTDIR", "ELOOP", "EISDIR", "ENXIO"]);
