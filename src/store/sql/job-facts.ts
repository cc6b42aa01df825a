import type { Lane } from "../../core/jobs/claiming.ts";
import { type JobFacts, type LimitFacts, MAX_AHEAD } from "../../core/jobs/explain.ts";
import type { BuildState } from "../../core/pipelines/build.ts";
import { parseLimits } from "../../core/limits/limit-gate.ts";
import type { JobKey } from "../../core/text/ids.ts";
import { type Flag, isYes, type JobRow, publicId, toJob } from "../job-row.ts";
import { type RuleRow, toRule } from "../queues.ts";
import { isHeld } from "./locks.ts";
import type { Dialect, Reads, Script } from "./script.ts";

const MAX_UPSTREAM = 100;

interface Surroundings {
  gate: JobFacts["gate"];
  limits: string | null;
  now: number;
  paused: Flag | null;
  holder: string | null;
  lockedUntil: number | null;
  build: string | null;
  pipeline: string | null;
  buildState: BuildState | null;
  approved: Flag | null;
}

type LimitRow = RuleRow & { limitKey: string; running: number; bucket: number; here: number };

interface Claimable {
  ready: string;
  suspect: string;
}

export class JobFactsReader {
  readonly #sql: ReturnType<typeof statements>;

  constructor(dialect: Dialect, claimable: Claimable) {
    this.#sql = statements(dialect, claimable);
  }

  /** A delayed job only if no job is due. */
  *oldest(db: Reads, lanes: readonly number[]): Script<JobKey | null> {
    return (yield* db.get<{ key: JobKey | null }>(this.#sql.oldest, { lanes }))?.key ?? null;
  }

  /** Returns the facts of a job, or null if it was removed meanwhile. `lanes` are those of its queue. */
  *read(db: Reads, row: JobRow, lane: Lane, lanes: readonly number[]): Script<JobFacts | null> {
    const { key: job, priority, state } = row;
    const around = yield* db.get<Surroundings>(this.#sql.around, { job, queue: lane.queue });
    if (around === undefined) return null;
    const { gate, limits, now, paused, holder, lockedUntil, build, pipeline, buildState, approved } = around;
    const isPending = state === "pending";
    return {
      job: toJob(row, lane),
      version: lane.version,
      now,
      gate,
      isPaused: paused !== null && isYes(paused),
      lock: holder === null ? null : { holder, expiresAt: lockedUntil },
      upstream: state === "waiting" ? yield* this.#upstream(db, job) : [],
      limits: isPending && limits !== null ? yield* this.#limits(db, row, limits) : [],
      ahead: isPending ? yield* this.#ahead(db, { job, priority, lanes }) : 0,
      build:
        build === null || pipeline === null || buildState === null
          ? null
          : { id: build, pipeline, state: buildState, approved: isYes(approved ?? false) },
    };
  }

  *#upstream(db: Reads, job: JobKey): Script<string[]> {
    type Upstream = { id: string | null; createdAt: number; key: JobKey };
    const rows = yield* db.all<Upstream>(this.#sql.upstream, { job });
    return rows.map(({ id, createdAt, key }) => publicId(id, createdAt, key));
  }

  *#limits(db: Reads, { key: job, priority }: JobRow, limits: string): Script<LimitFacts[]> {
    const pairs = JSON.stringify(parseLimits(limits).map(([rule, key], place) => ({ place, rule, key })));
    const rows = yield* db.all<LimitRow>(this.#sql.limits, { job, priority, pairs });
    return rows.map(({ limitKey, running, bucket, here, ...rule }) => {
      return { key: limitKey, rule: toRule(rule).rule, running, bucket, isHere: here > 0 };
    });
  }

  *#ahead(db: Reads, of: { job: JobKey; priority: number; lanes: readonly number[] }): Script<number> {
    const { ahead } = (yield* db.get<{ ahead: number }>(this.#sql.ahead, of)) as { ahead: number };
    return Math.min(ahead, MAX_AHEAD);
  }
}

function statements(dialect: Dialect, { ready, suspect }: Claimable) {
  const { table, rows, in: isIn } = dialect;
  const jobs = table("jobs");
  const inLanes = isIn("lane", "bigint", ":lanes");
  // Each arm is a range of the index by lane, priority and key, and stops at the most that is counted.
  const arm = (where: string, i: number) =>
    `select one from (select 1 as one from ${jobs} where ${inLanes} and ${where} limit ${MAX_AHEAD}) as arm${i}`;
  const before = ["priority > :priority", "priority = :priority and key < :job"];
  const arms = [ready, suspect].flatMap((claimable) => before.map((position) => `${claimable} and ${position}`)).map(arm);
  const lowest = (where: string) => `select min(key) as key from ${jobs} where ${inLanes} and ${where}`;
  return {
    around: `
      select job.gate, job.limits, :now as now, queue.paused, lock.holder, lock.expires_at as "lockedUntil",
        build.id as build, build.pipeline, build.state as "buildState", build.approved
      from ${jobs} as job
      left join ${table("queues")} as queue on queue.name = :queue
      left join ${table("locks")} as lock on lock.name = :queue and ${isHeld(dialect)}
      left join ${table("work")} as work on work.job = job.key
      left join ${table("builds")} as build on build.key = work.build
      where job.key = :job`,
    upstream: `
      select upstream.key, upstream.created_at as "createdAt", upstream.id
      from ${table("waits")} as wait join ${jobs} as upstream on upstream.key = wait.upstream
      where wait.job = :job order by upstream.key limit ${MAX_UPSTREAM}`,
    // The use of a limit is the sum over all lanes. An idle limit has no counters.
    limits: `
      select pair.key as "limitKey", rule.id, rule.queue, rule.job, rule.position, rule.keyed, rule.concurrency, rule.starts, rule.per,
        cast(coalesce(sum(counter.running), 0) as bigint) as running, coalesce(max(counter.bucket), 0) as bucket,
        count(parked.job) as here
      from ${rows(":pairs", { place: "bigint", rule: "bigint", key: "text" })} as pair
      join ${table("limits")} as rule on rule.id = pair.rule
      left join ${table("counters")} as counter on counter.rule = pair.rule and counter.key = pair.key
      left join ${table("parked")} as parked
        on parked.counter = counter.id and parked.priority = :priority and parked.job = :job
      group by pair.place, pair.key, rule.id, rule.queue, rule.job, rule.position, rule.keyed, rule.concurrency, rule.starts, rule.per
      order by pair.place`,
    ahead: `select count(*) as ahead from (${arms.join(" union all ")}) as ahead`,
    oldest: `
      select coalesce(
        (select min(key) from (
          ${lowest(ready)} union all ${lowest(suspect)} union all ${lowest("gate = 'time' and run_at <= :now")}
          union all
          select min(parked.job) from ${table("counters")} as counter
          join ${table("parked")} as parked on parked.counter = counter.id
          where counter.parked > 0 and ${isIn("counter.lane", "bigint", ":lanes")}) as arms),
        (${lowest("gate = 'time'")})) as key`,
  };
}
