import { createHash, hash as hashNow } from "node:crypto";
import { closeSync, readSync } from "node:fs";
import { open } from "node:fs/promises";
import { HoldfastError } from "../../core/errors.ts";
import { type FileStat, type Fingerprint, isSameStat, toFingerprint } from "../../core/fingerprint.ts";
import { bytesChanged, isGone, unreadable } from "./source-errors.ts";
import { openNow, READ, statFile, statOpen, toFileStat } from "./stat.ts";
import { turn } from "./turns.ts";

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

/** Reads it until nobody has written to it meanwhile. `read` is told how many bytes to expect, and need not read many more. */
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
