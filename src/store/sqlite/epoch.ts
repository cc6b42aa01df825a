import { EPOCH } from "../../core/loss.ts";
import type { Connection } from "./driver.ts";
import { corrupt } from "./faults.ts";

/** As many keys are left out: more than can have been given out since what is known was written down. */
const KEYS = 2 ** 20;

/** What was once in a database, as far as anybody knows. */
export interface Known {
  epoch: number;
  commits: number;
  /** The highest key of a job. */
  key: number;
}

/**
 * The number of the last commit. One that only adds jobs leaves the counter alone, which would be a page more to write: its
 * number is the fence of the newest job, until that is claimed in a later one.
 */
export const COMMITS = "max(commits, coalesce((select fence from holdfast_jobs order by key desc limit 1), 0))";

export function knownIn(db: Connection): Known {
  const row = db
    .prepare(
      `select epoch, ${COMMITS}, max(jobs, coalesce((select max(key) from holdfast_jobs), 0))
       from holdfast_database, holdfast_counter where holdfast_database.id = 1 and holdfast_counter.id = 1`,
    )
    .row() as [number, number, number];
  // One driver throws here, the other rounds: nobody has ever written such a number.
  if (!row.every(Number.isSafeInteger)) throw corrupt(`a number that was never given out: ${row.join(", ")}`);
  return { epoch: row[0], commits: row[1], key: row[2] };
}

/** Of nothing but its own row: also where jobs cannot be read. */
export function epochIn(db: Connection): number {
  const [epoch] = db.prepare("select epoch from holdfast_database where id = 1").row() as [number];
  return epoch;
}

/**
 * Called in a transaction, when the database is put back to an earlier state: restored, salvaged, or found behind what
 * was acknowledged. Fences of the new epoch are higher than all there were, and keys go on beyond all there were, so
 * that no holder from before fits a job of now.
 */
export function raiseEpoch(db: Connection, known: Known): number {
  const here = knownIn(db);
  const epoch = Math.max(here.epoch, known.epoch) + 1;
  const commits = Math.max(here.commits, known.commits, epoch * EPOCH);
  db.prepare("update holdfast_database set epoch = ? where id = 1").run(epoch);
  db.prepare("update holdfast_counter set commits = ?, jobs = ? where id = 1").run(commits, Math.max(here.key, known.key) + KEYS);
  return epoch;
}
