import { statSync } from "node:fs";
import type { Connection } from "../driver.ts";

/** The write-ahead log as whoever opened the database has met it. */
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
