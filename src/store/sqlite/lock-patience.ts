import type { Connection } from "./driver.ts";

/** How long opening waits while no other process commits. */
const STUCK_MS = 5_000;
/** How long opening waits at most. */
const MOST_MS = 120_000;
/** Checks per millisecond that must find no commit, because a process that shares a processor with hundreds checks seldom. */
const LOOKS_PER_MS = 1 / 200;

interface PatienceOptions {
  stuckMs?: number;
  mostMs?: number;
  now?: () => number;
  since?: number;
}

/** Tells when to give up a lock: if one process keeps it, not while others commit, because hundreds take turns in no order. */
export function lockPatience(
  db: Connection,
  { stuckMs = STUCK_MS, mostMs = MOST_MS, now = () => performance.now(), since = now() }: PatienceOptions = {},
): () => boolean {
  let committedAt = since;
  let known: number | null = null;
  let looks = 0;
  return () => {
    const at = now();
    const version = dataVersion(db);
    looks++;
    if (version !== null && known !== null && version !== known) {
      committedAt = at;
      looks = 0;
    }
    known = version ?? known;
    const isStuck = at - committedAt >= stuckMs && looks >= Math.floor(stuckMs * LOOKS_PER_MS);
    return isStuck || at - since >= mostMs;
  };
}

/** Returns a number that changes with every commit of another connection. Null: reading is locked, too. */
function dataVersion(db: Connection): number | null {
  try {
    return (db.prepare("pragma data_version").row() as [number])[0];
  } catch {
    return null;
  }
}
