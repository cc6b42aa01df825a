import { spawn } from "node:child_process";
import { closeSync, createReadStream, openSync, readSync, statSync } from "node:fs";
import { endianness } from "node:os";
import { Readable } from "node:stream";
import type { Connection } from "../driver.ts";

/** What a write-ahead log holds, read as SQLite would, and beyond where it would stop. */
export interface Scanned {
  bytes: number;
  /** Frames that SQLite replays: whole, up to the last commit. */
  frames: number;
  commits: number;
  /**
   * The first frame that is not what was written, counted from 1, 0 for the header; whether it was the end of a commit; and
   * the commits beyond it that are whole, each following from what stands before it. Null: all is well up to where it ends.
   */
  bad: Bad | null;
}

interface Bad {
  frame: number;
  ended: boolean;
  beyond: number;
}

/**
 * Reads a log piece by piece. Each frame's checksum continues that of the frame before, so SQLite silently stops at the
 * first that does not fit: that is how it knows where the last commit ended, and why a flipped bit hides all that follows.
 * Here it continues from what stands in the bad frame. What then fits was written after it, so the bad one was whole once.
 */
class Frames {
  #left: Buffer = Buffer.alloc(0);
  #bytes = 0;
  #header: LogHeader | null = null;
  #sums: readonly Sum[] = [];
  #frame = 0;
  #frames = 0;
  #commits = 0;
  #bad: Bad | null = null;
  #over = false;

  add(piece: Buffer): void {
    this.#bytes += piece.length;
    if (this.#over) return;
    // A copy of its own, so that words lie where they can be read as such.
    const bytes: Buffer = Buffer.from(new ArrayBuffer(this.#left.length + piece.length));
    this.#left.copy(bytes);
    piece.copy(bytes, this.#left.length);
    let at = 0;
    if (this.#header === null) {
      if (bytes.length < LOG_HEADER) return void (this.#left = bytes);
      this.#header = headerOf(bytes);
      this.#sums = this.#header.sums;
      if (!this.#header.whole) this.#bad = { frame: 0, ended: false, beyond: 0 };
      at = LOG_HEADER;
    }
    const whole = FRAME_HEADER + this.#header.pageSize;
    for (; !this.#over && at + whole <= bytes.length; at += whole) this.#next(bytes, at, this.#header);
    this.#left = bytes.subarray(at);
  }

  end(): Scanned {
    return { bytes: this.#bytes, frames: this.#frames, commits: this.#commits, bad: this.#bad };
  }

  #next(bytes: Buffer, at: number, header: LogHeader): void {
    this.#frame++;
    header.salts ??= saltsAt(bytes, at);
    const before = this.#sums;
    const { fits, pages, sums } = frameAt(bytes, at, header, before);
    this.#sums = sums;
    if (!fits) return this.#stop(() => wasEnd(bytes, at, header, before));
    if (pages === 0) return;
    if (this.#bad !== null) return void this.#bad.beyond++;
    this.#frames = this.#frame;
    this.#commits++;
  }

  /** The first that does not fit may be the end, or damage: what follows tells. A second one ends it. */
  #stop(ended: () => boolean): void {
    // The frame after a bad header can only be judged by what stands in itself.
    if (this.#bad !== null && !(this.#bad.frame === 0 && this.#frame === 1)) return void (this.#over = true);
    this.#bad ??= { frame: this.#frame, ended: false, beyond: 0 };
    this.#bad.ended = ended();
  }
}

/** What a write-ahead log begins with, and what each frame in it does: then comes a page. */
export const LOG_HEADER = 32;
export const FRAME_HEADER = 24;
const MAGIC = 0x377f_0682;

/** A checksum; each frame's continues that of the frame before. */
export type Sum = readonly [number, number];

interface LogHeader {
  /** False: it is not what was written, and nothing that it says is relied on. */
  whole: boolean;
  pageSize: number;
  /** Words are read in the byte order of the host that made the log. */
  little: boolean;
  /** All frames of this log have the same; null: as the first has them. */
  salts: Buffer | null;
  /** What the first frame may continue. */
  sums: Sum[];
}

export function headerOf(bytes: Buffer): LogHeader {
  const magic = bytes.readUInt32BE(0);
  const size = bytes.readUInt32BE(8);
  const stored: Sum = [bytes.readUInt32BE(24), bytes.readUInt32BE(28)];
  const little = (magic & 1) === 0;
  const computed = sum([0, 0], bytes, 0, 24, little);
  const whole = (magic & ~1) >>> 0 === MAGIC && isSame(stored, computed);
  return {
    whole,
    pageSize: isSize(size) ? size : 4_096,
    little: whole ? little : LITTLE,
    salts: whole ? Buffer.from(bytes.subarray(16, 24)) : null,
    sums: [stored, computed],
  };
}

interface Frame {
  page: number;
  /** How many pages the database has after the commit that ends here; 0: none does. */
  pages: number;
  /** It has the log's salts: it is of this log, and not of what stood there before. */
  salted: boolean;
  /** It is what was written after what stands before it. */
  fits: boolean;
  /** What the next may continue: one, or after a frame that does not fit what stands in it and what should. */
  sums: Sum[];
}

/** The frame at a place, with its page behind it. */
export function frameAt(bytes: Buffer, at: number, { pageSize, little, salts }: LogHeader, sums: readonly Sum[]): Frame {
  const stored: Sum = [bytes.readUInt32BE(at + 16), bytes.readUInt32BE(at + 20)];
  const computed = sums.map((base) => sum(sum(base, bytes, at, 8, little), bytes, at + FRAME_HEADER, pageSize, little));
  const salted = salts === null || bytes.compare(salts, 0, 8, at + 8, at + 16) === 0;
  const fits = salted && computed.some((one) => isSame(one, stored));
  return {
    page: bytes.readUInt32BE(at),
    pages: bytes.readUInt32BE(at + 4),
    salted,
    fits,
    sums: fits ? [stored] : [stored, ...computed],
  };
}

/** Whether a frame that does not fit ended a commit: it says so itself, unless a bit of just that is what is wrong with it. */
function wasEnd(bytes: Buffer, at: number, { pageSize, little }: LogHeader, sums: readonly Sum[]): boolean {
  const stored: Sum = [bytes.readUInt32BE(at + 16), bytes.readUInt32BE(at + 20)];
  const says = bytes.readUInt32BE(at + 4);
  const head = Buffer.from(bytes.subarray(at, at + 8));
  for (let bit = 0; bit < 32; bit++) {
    const was = (says ^ (1 << bit)) >>> 0;
    head.writeUInt32BE(was, 4);
    const continued = sums.map((base) => sum(sum(base, head, 0, 8, little), bytes, at + FRAME_HEADER, pageSize, little));
    if (continued.some((one) => isSame(one, stored))) return was !== 0;
  }
  return says !== 0;
}

/** The salts that stand in a frame. */
function saltsAt(bytes: Buffer, at: number): Buffer {
  return Buffer.from(bytes.subarray(at + 8, at + 16));
}

function isSize(size: number): boolean {
  return size >= 512 && size <= 65_536 && (size & (size - 1)) === 0;
}

function isSame(a: Sum, b: Sum): boolean {
  return a[0] === b[0] && a[1] === b[1];
}

/** SQLite's: over words, in pairs. */
function sum([a, b]: Sum, bytes: Buffer, at: number, length: number, little: boolean): Sum {
  let [s0, s1] = [a | 0, b | 0];
  const start = bytes.byteOffset + at;
  if (little === LITTLE && start % 4 === 0) {
    const words = new Int32Array(bytes.buffer, start, length / 4);
    for (let i = 0; i < words.length; i += 2) {
      s0 = (s0 + (words[i] as number) + s1) | 0;
      s1 = (s1 + (words[i + 1] as number) + s0) | 0;
    }
  } else {
    for (let i = at; i < at + length; i += 8) {
      s0 = (s0 + (little ? bytes.readInt32LE(i) : bytes.readInt32BE(i)) + s1) | 0;
      s1 = (s1 + (little ? bytes.readInt32LE(i + 4) : bytes.readInt32BE(i + 4)) + s0) | 0;
    }
  }
  return [s0 >>> 0, s1 >>> 0];
}

const LITTLE = endianness() === "LE";

/** Prints a file, where there is no `cat`. */
const PRINT = "require('node:fs').createReadStream(process.argv[1]).pipe(process.stdout)";

/**
 * What is in a database's log, as it lies on the disk; null where there is none. Another process reads it: in this one,
 * closing a descriptor of the file would drop the locks of this process on the database.
 */
export async function scanLog(path: string): Promise<Scanned | null> {
  const log = `${path}-wal`;
  if (isEmpty(log)) return null;
  const scanned = await scan(log);
  if (scanned === null) return null;
  if (scanned.bad === null) return scanned;
  // Another process may have written while it was read; then it reads otherwise now.
  const again = await scan(log);
  if (again === null) return null;
  return again.bad?.frame === scanned.bad.frame ? again : { ...again, bad: null };
}

/** Null: another process has removed it meanwhile, as the last to close a database does. */
async function scan(log: string): Promise<Scanned | null> {
  const frames = new Frames();
  try {
    for await (const piece of read(log)) frames.add(piece);
  } catch (error) {
    if (isEmpty(log)) return null;
    throw error;
  }
  return frames.end();
}

function isEmpty(log: string): boolean {
  return (statSync(log, { throwIfNoEntry: false })?.size ?? 0) === 0;
}

async function* read(log: string): AsyncGenerator<Buffer> {
  // There, locks belong to handles and not to processes.
  if (process.platform === "win32") return yield* createReadStream(log) as AsyncIterable<Buffer>;
  try {
    yield* output("cat", ["--", log]);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ENOENT") throw error;
    yield* output(process.execPath, ["-e", PRINT, log]);
  }
}

async function* output(command: string, args: readonly string[]): AsyncGenerator<Buffer> {
  const child = spawn(command, args, { stdio: ["ignore", "pipe", "ignore"] });
  const ended = new Promise<void>((resolve, reject) => {
    child.on("error", reject);
    child.on("close", (code) => (code === 0 ? resolve() : reject(new Error(`${command} ended with ${code}`))));
  });
  ended.catch(() => {});
  yield* Readable.from(child.stdout) as AsyncIterable<Buffer>;
  await ended;
}

/** The write-ahead log as the process that opened the database found it. */
export interface LogAtOpening {
  bytes: number;
  frames: number;
}

/** In bytes. Looking it up opens nothing. */
export function walSize(path: string): number {
  return path === ":memory:" ? 0 : (statSync(`${path}-wal`, { throwIfNoEntry: false })?.size ?? 0);
}

/** How many frames of the write-ahead log count. */
export function framesIn(db: Connection): number {
  const [, frames] = db.prepare("pragma wal_checkpoint(noop)").row() as [number, number, number];
  return Math.max(0, frames);
}

/** What those who have a database open tell each other about its log, in the `-shm` file. */
export interface WalIndex {
  pageSize: number;
  /** The last frame of the newest commit. SQLite says so after it has synced the log, where it syncs at every commit. */
  committed: number;
  /** Frames that are copied into the database. */
  copied: number;
  /** Frames that a process has begun to copy: before that, it syncs the log. */
  copying: number;
  /** All of it: two that are equal are of the same instant. */
  text: string;
}

const HEADER = 48;
const LENGTH = 136;

/** Null: no process has the database open, or none has looked at its log yet. */
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
  // It is written twice, the second copy first: a process that is stopped in between leaves one that is whole.
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
