import { createHash, type Hash } from "node:crypto";
import { chmodSync, closeSync, openSync, readSync, statSync } from "node:fs";
import { type FileHandle, open, rm } from "node:fs/promises";
import { faultOf, isAbsent, Layout, makeFolder, syncFolder, writeNew } from "./folder.ts";

export interface Collected {
  bytes: number;
  missing: string[];
}

interface CollectOptions {
  folder: string;
  mode: number;
  pieces: (hash: string) => AsyncIterable<Buffer>;
  onProgress: (done: number) => void;
}

/** Copies artifacts into a folder of the same layout and syncs them. It leaves out missing and damaged ones, and reports them. */
export async function collect(
  hashes: readonly string[],
  { folder, mode, pieces, onProgress }: CollectOptions,
): Promise<Collected> {
  const layout = new Layout(folder, mode);
  const shelves = new Set<string>();
  const collected: Collected = { bytes: 0, missing: [] };
  await makeFolder(folder, mode);
  for (const [i, hash] of hashes.entries()) {
    const shelf = layout.shelfOf(hash);
    if (!shelves.has(shelf)) await makeFolder(shelf, mode);
    shelves.add(shelf);
    const bytes = await copy(pieces(hash), layout.fileOf(hash), mode);
    if (bytes === null) collected.missing.push(hash);
    else collected.bytes += bytes;
    onProgress(i + 1);
  }
  for (const shelf of shelves) await syncFolder(shelf);
  await syncFolder(folder);
  return collected;
}

export async function lacking(hashes: readonly string[], folder: string, onProgress: (done: number) => void): Promise<string[]> {
  const layout = new Layout(folder, 0);
  const found: string[] = [];
  for (const [i, hash] of hashes.entries()) {
    if (!(await isWhole(layout.fileOf(hash), hash))) found.push(hash);
    onProgress(i + 1);
  }
  return found;
}

async function isWhole(path: string, hash: string): Promise<boolean> {
  await using handle = await open(path, "r").catch((error: unknown) => {
    if (isAbsent(error)) return null;
    throw error;
  });
  return handle !== null && (await hashOf(handle)) === hash;
}

async function copy(pieces: AsyncIterable<Buffer>, to: string, mode: number): Promise<number | null> {
  try {
    return await writeNew(to, pieces, mode & 0o444);
  } catch (error) {
    if (!["ARTIFACT_MISSING", "ARTIFACT_DAMAGED"].includes(faultOf(error) ?? "")) throw error;
  }
  await rm(to, { force: true });
  return null;
}

const PIECE = 256 * 1024;

/** Yields the last piece only after the hash matches, so that no reader reaches the end of wrong bytes. Else throws `wrong`. */
export async function* verifiedPieces(
  handle: FileHandle,
  { hash, size }: { hash: string; size?: number },
  wrong: () => Error,
): AsyncGenerator<Buffer> {
  const digest = createHash("sha256");
  let held: Buffer | null = null;
  let left = size ?? Infinity;
  // Small files get small buffers, because thousands of large ones keep the garbage collector busy.
  const pieceSize = Math.min(PIECE, (size ?? (await handle.stat()).size) + 1);
  for (;;) {
    const piece: Buffer = Buffer.allocUnsafe(pieceSize);
    const { bytesRead } = await handle.read(piece, 0, pieceSize, null);
    if (bytesRead === 0) break;
    left -= bytesRead;
    if (left < 0) throw wrong();
    digest.update(piece.subarray(0, bytesRead));
    if (held !== null) yield held;
    held = piece.subarray(0, bytesRead);
  }
  if (digest.digest("hex") !== hash) throw wrong();
  if (held !== null) yield held;
}

export async function hashOf(handle: FileHandle): Promise<string> {
  const digest: Hash = createHash("sha256");
  const { size } = await handle.stat();
  const piece = Buffer.allocUnsafe(Math.min(PIECE, size + 1));
  for (let at = 0; ;) {
    const { bytesRead } = await handle.read(piece, 0, piece.length, at);
    if (bytesRead === 0) return digest.digest("hex");
    digest.update(piece.subarray(0, bytesRead));
    at += bytesRead;
  }
}

export function hashOfNow(path: string): string {
  const digest = createHash("sha256");
  const piece = Buffer.allocUnsafe(PIECE);
  const fd = openSync(path, "r");
  try {
    for (;;) {
      const read = readSync(fd, piece, 0, PIECE, null);
      if (read === 0) return digest.digest("hex");
      digest.update(piece.subarray(0, read));
    }
  } finally {
    closeSync(fd);
  }
}

/** Makes a copy writable for its owner, because it has the read-only mode of the artifact. */
export function ownNow(path: string): void {
  chmodSync(path, statSync(path).mode | 0o600);
}
