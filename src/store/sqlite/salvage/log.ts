import { closeSync, openSync, readSync, statSync } from "node:fs";
import { sum, type Sum } from "../wal/frames.ts";

const HEADER = 32;
const FRAME = 24;
const MAGIC = 0x377f_0682;

/** The pages that a write-ahead log holds, by where their newest committed image stands in it. */
export interface Log {
  pageSize: number;
  at: Map<number, number>;
  /** Pages whose newest image was damaged, so that only an older one is to be had. */
  outdated: Set<number>;
  /** How many pages the database has by the last commit; 0: it does not say. */
  pages: number;
  /** Frames that are not what was written, though others after them are. */
  damaged: number;
  /** Commits that SQLite would not have seen. */
  beyond: number;
}

/**
 * Reads a log to its end, also beyond frames that are damaged, where SQLite stops: each later one that follows from the one
 * before it was written, and committed. Null: there is none.
 */
export function readLog(path: string): Log | null {
  const size = statSync(path, { throwIfNoEntry: false })?.size ?? 0;
  if (size < HEADER + FRAME) return null;
  const fd = openSync(path, "r");
  try {
    return readFrames(fd, size);
  } finally {
    closeSync(fd);
  }
}

function readFrames(fd: number, size: number): Log {
  const header = take(fd, 0, HEADER);
  const little = (header.readUInt32BE(0) & 1) === 0;
  const said = header.readUInt32BE(8);
  const isWhole = (header.readUInt32BE(0) & ~1) >>> 0 === MAGIC && said >= 512 && said <= 65_536 && (said & (said - 1)) === 0;
  const pageSize = isWhole ? said : 4_096;
  const log: Log = { pageSize, at: new Map(), outdated: new Set(), pages: 0, damaged: 0, beyond: 0 };
  // What a damaged header says is not relied on: the first frame has the same salts.
  const salts = isWhole ? header.subarray(16, 24) : take(fd, HEADER + 8, 8);
  let sums: Sum[] = [[header.readUInt32BE(24), header.readUInt32BE(28)]];
  let open: { page: number; at: number | null }[] = [];
  for (let at = HEADER; at + FRAME + pageSize <= size; at += FRAME + pageSize) {
    const frame = take(fd, at, FRAME + pageSize);
    // Of the log before this one, which it is written over.
    if (frame.compare(salts, 0, 8, 8, 16) !== 0) break;
    const stored: Sum = [frame.readUInt32BE(16), frame.readUInt32BE(20)];
    const computed = sums.map((base) => sum(sum(base, frame, 0, 8, little), frame, FRAME, pageSize, little));
    const fits = computed.some((one) => one[0] === stored[0] && one[1] === stored[1]);
    const [page, pages] = [frame.readUInt32BE(0), frame.readUInt32BE(4)];
    sums = fits ? [stored] : [stored, ...computed];
    open.push({ page, at: fits ? at + FRAME : null });
    if (!fits || pages === 0) continue;
    const damaged = open.filter((one) => one.at === null).length;
    log.damaged += damaged;
    if (log.damaged > 0) log.beyond++;
    for (const one of open) apply(log, one);
    log.pages = pages;
    open = [];
  }
  return log;
}

function apply(log: Log, { page, at }: { page: number; at: number | null }): void {
  if (at === null) return void log.outdated.add(page);
  log.at.set(page, at);
  log.outdated.delete(page);
}

function take(fd: number, at: number, length: number): Buffer {
  const bytes = Buffer.alloc(length);
  readSync(fd, bytes, 0, length, at);
  return bytes;
}
