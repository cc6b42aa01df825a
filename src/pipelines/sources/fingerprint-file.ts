import { createHash, hash as hashNow } from "node:crypto";
import { type BigIntStats, closeSync, constants, fstatSync, openSync, readSync, statSync } from "node:fs";
import { open } from "node:fs/promises";
import { setImmediate } from "node:timers/promises";
import { faultOf } from "../../artifacts/folder.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import { type FileStat, type Fingerprint, isSameStat, toFingerprint } from "../../core/pipelines/context-hash.ts";

/** Up to here a file is read at once, and without handing it to another thread. */
export const SMALL: number = 64 * 1024;
const PIECE = 256 * 1024;
/** A file that is being written is given so many chances to be left alone while it is read. */
const TRIES = 4;

/**
 * The fingerprint of a file that was listed with this `stat`; null: it is gone. Nothing about the file was different after
 * the reading from what it was before. A write in the same tick of its clock can still hide in that, which is why the
 * fingerprint of a file that was just written is not trusted: see `mayHaveChanged`.
 */
export function fingerprintFile(path: string, stat: FileStat, clock: { now(): number }): Promise<Fingerprint | null> {
  return whileStill(path, stat, clock, hashFile);
}

/** What was read of a file. */
export interface Reading {
  hash: string;
  /** How many bytes there were. */
  size: number;
  after: FileStat;
}

/** Reads a file until no writer has changed it meanwhile. `read` gets the number of bytes to expect, and need not read many more. */
export async function whileStill(
  path: string,
  stat: FileStat,
  clock: { now(): number },
  read: (path: string, size: number) => Promise<Reading | null>,
): Promise<Fingerprint | null> {
  let before: FileStat | null = stat;
  for (let tries = 0; tries < TRIES; tries++) {
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

/** Null: there is no such file. Errors are the system's. */
export async function hashFile(path: string, size: number): Promise<Reading | null> {
  if (size > SMALL) return hashLarge(path, size);
  await turn();
  return hashSmall(path);
}

/** Null: there is no such file. */
export function statNow(path: string): FileStat | null {
  try {
    return statFile(path);
  } catch (error) {
    return orGone(path)(error);
  }
}

/** For errors of reading: null where the file is gone. */
export function orGone(path: string): (error: unknown) => null {
  return (error) => {
    if (error instanceof HoldfastError) throw error;
    if (isGone(error)) return null;
    throw unreadable(path, error);
  };
}

const buffer = Buffer.allocUnsafe(SMALL + 1);

function hashSmall(path: string): Reading | null {
  const fd = openNow(path);
  try {
    let size = 0;
    for (let read = -1; read !== 0 && size < buffer.length; size += read) {
      read = readSync(fd, buffer, size, buffer.length - size, null);
    }
    const after = statOpen(fd);
    // It may have grown: then what is after it says so, and not all of it was read.
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
    // Not to the end of one that grows as fast as it is read.
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

/** Opens without waiting for a writer, in case a pipe has taken the file's place. */
export const READ: number = constants.O_RDONLY | (constants.O_NONBLOCK ?? 0);

export function openNow(path: string): number {
  return openSync(path, READ);
}

/** So long, in milliseconds, others wait at most. */
const LENGTH = 10;

let begun = 0;
let next: Promise<void> | null = null;

/**
 * Small files are looked at and read without waiting, since handing each to another thread takes five times as long as
 * reading it. So that a hundred thousand of them do not hold up everything else, a caller asks here before each one.
 */
export async function turn(): Promise<void> {
  while (isOver()) await (next ??= giveOthers());
}

/** Whether it is time to ask: a call that saves a promise. */
export function isOver(): boolean {
  return performance.now() - begun > LENGTH;
}

async function giveOthers(): Promise<void> {
  await setImmediate();
  begun = performance.now();
  next = null;
}

const CHECK = "Check `root` of files(), the working directory, and that the disk is mounted.";

/** Not an empty source: everything in it would be taken for removed. */
export function missingRoot(path: string, is: string, cause?: unknown): HoldfastError {
  return new HoldfastError("SOURCE_MISSING", `The root of the source, ${path}, ${is}.`, CHECK, { cause });
}

/** Of what the globs begin with, nothing is there: as good as a missing root. */
export function missingFolders(paths: readonly string[]): HoldfastError {
  return new HoldfastError(
    "SOURCE_MISSING",
    paths.length === 1
      ? `The folder of the source's glob, ${paths[0]}, does not exist.`
      : `None of the folders of the source's globs exists: ${paths.join(", ")}.`,
    `${CHECK} If the source is meant to be empty, create an empty folder.`,
  );
}

/** A folder that a glob begins with. */
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

/**
 * It was there a moment ago, and is not any more: its name or its folder is gone, or leads in a circle, or a folder or a
 * socket has taken its place.
 */
export function isGone(error: unknown): boolean {
  return GONE.has(faultOf(error) ?? "");
}

const GONE = new Set(["ENOENT", "ENOTDIR", "ELOOP", "EISDIR", "ENXIO"]);
