import { JOB_STATES, type JobState } from "../../core/jobs/job.ts";
import { endedWithWork } from "../sql/builds/build-rows.ts";
import type { AskedJobs, QueryDialect } from "../sql/queries.ts";
import { READY, SUSPECT, UNSEEN } from "./claims/claim-statements.ts";
import { dialectOf } from "./scripts.ts";

export function queryDialect(s: string): QueryDialect {
  return {
    ready: READY,
    suspect: SUSPECT,
    waiting: "aside = 'waiting'",
    running: `${s}.running`,
    unwanted: `
      select job.lane, job.state, -count(*) from (${endedWithWork(dialectOf(s))}) as ended
      cross join lateral (select job from ${s}.work where build = ended.key offset 0) as work
      cross join lateral (select lane, state from ${s}.jobs where key = work.job offset 0) as job
      where job.state in ('pending', 'waiting') group by job.lane, job.state`,
    // A job that is due but still marked as delayed could run now, too: no claim may have looked there yet.
    oldest: `
      with recursive ${levels(s)},
      oldest as (
        select lane, min(key) as key from (
          select level.lane, head.key from level cross join lateral (
            select key from ${s}.jobs
            where lane = level.lane and priority = level.priority and ${READY}
            order by key limit 1) as head
          union all
          select lane, key from ${s}.jobs where ${SUSPECT}
          union all
          select lane, key from ${s}.jobs where ${UNSEEN}
          union all
          select due.lane, due.key from unnest(cast(:lanes as integer[])) as one (lane) cross join lateral (
            select lane, key from ${s}.jobs where gate = 'time' and lane = one.lane and run_at <= :now) as due) as any_of
        group by lane)
      select lane, (select created_at from ${s}.jobs where key = oldest.key) as "createdAt" from oldest`,
    keys: (asked) => keysSql(s, asked),
    // `offset 0` makes the planner look up each job by its key, whatever it estimates.
    page: (sizes, asked) => {
      const order = asked.newest ? "desc" : "";
      return `
        select one.* from (
          select key from (${keysSql(s, asked)}) as candidate order by key ${order} limit :slice) as page
        cross join lateral (${sizes} where job.key = page.key ${stateIn(asked)} ${asked.where} offset 0) as one
        order by page.key ${order} limit :limit`;
    },
    // "succeeded" alone is served like all states, because most jobs have that state.
    walksAll: (states) => states !== null && states.length > 1 && states.includes("succeeded"),
    needsLanes: (states) => states?.includes("pending") ?? false,
    contains: (text, part) => `strpos(${text}, ${part}) > 0`,
    lower: (text) => `lower(${text} collate "C")`,
    guard: {
      columns: ", cast(null as text) as body",
      joins: "",
      input: "job.input",
      inputBytes: "octet_length(job.input)",
      isDamaged: () => false,
      withhold: (row) => row,
    },
  };
}

/** Writes states out for the partial indexes. Adding 0 to a key keeps PostgreSQL from walking history by the key. */
function keysSql(s: string, { states, newest, bySlot }: AskedJobs): string {
  const range = "key > :from and key < :to";
  if (bySlot)
    return `select key from ${s}.jobs where reserved = any(cast(:slots as text[])) and key + 0 > :from and key + 0 < :to`;
  if (states === null || (states.length > 1 && states.includes("succeeded"))) return `select key from ${s}.jobs where ${range}`;
  const order = newest ? "desc" : "";
  const of = (state: JobState): string => {
    switch (state) {
      case "running":
        return `select key from ${s}.running where ${range}`;
      case "pending":
        return pendingSql(s, order);
      // Without statistics, the planner takes a state for rare, and the absence of the others for common.
      case "succeeded":
        return `select key from ${s}.jobs where state not in (${OTHERS}) and ${range}`;
      default:
        return `select key from ${s}.jobs where aside = '${state}' and ${range}`;
    }
  };
  if (states.length === 1) return of(states[0] as JobState);
  return states
    .map((state) => `(select key from (${of(state)}) as of_state order by key ${order} limit :slice)`)
    .join(" union all ");
}

function stateIn({ states, bySlot }: AskedJobs): string {
  const isExact = states === null || (!bySlot && (states.length === 1 || !states.includes("succeeded")));
  return isExact ? "" : `and job.state in (${states.map((state) => `'${state}'`).join(", ")})`;
}

const OTHERS = JOB_STATES.filter((state) => state !== "succeeded")
  .map((state) => `'${state}'`)
  .join(", ");

/** Merges each priority with delayed, parked and reclaimed jobs, because an index by key would cost an eighth of an enqueue. */
function pendingSql(s: string, order: string): string {
  const ofLanes = "key + 0 > :from and key + 0 < :to and lane = any(cast(:lanes as integer[]))";
  return `
    with recursive ${levels(s)}
    select head.key from level cross join lateral (
      select key from ${s}.jobs
      where lane = level.lane and priority = level.priority and key > :from and key < :to and ${READY}
      order by key ${order} limit :slice) as head
    union all
    select key from ${s}.jobs where ${SUSPECT} and ${ofLanes}
    union all
    select key from ${s}.jobs where gate = 'time' and ${ofLanes}
    union all
    select parked.job from ${s}.parked join ${s}.counters as counter on counter.id = parked.counter
    where parked.job > :from and parked.job < :to and counter.lane = any(cast(:lanes as integer[]))`;
}

/** Finds the priorities of ready jobs in :lanes, by seeks in jobs_ready from one to the next. */
function levels(s: string): string {
  const ready = (lane: string) => `from ${s}.jobs where lane = ${lane} and ${READY}`;
  return `
    level (lane, priority) as (
      select one.lane, (select priority ${ready("one.lane")} order by priority desc limit 1)
      from unnest(cast(:lanes as integer[])) as one (lane)
      union all
      select level.lane, (select priority ${ready("level.lane")} and priority < level.priority order by priority desc limit 1)
      from level where level.priority is not null)`;
}
