import { execFile } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { endianness } from "node:os";
import { promisify } from "node:util";
import type { WalReader } from "../../core/wal.ts";
import { locksOn } from "./proc-locks.ts";

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
