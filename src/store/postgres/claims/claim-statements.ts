import { byTurn } from "../../../core/jobs/job.ts";
import type { LeaseRef } from "../../../core/jobs/lease.ts";
import type { Fence, JobKey } from "../../../core/text/ids.ts";
import { publicId } from "../../job-row.ts";
import { isHeld, isOver } from "../../sql/locks.ts";
import type { Claimed } from "../../store.ts";
import type { Catalog } from "../catalog.ts";
import { dialectOf } from "../scripts.ts";
import type { SingleStatement } from "../transactions/receipts.ts";
import type { Tx } from "../transactions/transaction.ts";
import { startedAlikeSql, startedBySpotSql } from "./leases.ts";

/** What can be claimed: by jobs_ready, and, where a worker died, by jobs_suspect. */
export const READY = "ready";
export const SUSPECT = "suspect = 'pending' and gate is null";

/** What came with somebody's own transaction, was to run at once, and has to pass its limits yet: by jobs_unseen. */
export const UNSEEN = "gate = 'time' and fence = 0 and run_at <= created_at";

/** Whether this process holds one that was running when a worker died. */
export function holdsSuspect(s: string, holder: string): string {
  return `exists (select 1 from ${s}.jobs where suspect = 'running' and holder = ${holder})`;
}

/** What a statement that claims jobs gives back of each: see `Started`. Of one lane, whoever asks knows it, and the lease. */
const STARTED_OF_LANE = `job.key, job.priority, job.policy, job.attempt, job.created_at, job.id, job.input, job.scheduled_for,
  job.fence, job.expires_at, job.suspect is not null`;
export const STARTED = `${STARTED_OF_LANE}, job.lane, job.lease`;

/** As its row is after the claim. */
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
];

/** What such a statement sets; there is a `fence`, a `clock`, and the `lease` of each. $2 and $3: the process, or who claims by hand. */
export function startSql(lease: string, now = "clock.now", fence = "(select fence from fence)"): string {
  return `state = 'running', attempt = attempt + 1, fence = ${fence}, holder = $2::bigint, worker = $3,
      started_at = ${now}, lease = ${lease}, expires_at = ${now} + ${lease}`;
}

/** Whether it was running when a worker died. */
export function isSuspect(started: Started): boolean {
  return started[10];
}

export function laneOf(started: Started): number {
  return started[11];
}

/** A statement gives rows back in any order. */
export function byStartedTurn([key, priority]: Started, [other, otherPriority]: Started): number {
  return byTurn({ key, priority }, { key: other, priority: otherPriority });
}

/** Its lane and policy are known by now. */
export function toClaimed(row: Started, catalog: Catalog): Claimed {
  const [job, priority, policy, attempt, createdAt, id, input, scheduledFor, fence, expiresAt, , lane, lease] = row;
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
  };
}

/** Whether a row `lock` is held at `clock.now`. */
export const LOCKED = (s: string): string => isHeld(dialectOf(s), "clock.now");

/** Locks as claims see them: they keep others away from queues. */
export class ClaimLocks {
  readonly #bind: string;

  constructor(s: string) {
    // From now on more follows from the job's end than its own row: others may claim from its queue again.
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

  /** Takes the lock for an exclusive claim; false, and nothing is changed, if somebody else has it. */
  async bind(tx: Tx, claim: LeaseRef & { queue: string }, holder: string, token: string): Promise<boolean> {
    const taken = await tx.rows(this.#bind, tx.at, claim.queue, holder, token, claim.job, claim.fence);
    if (taken.length > 0) tx.wrote();
    return taken.length > 0;
  }
}

/**
 * The next of one lane, each locked or stepped over: what is locked and not taken is free again with the commit. As long as
 * it is locked, its place stays the same, and what is taken is found again by that.
 */
function headSql(s: string, which: string, lane: string, limit: string): string {
  return `
    select ctid as spot, key, priority, suspect is not null as suspect from ${s}.jobs
    where lane = ${lane} and ${which} order by priority desc, key limit ${limit} for update skip locked`;
}

/** How such a statement goes on once it has `chosen`: `job` are those that were started. */
const taken = (s: string, lease: string, returned: string): string => `
    job as (
      update ${s}.jobs as job set ${startSql(lease)}
      from chosen, clock where job.ctid = chosen.spot
      returning ${returned}),
    started as (${startedBySpotSql(s)})`;

/** The same where all have one lease: each is found by one walk over the list of places, not by a look-up of its own. */
const takenAlike = (s: string, lease: string, returned: string): string => `
    job as (
      update ${s}.jobs as job set ${startSql(lease, "(select now from clock)")}
      where job.ctid = any(array(select spot from chosen))
      returning ${returned}),
    started as (${startedBySpotSql(s)})`;

/** How such a statement begins. */
const CLOCK = (s: string): string => `
    clock as materialized (select ${s}.clock($1) as now),
    fence as materialized (select nextval('${s}.fence') as fence)`;

/** Whether a suspect may be taken: see `suspectsOf`. */
const MAY_BE_SUSPECT = (s: string): string => `($4 or ($4 is null and not ${holdsSuspect(s, "$2")}))`;

/** One statement, for a single lane: there is nothing in it that one lane does not need. */
export function takeOneSql(s: string): string {
  return `
    with ${CLOCK(s)},
    lane as materialized (
      select case when exists (
        select 1 from ${s}.locks as lock, clock where lock.name = $7 and ${LOCKED(s)}) then 0 else $5::integer end as most),
    chosen as (
      select spot, key, $8::bigint as lease from (
        select * from (${headSql(s, READY, "$6::integer", "(select most from lane)")}) as ready
        union all
        select * from (${headSql(s, SUSPECT, "$6::integer", "(select least(most, 1) from lane)")}) as suspect
        where ${MAY_BE_SUSPECT(s)}) as head
      order by priority desc, key limit $5),
    ${takenAlike(s, "$8::bigint", STARTED_OF_LANE)}
    select * from job`;
}

/**
 * One statement, the same decision as `choose` for each queue: the heads of its lanes, in turn, as many as it and their
 * sources may give, at most one of them a suspect: the first whose source has not given all it may by then.
 */
export function takeManySql(s: string): string {
  return `
    with ${CLOCK(s)},
    lane as (
      select * from unnest($6::integer[], $7::text[], $8::bigint[], $9::integer[], $10::integer[], $11::integer[], $12::integer[])
        as lane (id, queue, lease, most, place, source, budget)
      where not exists (select 1 from ${s}.locks as lock, clock where lock.name = lane.queue and ${LOCKED(s)})),
    head as (
      select job.*, lane.* from lane cross join lateral (
        select * from (${headSql(s, READY, "lane.id", "lane.most")}) as ready
        union all
        select * from (${headSql(s, SUSPECT, "lane.id", "1")}) as suspect where ${MAY_BE_SUSPECT(s)}) as job),
    chosen as (
      select spot, key, lease from (
        select *, row_number() over (partition by place order by priority desc, key) as turn from (
          select *, row_number() over (partition by place, source order by priority desc, key) as nth from (
            select *, row_number() over (partition by place, suspect order by priority desc, key) as rank from (
              select *, count(*) filter (where not suspect) over (partition by place, source order by priority desc, key) as before
              from head) as head
            where not suspect or before < budget) as head
          where not suspect or rank = 1) as head
        where nth <= budget) as head
      where turn <= $13 order by place, turn limit $5),
    ${taken(s, "chosen.lease", STARTED)}
    select * from job`;
}

/** What the statements below give back of each job: see `SoleStarted`. */
const SOLE_STARTED = `job.key, nullif(job.priority, 0), job.policy, nullif(job.attempt, 1), job.created_at, job.id, job.input,
      job.scheduled_for, job.lane`;

/** A job, or, first, what all of them have in common: then it has no key. */
export type SoleStarted = [
  key: JobKey | null,
  priority: number | null,
  policy: number,
  attempt: number | null,
  createdAt: number,
  id: string | null,
  input: string | null,
  scheduledFor: number | null,
  lane: number,
  fence: Fence,
  now: number,
  longer: boolean | null,
  /** Where fewer were taken than could be: whether there are more, which others hold just now, or which may not be taken. */
  more: boolean | null,
  /** And when the next of those that are delayed is due. */
  nextAt: number | null,
  verdict: null,
];

/**
 * The answer of such a statement. What all jobs have in common stands in a row of its own, and what most of them have is
 * left out: each value costs something on either side of the connection.
 */
const answer = (verdict: string, common: string, longer: string, more: string): string => `
    select null::bigint, null::integer, null::integer, null::integer, null::bigint, null::text, null::text, null::bigint,
      null::integer, fence, now, ${longer}, ${more}, next_at, ${verdict} from ${common}
    union all select *, null, null, null, null, null, null from job`;

/** The next of a lane that is delayed. */
const nextSql = (s: string, lane: string): string =>
  `select run_at from ${s}.jobs where gate = 'time' and lane = ${lane} order by run_at limit 1`;

/** What has to be known before it takes anything: whether there is anything that takes more than one statement. */
const longerSql = (s: string, lanes: string, queues: string): string => `
      next_at <= now
        or exists (select 1 from ${s}.jobs where ${SUSPECT} and lane = ${lanes})
        or exists (select 1 from ${s}.locks where name = ${queues})`;

/**
 * The same as a transaction by itself: each queue its share, in their order. Where there is anything that takes more than
 * that (a lock on a queue, a suspect, what is delayed and due, which has its turn among the others; or one queue has more
 * than its share, and others have less) it takes nothing, and says `longer`.
 */
export function soleTakingSql(s: string): Record<"one" | "many", SingleStatement> {
  // In these statements' eyes those that they take are ready to the end.
  const others = (lanes: string, taken: string) =>
    `exists (select 1 from ${s}.jobs where lane = ${lanes} and ${READY} and ctid <> all(${taken}))`;
  return {
    one: soleOneSql(s, others("$5::integer", "spots::tid[]")),
    // Of each source at most what it may give.
    many: {
      parts: `
        ${CLOCK(s)},
        longer as materialized (
          select next_at, ${longerSql(s, "any($5::integer[])", "any($6::text[])")} as longer from clock, (
            select min((${nextSql(s, "lane.id")})) as next_at from unnest($5::integer[]) as lane (id)) as next),
        lane as (
          select * from unnest($5::integer[], $7::bigint[], $8::integer[], $9::integer[], $10::integer[], $11::integer[])
            as lane (id, lease, most, place, source, budget)),
        head as (
          select *, row_number() over (partition by place order by priority desc, key) as turn from (
            select *, row_number() over (partition by place, source order by priority desc, key) as nth from (
              select job.spot, job.key, job.priority, lane.* from lane cross join lateral (
                ${headSql(s, READY, "lane.id", "(select case when longer then 0 else lane.most end from longer)")}) as job) as head) as head
          where nth <= budget),
        uneven as materialized (
          select count(*) filter (where turn <= $12) < $4 and count(*) filter (where turn > $12) > 0 as uneven from head),
        chosen as (
          select spot, key, lease from head where turn <= $12 and not (select uneven from uneven)
          order by place, turn limit $4),
        ${taken(s, "chosen.lease", SOLE_STARTED)}`,
      values: 12,
      made: "fence, null, null from fence",
      wrote: "exists (select 1 from chosen)",
      answer: (verdict) =>
        answer(
          verdict,
          "fence, clock, longer, uneven",
          "longer or uneven",
          `case when (select count(*) from chosen) < $4 then
            ${others("any($5::integer[])", "array(select spot from chosen)")} end`,
        ),
    },
  };
}

/**
 * Of a single lane: what an idle worker waits for, hence with as little in it as will do. A part that others refer to costs
 * the server as much as taking ten jobs, so all that comes first is one: the instant, the fence, and where the jobs are.
 */
function soleOneSql(s: string, others: string): SingleStatement {
  const spots = `select ctid from ${s}.jobs where lane = $5::integer and ${READY} order by priority desc, key
            limit case when longer then 0 else $4::integer end for update skip locked`;
  return {
    parts: `
        given as materialized (
          select *, array(${spots}) as spots from (
            select *, ${longerSql(s, "$5::integer", "$6")} as longer from (
              select ${s}.clock($1) as now, nextval('${s}.fence') as fence, (${nextSql(s, "$5::integer")}) as next_at
              offset 0) as clock offset 0) as clock),
        job as (
          update ${s}.jobs as job set ${startSql("$7::bigint", "now", "given.fence")}
          from given where job.ctid = any((select spots from given)::tid[])
          returning ${SOLE_STARTED}),
        started as (${startedAlikeSql(s, "$7::bigint")})`,
    values: 7,
    made: "fence, null, null from given",
    wrote: "exists (select 1 from job)",
    answer: (verdict) => answer(verdict, "given", "longer", `case when cardinality(spots) < $4 then ${others} end`),
  };
}
