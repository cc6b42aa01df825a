import { spawn } from "node:child_process";
import { createReadStream, statSync } from "node:fs";
import { Readable } from "node:stream";
import type { Connection } from "../../driver.ts";
import { Frames, type Scanned } from "./frames.ts";

/** Prints a file, where there is no `cat`. */
const PRINT = "require('node:fs').createReadStream(process.argv[1]).pipe(process.stdout)";

/**
 * What is in a database's log, as it lies on the disk; null where there is none. Another process reads it: in this one,
 * closing a descriptor of the file would drop the locks of whoever has the database open.
 */
export async function scanLog(path: string): Promise<Scanned | null> {
  const log = `${path}-wal`;
  if (isEmpty(log)) return null;
  const scanned = await scan(log);
  if (scanned === null) return null;
  if (scanned.bad === null) return scanned;
  // Somebody may have written while it was read; then it reads otherwise now.
  const again = await scan(log);
  if (again === null) return null;
  return again.bad?.frame === scanned.bad.frame ? again : { ...again, bad: null };
}

/** Null: somebody has put it away meanwhile, as whoever closes a database last does. */
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
