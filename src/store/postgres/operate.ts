import { CANCELLED_ATTEMPT } from "../../core/jobs/attempts.ts";
import { FINISHED_STATES, type FinishedState, type JobState, mayMove } from "../../core/jobs/job.ts";
import { needsAnotherStep } from "../../core/jobs/retention.ts";
import { isPipelineQueue } from "../../core/pipelines/work.ts";
import { auditedJob, subjectOf } from "../../core/recovery/audit.ts";
import type { Fence, JobKey } from "../../core/text/ids.ts";
import { jobsRemoved } from "../job-row.ts";
import type { EndedAttempt } from "../sql/attempts.ts";
import type { Audit } from "../sql/audit.ts";
import { runAsync } from "../sql/script.ts";
import type { PruneFilter } from "../store.ts";
import { endedSql } from "./claims/leases.ts";
import { listOf, lists, type Value } from "./connection/driver.ts";
import { dialectOf, named } from "./scripts.ts";
import type { LimitedJob } from "./limits/limits.ts";
import { Stalled } from "./transactions/mutexes.ts";
import { idParams, keyOf } from "../sql/queries.ts";
import type { FinishedJob } from "./settle/settle-effects.ts";
import type { Tx } from "./transactions/transaction.ts";
import type { JobParts } from "./store-parts.ts";

type OperateParts = Pick<JobParts, "catalog" | "settings" | "tally" | "batches" | "limits" | "retention" | "events"> & {
  cancel: Cancel;
  audit: Audit;
};

export class Operate {
  readonly #parts: OperateParts;
  readonly #s: string;
  readonly #sql: Record<"find" | "holderOf" | "retry" | "keysOf" | "drop", string>;

  constructor(s: string, parts: OperateParts) {
    this.#parts = parts;
    this.#s = s;
    const dialect = dialectOf(s);
    this.#sql = {
      find: `select key, lane, limits is not null from ${s}.jobs where key = ${keyOf(dialect, "$1", "$2", "$3")}`,
      // A job that another transaction adds at this instant violates jobs_slot, and this transaction runs again.
      holderOf: `
        select 1 from ${s}.jobs where reserved = $1`,
      retry: `
        update ${s}.jobs set state = 'pending', gate = $3, errors = 0, crashes = 0, run_at = $2, finished_at = null
        where key = $1`,
      keysOf: `
        select distinct ${keyOf(dialect, "one.id", "one.key", "one.created_at")}
        from unnest($1::text[], $2::bigint[], $3::bigint[]) as one (id, key, created_at)`,
      // Ids that callers chose stay for ever, with the state in which the job ended, for jobs that come after it.
      drop: `
        with gone as (delete from ${s}.jobs where key = any($1::bigint[]) returning key, id, state),
        remembered as (update ${s}.ids as one set ended = gone.state from gone where one.id = gone.id and one.chosen),
        forgotten as (delete from ${s}.ids as one using gone where one.id = gone.id and not one.chosen),
        tried as (delete from ${s}.attempts as old using gone where old.job = gone.key)
        delete from ${s}.notes as note using gone where note.job = gone.key`,
    };
  }

  async cancel(tx: Tx, id: string): Promise<boolean> {
    const row = await this.#lock(tx, id);
    if (row === undefined || !mayMove("cancel", row.state)) return false;
    await this.#parts.cancel.run(tx, row);
    const { key, lane, state } = row;
    await runAsync(this.#parts.batches.cancelled(tx, await tx.now(), [{ job: key, lane, was: state }]));
    await this.#wasDone(tx, "job.cancelled", id, row, "cancelled");
    return true;
  }

  async retry(tx: Tx, id: string): Promise<boolean | "key-taken"> {
    const row = await this.#lock(tx, id);
    if (row === undefined || !mayMove("retry", row.state)) return false;
    const { key, lane, state, slot, limited } = row;
    if (this.#parts.batches.isPipelines(lane)) return false;
    if (slot !== null && (await tx.rows(this.#sql.holderOf, slot)).length > 0) return "key-taken";
    await this.#parts.settings.at(tx);
    const [gate = null] = limited === null ? [] : await this.#parts.limits.admit(tx, [limited]);
    await tx.rows(this.#sql.retry, key, await tx.now(), gate);
    await this.#parts.events.always(tx, [{ type: "job.retried", job: key }]);
    await this.#parts.tally.subtract(tx, [{ lane, state: state as FinishedState }]);
    await this.#wasDone(tx, "job.retried", id, row, "pending");
    tx.ready(this.#parts.catalog.lane(lane).queue);
    tx.wrote();
    return true;
  }

  async prune(tx: Tx, filter: PruneFilter): Promise<number> {
    const { state } = filter;
    if (!FINISHED_STATES.includes(state)) return 0;
    const jobs = await this.#prunable(tx, filter);
    await this.#drop(tx, jobs);
    if (jobs.length > 0) await runAsync(this.#parts.audit.record(tx, ...jobsRemoved(jobs.length, filter)));
    return jobs.length;
  }

  /**
   * Removes a few jobs that their queue need not keep. One process at a time: two would both count the same jobs as too many.
   */
  async expire(tx: Tx, step: { limit: number; leastAge: number; unlisted: readonly string[] }) {
    if (!(await this.#parts.retention.alone(tx))) return { removed: 0, more: false };
    const listing = await this.#parts.retention.backfill(tx, step.unlisted);
    const { taken, over } = await this.#parts.retention.take(tx, step.limit, step.leastAge);
    await this.#drop(tx, over);
    return { removed: over.length, more: needsAnotherStep({ listing, taken, removed: over.length, limit: step.limit }) };
  }

  #wasDone(tx: Tx, action: string, id: string, { lane, state }: Locked, after: JobState): Promise<void> {
    const of = this.#parts.catalog.lane(lane);
    const [before, now] = [auditedJob(of, state), auditedJob(of, after)];
    return runAsync(this.#parts.audit.add(tx, { action, subject: subjectOf(action, id), before, after: now }));
  }

  /** The queue's lock comes before the rows of its jobs, in every transaction, or two would deadlock. */
  async #lock(tx: Tx, id: string): Promise<Locked | undefined> {
    const { key: generated, createdAt } = idParams(id);
    const [found] = await tx.rows<[JobKey, number, boolean]>(this.#sql.find, id, generated, createdAt);
    if (found === undefined) return undefined;
    const [key, lane, hasLimits] = found;
    await this.#parts.catalog.knowLanes(tx.rows, [lane]);
    const { queue } = this.#parts.catalog.lane(lane);
    if (hasLimits || isPipelineQueue(queue)) await this.#parts.limits.lock(tx, [queue]);
    const [locked] = await this.#parts.cancel.lock(tx, [key]);
    return locked;
  }

  /** By jobs_aside, or by the key. The state is written out, so that the planner finds its partial index. */
  async #prunable(tx: Tx, { state, queue, ids, finishedBefore, limit }: PruneFilter): Promise<FinishedJob[]> {
    const where = [state === "succeeded" ? "state = 'succeeded'" : `aside = '${state}'`];
    const values: Value[] = [limit];
    if (finishedBefore !== undefined) where.push(`finished_at < $${values.push(finishedBefore)}`);
    if (ids !== undefined) where.push(`key = any($${values.push(listOf(await this.#keysOf(tx, ids)))}::bigint[])`);
    if (queue !== undefined) {
      await this.#parts.catalog.reload(tx.rows);
      const lanes = [...this.#parts.catalog.lanes()].filter((lane) => lane.queue === queue);
      where.push(`lane = any($${values.push(listOf(lanes.map(({ id }) => id)))}::integer[])`);
    }
    const text = `select key, lane from ${this.#s}.jobs where ${where.join(" and ")} order by key limit $1 for update`;
    return (await tx.rows<[JobKey, number]>(text, ...values)).map(([job, lane]) => ({ job, lane, state }));
  }

  async #keysOf(tx: Tx, ids: readonly string[]): Promise<JobKey[]> {
    const rows = await tx.rows<[JobKey | null]>(this.#sql.keysOf, ...lists(ids.map(idParams), "id", "key", "createdAt"));
    return rows.flatMap(([key]) => key ?? []);
  }

  async #drop(tx: Tx, jobs: readonly FinishedJob[]): Promise<void> {
    if (jobs.length === 0) return;
    await tx.rows(this.#sql.drop, listOf(jobs.map(({ job }) => job)));
    await this.#parts.tally.subtract(tx, jobs);
    tx.wrote();
  }
}

interface Locked {
  key: JobKey;
  state: JobState;
  lane: number;
  fence: Fence;
  slot: string | null;
  gate: string | null;
  limited: LimitedJob | null;
}

type CancelParts = Pick<JobParts, "catalog" | "settings" | "effects" | "waits" | "limits" | "events" | "attempts">;

/**
 * Cancels jobs that have not ended, whichever process holds them. The caller holds the locks of queues with limits or work
 * items.
 */
export class Cancel {
  readonly #parts: CancelParts;
  readonly #sql: Record<"lock" | "claims" | "cancel", string>;

  constructor(s: string, parts: CancelParts) {
    this.#parts = parts;
    this.#sql = {
      lock: `
        select key, state, lane, fence, slot, gate, priority, limits from ${s}.jobs
        where key = any($1::bigint[]) order by key for update`,
      claims: `
        select (select count(*) from ${s}.claims where fence = any($1::bigint[])), count(*)
        from (select 1 from ${s}.claims where fence = any($1::bigint[]) order by fence for update skip locked) as held`,
      cancel: `
        with ended as (
          update ${s}.jobs as job set state = 'cancelled', gate = null, finished_at = $2, expires_at = null, holder = null, worker = null
          from (select key, state from ${s}.jobs where key = any($1::bigint[])) as was where job.key = was.key
          returning case when was.state = 'running' then job.fence end as fence),
        ${endedSql(s, "ended")}
        select 1 from ended`,
    };
  }

  async lock(tx: Tx, jobs: readonly JobKey[]): Promise<Locked[]> {
    if (jobs.length === 0) return [];
    type Row = Omit<Locked, "limited"> & { priority: number; limits: string | null };
    const rows = named<Row>(await tx.rows(this.#sql.lock, listOf(jobs)));
    const lanes = rows.map(({ lane }) => lane);
    await this.#parts.catalog.knowLanes(tx.rows, lanes);
    return rows.map(({ priority, limits, ...row }) => {
      const { key, lane } = row;
      return Object.assign(row, { limited: limits === null ? null : { key, lane, priority, limits } });
    });
  }

  async run(tx: Tx, job: Locked): Promise<void> {
    await this.#end(tx, [job], () => this.#parts.events.always(tx, [{ type: "job.cancelled", job: job.key }]));
  }

  /** Cancels work items without an audit entry: those that had not ended, and their states before. */
  async quietly(tx: Tx, jobs: readonly JobKey[]): Promise<Map<JobKey, JobState>> {
    const open = (await this.lock(tx, jobs)).filter(({ state }) => mayMove("cancel", state));
    if (open.length > 0) {
      const told = open.map(({ key, lane }) => ({ type: "job.cancelled", job: key, lane }) as const);
      await this.#end(tx, open, () => this.#parts.events.tell(tx, told));
    }
    return new Map(open.map(({ key, state }) => [key, state]));
  }

  async #end(tx: Tx, jobs: readonly Locked[], tell: () => Promise<void>): Promise<void> {
    const running = jobs.filter(({ state }) => state === "running");
    // A transaction that settles other jobs of these claims may wait for the rows locked here: run again instead of waiting.
    if (running.length > 0 && !(await this.#haveClaims(tx, running))) throw new Stalled();
    await this.#parts.settings.at(tx);
    const now = await tx.now();
    const recorded = runAsync(
      this.#parts.attempts.record(
        tx,
        now,
        running.map((job) => this.#attemptOf(job)),
      ),
    );
    await Promise.all([recorded, tx.rows(this.#sql.cancel, listOf(jobs.map(({ key }) => key)), now)]);
    await tell();
    for (const { key } of jobs.filter(({ state }) => state === "waiting")) await this.#parts.waits.forget(tx, key);
    const of = (which: JobState) =>
      jobs.flatMap(({ state, gate, limited }) =>
        limited === null || state !== which ? [] : [{ ...limited, gate, began: true }],
      );
    const pending = of("pending");
    if (pending.length > 0) await this.#parts.limits.withdraw(tx, pending);
    await this.#parts.limits.end(tx, of("running"));
    const ended = jobs.map(({ key: job, lane }) => ({ job, lane, state: "cancelled" }) as const);
    await this.#parts.effects.follow(tx, now, ended);
    for (const { key, fence, lane } of running) {
      tx.ended(key, fence);
      tx.ready(this.#parts.catalog.lane(lane).queue);
    }
    tx.wrote();
  }

  #attemptOf({ key: job, lane }: Locked): EndedAttempt {
    const { settings, catalog } = this.#parts;
    return { job, keep: settings.view.attemptsKept(catalog.lane(lane).queue), ...CANCELLED_ATTEMPT };
  }

  async #haveClaims(tx: Tx, running: readonly Locked[]): Promise<boolean> {
    const fences = [...new Set(running.map(({ fence }) => fence))];
    const [[all, free]] = (await tx.rows<[number, number]>(this.#sql.claims, listOf(fences))) as [[number, number]];
    return all === free;
  }
}
