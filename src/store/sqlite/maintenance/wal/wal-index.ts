import { closeSync, openSync, readSync, statSync } from "node:fs";
import { endianness } from "node:os";

/** What those who have a database open tell each other about its log, in the `-shm` file. */
export interface WalIndex {
  pageSize: number;
  /** The last frame of the newest commit. SQLite says so after it has synced the log, where it syncs at every commit. */
  committed: number;
  /** Frames that are copied into the database. */
  copied: number;
  /** Frames that somebody has begun to copy: before he does, he syncs the log. */
  copying: number;
  /** All of it: two that are equal are of the same instant. */
  text: string;
}

const HEADER = 48;
const LENGTH = 136;
const LITTLE = endianness() === "LE";

/** Null: nobody has the database open, or nobody has looked at its log yet. */
export function readWalIndex(path: string): WalIndex | null {
  const file = `${path}-shm`;
  if ((statSync(file, { throwIfNoEntry: false })?.size ?? 0) < LENGTH) return null;
  const bytes = Buffer.alloc(LENGTH);
  const fd = openSync(file, "r");
  try {
    readSync(fd, bytes, 0, LENGTH, 0);
  } finally {
    closeSync(fd);
  }
  // It is written twice, the second copy first: whoever is stopped in between leaves one that is whole.
  const header = [bytes.subarray(HEADER, 2 * HEADER), bytes.subarray(0, HEADER)].find(isWhole);
  if (header === undefined) return null;
  const size = LITTLE ? header.readUInt16LE(14) : header.readUInt16BE(14);
  return {
    // 65536 does not fit into two bytes.
    pageSize: size === 1 ? 65_536 : size,
    committed: word(header, 16),
    copied: word(bytes, 2 * HEADER),
    copying: word(bytes, 2 * HEADER + 32),
    text: bytes.toString("hex"),
  };
}

function isWhole(header: Buffer): boolean {
  if (header.readUInt8(12) === 0) return false;
  let [a, b] = [0, 0];
  for (let at = 0; at < 40; at += 8) {
    a = (a + word(header, at) + b) >>> 0;
    b = (b + word(header, at + 4) + a) >>> 0;
  }
  return a === word(header, 40) && b === word(header, 44);
}

function word(bytes: Buffer, at: number): number {
  return LITTLE ? bytes.readUInt32LE(at) : bytes.readUInt32BE(at);
}
