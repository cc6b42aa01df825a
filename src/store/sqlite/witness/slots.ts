import { fsyncSync, openSync, readdirSync, readFileSync, renameSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import type { Alive } from "../../alive.ts";
import { syncFolder } from "../backup/files.ts";
import type { Known } from "../epoch.ts";
import { fromRecords, type Seen } from "./record.ts";
import { createFile, createFolder, modeLike } from "../modes.ts";

export interface Slot {
  token: string;
  seen: Seen & { turn: number };
}

/** The folder beside the database in which each process that has it open says what it has seen committed. */
export function witnessFolder(path: string): string {
  return `${path}-witness`;
}

/** What they say, the dead and those who have left among them. */
export function readSlots(path: string): Slot[] {
  const folder = witnessFolder(path);
  let names: string[];
  try {
    names = readdirSync(folder);
  } catch {
    return [];
  }
  return names.flatMap((token) => {
    try {
      const seen = fromRecords(readFileSync(join(folder, token)));
      return seen === null ? [] : [{ token, seen }];
    } catch {
      // Another process has just taken it over.
      return [];
    }
  });
}

/** The most that anybody has seen of a database: a lower bound of what must be in it. Null: nobody has said anything. */
export function mostSeen(slots: readonly Slot[], databaseId?: string): Seen | null {
  const all = slots.filter(({ seen }) => databaseId === undefined || seen.databaseId === databaseId).map(({ seen }) => seen);
  // What is of an earlier epoch was given up.
  const epoch = Math.max(...all.map((seen) => seen.epoch));
  const [first, ...others] = all.filter((seen) => seen.epoch === epoch);
  if (first === undefined) return null;
  return others.reduce<Seen>((most, seen) => {
    const newer = seen.commits > most.commits || (seen.commits === most.commits && seen.key > most.key) ? seen : most;
    const audit = (seen.audit?.seq ?? 0) > (most.audit?.seq ?? 0) ? seen.audit : most.audit;
    const missed = seen.missed ?? most.missed;
    return { ...newer, key: Math.max(seen.key, most.key), audit, ...(missed === undefined ? {} : { missed }) };
  }, first);
}

/** For whoever puts another database into this one's place: what it must go beyond. */
export function knownOutside(path: string): Known {
  const { epoch, commits, key } = mostSeen(readSlots(path)) ?? { epoch: 0, commits: 0, key: 0 };
  return { epoch, commits, key };
}

/**
 * A slot for the process of this token: that of one who is gone, with what stands in it, or a new one. So nothing that
 * was written down is lost on the way, and there are never more of them than there were processes at once.
 */
export function takeSlot(path: string, token: string, alive: Alive): number {
  const folder = witnessFolder(path);
  createFolder(folder, modeLike(path));
  const own = join(folder, token);
  for (const { token: other } of readSlots(path)) {
    if (alive.isThere(other)) continue;
    try {
      renameSync(join(folder, other), own);
      return openSync(own, "r+");
    } catch {
      // Somebody else was faster.
    }
  }
  return makeSlot(path, token);
}

/** One with nothing in it. */
export function makeSlot(path: string, token: string): number {
  const folder = witnessFolder(path);
  const mode = modeLike(path);
  createFolder(folder, mode);
  createFile(join(folder, token), mode);
  const fd = openSync(join(folder, token), "w+");
  syncFolder(folder);
  syncFolder(dirname(folder));
  return fd;
}

/** Those of processes that are gone, now that what they say stands in another, which is on the disk first. */
export function dropSlots(path: string, own: number, token: string, alive: Alive): void {
  const gone = readSlots(path).filter((slot) => slot.token !== token && !alive.isThere(slot.token));
  if (gone.length === 0) return;
  fsyncSync(own);
  for (const slot of gone) rmSync(join(witnessFolder(path), slot.token), { force: true });
}
