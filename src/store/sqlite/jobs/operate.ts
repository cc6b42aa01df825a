import { type FinishedState, type JobState, mayMove } from "../../../core/jobs/job.ts";
import { BACKFILL, excesses, isMore, longer, type Over } from "../../../core/jobs/retention.ts";
import { isPipelineQueue } from "../../../core/pipelines/work.ts";
import { auditedJob, subjectOf } from "../../../core/recovery/audit.ts";
import type { Fence, JobKey } from "../../../core/text/ids.ts";
import { jobsRemoved } from "../../job-row.ts";
import type { Audit } from "../../sql/audit.ts";
import { runSync } from "../../sql/script.ts";
import type { WorkBatches } from "../../sql/work/work-batches.ts";
import type { PruneFilter } from "../../store.ts";
import type { Connection, Statement } from "../driver.ts";
import type { Tx } from "../group-commit.ts";
import type { JobIds } from "../queries.ts";
import type { Catalog, Settings } from "./catalog.ts";
import type { JobEvents } from "./events.ts";
import type { Limits } from "./limits.ts";
import type { SettleEffects, Tally, Waits } from "./settle-effects.ts";

interface Row {
  key: JobKey;
  state: JobState;
  lane: number;
  fence: Fence;
  slot: string | null;
  gate: string | null;
  priority: number;
  limits: string | null;
}

const ROW = "key, state, lane, fence, slot, gate, priority, limits";

interface OperateParts {
  catalog: Catalog;
  ids: JobIds;
  tally: Tally;
  effects: SettleEffects;
  limits: Limits;
  expiring: Expiring;
  events: JobEvents;
  audit: Audit;
  cancel: Cancel;
}

/** What an operator does to jobs. */
export class Operate {
  readonly #parts: OperateParts;
  readonly #row: Statement;
  readonly #remember: Statement;
  readonly #retry: Statement;
  readonly #unfinished: Statement;
  readonly #prunable: Statement;
  readonly #keepHighest: Statement;
  readonly #remove: Statement[];

  constructor(db: Connection, parts: OperateParts) {
    this.#parts = parts;
    this.#row = db.prepare(`select ${ROW} from holdfast_jobs where key = :key`);
    this.#retry = db.prepare(
      `update holdfast_jobs set state = 'pending', gate = :gate, errors = 0, crashes = 0, run_at = :now, finished_at = null
       where key = :key`,
    );
    this.#unfinished = db.prepare(
      `select key from holdfast_jobs
       where slot = ? and slot is not null and (state = 'pending' or state = 'running' or state = 'waiting')`,
    );
    // By holdfast_jobs_aside, or by the key: finished jobs are the oldest.
    this.#prunable = db.prepare(
      `select ${ROW} from holdfast_jobs
       where state = :state and (:before is null or finished_at < :before)
         and (:keys is null or key in (select value from json_each(:keys)))
         and (:lanes is null or lane in (select value from json_each(:lanes)))
       order by key limit :limit`,
    );
    // A key is never used again, also not the highest: a zombie's (job, fence) must not fit a stranger.
    this.#keepHighest = db.prepare(
      `update holdfast_counter set jobs = highest
       from (select max(jobs, coalesce((select max(key) from holdfast_jobs), 0)) as highest from holdfast_counter) where id = 1`,
    );
    // The ids that callers chose stay: one job ever. How it ended stays with them, for what is to come after it.
    this.#remember = db.prepare(
      `update holdfast_ids set ended = ?
       where chosen = 1 and ended is null and id = (select id from holdfast_jobs where key = ?)`,
    );
    this.#remove = [
      "delete from holdfast_ids where chosen = 0 and id = (select id from holdfast_jobs where key = ?)",
      "delete from holdfast_inputs where job = ?",
      "delete from holdfast_notes where job = ?",
      "delete from holdfast_jobs where key = ?",
    ].map((sql) => db.prepare(sql));
  }

  cancel(tx: Tx, id: string): boolean {
    const row = this.#find(id);
    if (row === undefined || !this.#parts.cancel.run(tx, row.key)) return false;
    this.#parts.effects.write(tx);
    this.#wasDone(tx, "job.cancelled", id, row, "cancelled");
    return true;
  }

  retry(tx: Tx, id: string): boolean | "key-taken" {
    const row = this.#find(id);
    if (row === undefined || !mayMove("retry", row.state)) return false;
    // A work item that has ended is none any more: the next build does it again.
    if (isPipelineQueue(this.#parts.catalog.lane(row.lane).queue)) return false;
    if (row.slot !== null && this.#unfinished.row(row.slot) !== undefined) return "key-taken";
    const gate = row.limits === null ? null : this.#parts.limits.admit(tx, { ...row, limits: row.limits });
    this.#retry.runNamed({ key: row.key, now: tx.now, gate });
    this.#parts.events.always(tx, "job.retried", row.key);
    this.#parts.tally.add(row.lane, row.state as FinishedState, -1);
    this.#parts.effects.write(tx);
    this.#wasDone(tx, "job.retried", id, row, "pending");
    tx.ready(this.#parts.catalog.lane(row.lane).queue);
    tx.wrote();
    return true;
  }

  prune(tx: Tx, filter: PruneFilter): number {
    const keys = filter.ids?.map((id) => this.#find(id)?.key).filter((key) => key !== undefined);
    const lanes =
      filter.queue === undefined ? null : [...this.#parts.catalog.lanes(tx.lanes)].filter(({ queue }) => queue === filter.queue);
    const rows = this.#prunable.all<Row>({
      state: filter.state,
      before: filter.finishedBefore ?? null,
      keys: keys === undefined ? null : JSON.stringify(keys),
      lanes: lanes && JSON.stringify(lanes.map(({ id }) => id)),
      limit: filter.limit,
    });
    this.#drop(
      tx,
      rows.map(({ key, lane }) => ({ job: key, lane, state: filter.state })),
    );
    if (rows.length > 0) runSync(this.#parts.audit.record(tx, ...jobsRemoved(rows.length, filter)));
    return rows.length;
  }

  /** One small step of forgetting what its queue need not keep any longer. */
  expire(tx: Tx, limit: number, leastAge: number): { removed: number; more: boolean } {
    const listing = this.#parts.expiring.backfill(tx);
    const { taken, over } = this.#parts.expiring.take(tx, limit, leastAge);
    this.#drop(tx, over);
    const removed = over.length;
    return { removed, more: isMore({ listing, taken, removed, limit }) };
  }

  #drop(tx: Tx, jobs: readonly { job: JobKey; lane: number; state: FinishedState }[]): void {
    if (jobs.length === 0) return;
    this.#keepHighest.run();
    for (const { job, lane, state } of jobs) {
      this.#remember.run(state, job);
      for (const remove of this.#remove) remove.run(job);
      this.#parts.tally.add(lane, state, -1);
    }
    this.#parts.tally.write(tx.now);
    tx.wrote();
  }

  /** The event is among those of jobs. */
  #wasDone(tx: Tx, action: string, id: string, { lane, state }: Row, after: JobState): void {
    const of = this.#parts.catalog.lane(lane);
    const [before, now] = [auditedJob(of, state), auditedJob(of, after)];
    runSync(this.#parts.audit.add(tx, { action, subject: subjectOf(action, id), before, after: now }));
  }

  #find(id: string): Row | undefined {
    const key = this.#parts.ids.keyOf(id);
    return key === null ? undefined : this.#row.get<Row>({ key });
  }
}

interface CancelledRow {
  key: JobKey;
  state: JobState;
  lane: number;
  fence: Fence;
  gate: string | null;
  priority: number;
  limits: string | null;
}

interface CancelParts {
  catalog: Catalog;
  effects: SettleEffects;
  waits: Waits;
  limits: Limits;
  events: JobEvents;
  batches: WorkBatches;
}

/** Ends jobs that have not ended, whatever holds them. The caller then writes the effects. */
export class Cancel {
  readonly #parts: CancelParts;
  readonly #row: Statement;
  readonly #cancel: Statement;

  constructor(db: Connection, parts: CancelParts) {
    this.#parts = parts;
    this.#row = db.prepare("select key, state, lane, fence, gate, priority, limits from holdfast_jobs where key = :key");
    this.#cancel = db.prepare(
      `update holdfast_jobs set state = 'cancelled', gate = null, finished_at = :now, expires_at = null, holder = null, worker = null
       where key = :key`,
    );
  }

  /** An operator's act: a work item has failed by it. False: it has ended already. */
  run(tx: Tx, job: JobKey): boolean {
    const row = this.#take(tx, job);
    if (row === undefined) return false;
    this.#parts.events.always(tx, "job.cancelled", row.key);
    runSync(this.#parts.batches.cancelled(tx, tx.now, [{ job: row.key, lane: row.lane, was: row.state }]));
    return true;
  }

  /** Cancels work items that a build does not need any more: those that had not ended, and their states before. */
  quietly(tx: Tx, jobs: readonly JobKey[]): Map<JobKey, JobState> {
    const cancelled = new Map<JobKey, JobState>();
    for (const job of jobs) {
      const row = this.#take(tx, job);
      if (row === undefined) continue;
      this.#parts.events.tell(tx, "job.cancelled", row.lane, row.key);
      cancelled.set(row.key, row.state);
    }
    this.#parts.effects.write(tx);
    return cancelled;
  }

  #take(tx: Tx, job: JobKey): CancelledRow | undefined {
    const row = this.#row.get<CancelledRow>({ key: job });
    if (row === undefined || !mayMove("cancel", row.state)) return undefined;
    this.#cancel.runNamed({ key: row.key, now: tx.now });
    this.#parts.effects.add(row.key, row.lane, "cancelled");
    if (row.state === "waiting") this.#parts.waits.forget(row.key);
    if (row.limits !== null && row.state === "pending") this.#parts.limits.withdraw(tx, { ...row, limits: row.limits }, row.gate);
    if (row.limits !== null && row.state === "running") this.#parts.limits.end(tx, row.lane, row.limits, true);
    if (row.state === "running") {
      tx.ended(row.key, row.fence);
      // It may have been an exclusive claim: its queue is open again.
      tx.ready(this.#parts.catalog.lane(row.lane).queue);
    }
    tx.wrote();
    return row;
  }
}

interface ExpiringParts {
  catalog: Catalog;
  settings: Settings;
  tally: Tally;
}

/**
 * Finished jobs of queues that do not keep them for ever, in the order in which they ended: what has to go is found
 * without walking history. A job that an operator has retried may still be listed; it is looked at before it goes.
 */
export class Expiring {
  readonly #parts: ExpiringParts;
  readonly #add: Statement;
  readonly #oldest: Statement;
  readonly #forget: Statement;
  readonly #still: Statement;
  readonly #unlisted: Statement;
  readonly #allUnlisted: Statement;
  readonly #ended: Statement;
  readonly #endedUpTo: Statement;
  readonly #goOn: Statement;

  constructor(db: Connection, parts: ExpiringParts) {
    this.#parts = parts;
    this.#add = db.prepare(
      "insert into holdfast_expiring (lane, state, finished_at, job) values (?, ?, ?, ?) on conflict do nothing",
    );
    this.#oldest = db.prepare(
      `select job, finished_at from holdfast_expiring
       where lane = ? and state = ? and finished_at < ? order by finished_at, job limit ?`,
    );
    this.#forget = db.prepare("delete from holdfast_expiring where lane = ? and state = ? and finished_at = ? and job = ?");
    this.#still = db.prepare("select 1 from holdfast_jobs where key = ? and state = ? and finished_at = ?");
    this.#unlisted = db.prepare("select name, backfill from holdfast_queues where backfill is not null limit 1");
    this.#allUnlisted = db.prepare("select name from holdfast_queues where backfill is not null");
    this.#endedUpTo = db.prepare(
      `select max(key) from (select key from holdfast_jobs where key > ? order by key limit ${BACKFILL})`,
    );
    this.#ended = db.prepare(
      "select key, lane, state, finished_at from holdfast_jobs where key > ? and key <= ? and finished_at is not null",
    );
    this.#goOn = db.prepare("update holdfast_queues set backfill = ? where name = ?");
  }

  /** Lists those of them that are not kept for ever. */
  add(ended: readonly { job: JobKey; lane: number; state: FinishedState }[], finishedAt: number): void {
    // A batch is of few lanes and states: each is looked up once.
    const listed = new Map<string, boolean>();
    for (const { job, lane, state } of ended) {
      const what = `${lane} ${state}`;
      let isListed = listed.get(what);
      if (isListed === undefined) {
        isListed = this.#parts.settings.view.keep(this.#parts.catalog.lane(lane).queue, state) !== undefined;
        listed.set(what, isListed);
      }
      if (isListed) this.#add.run(lane, state, finishedAt, job);
    }
  }

  /** Whether there is anything to do: reads only, since most of the time there is not. */
  isDue(now: number, leastAge: number): boolean {
    return this.#unlisted.row() !== undefined || this.#due(now, leastAge, 1).length > 0;
  }

  /** Takes jobs off the list whose time is over, at most so many. */
  take(tx: Tx, limit: number, leastAge: number): { taken: number; over: Over[] } {
    const due = this.#due(tx.now, leastAge, limit);
    for (const { lane, state, finishedAt, job } of due) this.#forget.run(lane, state, finishedAt, job);
    if (due.length > 0) tx.wrote();
    // One that was retried since is listed anew when it ends again.
    const over = due.filter(({ job, state, finishedAt }) => this.#still.row(job, state, finishedAt) !== undefined);
    return { taken: due.length, over };
  }

  #due(now: number, leastAge: number, limit: number): Over[] {
    const due: Over[] = [];
    this.#parts.catalog.reload();
    const kept = {
      set: this.#parts.settings.view.queues,
      lanes: this.#parts.catalog.lanes(0),
      finished: this.#parts.tally.all(),
      unlisted: new Set(this.#allUnlisted.rows().map(([name]) => name as string)),
    };
    for (const { lanes, state, count, countBefore, ageBefore } of excesses(kept, now, leastAge)) {
      const left = limit - due.length;
      const tooMany = count === 0 ? [] : this.#oldestOf(lanes, state, countBefore, Math.min(count, left));
      const tooOld = ageBefore === null ? [] : this.#oldestOf(lanes, state, ageBefore, left);
      due.push(...longer(tooMany, tooOld));
      if (due.length >= limit) return due;
    }
    return due;
  }

  /** Lists what ended before; true while there is more to look through. */
  backfill(tx: Tx): boolean {
    const unlisted = this.#unlisted.row() as [string, number] | undefined;
    if (unlisted === undefined) return false;
    const [name, from] = unlisted;
    const to = (this.#endedUpTo.row(from)?.[0] ?? null) as number | null;
    if (to !== null) {
      for (const row of this.#ended.rows(from, to)) {
        const [job, lane, state, finishedAt] = row as [JobKey, number, FinishedState, number];
        if (this.#parts.catalog.lane(lane).queue === name) this.add([{ job, lane, state }], finishedAt);
      }
    }
    this.#goOn.run(to, name);
    tx.wrote();
    return true;
  }

  #oldestOf(lanes: readonly number[], state: FinishedState, before: number, limit: number): Over[] {
    return lanes
      .flatMap((lane) =>
        this.#oldest.rows(lane, state, before, limit).map(([job, finishedAt]): Over => {
          return { job: job as JobKey, lane, state, finishedAt: finishedAt as number };
        }),
      )
      .sort((a, b) => a.finishedAt - b.finishedAt || a.job - b.job)
      .slice(0, limit);
  }
}
