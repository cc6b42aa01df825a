import { createHash } from "node:crypto";
import { closeSync, fchmodSync, fsyncSync, openSync, readSync, renameSync, writeFileSync, writeSync } from "node:fs";
import { dirname } from "node:path";

const PIECE = 1024 * 1024;

/** The sha-256 of a file, and of what a copy of it was given. No database that is open may be read like this: it would lose its locks. */
export function digestFile(path: string, tell: (done: number) => void = () => {}, copy?: (piece: Buffer) => void): string {
  const digest = createHash("sha256");
  const piece = Buffer.allocUnsafe(PIECE);
  const fd = openSync(path, "r");
  try {
    for (let done = 0; ;) {
      const read = readSync(fd, piece, 0, PIECE, null);
      if (read === 0) return digest.digest("hex");
      const bytes = piece.subarray(0, read);
      digest.update(bytes);
      copy?.(bytes);
      tell((done += read));
    }
  } finally {
    closeSync(fd);
  }
}

/** A copy of it, synced; the answer is the sha-256 of the bytes that were copied. */
export function copyFileSynced(from: string, to: string, tell?: (done: number) => void): string {
  const fd = openSync(to, "wx", 0o600);
  try {
    const sha256 = digestFile(from, tell, (piece) => {
      for (let at = 0; at < piece.length;) at += writeSync(fd, piece, at);
    });
    fsyncSync(fd);
    return sha256;
  } finally {
    closeSync(fd);
  }
}

/** What was written to it is on the disk. */
export function syncFile(path: string): void {
  const fd = openSync(path, "r+");
  try {
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
}

/** The names in it are on the disk. Windows cannot sync a folder, and needs not. */
export function syncFolder(path: string): void {
  if (process.platform === "win32") return;
  const fd = openSync(path, "r");
  try {
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
}

/** Whole, under its name, on the disk; or not at all. */
export function writeSynced(path: string, text: string, mode: number): void {
  const part = `${path}.part`;
  const fd = openSync(part, "w", mode);
  try {
    fchmodSync(fd, mode);
    writeFileSync(fd, text);
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
  renameSync(part, path);
  syncFolder(dirname(path));
}
