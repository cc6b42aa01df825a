import { execFile } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { endianness } from "node:os";
import { promisify } from "node:util";
import type { WalReader } from "../../../core/recovery/loss.ts";
import type { Connection, Statement } from "../driver.ts";
import { locksOn } from "./open-files.ts";
import { FRAME_HEADER, walSize } from "./wal.ts";

/** How long the log may be before a commit copies it: with nobody to help, and with a thread. In pages. */
const ALONE = 1_000;
const BACKSTOP = 4_000;
/** From this many pages on they are copied into the database, beside the writers. */
const COPY = 500;
/** From this many on, writers are made to wait for a moment if they never let the copying catch up. */
const RESTART = 8_000;

/**
 * Keeps the write-ahead log short, from a thread where a stall hurts nobody. A log that starts anew is written over in
 * place, which makes each fsync cheaper than one that grows: half as many commits a second were seen without.
 */
export class Checkpoint {
  readonly #db: Connection;
  readonly #path: string;
  readonly #version: Statement;
  readonly #look: Statement;
  readonly #passive: Statement;
  readonly #restart: Statement;
  readonly #size: Statement;
  #seen = 0;

  constructor(db: Connection, path: string) {
    this.#db = db;
    this.leaveTo("commits");
    this.#path = path;
    this.#version = db.prepare("pragma data_version");
    this.#look = db.prepare("pragma wal_checkpoint(noop)");
    this.#passive = db.prepare("pragma wal_checkpoint(passive)");
    this.#restart = db.prepare("pragma wal_checkpoint(restart)");
    this.#size = db.prepare("pragma page_size");
  }

  /**
   * A commit that finds the log long copies it itself. Where a thread does so, it copies only what that could not keep
   * up with, and so lets the log start anew.
   */
  leaveTo(whom: "thread" | "commits"): void {
    this.#db.exec(`pragma wal_autocheckpoint = ${whom === "thread" ? BACKSTOP : ALONE}`);
  }

  /** How much of the log is in use, in bytes, where that could not be copied. */
  run(): number {
    // Most rounds find that nobody has written: one page of shared memory tells.
    const [version] = this.#version.row() as [number];
    if (version === this.#seen) return 0;
    this.#seen = version;
    if (pages(this.#look) < COPY) return 0;
    const [, log, copied] = this.#passive.row() as [number, number, number];
    // When all is copied, the next writer starts the log anew by itself. A reader that pins the log makes the restart
    // answer "busy", a row and no error; the next round tries again.
    if (copied < log && log >= RESTART) this.#restart.row();
    if (copied >= log) return 0;
    this.#seen = 0;
    return log * ((this.#size.row() as [number])[0] + FRAME_HEADER);
  }

  /** In bytes; a log that was started anew keeps its size. */
  size(): number {
    return walSize(this.#path);
  }
}

function pages(look: Statement): number {
  const [, log, copied] = look.row() as [number, number, number];
  return copied === log ? 0 : log;
}

/** Of the shared memory beside a log (`-shm`): two copies of its header, then what readers have marked, then their locks. */
const LENGTH = 136;
const LAST_FRAME = 16;
const MARKS = 100;
/** How many marks there are; a lock on the byte of one says that somebody reads up to it. */
const READERS = 5;
const READ_LOCKS = 123;

/**
 * Who reads an earlier state of the database than its newest: as long as he does, the log cannot start anew. Which mark each
 * reader has is in shared memory, who has locked it says Linux; elsewhere nobody can tell. Another process reads that
 * memory: in this one, to close the file would drop the locks of all that have the database open here.
 */
export async function readersOf(path: string, pageSize: number, programs: ReadonlyMap<number, string>): Promise<WalReader[]> {
  const shm = `${path}-shm`;
  if (process.platform !== "linux" || !existsSync(shm)) return [];
  const memory = await start(shm);
  if (memory === null) return [];
  const at = (offset: number) => (endianness() === "LE" ? memory.readUInt32LE(offset) : memory.readUInt32BE(offset));
  const last = at(LAST_FRAME);
  const behind = new Map<number, number>();
  for (const { pid, from, to } of locksOn(shm)) {
    for (let mark = 0; mark < READERS; mark++) {
      if (from > READ_LOCKS + mark || to < READ_LOCKS + mark) continue;
      // The first mark is of those who read nothing of the log.
      const frames = last - (mark === 0 ? 0 : at(MARKS + 4 * mark));
      if (frames > 0) behind.set(pid, Math.max(behind.get(pid) ?? 0, frames * (pageSize + 24)));
    }
  }
  return [...behind]
    .map(([pid, bytes]) => ({ pid, program: programs.get(pid) ?? programOf(pid), behind: bytes }))
    .sort((a, b) => b.behind - a.behind);
}

async function start(file: string): Promise<Buffer | null> {
  try {
    const { stdout } = await promisify(execFile)("head", ["-c", String(LENGTH), "--", file], { encoding: "buffer" });
    return stdout.length === LENGTH ? stdout : null;
  } catch {
    return null;
  }
}

/** What it was started as; a program in another container cannot be told. */
function programOf(pid: number): string | null {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, "utf8").split("\0").filter(Boolean).slice(0, 3).join(" ") || null;
  } catch {
    return null;
  }
}
