import { dependentsOf, isEarly, upstreamEnded, type Wait } from "../../core/jobs/admission.ts";
import type { Lane } from "../../core/jobs/claiming.ts";
import type { JobEventType } from "../../core/jobs/event.ts";
import type { FinishedState } from "../../core/jobs/job.ts";
import type { LimitedJob } from "../../core/limits/limit-gate.ts";
import type { JobKey } from "../../core/text/ids.ts";
import { type Flag, isYes, publicId } from "../job-row.ts";
import type { FinishedJob } from "./retention.ts";
import { type Answer, type Dialect, type Script, type Tx, wait } from "./script.ts";
import type { WorkBatches } from "./work/work-batches.ts";

export interface DependentsDatabase {
  /** Loads lanes that this process may not know. SQLite finds them when they are asked for. */
  knowLanes?(tx: Tx, lanes: readonly number[]): Answer<void>;
  lane(id: number): Lane;
  admit(tx: Tx, jobs: readonly LimitedJob[]): Answer<(string | null)[]>;
  /** Adds events for queues that ask for them, or, with `always`, for all queues. */
  recordEvents(tx: Tx, type: JobEventType, jobs: readonly { job: JobKey; lane: number }[], always: boolean): Answer<void>;
  /** Gives a job that waited to replace another the slot of that job, together with the state or before it. */
  readonly takesSlot: string;
  takeSlots?(tx: Tx, jobs: readonly JobKey[]): Answer<void>;
}

interface WaitingRow {
  key: JobKey;
  lane: number;
  priority: number;
  runAt: number;
  createdAt: number;
  limits: string | null;
}

/** A job that does not succeed cancels those that wait for it, and those after them, in the same transaction. */
export class Dependents {
  readonly #parts: { batches: WorkBatches; database: DependentsDatabase };
  readonly #sql: ReturnType<typeof statements>;

  constructor(dialect: Dialect, parts: { batches: WorkBatches; database: DependentsDatabase }) {
    this.#parts = parts;
    this.#sql = statements(dialect, parts.database.takesSlot);
  }

  *add(tx: Tx, waits: readonly Wait[]): Script<void> {
    const rows = waits.map(({ job, upstream }) => ({ job, upstream }));
    yield* tx.each(this.#sql.add, rows);
  }

  *areAny(tx: Tx, upstreams: readonly JobKey[]): Script<boolean> {
    return (yield* tx.get(this.#sql.any, { upstreams })) !== undefined;
  }

  *replaced(tx: Tx, jobs: readonly JobKey[]): Script<JobKey[]> {
    const waits = yield* this.#behind(tx, jobs);
    return waits.filter(({ replaces }) => replaces).map(({ upstream }) => upstream);
  }

  /** Unblocks or cancels the jobs that waited for these. Returns those that it has cancelled. */
  *follow(tx: Tx, now: number, ended: readonly Omit<FinishedJob, "lane">[]): Script<FinishedJob[]> {
    const states = new Map(ended.map(({ job, state }) => [job, state]));
    const upstreams = [...states.keys()];
    const waits = yield* this.#behind(tx, upstreams);
    if (waits.length === 0) return [];
    const { cancelled, unblocked } = dependentsOf(waits, states);
    yield* tx.run(this.#sql.removeBehind, { upstreams });
    if (cancelled.size > 0) yield* tx.run(this.#sql.removeOf, { jobs: [...cancelled.keys()] });
    const ends = cancelled.size === 0 ? [] : yield* this.#cancel(tx, now, cancelled, states);
    if (unblocked.length > 0) yield* this.#unblock(tx, now, unblocked);
    return ends;
  }

  *#behind(tx: Tx, upstreams: readonly JobKey[]): Script<Wait[]> {
    const waits = yield* tx.all<Wait & { replaces: Flag }>(this.#sql.behind, { upstreams });
    if (waits.length === 0) return [];
    // If two upstreams free a job at once, the second does it: it waits here for the first, and then sees its commit.
    yield* tx.lock(this.#sql.lock, { jobs: [...new Set(waits.map(({ job }) => job))] });
    return waits.map(({ job, upstream, replaces }) => ({ job, upstream, replaces: isYes(replaces) }));
  }

  *#unblock(tx: Tx, now: number, jobs: readonly JobKey[]): Script<void> {
    const { database } = this.#parts;
    const blocked = new Set((yield* tx.all<{ job: JobKey }>(this.#sql.blocked, { jobs })).map(({ job }) => job));
    const free = jobs.filter((job) => !blocked.has(job));
    if (free.length === 0) return;
    yield* wait(database.takeSlots?.(tx, free));
    const gates = new Map<JobKey, string | null>();
    const limited: LimitedJob[] = [];
    for (const { key, lane, priority, runAt, createdAt, limits } of yield* this.#waiting(tx, free)) {
      if (isEarly(runAt, createdAt, now)) gates.set(key, "time");
      else if (limits === null) gates.set(key, null);
      else limited.push({ key, lane, priority, limits });
      tx.ready(database.lane(lane).queue);
    }
    if (limited.length > 0) {
      const admitted = yield* wait(database.admit(tx, limited));
      for (const [i, { key }] of limited.entries()) gates.set(key, admitted[i] ?? null);
    }
    for (const [gate, group] of Map.groupBy(gates.keys(), (key) => gates.get(key) ?? null))
      yield* tx.run(this.#sql.unblock, { gate, jobs: group });
  }

  *#cancel(
    tx: Tx,
    now: number,
    upstreamOf: ReadonlyMap<JobKey, JobKey>,
    states: ReadonlyMap<JobKey, FinishedState>,
  ): Script<FinishedJob[]> {
    type Named = { key: JobKey; createdAt: number; id: string | null };
    const waiting = yield* this.#waiting(tx, [...upstreamOf.keys()]);
    const upstreams = yield* tx.all<Named>(this.#sql.ids, { jobs: [...new Set(upstreamOf.values())] });
    const behind = Map.groupBy(
      waiting.map(({ key }) => key),
      (job) => upstreamOf.get(job) as JobKey,
    );
    for (const { key, createdAt, id } of upstreams) {
      const error = JSON.stringify(upstreamEnded(publicId(id, createdAt, key), states.get(key) as FinishedState));
      yield* tx.run(this.#sql.cancel, { jobs: behind.get(key) ?? [], error, at: now });
    }
    const cancelled = waiting.map(({ key: job, lane }): FinishedJob => ({ job, lane, state: "cancelled" }));
    yield* wait(this.#parts.database.recordEvents(tx, "job.cancelled", cancelled, false));
    const waited = cancelled.map(({ job, lane }) => ({ job, lane, was: "waiting" }) as const);
    yield* this.#parts.batches.cancelled(tx, now, waited);
    return cancelled;
  }

  *#waiting(tx: Tx, jobs: readonly JobKey[]): Script<WaitingRow[]> {
    const rows = yield* tx.all<WaitingRow>(this.#sql.waiting, { jobs });
    const lanes = rows.map(({ lane }) => lane);
    yield* wait(this.#parts.database.knowLanes?.(tx, lanes));
    return rows;
  }
}

function statements(dialect: Dialect, takesSlot: string) {
  const { table, each } = dialect;
  const jobs = (column: string) => dialect.in(column, "bigint", ":jobs");
  const upstreams = dialect.in("upstream", "bigint", ":upstreams");
  const columns = { job: "bigint", upstream: "bigint" } as const;
  return {
    add: each(columns, ({ inserted }) => `insert into ${table("waits")} (job, upstream) ${inserted} on conflict do nothing`),
    any: `select 1 from ${table("waits")} where ${upstreams} limit 1`,
    // The slot of a job that waits to replace another begins with a line break.
    behind: `
      select job, upstream, coalesce((select slot like '\n%' from ${table("jobs")} where key = job), false) as replaces
      from ${table("waits")} where ${upstreams} order by job`,
    lock: `select 1 from ${table("jobs")} where ${jobs("key")} order by key`,
    removeBehind: `delete from ${table("waits")} where ${upstreams}`,
    removeOf: `delete from ${table("waits")} where ${jobs("job")}`,
    blocked: `select distinct job from ${table("waits")} where ${jobs("job")}`,
    waiting: `
      select key, lane, priority, run_at as "runAt", created_at as "createdAt", limits from ${table("jobs")}
      where ${jobs("key")} and state = 'waiting' order by key`,
    // A join with a list is avoided: PostgreSQL may have planned for short ones. run_at: now the job waits for a worker.
    unblock: `
      update ${table("jobs")} as job set state = 'pending', gate = :gate, run_at = ${dialect.greatest("run_at", ":now")}${takesSlot}
      where ${jobs("key")} and state = 'waiting'`,
    cancel: `
      update ${table("jobs")} set state = 'cancelled', error = :error, finished_at = :at
      where ${jobs("key")} and state = 'waiting'`,
    ids: `select key, created_at as "createdAt", id from ${table("jobs")} where ${jobs("key")}`,
  };
}
