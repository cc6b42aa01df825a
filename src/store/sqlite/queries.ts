import { ELSEWHERE, type JobRow, publicId } from "../job-row.ts";
import { endedWithWork } from "../sql/builds/build-rows.ts";
import type { AskedJobs, QueryDialect } from "../sql/queries.ts";
import type { JobState } from "../../core/jobs/job.ts";
import { damagedError, jobChecksum } from "./checksum.ts";
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
  running: "(select lane, holder from holdfast_jobs where state = 'running')",
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
  keys,
  page(jobs, { where, ...asked }) {
    const order = `order by job.key ${asked.newest ? "desc" : ""} limit :limit`;
    if (isByIndex(asked)) {
      const some = `select key from (${keys({ ...asked, where })}) order by key ${asked.newest ? "desc" : ""} limit :slice`;
      return `${jobs} where job.key in (${some}) ${where} ${order}`;
    }
    const states = asked.states === null ? "" : `and (${asked.states.map((state) => `job.state = '${state}'`).join(" or ")})`;
    return `${jobs} where job.key > :from and job.key < :to ${states} ${where} ${order}`;
  },
  walksAll: (states) => !isByIndex({ states, bySlot: false }),
  needsLanes: (states) => states?.includes("pending") ?? false,
  contains: (text, part) => `instr(${text}, ${part}) > 0`,
  lower: (text) => `lower(${text})`,
  guard: {
    columns: ", body.body, job.policy, job.scheduled_for, job.limits, job.checksum",
    joins: `left join holdfast_inputs as body on body.job = job.key and job.input = '${ELSEWHERE}'`,
    input: "coalesce(body.body, job.input)",
    isDamaged: (row) => (row as CheckedRow).checksum !== jobChecksum({ ...(row as CheckedRow), input: row.body ?? row.input }),
    withhold(row) {
      const error = JSON.stringify(damagedError(publicId(row.id, row.created_at, row.key)));
      return { ...row, input: null, body: null, output: null, meta: null, error };
    },
  },
};

/** Indexes have the jobs of all states but this one, which is that of most jobs. */
function isByIndex({ states, bySlot }: Pick<AskedJobs, "states" | "bySlot">): boolean {
  return bySlot || (states !== null && !states.includes("succeeded"));
}

/** The state is written out, not bound: only so can SQLite see which partial index has it. */
function keys(asked: AskedJobs): string {
  const { states, bySlot, newest } = asked;
  if (bySlot) {
    return `
      select key from holdfast_jobs
      where ${DIALECT.in("slot", "text", ":slots")} and slot is not null
        and (state = 'pending' or state = 'running' or state = 'waiting') and +key > :from and +key < :to
        and (${(states ?? []).map((state) => `state = '${state}'`).join(" or ")})`;
  }
  if (states === null || !isByIndex(asked)) return "select key from holdfast_jobs where key > :from and key < :to";
  const of = (state: JobState): string => {
    if (state === "pending") return `select key from (${pendingKeys(newest)})`;
    // Few jobs run at once: the plus makes SQLite find them by their own index, and not walk history by the key.
    const key = state === "running" ? "+key" : "key";
    return `
      select key from (
        select key from holdfast_jobs where state = '${state}' and ${key} > :from and ${key} < :to
        order by ${key} ${newest ? "desc" : ""} limit :slice)`;
  };
  return states.map(of).join(" union all ");
}

/**
 * Pending jobs are in several indexes, none in the order of keys. So the first of each priority, found by seeks, are merged with
 * delayed, parked and reclaimed jobs.
 */
function pendingKeys(newest: boolean): string {
  const ofLanes = `+key > :from and +key < :to and ${DIALECT.in("lane", "bigint", ":lanes")}`;
  return `
    with recursive level (lane, priority) as (
      select value, (select priority ${ready("value")} order by priority desc limit 1) from json_each(:lanes)
      union all
      select level.lane, (select priority ${ready("level.lane")} and priority < level.priority order by priority desc limit 1)
      from level where level.priority is not null)
    select head.key as key from level cross join holdfast_jobs as head on head.key in (
      select key ${ready("level.lane")} and priority = level.priority and key > :from and key < :to
      order by key ${newest ? "desc" : ""} limit :slice)
    union all
    select key from holdfast_jobs where ${SUSPECT} and ${ofLanes}
    union all
    select key from holdfast_jobs where gate = 'time' and ${ofLanes}
    union all
    select parked.job from holdfast_parked as parked join holdfast_counters as counter on counter.id = parked.counter
    where parked.job > :from and parked.job < :to and ${DIALECT.in("counter.lane", "bigint", ":lanes")}`;
}

function ready(lane: string): string {
  return `from holdfast_jobs where lane = ${lane} and ${READY}`;
}
