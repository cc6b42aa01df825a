/** What a write-ahead log begins with, and what each frame in it does: then comes a page. */
export const LOG_HEADER = 32;
export const FRAME_HEADER = 24;
const MAGIC = 0x377f_0682;

/** A checksum; each frame's continues that of the frame before. */
export type Sum = readonly [number, number];

export interface LogHeader {
  /** False: it is not what was written, and nothing that it says is relied on. */
  whole: boolean;
  pageSize: number;
  /** Words are read in the order of whoever made the log. */
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

export interface Frame {
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
export function wasEnd(bytes: Buffer, at: number, { pageSize, little }: LogHeader, sums: readonly Sum[]): boolean {
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
export function saltsAt(bytes: Buffer, at: number): Buffer {
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

const LITTLE = new Uint8Array(Uint32Array.of(1).buffer)[0] === 1;
