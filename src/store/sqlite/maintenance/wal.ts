import { spawn } from "node:child_process";
import { createReadStream } from "node:fs";
import { endianness } from "node:os";
import { Readable } from "node:stream";
import { type Connection } from "../driver.ts";
import { fileSize } from "../faults.ts";

export interface Scanned {
  bytes: number;
  /** Number of frames that SQLite replays: those that are intact, up to the last commit. */
  frames: number;
  bad: BadFrame | null;
}

interface BadFrame {
  /** The first damaged frame, counted from 1; 0: the header. */
  frame: number;
  ended: boolean;
  beyond: number;
}

/** Reads the frames of a log. SQLite stops at the first bad one; this continues: if later ones fit, it was intact once. */
class Frames {
  #left: Buffer = Buffer.alloc(0);
  #bytes = 0;
  #header: LogHeader | null = null;
  #sums: readonly Sum[] = [];
  #frame = 0;
  #frames = 0;
  #bad: BadFrame | null = null;
  #over = false;

  add(piece: Buffer): void {
    this.#bytes += piece.length;
    if (this.#over) return;
    // Make a copy that is aligned for reading words.
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
    return { bytes: this.#bytes, frames: this.#frames, bad: this.#bad };
  }

  #next(bytes: Buffer, at: number, header: LogHeader): void {
    this.#frame++;
    header.salts ??= Buffer.from(bytes.subarray(at + 8, at + 16));
    const before = this.#sums;
    const { fits, pages, sums } = frameAt(bytes, at, header, before);
    this.#sums = sums;
    if (!fits) return this.#misfit(() => wasEnd(bytes, at, header, before));
    if (pages === 0) return;
    if (this.#bad !== null) return void this.#bad.beyond++;
    this.#frames = this.#frame;
  }

  /** Handles a frame that does not fit. The first one may be the end of the log, or damage, which later frames show. */
  #misfit(ended: () => boolean): void {
    // Do not stop at the first frame after a bad header, because it has no checksum to continue.
    if (this.#bad !== null && !(this.#bad.frame === 0 && this.#frame === 1)) return void (this.#over = true);
    this.#bad ??= { frame: this.#frame, ended: false, beyond: 0 };
    this.#bad.ended = ended();
  }
}

export const LOG_HEADER = 32;
export const FRAME_HEADER = 24;
const MAGIC = 0x377f_0682;

type Sum = readonly [number, number];

interface LogHeader {
  whole: boolean;
  pageSize: number;
  little: boolean;
  /** Salts, which are equal in all frames of this log. Null: they are taken from the first frame. */
  salts: Buffer | null;
  sums: Sum[];
}

function headerOf(bytes: Buffer): LogHeader {
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
  /** Size of the database in pages after the commit that ends with this frame. 0: no commit ends here. */
  pages: number;
  fits: boolean;
  /** Checksums that the next frame may continue. After a misfit these are the stored one and the computed ones. */
  sums: Sum[];
}

function frameAt(bytes: Buffer, at: number, { pageSize, little, salts }: LogHeader, sums: readonly Sum[]): Frame {
  const stored: Sum = [bytes.readUInt32BE(at + 16), bytes.readUInt32BE(at + 20)];
  const computed = sums.map((base) => sum(sum(base, bytes, at, 8, little), bytes, at + FRAME_HEADER, pageSize, little));
  // Older frames in the file have other salts.
  const isOfThisLog = salts === null || bytes.compare(salts, 0, 8, at + 8, at + 16) === 0;
  const fits = isOfThisLog && computed.some((one) => isSame(one, stored));
  return { pages: bytes.readUInt32BE(at + 4), fits, sums: fits ? [stored] : [stored, ...computed] };
}

/** Whether a misfitting frame ended a commit: by its own field, unless one flipped bit of that field explains the misfit. */
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

function isSize(size: number): boolean {
  return size >= 512 && size <= 65_536 && (size & (size - 1)) === 0;
}

function isSame(a: Sum, b: Sum): boolean {
  return a[0] === b[0] && a[1] === b[1];
}

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

const PRINT = "require('node:fs').createReadStream(process.argv[1]).pipe(process.stdout)";

/** Scans a log. A child process reads it, because closing the file here would drop this process's locks. Null: there is none. */
export async function scanLog(path: string): Promise<Scanned | null> {
  const log = `${path}-wal`;
  if (fileSize(log) === 0) return null;
  const scanned = await scan(log);
  if (scanned === null) return null;
  if (scanned.bad === null) return scanned;
  // Scan twice: if another process wrote during the first scan, the second one differs.
  const again = await scan(log);
  if (again === null) return null;
  return again.bad?.frame === scanned.bad.frame ? again : { ...again, bad: null };
}

/** Null: another process has removed the log meanwhile, as the last one that closes a database does. */
async function scan(log: string): Promise<Scanned | null> {
  const frames = new Frames();
  try {
    for await (const piece of read(log)) frames.add(piece);
  } catch (error) {
    if (fileSize(log) === 0) return null;
    throw error;
  }
  return frames.end();
}

async function* read(log: string): AsyncGenerator<Buffer> {
  // Read it here on Windows, where locks belong to handles and not to processes.
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

export function walSize(path: string): number {
  return path === ":memory:" ? 0 : fileSize(`${path}-wal`);
}

export function framesIn(db: Connection): number {
  const [, frames] = db.prepare("pragma wal_checkpoint(noop)").row() as [number, number, number];
  return Math.max(0, frames);
}
