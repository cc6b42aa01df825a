import { createHash, type Hash } from "node:crypto";
import { chmodSync, closeSync, openSync, readSync, statSync } from "node:fs";
import { type FileHandle } from "node:fs/promises";

const PIECE = 256 * 1024;

/**
 * The bytes of an open file. The last piece is kept back until all of them are known to be right: nobody comes to the end
 * of wrong ones, and nobody gets many more of them than there should be. `wrong` is what is thrown then.
 */
export async function* verifiedPieces(
  handle: FileHandle,
  { hash, size }: { hash: string; size?: number },
  wrong: () => Error,
): AsyncGenerator<Buffer> {
  const digest = createHash("sha256");
  let held: Buffer | null = null;
  let left = size ?? Infinity;
  for (;;) {
    const piece: Buffer = Buffer.allocUnsafe(PIECE);
    const { bytesRead } = await handle.read(piece, 0, PIECE, null);
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

/** The same of a closed one, for those who cannot wait. */
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

/** A copy has the mode of what it is a copy of; whoever made it may do with it as he likes. */
export function ownNow(path: string): void {
  chmodSync(path, statSync(path).mode | 0o600);
}
