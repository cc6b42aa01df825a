import { closeSync, openSync, readSync, statSync } from "node:fs";
import { FRAME_HEADER, frameAt, headerOf, LOG_HEADER, saltsAt } from "../wal/frame.ts";

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
  if (size < LOG_HEADER + FRAME_HEADER) return null;
  const fd = openSync(path, "r");
  try {
    return readFrames(fd, size);
  } finally {
    closeSync(fd);
  }
}

function readFrames(fd: number, size: number): Log {
  const header = headerOf(take(fd, 0, LOG_HEADER));
  const { pageSize } = header;
  const log: Log = { pageSize, at: new Map(), outdated: new Set(), pages: 0, damaged: 0, beyond: 0 };
  let { sums } = header;
  let open: { page: number; at: number | null }[] = [];
  const length = FRAME_HEADER + pageSize;
  for (let at = LOG_HEADER; at + length <= size; at += length) {
    const bytes = take(fd, at, length);
    header.salts ??= saltsAt(bytes, 0);
    const frame = frameAt(bytes, 0, header, sums);
    // Of the log before this one, which it is written over.
    if (!frame.salted) break;
    sums = frame.sums;
    open.push({ page: frame.page, at: frame.fits ? at + FRAME_HEADER : null });
    if (!frame.fits || frame.pages === 0) continue;
    const damaged = open.filter((one) => one.at === null).length;
    log.damaged += damaged;
    if (log.damaged > 0) log.beyond++;
    for (const one of open) apply(log, one);
    log.pages = frame.pages;
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
