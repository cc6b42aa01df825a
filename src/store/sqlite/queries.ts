import { ELSEWHERE, type JobRow, publicId } from "../job-row.ts";
import { endedWithWork } from "../sql/builds/build-rows.ts";
import { idParams, keyOf, type QueryDialect } from "../sql/queries.ts";
import type { JobKey } from "../../core/text/ids.ts";
import { jobChecksum } from "./checksum.ts";
import type { Connection, Statement } from "./driver.ts";
import { damagedError } from "./jobs/damaged-jobs.ts";
import { DIALECT } from "./scripts.ts";

type CheckedRow = JobRow & {
  policy: number;
  scheduled_for: number | null;
  limits: string | null;
  checksum: number | null;
};

const READY = "state = 'pending' and gate is null and crashes = 0";
const SUSPECT = "state = 'pending' and gate is null and crashes > 0";

export const QUERY_DIALECT: QueryDialect = {
  ready: READY,
  suspect: SUSPECT,
  waiting: "state = 'waiting'",
  running: "(select lane from holdfast_jobs where state = 'running')",
  unwanted: `
    select job.lane, job.state, -count(*) from (${endedWithWork(DIALECT)}) as ended
    cross join holdfast_work as work on work.build = ended.key cross join holdfast_jobs as job on job.key = work.job
    where job.state in ('pending', 'waiting') group by job.lane, job.state`,
  // A job that is due but still marked as delayed could run now, too: no worker may have claimed there yet.
  oldest: `
    select lane.value as lane, (
      select created_at from holdfast_jobs where key = (select min(key) from (
        select min(key) as key from holdfast_jobs where lane = lane.value and ${READY}
        union all
        select min(key) from holdfast_jobs where lane = lane.value and ${SUSPECT}
        union all
        select min(key) from holdfast_jobs where lane = lane.value and gate = 'time' and run_at <= :now))) as "createdAt"
    from json_each(:lanes) as lane`,
  page(jobs, state, ofLanes) {
    // Few jobs run at once: the plus makes SQLite find them by their own index, and not walk history by the key.
    const key = state === "running" ? "+job.key" : "job.key";
    // The state is written out, not bound: only so can SQLite see which partial index holds it.
    const inState = state === undefined ? "" : `and job.state = '${state}'`;
    const lanes = ofLanes ? `and ${DIALECT.in("job.lane", "bigint", ":lanes")}` : "";
    return `${jobs} where ${key} > :after ${inState} ${lanes} order by ${key} limit :limit`;
  },
  needsLanes: () => false,
  guard: {
    columns: ", body.body, job.policy, job.scheduled_for, job.limits, job.checksum",
    joins: `left join holdfast_inputs as body on body.job = job.key and job.input = '${ELSEWHERE}'`,
    isDamaged: (row) => (row as CheckedRow).checksum !== jobChecksum({ ...(row as CheckedRow), input: row.body ?? row.input }),
    withhold(row) {
      const error = JSON.stringify(damagedError(publicId(row.id, row.created_at, row.key)));
      return { ...row, input: null, body: null, output: null, error };
    },
  },
};

/** Finds the keys of public ids. */
export class JobIds {
  readonly #key: Statement;

  constructor(db: Connection) {
    this.#key = db.prepare(`select ${keyOf(DIALECT)} as key`);
  }

  /** A chosen id may outlive its job. */
  keyOf(id: string): JobKey | null {
    return (this.#key.get<{ key: JobKey | null }>(idParams(id)) as { key: JobKey | null }).key;
  }
}
