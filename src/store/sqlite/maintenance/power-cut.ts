import { hash } from "node:crypto";
import {
  constants,
  copyFileSync,
  cpSync,
  existsSync,
  fstatSync,
  ftruncateSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readSync,
  renameSync,
  rmSync,
  statSync,
  writeSync,
} from "node:fs";
import { endianness } from "node:os";
import { basename, dirname, join, resolve } from "node:path";
import { HoldfastError } from "../../../core/text/errors.ts";
import type { Durability } from "../../store.ts";
import { fileSize, openFile } from "../faults.ts";
import { FRAME_HEADER, LOG_HEADER } from "./wal.ts";
import { mostSeen, readSlots } from "./witness.ts";

interface PowerCutOptions {
  /** Path of the database. A process that writes to it must be stopped. */
  from: string;
  to: string;
  /** Null: everything that is not synced is lost. A number: a seed that decides which unsynced sectors survive. */
  torn: number | null;
}

export interface PowerCutImage {
  path: string;
  durability: Durability;
  framesKept: number;
  bytesUnsynced: number;
}

const TRIES = 10;
const SECTOR_BYTES = 512;
/** Files not to copy: the log is copied by itself, opening the image makes a new index, and backups are on another disk. */
const NOT_IN_IMAGE = new Set(["-wal", "-shm", "-backups"]);

// Copies what a power cut would leave: of the log, only what SQLite has synced. With `synchronous=FULL` that is what the `-shm`
// says is committed; with NORMAL, what SQLite has begun to copy. A page with a newer version in the log may be half copied, so it
// is blanked. A process that has the database open must not call this: closing a file of it would drop the process's locks.
export function cutPower({ from, to, torn }: PowerCutOptions): PowerCutImage {
  if (!existsSync(from)) throw new HoldfastError("NO_DATABASE", `There is no database at ${from}.`, "Check the path.");
  if (existsSync(to)) {
    throw new HoldfastError("IMAGE_EXISTS", `A file or folder exists at ${to} already.`, "Give a path that does not exist.");
  }
  const folder = dirname(resolve(to));
  mkdirSync(folder, { recursive: true });
  const scratch = mkdtempSync(join(folder, ".power-cut-"));
  const image = join(scratch, basename(to));
  try {
    const index = copyAtRest(resolve(from), image);
    const durability = durabilityOf(from);
    const cut = cutLog(image, index, durability, torn);
    if (index !== null) blankCopied(image, cut.framesKept, index.pageSize);
    for (const entry of readdirSync(scratch)) renameSync(join(scratch, entry), join(folder, entry));
    return { path: resolve(to), durability, ...cut };
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}

function copyAtRest(from: string, to: string): WalIndex | null {
  for (let tried = 0; tried < TRIES; tried++) {
    const before = instantOf(from);
    const index = readWalIndex(from);
    copyFiles(from, to);
    if (instantOf(from) === before) return index;
  }
  throw new HoldfastError(
    "IN_USE",
    `Another process writes to ${from} while its image is taken.`,
    "Let only the simulated program and its child processes write during the simulation.",
  );
}

function instantOf(path: string): string {
  const files = ["", "-wal"].map((suffix) => statSync(path + suffix, { throwIfNoEntry: false, bigint: true }));
  return [readWalIndex(path)?.text, ...files.map((file) => `${file?.size} ${file?.mtimeNs}`)].join();
}

function copyFiles(from: string, to: string): void {
  const name = basename(from);
  copyFileSync(from, to, constants.COPYFILE_FICLONE);
  rmSync(`${to}-wal`, { force: true });
  if (existsSync(`${from}-wal`)) copyFileSync(`${from}-wal`, `${to}-wal`, constants.COPYFILE_FICLONE);
  for (const entry of readdirSync(dirname(from))) {
    const suffix = entry.slice(name.length);
    if (!entry.startsWith(`${name}-`) || NOT_IN_IMAGE.has(suffix)) continue;
    cpSync(join(dirname(from), entry), to + suffix, { recursive: true, force: true });
  }
}

/** Reads the durability from the witness, because opening the database would change it. */
function durabilityOf(path: string): Durability {
  const seen = mostSeen(readSlots(path));
  if (seen !== null) return seen.durability;
  throw new HoldfastError("NO_DATABASE", `There is no Holdfast database at ${path}.`, "Give the path that the program opens.");
}

function cutLog(
  image: string,
  index: WalIndex | null,
  durability: Durability,
  torn: number | null,
): Pick<PowerCutImage, "framesKept" | "bytesUnsynced"> {
  const size = fileSize(`${image}-wal`);
  // Without an index, no process has the log open, and SQLite has synced it.
  if (index === null || size === 0) return { framesKept: 0, bytesUnsynced: 0 };
  const framesKept = durability === "power" ? index.committed : Math.max(index.copied, index.copying);
  const end = framesKept === 0 ? 0 : LOG_HEADER + framesKept * (FRAME_HEADER + index.pageSize);
  using log = openFile(`${image}-wal`, "r+");
  if (torn === null) ftruncateSync(log.fd, end);
  else tear(log.fd, end, size, torn);
  return { framesKept, bytesUnsynced: size - end };
}

function tear(log: number, end: number, size: number, seed: number): void {
  for (let at = Math.ceil(end / SECTOR_BYTES) * SECTOR_BYTES; at < size; at += SECTOR_BYTES) {
    if (hash("sha1", `${seed} ${at}`, "buffer").readUInt8(0) < 128) continue;
    writeSync(log, Buffer.alloc(Math.min(SECTOR_BYTES, size - at)), 0, null, at);
  }
}

function blankCopied(image: string, frames: number, pageSize: number): void {
  if (frames === 0) return;
  using log = openFile(`${image}-wal`, "r");
  using db = openFile(image, "r+");
  const pages = fstatSync(db.fd).size / pageSize;
  const number = Buffer.alloc(4);
  for (let frame = 0; frame < frames; frame++) {
    readSync(log.fd, number, 0, 4, LOG_HEADER + frame * (FRAME_HEADER + pageSize));
    const page = number.readUInt32BE();
    // The first page identifies the file for programs that read it before they open it.
    if (page > 1 && page <= pages) writeSync(db.fd, Buffer.alloc(pageSize), 0, pageSize, (page - 1) * pageSize);
  }
}

/** The `-shm` file, in which processes that have a database open share the state of its log. */
interface WalIndex {
  pageSize: number;
  /** The last frame of the newest commit; with `synchronous=FULL` it is synced. */
  committed: number;
  copied: number;
  copying: number;
  /** The whole index as a text. Equal texts are of the same instant. */
  text: string;
}

const IS_LITTLE = endianness() === "LE";
const HEADER = 48;
const LENGTH = 136;

/** Reads the index. Null: no process has the database open, or none has read its log yet. */
function readWalIndex(path: string): WalIndex | null {
  const file = `${path}-shm`;
  if (fileSize(file) < LENGTH) return null;
  const bytes = Buffer.alloc(LENGTH);
  {
    using shm = openFile(file, "r");
    readSync(shm.fd, bytes, 0, LENGTH, 0);
  }
  // SQLite writes the header twice, the second copy first, so a process that is stopped in between leaves one intact.
  const header = [bytes.subarray(HEADER, 2 * HEADER), bytes.subarray(0, HEADER)].find(isWhole);
  if (header === undefined) return null;
  const size = IS_LITTLE ? header.readUInt16LE(14) : header.readUInt16BE(14);
  return {
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
  return IS_LITTLE ? bytes.readUInt32LE(at) : bytes.readUInt32BE(at);
}
