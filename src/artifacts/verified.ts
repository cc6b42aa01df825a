import { createHash, type Hash } from "node:crypto";
import { type FileHandle } from "node:fs/promises";
import { damaged } from "./faults.ts";

const PIECE = 256 * 1024;

/**
 * The bytes of an open file. The last piece is kept back until all of them are known to be right: nobody comes to the end
 * of wrong ones.
 */
export async function* verifiedPieces(handle: FileHandle, hash: string, path: string): AsyncGenerator<Buffer> {
  const digest = createHash("sha256");
  let held: Buffer | null = null;
  for (;;) {
    const piece: Buffer = Buffer.allocUnsafe(PIECE);
    const { bytesRead } = await handle.read(piece, 0, PIECE, null);
    if (bytesRead === 0) break;
    digest.update(piece.subarray(0, bytesRead));
    if (held !== null) yield held;
    held = piece.subarray(0, bytesRead);
  }
  if (digest.digest("hex") !== hash) throw damaged(hash, path);
  if (held !== null) yield held;
}

/** What an open file is named after, if it is whole. */
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
