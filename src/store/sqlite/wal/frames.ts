/** The header of a log, and that of each frame in it. */
const HEADER = 32;
const FRAME = 24;
const MAGIC = 0x377f_0682;

/** What a write-ahead log holds, read as SQLite would, and beyond where it would stop. */
export interface Scanned {
  bytes: number;
  /** Frames that SQLite replays: whole, up to the last commit. */
  frames: number;
  commits: number;
  /**
   * The first frame that is not what was written, counted from 1, 0 for the header; and the commits beyond it that are
   * whole, each following from what stands before it. Null: all is well up to where it ends.
   */
  bad: { frame: number; beyond: number } | null;
}

export type Sum = readonly [number, number];

/**
 * Reads a log piece by piece. Each frame's checksum continues that of the frame before, so SQLite silently stops at the
 * first that does not fit: that is how it knows where the last commit ended, and why a flipped bit hides all that follows.
 * Here it goes on from what stands in the bad frame. What then fits was written after it, so the bad one was whole once.
 */
export class Frames {
  #left: Buffer = Buffer.alloc(0);
  #bytes = 0;
  #size = 0;
  #little = true;
  #salts: Buffer | null = null;
  /** What the next frame may continue: one, or after a bad frame what stands in it and what should. */
  #sums: Sum[] = [];
  #frame = 0;
  #frames = 0;
  #commits = 0;
  #bad: { frame: number; beyond: number } | null = null;
  #over = false;

  add(piece: Buffer): void {
    this.#bytes += piece.length;
    if (this.#over) return;
    // A copy of its own, so that words lie where they can be read as such.
    let bytes: Buffer = Buffer.from(new ArrayBuffer(this.#left.length + piece.length));
    this.#left.copy(bytes);
    piece.copy(bytes, this.#left.length);
    let at = 0;
    if (this.#salts === null) {
      if (bytes.length < HEADER) return void (this.#left = bytes);
      this.#begin(bytes);
      at = HEADER;
    }
    const whole = FRAME + this.#size;
    for (; !this.#over && at + whole <= bytes.length; at += whole) this.#next(bytes, at);
    this.#left = bytes.subarray(at);
  }

  end(): Scanned {
    return { bytes: this.#bytes, frames: this.#frames, commits: this.#commits, bad: this.#bad };
  }

  #begin(bytes: Buffer): void {
    const magic = bytes.readUInt32BE(0);
    const size = bytes.readUInt32BE(8);
    const stored: Sum = [bytes.readUInt32BE(24), bytes.readUInt32BE(28)];
    this.#little = (magic & 1) === 0;
    const computed = sum([0, 0], bytes, 0, 24, this.#little);
    const whole = (magic & ~1) === MAGIC && isSame(stored, computed);
    this.#size = isSize(size) ? size : 4_096;
    this.#salts = Buffer.from(bytes.subarray(16, 24));
    this.#sums = [stored, computed];
    if (whole) return;
    this.#bad = { frame: 0, beyond: 0 };
    this.#little = LITTLE;
  }

  #next(bytes: Buffer, at: number): void {
    this.#frame++;
    // Nothing that a bad header says is relied on.
    if (this.#frame === 1 && this.#bad !== null) this.#salts = Buffer.from(bytes.subarray(at + 8, at + 16));
    const stored: Sum = [bytes.readUInt32BE(at + 16), bytes.readUInt32BE(at + 20)];
    const computed = this.#sums.map((base) =>
      sum(sum(base, bytes, at, 8, this.#little), bytes, at + FRAME, this.#size, this.#little),
    );
    const salted = bytes.compare(this.#salts as Buffer, 0, 8, at + 8, at + 16) === 0;
    const fits = salted && computed.some((one) => isSame(one, stored));
    if (!fits) return this.#stop(stored, computed);
    this.#sums = [stored];
    if (bytes.readUInt32BE(at + 4) === 0) return;
    if (this.#bad !== null) return void this.#bad.beyond++;
    this.#frames = this.#frame;
    this.#commits++;
  }

  /** The first that does not fit may be the end, or damage: what follows tells. A second one ends it. */
  #stop(stored: Sum, computed: Sum[]): void {
    // The frame after a bad header can only be judged by what stands in itself.
    if (this.#bad !== null && !(this.#bad.frame === 0 && this.#frame === 1)) return void (this.#over = true);
    this.#bad ??= { frame: this.#frame, beyond: 0 };
    this.#sums = [stored, ...computed];
  }
}

function isSize(size: number): boolean {
  return size >= 512 && size <= 65_536 && (size & (size - 1)) === 0;
}

function isSame(a: Sum, b: Sum): boolean {
  return a[0] === b[0] && a[1] === b[1];
}

/** SQLite's: over words, in pairs. */
export function sum([a, b]: Sum, bytes: Buffer, at: number, length: number, little: boolean): Sum {
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
