import { COMMITS_PER_EPOCH } from "../../../core/recovery/loss.ts";
import { type Connection, scalar } from "../driver.ts";
import { corrupt } from "../faults.ts";

/** Keys to skip after the highest known key: more than can have been given out since that key was recorded. */
const SKIPPED_KEYS = 2 ** 20;

export interface Known {
  epoch: number;
  commits: number;
  key: number;
}

export function highestOf(known: readonly Known[]): Known {
  const highest = (what: keyof Known) => Math.max(...known.map((one) => one[what]));
  return { epoch: highest("epoch"), commits: highest("commits"), key: highest("key") };
}

// Number of the last commit. One that only adds jobs saves a page: its number is the fence of the newest job, until a claim.
export const COMMITS = "max(commits, coalesce((select fence from holdfast_jobs order by key desc limit 1), 0))";

export function knownIn(db: Connection): Known {
  const row = db
    .prepare(
      `select epoch, ${COMMITS}, max(jobs, coalesce((select max(key) from holdfast_jobs), 0))
       from holdfast_database, holdfast_counter where holdfast_database.id = 1 and holdfast_counter.id = 1`,
    )
    .row() as [number, number, number];
  // One driver throws here, and the other rounds, if a damaged page has a number that Holdfast never writes.
  if (!row.every(Number.isSafeInteger)) throw corrupt(`a number that was never given out: ${row.join(", ")}`);
  return { epoch: row[0], commits: row[1], key: row[2] };
}

/** Reads only the epoch's row, because other pages may be damaged. */
export function epochIn(db: Connection): number {
  return scalar(db, "select epoch from holdfast_database where id = 1");
}

/** Called when the database returns to an earlier state: raises fences and keys, so that no earlier lease matches. */
export function raiseEpoch(db: Connection, known: Known): number {
  const here = knownIn(db);
  const epoch = Math.max(here.epoch, known.epoch) + 1;
  const commits = Math.max(here.commits, known.commits, epoch * COMMITS_PER_EPOCH);
  db.prepare("update holdfast_database set epoch = ? where id = 1").run(epoch);
  db.prepare("update holdfast_counter set commits = ?, jobs = ? where id = 1").run(
    commits,
    Math.max(here.key, known.key) + SKIPPED_KEYS,
  );
  return epoch;
}
