import { createHash, hash as hashNow } from "node:crypto";
import { closeSync, readSync } from "node:fs";
import { open } from "node:fs/promises";
import { HoldfastError } from "../../core/errors.ts";
import { SMALL } from "../sources/fingerprint-file.ts";
import { openNow, READ, statOpen } from "../sources/stat.ts";
import { turn } from "../sources/turns.ts";

/** So much is read, and hashed, at a time. */
const PIECE = 1024 * 1024;

/** All bytes of a file; null: they are others than these. Errors are the system's. */
export async function readBytes(path: string, expected: { size: number; hash: string }): Promise<Uint8Array | null> {
  if (expected.size > SMALL) return readLarge(path, expected);
  await turn();
  return readSmall(path, expected);
}

function readSmall(path: string, { size, hash }: { size: number; hash: string }): Uint8Array | null {
  const fd = openNow(path);
  try {
    if (statOpen(fd)?.size !== size) return null;
    const bytes = new Uint8Array(size);
    let filled = 0;
    for (let read = -1; read !== 0 && filled < size; filled += read) read = readSync(fd, bytes, filled, size - filled, null);
    return filled === size && hashNow("sha256", bytes) === hash ? bytes : null;
  } finally {
    closeSync(fd);
  }
}

async function readLarge(path: string, { size, hash }: { size: number; hash: string }): Promise<Uint8Array | null> {
  const handle = await open(path, READ);
  try {
    const stat = await handle.stat();
    if (!stat.isFile() || stat.size !== size) return null;
    const bytes = room(path, size);
    const digest = createHash("sha256");
    let filled = 0;
    while (filled < size) {
      const { bytesRead } = await handle.read(bytes, filled, Math.min(PIECE, size - filled), null);
      if (bytesRead === 0) return null;
      digest.update(bytes.subarray(filled, filled + bytesRead));
      filled += bytesRead;
    }
    return digest.digest("hex") === hash ? bytes : null;
  } finally {
    await handle.close();
  }
}

function room(path: string, size: number): Uint8Array {
  try {
    return new Uint8Array(size);
  } catch (cause) {
    throw new HoldfastError(
      "TARGET_TOO_LARGE",
      `${path} has ${size} bytes, which is too much to be read at once.`,
      "Read it with `stream()`, or by its `path`.",
      { cause },
    );
  }
}
