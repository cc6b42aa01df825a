import { hash as hashNow, createHash } from "node:crypto";
import { closeSync, readSync } from "node:fs";
import { type FileHandle, open } from "node:fs/promises";
import { type FileStat, type Fingerprint, isSameStat, toFingerprint } from "../../core/fingerprint.ts";
import { bytesChanged, isGone, unreadable } from "./source-errors.ts";
import { openNow, READ, statFile, statOpen, toFileStat } from "./stat.ts";
import { turn } from "./turns.ts";

/** Up to here a file is read at once, and without handing it to another thread. */
const SMALL = 64 * 1024;
const PIECE = 256 * 1024;
/** A file that is being written is given so many chances to be left alone while it is read. */
const TRIES = 4;

/**
 * The fingerprint of a file that was listed with this `stat`; null: it is gone. The file had all of these bytes at once:
 * nothing about it was different after the reading from what it was before.
 */
export async function fingerprintFile(path: string, stat: FileStat, clock: { now(): number }): Promise<Fingerprint | null> {
  let before: FileStat | null = stat;
  for (let tries = 0; tries < TRIES; tries++) {
    const hashedAt = clock.now();
    const read = await hashFile(path, before.size);
    if (read === null) return null;
    if (isSameStat(before, read.after) && read.size === before.size) return toFingerprint(before, read.hash, hashedAt);
    before = statFileOf(path);
    if (before === null) return null;
  }
  throw bytesChanged(path, "it was written to each time that it was read");
}

interface Read {
  hash: string;
  /** How many bytes there were. */
  size: number;
  after: FileStat;
}

/** Null: there is no such file. `size` is what to expect. */
export async function hashFile(path: string, size: number): Promise<Read | null> {
  try {
    if (size > SMALL) return await hashLarge(path, size);
    await turn();
    return hashSmall(path);
  } catch (error) {
    if (isGone(error)) return null;
    throw unreadable(path, error);
  }
}

const buffer = Buffer.allocUnsafe(SMALL + 1);

function hashSmall(path: string): Read | null {
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

async function hashLarge(path: string, expected: number): Promise<Read | null> {
  const handle: FileHandle = await open(path, READ);
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

function statFileOf(path: string): FileStat | null {
  try {
    return statFile(path);
  } catch (error) {
    if (isGone(error)) return null;
    throw unreadable(path, error);
  }
}
