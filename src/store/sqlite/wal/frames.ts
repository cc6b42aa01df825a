import { FRAME_HEADER, frameAt, headerOf, LOG_HEADER, type LogHeader, saltsAt, type Sum, wasEnd } from "./frame.ts";

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
 * Here it goes on from what stands in the bad frame. What then fits was written after it, so the bad one was whole once.
 */
export class Frames {
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
