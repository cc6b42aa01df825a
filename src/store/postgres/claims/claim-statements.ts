import { byClaimOrder } from "../../../core/jobs/job.ts";
import type { LeaseRef } from "../../../core/jobs/lease.ts";
import type { Fence, JobKey } from "../../../core/text/ids.ts";
import { publicId, readMeta } from "../../job-row.ts";
import { isHeld, isOver } from "../../sql/locks.ts";
import type { Claimed, ClaimOutlook, ClaimSource } from "../../store.ts";
import type { Catalog } from "../catalog.ts";
import { dialectOf } from "../scripts.ts";
import type { SingleStatement, Tx } from "../transactions/transaction.ts";
import { startedSql } from "./leases.ts";
import { ClaimableLanes, LaneBatch, type MatchedLane, type MatchedLanes, outlookOf } from "../../../core/jobs/claiming.ts";
import type { Rows } from "../connection/driver.ts";

/** Conditions of claimable jobs: those in jobs_ready and, where a worker died, those in jobs_suspect. */
export const READY = "ready";
export const SUSPECT = "suspect = 'pending' and gate is null";

/** Condition of jobs_unseen: a job of a user's transaction that may run at once, and has not passed its limits yet. */
export const UNSEEN = "gate = 'time' and fence = 0 and run_at <= created_at";

export function holdsSuspect(s: string, holder: string): string {
  return `exists (select 1 from ${s}.jobs where suspect = 'running' and holder = ${holder})`;
}

export const STARTED = `job.key, job.priority, job.policy, job.attempt, job.created_at, job.id, job.input, job.scheduled_for,
  job.fence, job.expires_at, job.suspect is not null, job.lane, job.lease, job.run_at, job.meta`;

export type Started = [
  key: JobKey,
  priority: number,
  policy: number,
  attempt: number,
  createdAt: number,
  id: string | null,
  input: string | null,
  scheduledFor: number | null,
  fence: Fence,
  expiresAt: number,
  suspect: boolean,
  lane: number,
  lease: number,
  runAt: number,
  meta: string | null,
];

export function startSql(lease: string, now = "given.now", fence = "given.fence"): string {
  return `state = 'running', attempt = attempt + 1, fence = ${fence}, holder = $2::bigint, worker = $3,
      started_at = ${now}, lease = ${lease}, expires_at = ${now} + ${lease}`;
}

export function isSuspect(started: Started): boolean {
  return started[10];
}

export function laneOf(started: Started): number {
  return started[11];
}

export function byStartedTurn([key, priority]: Started, [other, otherPriority]: Started): number {
  return byClaimOrder({ key, priority }, { key: other, priority: otherPriority });
}

export function toClaimed(row: Started, catalog: Catalog): Claimed {
  const [job, priority, policy, attempt, createdAt, id, input, scheduledFor, fence, expiresAt, , lane, lease, runAt, meta] = row;
  const { name, queue, version } = catalog.lane(lane);
  return {
    job,
    fence,
    id: publicId(id, createdAt, job),
    name,
    queue,
    version,
    input,
    attempt,
    priority,
    policy: catalog.policy(policy),
    lease,
    expiresAt,
    scheduledFor,
    createdAt,
    runAt,
    trace: readMeta(meta).trace ?? null,
  };
}

export const LOCKED = (s: string): string => isHeld(dialectOf(s), "clock.now");

export class ClaimLocks {
  readonly #bind: string;

  constructor(s: string) {
    // A claimed job is not quiet any more, because its end frees the queue for other claims.
    this.#bind = `
      with clock as materialized (select ${s}.clock($1) as now),
      taken as (
        insert into ${s}.locks as lock (name, holder, token, acquired_at, job, fence)
        select $2, $3, $4, now, $5::bigint, $6::bigint from clock
        on conflict (name) do update set
          holder = excluded.holder, token = excluded.token, acquired_at = excluded.acquired_at, ttl = null,
          expires_at = null, job = excluded.job, fence = excluded.fence, process = null
        where exists (select 1 from clock where ${isOver(dialectOf(s), "clock.now")})
        returning 1),
      loud as (update ${s}.jobs set quiet = false from taken where key = $5)
      select 1 from taken`;
  }

  async bind(tx: Tx, claim: LeaseRef & { queue: string }, holder: string, token: string): Promise<boolean> {
    const taken = await tx.rows(this.#bind, tx.at, claim.queue, holder, token, claim.job, claim.fence);
    if (taken.length > 0) tx.wrote();
    return taken.length > 0;
  }
}

// $1: injected time; $2: process; $3: worker; $4: jobs in all; $5 to $11: for each lane its id, queue and lease, how many jobs
// are read, the position of its queue, its source, and how many jobs that source may give; $12: how many jobs of each queue.
const LANES = `
    unnest($5::integer[], $6::text[], $7::bigint[], $8::integer[], $9::integer[], $10::integer[], $11::integer[])
      as lane (id, queue, lease, most, place, source, budget)`;

/** A job in the answer of a single statement. Null stands for the usual value: each other one takes time to decode. */
const SINGLE_STARTED = `key, nullif(priority, 0), policy, nullif(attempt, 1), created_at, id, input, scheduled_for, lane,
  nullif(run_at, created_at), meta`;

type SingleStarted = [
  key: JobKey,
  priority: number | null,
  policy: number,
  attempt: number | null,
  createdAt: number,
  id: string | null,
  input: string | null,
  scheduledFor: number | null,
  lane: number,
  runAt: number | null,
  meta: string | null,
];

/** The answer of a single statement: a row for each job, and one without a job that has the columns `Common` instead. */
export type SingleRow = [...SingleStarted, ...Common];
type Common = [
  now: number,
  fence: Fence,
  isRefused: boolean,
  /** Whether other jobs are locked or may not be claimed. Null if as many were claimed as wanted. */
  more: boolean | null,
  nextAt: number | null,
  verdict: null,
];

const TEXTS = new WeakMap<SingleStatement, string>();

/** Returns the statement for use in a transaction, which leaves the receipt itself. */
export function inTransaction(statement: SingleStatement): string {
  let text = TEXTS.get(statement);
  if (text === undefined) TEXTS.set(statement, (text = `with ${statement.parts} ${statement.answer("null")}`));
  return text;
}

export function startedIn(rows: readonly SingleRow[], leaseOf: (lane: number) => number): Started[] {
  const [now, fence] = commonIn(rows);
  const started: Started[] = [];
  for (const [key, priority, policy, attempt, createdAt, id, input, scheduledFor, lane, runAt, meta] of rows) {
    if (key === null) continue;
    const lease = leaseOf(lane);
    started.push([
      key,
      priority ?? 0,
      policy,
      attempt ?? 1,
      createdAt,
      id,
      input,
      scheduledFor,
      fence,
      now + lease,
      false,
      lane,
      lease,
      runAt ?? createdAt,
      meta,
    ]);
  }
  return started;
}

export function commonIn(rows: readonly SingleRow[]): Common {
  return (rows.find(([key]) => key === null) as SingleRow).slice(NO_JOB.length) as Common;
}

const NO_JOB = ["bigint", "integer", "integer", "integer", "bigint", "text", "text", "bigint", "integer", "bigint", "text"].map(
  (type) => `null::${type}`,
);

const singleAnswer = (s: string, isRefused: string, spots: string, lanes: string) => (verdict: string) =>
  `
      select ${NO_JOB.join(", ")}, now, fence, ${isRefused},
        case when cardinality(${spots}) < $4 then exists (
          select 1 from ${s}.jobs where lane = ${lanes} and ${READY} and ctid <> all(${spots})) end,
        next_at, ${verdict} from given
      union all select ${SINGLE_STARTED}, null, null, null, null, null, null from job`;

const refusedSql = (s: string, lanes: string, queues: string): string => `
          next_at <= now
          or exists (select 1 from ${s}.jobs where ${SUSPECT} and lane = ${lanes})
          or exists (select 1 from ${s}.locks where name = ${queues}) as refused`;

const nextAtSql = (s: string, lane: string): string =>
  `select run_at from ${s}.jobs where gate = 'time' and lane = ${lane} order by run_at limit 1`;

/** Claims from one lane, as most workers do, with a quarter less time on the server. $5, $6, $7: its id, queue and lease. */
export function oneLaneClaimSql(s: string): SingleStatement {
  return {
    parts: `
      given as materialized (
        select *, array(
          select ctid from ${s}.jobs where lane = $5::integer and ${READY} order by priority desc, key
          limit case when refused then 0 else $4::integer end for update skip locked) as spots
        from (
          select *, ${refusedSql(s, "$5::integer", "$6")} from (
            select ${s}.clock($1) as now, nextval('${s}.fence') as fence, (${nextAtSql(s, "$5::integer")}) as next_at
            offset 0) as clock offset 0) as clock),
      job as (
        update ${s}.jobs as job set ${startSql("$7::bigint")}
        from given where job.ctid = any((select spots from given)::tid[])
        returning ${STARTED}),
      started as (${startedSql(s, "(select cardinality(spots) from given)")})`,
    values: 7,
    made: "fence, null, null from given",
    wrote: "exists (select 1 from job)",
    answer: singleAnswer(s, "refused", "spots::tid[]", "$5::integer"),
  };
}

// Claims nothing, and answers `isRefused`, if there is a lock on a queue, a suspect, a delayed job that is due, or a queue with
// more jobs than its share while others have fewer. A row that it locked keeps its ctid, by which it is found again. Each CTE
// that others refer to costs as much as ten jobs.
export function manyLaneClaimSql(s: string): SingleStatement {
  const nextAt = `select min((${nextAtSql(s, "lane.id")})) from unnest($5::integer[]) as lane (id)`;
  return {
    parts: `
      given as materialized (
        select *, ${refusedSql(s, "any($5::integer[])", "any($6::text[])")} from (
          select ${s}.clock($1) as now, nextval('${s}.fence') as fence, (${nextAt}) as next_at offset 0) as clock offset 0),
      head as materialized (
        select *, row_number() over (partition by place order by priority desc, key) as turn from (
          select *, row_number() over (partition by place, source order by priority desc, key) as nth from (
            select job.spot, job.key, job.priority, lane.* from given cross join ${LANES} cross join lateral (
              select ctid as spot, key, priority from ${s}.jobs where lane = lane.id and ${READY} order by priority desc, key
              limit case when given.refused then 0 else lane.most end for update skip locked) as job) as head) as head
        where nth <= budget),
      chosen as materialized (
        select spot, lease from head where turn <= $12 and (
          (select count(*) from head where turn <= $12) >= $4 or not exists (select 1 from head where turn > $12))
        order by place, turn limit $4),
      job as (
        update ${s}.jobs as job set ${startSql("chosen.lease")}
        from chosen, given where job.ctid = chosen.spot
        returning ${STARTED}),
      started as (${startedSql(s, "(select count(*) from chosen)")})`,
    values: 12,
    made: "fence, null, null from given",
    wrote: "exists (select 1 from chosen)",
    answer: singleAnswer(
      s,
      "refused or (exists (select 1 from head) and not exists (select 1 from chosen))",
      "array(select spot from chosen)",
      "any($5::integer[])",
    ),
  };
}

/** Up to this many lanes go with each claim. For more, the server is asked first which lanes have jobs. */
const FEW_LANES = 32;
const SPARE_LANES = 8;

type FoundRow = [counted: number, now: number, hidesSuspects: boolean, found: string];
/** A lane that has jobs, or whose delayed job is due `at`, or a queue whose limits open `at`. `closed`: paused or locked. */
type Found = [lane: number | null, at: number | null, queue: string | null, closed: boolean];

export interface FoundLanes {
  lanes: MatchedLane[];
  isWhole: boolean;
  isDue: boolean;
  nextAt: number | null;
  last: number | null;
}

export function allOf({ all }: MatchedLanes): FoundLanes {
  return { lanes: all, isWhole: true, isDue: false, nextAt: null, last: null };
}

export class ReadyLanes {
  readonly #random: () => number;
  readonly #longest: () => number;
  readonly #sql: string;
  /** The next claim begins behind this lane, so that every lane has its turn. */
  #cursor: number | null = null;

  constructor(s: string, parts: { random: () => number; longest: () => number }) {
    this.#random = parts.random;
    this.#longest = parts.longest;
    this.#sql = foundSql(s);
  }

  static areMany({ all }: MatchedLanes): boolean {
    return all.length > FEW_LANES;
  }

  /** Finds the lanes of the next `max` queues that have jobs, except `done` queues, and all lanes with due jobs. */
  async find(
    rows: Rows,
    { at, holder, max }: { at: number | null; holder: number | null; max: number },
    matched: MatchedLanes,
    shares: ClaimableLanes,
    done: ReadonlySet<string> = new Set(),
  ): Promise<FoundLanes & { now: number; counted: number }> {
    const open = (lanes: readonly MatchedLane[]) => lanes.filter((one) => !done.has(one.lane.queue) && shares.of(one) !== null);
    this.#cursor ??= matched.all[Math.floor(this.#random() * matched.all.length)]?.lane.id ?? null;
    for (let most = max + SPARE_LANES; ; most *= 8) {
      const [row] = await rows<FoundRow>(this.#sql, at, holder, this.#cursor ?? 0, most);
      const [counted, now, hidesSuspects, found] = row as FoundRow;
      const batch = new LaneBatch(matched, max);
      let ready = 0;
      let last: number | null = null;
      let nextAt: number | null = null;
      let isDue = false;
      for (const [id, due, queue, closed] of JSON.parse(found) as Found[]) {
        if (due === null) ready++;
        if (closed || (due === null && last !== null)) continue;
        const lanes = open(id === null ? (matched.byQueue.get(queue as string) ?? []) : [matched.byId.get(id) ?? []].flat());
        if (lanes.length === 0) continue;
        if (due !== null) nextAt = Math.min(nextAt ?? due, due);
        // A limit that allows no start for longer than its period was written before the clock was set back.
        if (due !== null && due > now && !(id === null && due > now + this.#longest())) continue;
        isDue ||= due !== null;
        for (const one of lanes) if (batch.add(one) && due === null) last = id;
      }
      if (last === null && ready === most) continue;
      return { lanes: batch.lanes, isWhole: last === null && !hidesSuspects, isDue, nextAt, last, now, counted };
    }
  }

  served({ last }: FoundLanes): void {
    this.#cursor = last ?? this.#cursor;
  }
}

/** Seeks from lane to lane, so that only lanes with jobs cost. Scalar subqueries keep the server from joining whole tables. */
function foundSql(s: string): string {
  const walk = (name: string, table: string, id: string, at: string, which: string) => `
    ${name} (id, at) as (
      select 0, null::bigint
      union all
      select next.* from ${name} cross join lateral (
        select ${id}, ${at} from ${s}.${table} where ${which} and ${id} > ${name}.id order by ${id}, ${at} limit 1) as next)`;
  return `
    with recursive clock as materialized (select ${s}.clock($1) as now, ${holdsSuspect(s, "$2::bigint")} as holds),
    ready (lane, round) as (
      select $3::integer, 0
      union all
      select coalesce(next, 0), case when next is null then 1 else round end from (
        select round, least(
          (select lane from ${s}.jobs where ${READY} and lane > ready.lane order by lane limit 1),
          (select lane from ${s}.jobs where ${SUSPECT} and lane > ready.lane and not (select holds from clock) order by lane limit 1)
        ) as next from ready offset 0) as step
      where round = 0 or next <= $3),
    ${walk("timed", "jobs", "lane", "run_at", "gate = 'time'")},
    ${walk("rule", "counters", "rule", "due_at", "due_at is not null")},
    found as (
      (select lane, null::bigint as at, null::integer as rule from ready where lane > 0 offset 1 limit $4)
      union all
      select id, coalesce((select 0 from ${s}.jobs where lane = timed.id and ${UNSEEN} limit 1), at), null from timed where id > 0
      union all
      select null, at, id from rule where id > 0)
    select counter.lanes, clock.now, clock.holds, (
      select coalesce(json_agg(json_build_array(lane, at, case when lane is null then queue end,
        coalesce((select paused from ${s}.queues where name = found.queue), false)
          or exists (select 1 from ${s}.locks as lock where lock.name = found.queue and ${LOCKED(s)}))), '[]')::text
      from (
        select *, case when lane is null then (select queue from ${s}.limits where limits.id = found.rule)
          else (select queue from ${s}.lanes where lanes.id = found.lane) end as queue
        from found offset 0) as found)
    from ${s}.counter cross join clock where counter.id = 1`;
}

export class Outlooks {
  readonly #parts: { rows: Rows; catalog: Catalog };
  readonly #ready: ReadyLanes;
  #counted = -1;

  constructor(s: string, parts: { rows: Rows; catalog: Catalog; random: () => number }) {
    this.#parts = parts;
    this.#ready = new ReadyLanes(s, { random: parts.random, longest: () => Number.POSITIVE_INFINITY });
  }

  async of(at: number | null, from: readonly ClaimSource[]): Promise<ClaimOutlook> {
    const { rows, catalog } = this.#parts;
    const shares = new ClaimableLanes({ isPaused: () => false }, []);
    for (;;) {
      const { lanes, nextAt, now, counted } = await this.#ready.find(
        rows,
        { at, holder: null, max: 1 },
        catalog.matching(from),
        shares,
      );
      if (counted === this.#counted) return outlookOf(lanes.length > 0, [nextAt], now);
      await catalog.reload(rows);
      this.#counted = counted;
    }
  }
}
