import { crc32 } from "node:zlib";
import { isFinished } from "../../../core/jobs/job.ts";
import { attemptEnding, type Unsuccessful } from "../../../core/jobs/attempts.ts";
import { isDelayed, type Next } from "../../../core/jobs/retry.ts";
import type { JobKey } from "../../../core/text/ids.ts";
import { heldAttempt, type RunningJob } from "../../sql/attempts.ts";
import type { WorkEnd } from "../../work.ts";
import { rowChecksum } from "../checksum.ts";
import type { Connection } from "../driver.ts";
import type { Tx } from "../group-commit.ts";
import { DIALECT } from "../scripts.ts";

/** Running jobs whose attempts differ in the job only, as those of one claim mostly do: one statement ends them all. */
export interface RunningJobs extends Omit<RunningJob, "key"> {
  jobs: readonly JobKey[];
}

/** How attempts end that do not succeed. `isDead`: their worker is dead, or not known to be alive. */
export interface Ending {
  held: RunningJobs;
  outcome: Unsuccessful;
  next: Next;
  by: "holder" | "reclaimer";
  isDead: boolean;
  work?: WorkEnd | undefined;
}

/** Reads running jobs, and moves them out of `running` when their attempts end without success. */
export class RunningJobTable {
  readonly #sql;

  constructor(db: Connection) {
    const held = heldAttempt(DIALECT);
    this.#sql = {
      find: db.prepare(
        `select json_group_array(job.key) as jobs, job.lane, job.policy, job.errors, job.crashes, job.expires_at as expiresAt,
           job.priority, job.limits, ${held.columns} from json_each(?) as asked cross join ${held.from}
         where job.key = asked.value and job.state = 'running'
         group by job.fence, job.lane, job.policy, job.errors, job.crashes, job.expires_at, job.priority, job.limits,
           job.attempt, job.started_at, job.worker, job.holder, n`,
      ),
      // "or fail" needs no journal of the statement: an error rolls back the whole transaction.
      move: db.prepare(
        `update or fail holdfast_jobs set
           state = ?, gate = ?, run_at = coalesce(?, run_at), attempt = ?, errors = ?, crashes = ?,
           error = coalesce(?, error), finished_at = ?, expires_at = null, holder = null, worker = null
         where fence = ? and state = 'running' and key in (select value from json_each(?))`,
      ),
      record: db.prepare(
        `insert or fail into holdfast_attempts (job, checksum, n, fence, attempt, outcome, started_at, ended_at, worker, host, pid, error)
         select key, value, ?, ?, ?, ?, ?, ?, ?, ?, ?, ? from json_each(?)`,
      ),
      trim: db.prepare("delete from holdfast_attempts where job in (select value from json_each(?)) and n <= ?"),
    };
  }

  find(jobs: readonly JobKey[]): RunningJobs[] {
    const found = this.#sql.find.all<Omit<RunningJobs, "jobs"> & { jobs: string }>(JSON.stringify(jobs));
    return found.map((row) => Object.assign(row, { jobs: JSON.parse(row.jobs) as JobKey[] }));
  }

  move(tx: Tx, { held, next }: Ending, gate: string | null): void {
    const { state, delay, attempt, errors, crashes } = next;
    const error = next.error && JSON.stringify(next.error);
    const runAt = isDelayed(next) ? tx.now + delay : null;
    const finishedAt = isFinished(state) ? tx.now : null;
    const jobs = JSON.stringify(held.jobs);
    this.#sql.move.run(state, gate, runAt, attempt, errors, crashes, error, finishedAt, held.fence, jobs);
    tx.wrote();
  }

  /** Adds ended attempts to the history, which keeps the last `keep` of each job. */
  record(tx: Tx, { held, outcome, next, isDead }: Ending, keep: number): void {
    if (keep === 0) return;
    const { jobs, n, fence, attempt, worker, host, pid } = held;
    const ended = attemptEnding(outcome, next, isDead);
    const error = ended.error && JSON.stringify(ended.error);
    const shared = { n, fence, attempt, outcome: ended.outcome, started_at: held.startedAt ?? tx.now, ended_at: tx.now };
    const row = { ...shared, worker, host, pid, error };
    // The job is the last checked column: each row's checksum continues the one of the columns that all rows share.
    const checksum = rowChecksum("holdfast_attempts", { ...row, job: "" }) as number;
    const checksums = jobs.map((job) => `"${job}":${crc32(String(job), checksum)}`);
    this.#sql.record.run(...Object.values(row), `{${checksums.join(",")}}`);
    if (n > keep) this.#sql.trim.run(JSON.stringify(jobs), n - keep);
  }
}
