import type { Lane } from "../../core/jobs/claiming.ts";
import { type FinishedState, isFinished, type Job, JOB_STATES, type JobState } from "../../core/jobs/job.ts";
import { type JobKey, parseGeneratedId } from "../../core/text/ids.ts";
import { type JobRow, keyOfCursor, pageOf, type Tallied, toJob } from "../job-row.ts";
import {
  countsOf,
  type LaneCount,
  type LaneOverview,
  laneOverviews,
  lanesOf,
  type ListFilter,
  type QueryStore,
  type QueueOverview,
  queueOverviews,
} from "../queries.ts";
import { endedWithWork } from "../sql/builds/leftovers.ts";
import type { Catalog } from "./catalog.ts";
import { READY, SUSPECT, UNSEEN } from "./claims/claim-statements.ts";
import { listOf, type Rows } from "./connection/driver.ts";
import { dialectOf } from "./scripts.ts";
import type { Access } from "./transactions/transaction.ts";

const COLUMNS = `
  job.key, job.state, job.lane, job.priority, job.attempt, job.crashes, job.run_at, job.created_at, job.started_at, job.finished_at,
  job.id, job.slot, job.input, job.output, job.error, note.fraction, note.message, job.worker, process.host, process.pid, job.expires_at`;
type Row = [
  key: JobKey,
  state: JobState,
  lane: number,
  priority: number,
  attempt: number,
  crashes: number,
  runAt: number,
  createdAt: number,
  startedAt: number | null,
  finishedAt: number | null,
  id: string | null,
  slot: string | null,
  input: string | null,
  output: string | null,
  error: string | null,
  fraction: number | null,
  message: string | null,
  worker: string | null,
  host: string | null,
  pid: number | null,
  expiresAt: number | null,
];

type CountedRow = [lane: number, state: JobState, n: number, ended: number, since: number, fresh: number, before: number];

/** Work of builds that have ended is about to be cleared away: it belongs to no build any more. */
function unwanted(s: string): string {
  return `
    select job.lane, job.state, -count(*) from (${endedWithWork(dialectOf(s))}) as ended
    cross join lateral (select job from ${s}.work where build = ended.key offset 0) as work
    cross join lateral (select lane, state from ${s}.jobs where key = work.job offset 0) as job
    where job.state in ('pending', 'waiting') group by job.lane, job.state`;
}

/** Reading, for people and programs. Each answer is of one instant: one statement reads what has to fit together. */
export class Queries implements QueryStore {
  readonly #rows: Rows;
  readonly #at: () => number | null;
  readonly #catalog: Catalog;
  readonly #sql: Record<"byId" | "unfinished" | "counted" | "set" | "oldest", string>;
  readonly #page: (keys: string) => string;
  readonly #s: string;

  constructor(s: string, catalog: Catalog, { read, at }: Access) {
    this.#s = s;
    this.#rows = read;
    this.#at = at;
    this.#catalog = catalog;
    const jobs = `
      select ${COLUMNS} from ${s}.jobs as job left join ${s}.notes as note on note.job = job.key
      left join ${s}.processes as process on process.id = job.holder and job.state = 'running'`;
    // Each by its key: `offset` keeps the planner from another way, whatever it believes about how many there are.
    this.#page = (keys) => `
      select one.* from (${keys} order by key limit $2) as page
      cross join lateral (${jobs} where job.key = page.key offset 0) as one order by page.key`;
    // Each arm walks one partial index and nothing else: the cost is that of what is unfinished, never of history.
    const unfinished = `
      select lane, 'pending' as state, count(*) as n from ${s}.jobs where ${READY} group by lane
      union all
      select lane, 'pending', count(*) from ${s}.jobs where ${SUSPECT} group by lane
      union all
      select lane, 'pending', count(*) from ${s}.jobs where gate = 'time' group by lane
      union all
      select lane, 'pending', sum(parked)::bigint from ${s}.counters where parked > 0 group by lane
      union all
      select lane, 'running', count(*) from ${s}.running group by lane
      union all
      select lane, 'waiting', count(*) from ${s}.jobs where aside = 'waiting' group by lane
      union all
      ${unwanted(s)}`;
    this.#sql = {
      byId: `${jobs} where job.key = ${keyOf(s, "$1", "$2", "$3")}`,
      unfinished,
      counted: `
        select lane, state, n, 0 as ended, 0 as since, 0 as fresh, 0 as before from (${unfinished}) as unfinished
        union all
        select lane, state, n, ended, since, fresh, before from ${s}.tally`,
      set: `select name, paused, ${s}.clock($1) from ${s}.queues right join (select) as always on true`,
      // What is due but still marked as delayed could run now, too: no claim may have looked there yet.
      oldest: `
        with recursive clock as materialized (select ${s}.clock($1) as now), ${levels(s, "$2")},
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
            select due.lane, due.key from unnest($2::integer[]) as one (lane) cross join clock cross join lateral (
              select lane, key from ${s}.jobs where gate = 'time' and lane = one.lane and run_at <= clock.now) as due) as any_of
          group by lane)
        select lane, (select created_at from ${s}.jobs where key = oldest.key) from oldest`,
    };
  }

  async get(id: string): Promise<Job | null> {
    const [row] = await this.#rows<Row>(this.#sql.byId, ...idValues(id));
    if (row === undefined) return null;
    await this.#catalog.knowLanes(this.#rows, [row[2]]);
    return toJob(jobRow(row), this.#catalog.lane(row[2]));
  }

  async list(filter: ListFilter): Promise<{ items: Job[]; next?: string }> {
    const { state, limit } = filter;
    if (state !== undefined && !JOB_STATES.includes(state)) return { items: [] };
    await this.#catalog.reload(this.#rows);
    const lanes = lanesOf(this.#catalog.lanes(), filter);
    if (lanes?.length === 0) return { items: [] };
    const asked = state === "pending" ? (lanes ?? [...this.#catalog.lanes()]) : lanes;
    const text = this.#page(keysSql(this.#s, state, asked !== null));
    const values = asked === null ? [] : [listOf(asked.map(({ id }) => id))];
    const rows = await this.#rows<Row>(text, keyOfCursor(filter.after), limit + 1, ...values);
    // One whose lane is younger than those that were read.
    await this.#catalog.knowLanes(
      this.#rows,
      rows.map((row) => row[2]),
    );
    return pageOf(rows.map(jobRow), limit, (lane) => this.#catalog.lane(lane));
  }

  async counts(filter: { queue?: string; name?: string }): Promise<Record<JobState, number>> {
    const counted = await this.#rows<CountedRow>(this.#sql.counted);
    const lanes = lanesOf(await this.#lanes(), filter);
    return countsOf(counted.map(laneCount), lanes);
  }

  async queues(): Promise<QueueOverview[]> {
    const lanes = await this.#lanes();
    const ids = listOf(lanes.map(({ id }) => id));
    const at = this.#at();
    const [set, counted, oldest] = await Promise.all([
      this.#rows<[string | null, boolean, number]>(this.#sql.set, at),
      this.#rows<CountedRow>(this.#sql.counted),
      this.#rows<[number, number]>(this.#sql.oldest, at, ids),
    ]);
    const now = (set[0] as [string | null, boolean, number])[2];
    // One that was made for a user's transaction, which then undid it, has never had a job.
    const used = new Set(counted.map(([lane]) => lane));
    const counts = {
      lanes: lanes.filter(({ id }) => used.has(id)),
      set: new Map(set.flatMap(([name, paused]): [string, { paused: boolean }][] => (name === null ? [] : [[name, { paused }]]))),
      unfinished: counted.filter(([, state]) => !isFinished(state)).map(laneCount),
      finished: counted.filter(([, state]) => isFinished(state)).map(tallied),
      oldest: new Map(oldest),
    };
    return queueOverviews(counts, now);
  }

  async lanes(): Promise<LaneOverview[]> {
    const unfinished = await this.#rows<[number, JobState, number]>(this.#sql.unfinished);
    const counted = unfinished.map(([lane, state, n]) => ({ lane, state, n }));
    return laneOverviews(await this.#lanes(), counted);
  }

  /** Every one there is: others may have made some. */
  async #lanes(): Promise<Lane[]> {
    await this.#catalog.reload(this.#rows);
    return [...this.#catalog.lanes()];
  }
}

/**
 * The keys above $1 of the jobs in a state, of all lanes or of those in $3; the states are written out, not bound: only
 * so can PostgreSQL see which partial index holds them. Adding 0 to a key keeps it from walking history by the key.
 */
function keysSql(s: string, state: JobState | undefined, ofLanes: boolean): string {
  const lanes = ofLanes ? "and lane = any($3::integer[])" : "";
  switch (state) {
    case undefined:
      return `select key from ${s}.jobs where key > $1 ${lanes}`;
    // Few jobs run at once: they are found by their own index and put in order.
    case "running":
      return `select key from ${s}.running where key > $1 ${lanes}`;
    case "pending":
      return `select key from (${pendingSql(s)}) as pending`;
    // Most of what there is, also where the planner has not looked yet: it takes few to be in a state, many not to be in others.
    case "succeeded":
      return `select key from ${s}.jobs where state not in (${OTHERS}) and key > $1 ${lanes}`;
    default:
      return `select key from ${s}.jobs where aside = '${state}' and key > $1 ${lanes}`;
  }
}

const OTHERS = JOB_STATES.filter((state) => state !== "succeeded")
  .map((state) => `'${state}'`)
  .join(", ");

/**
 * Pending jobs are in several indexes, none of them in the order of their keys; one that is would cost each enqueue an
 * eighth. So the first of each priority are put together with what is delayed, what is parked and what was reclaimed.
 */
function pendingSql(s: string): string {
  return `
    with recursive ${levels(s, "$3")}
    select head.key from level cross join lateral (
      select key from ${s}.jobs
      where lane = level.lane and priority = level.priority and key > $1 and ${READY}
      order by key limit $2) as head
    union all
    select key from ${s}.jobs where ${SUSPECT} and key + 0 > $1 and lane = any($3::integer[])
    union all
    select key from ${s}.jobs where gate = 'time' and key + 0 > $1 and lane = any($3::integer[])
    union all
    select parked.job from ${s}.parked join ${s}.counters as counter on counter.id = parked.counter
    where parked.job > $1 and counter.lane = any($3::integer[])`;
}

/** The priorities of what stands ready in these lanes: from one to the next by jobs_ready, without what is between. */
function levels(s: string, lanes: string): string {
  const ready = (lane: string) => `from ${s}.jobs where lane = ${lane} and ${READY}`;
  return `
    level (lane, priority) as (
      select one.lane, (select priority ${ready("one.lane")} order by priority desc limit 1)
      from unnest(${lanes}::integer[]) as one (lane)
      union all
      select level.lane, (select priority ${ready("level.lane")} and priority < level.priority order by priority desc limit 1)
      from level where level.priority is not null)`;
}

/** The store's key of a public id, whichever kind it is: see `idValues`. A chosen id may outlive its job. */
export function keyOf(s: string, id: string, key: string, createdAt: string): string {
  return `coalesce(
    (select job from ${s}.ids where id = ${id}),
    (select key from ${s}.jobs where key = ${key}::bigint and created_at = ${createdAt}::bigint and id is null))`;
}

/** A public id as a statement takes it: as it is, and what it says if it was generated. */
export function idValues(id: string): [id: string, key: number | null, createdAt: number | null] {
  const generated = parseGeneratedId(id);
  return [id, generated?.key ?? null, generated?.createdAt ?? null];
}

function jobRow(row: Row): JobRow {
  const [key, state, lane, priority, attempt, crashes, runAt, createdAt, startedAt, finishedAt, ...texts] = row;
  const [id, slot, input, output, error, fraction, message, worker, host, pid, expiresAt] = texts;
  return {
    key,
    state,
    lane,
    priority,
    attempt,
    crashes,
    run_at: runAt,
    created_at: createdAt,
    started_at: startedAt,
    finished_at: finishedAt,
    id,
    slot,
    input,
    output,
    error,
    fraction,
    message,
    body: null,
    worker,
    host,
    pid,
    expires_at: expiresAt,
  };
}

function laneCount([lane, state, n]: CountedRow): LaneCount {
  return { lane, state, n };
}

function tallied([lane, state, n, ended, since, fresh, before]: CountedRow): Tallied {
  return { lane, state: state as FinishedState, n, ended, since, fresh, before };
}
