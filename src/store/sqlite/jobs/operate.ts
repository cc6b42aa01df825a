import { CANCELLED_ATTEMPT } from "../../../core/jobs/attempts.ts";
import { type FinishedState, type JobState, mayMove } from "../../../core/jobs/job.ts";
import { BACKFILL_ROWS, findExcess, needsAnotherStep, longerList, type ExpiredJob } from "../../../core/jobs/retention.ts";
import { isPipelineQueue } from "../../../core/pipelines/work.ts";
import { auditedJob, subjectOf } from "../../../core/recovery/audit.ts";
import type { Fence, JobKey } from "../../../core/text/ids.ts";
import { jobsRemoved } from "../../job-row.ts";
import type { Attempts } from "../../sql/attempts.ts";
import type { Audit } from "../../sql/audit.ts";
import { runSync } from "../../sql/script.ts";
import type { PruneFilter } from "../../store.ts";
import type { Connection, Statement } from "../driver.ts";
import type { Tx } from "../group-commit.ts";
import type { JobIds } from "../queries.ts";
import type { JobParts } from "./enqueue.ts";

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

interface OperateParts extends JobParts {
  ids: JobIds;
  audit: Audit;
  cancel: Cancel;
}

export class Operate {
  readonly #parts: OperateParts;
  readonly #sql;
  readonly #removals: Statement[];

  constructor(db: Connection, parts: OperateParts) {
    this.#parts = parts;
    this.#sql = {
      row: db.prepare(`select ${ROW} from holdfast_jobs where key = :key`),
      retry: db.prepare(
        `update holdfast_jobs set state = 'pending', gate = :gate, errors = 0, crashes = 0, run_at = :now, finished_at = null
         where key = :key`,
      ),
      unfinished: db.prepare(
        `select key from holdfast_jobs
         where slot = ? and slot is not null and (state = 'pending' or state = 'running' or state = 'waiting')`,
      ),
      // By holdfast_jobs_aside, or by the key: finished jobs are the oldest.
      prunable: db.prepare(
        `select ${ROW} from holdfast_jobs
         where state = :state and (:before is null or finished_at < :before)
           and (:keys is null or key in (select value from json_each(:keys)))
           and (:lanes is null or lane in (select value from json_each(:lanes)))
         order by key limit :limit`,
      ),
      // A key is never given out twice: a late settle with an old (job, fence) must not match another job.
      keepHighest: db.prepare(
        `update holdfast_counter set jobs = highest
         from (select max(jobs, coalesce((select max(key) from holdfast_jobs), 0)) as highest from holdfast_counter) where id = 1`,
      ),
      // An id that a caller chose stays taken, with the state in which its job ended.
      remember: db.prepare(
        `update holdfast_ids set ended = ?
         where chosen = 1 and ended is null and id = (select id from holdfast_jobs where key = ?)`,
      ),
    };
    this.#removals = [
      "delete from holdfast_ids where chosen = 0 and id = (select id from holdfast_jobs where key = ?)",
      "delete from holdfast_inputs where job = ?",
      "delete from holdfast_notes where job = ?",
      "delete from holdfast_attempts where job = ?",
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
    // An ended work item is none any more: the next build does it again.
    if (isPipelineQueue(this.#parts.catalog.lane(row.lane).queue)) return false;
    if (row.slot !== null && this.#sql.unfinished.row(row.slot) !== undefined) return "key-taken";
    const gate = row.limits === null ? null : this.#parts.limits.in(tx).admit({ ...row, limits: row.limits });
    this.#sql.retry.runNamed({ key: row.key, now: tx.now, gate });
    this.#parts.jobEvents.add(tx, "job.retried", row.key);
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
      filter.queue === undefined ? null : [...this.#parts.catalog.all(tx.lanes)].filter(({ queue }) => queue === filter.queue);
    const rows = this.#sql.prunable.all<Row>({
      state: filter.state,
      before: filter.finishedBefore ?? null,
      keys: keys === undefined ? null : JSON.stringify(keys),
      lanes: lanes && JSON.stringify(lanes.map(({ id }) => id)),
      limit: filter.limit,
    });
    const removed = rows.map(({ key, lane }) => ({ job: key, lane, state: filter.state }));
    this.#remove(tx, removed);
    if (rows.length > 0) runSync(this.#parts.audit.record(tx, ...jobsRemoved(rows.length, filter)));
    return rows.length;
  }

  expire(tx: Tx, limit: number, leastAge: number): { removed: number; more: boolean } {
    const listing = this.#parts.expiring.backfill(tx);
    const { taken, over } = this.#parts.expiring.take(tx, limit, leastAge);
    this.#remove(tx, over);
    const removed = over.length;
    return { removed, more: needsAnotherStep({ listing, taken, removed, limit }) };
  }

  #remove(tx: Tx, jobs: readonly { job: JobKey; lane: number; state: FinishedState }[]): void {
    if (jobs.length === 0) return;
    this.#sql.keepHighest.run();
    for (const { job, lane, state } of jobs) {
      this.#sql.remember.run(state, job);
      for (const statement of this.#removals) statement.run(job);
      this.#parts.tally.add(lane, state, -1);
    }
    this.#parts.tally.write(tx.now);
    tx.wrote();
  }

  #wasDone(tx: Tx, action: string, id: string, { lane, state }: Row, after: JobState): void {
    const of = this.#parts.catalog.lane(lane);
    const [before, now] = [auditedJob(of, state), auditedJob(of, after)];
    runSync(this.#parts.audit.add(tx, { action, subject: subjectOf(action, id), before, after: now }));
  }

  #find(id: string): Row | undefined {
    const key = this.#parts.ids.keyOf(id);
    return key === null ? undefined : this.#sql.row.get<Row>({ key });
  }
}

type CancelledRow = Omit<Row, "slot">;

export class Cancel {
  readonly #parts: JobParts & { attempts: Attempts };
  readonly #row: Statement;
  readonly #cancel: Statement;

  constructor(db: Connection, parts: JobParts & { attempts: Attempts }) {
    this.#parts = parts;
    this.#row = db.prepare("select key, state, lane, fence, gate, priority, limits from holdfast_jobs where key = :key");
    this.#cancel = db.prepare(
      `update holdfast_jobs set state = 'cancelled', gate = null, finished_at = :now, expires_at = null, holder = null, worker = null
       where key = :key`,
    );
  }

  /** An operator's action: a work item fails by it. False: the job has ended already. */
  run(tx: Tx, job: JobKey): boolean {
    const row = this.#take(tx, job);
    if (row === undefined) return false;
    this.#parts.jobEvents.add(tx, "job.cancelled", row.key);
    runSync(this.#parts.batches.cancelled(tx, tx.now, [{ job: row.key, lane: row.lane, was: row.state }]));
    return true;
  }

  /** Cancels work items that a build does not need any more; returns the states they had. */
  quietly(tx: Tx, jobs: readonly JobKey[]): Map<JobKey, JobState> {
    const cancelled = new Map<JobKey, JobState>();
    for (const job of jobs) {
      const row = this.#take(tx, job);
      if (row === undefined) continue;
      this.#parts.jobEvents.addIfEnabled(tx, "job.cancelled", row.lane, row.key);
      cancelled.set(row.key, row.state);
    }
    this.#parts.effects.write(tx);
    return cancelled;
  }

  #take(tx: Tx, job: JobKey): CancelledRow | undefined {
    const row = this.#row.get<CancelledRow>({ key: job });
    if (row === undefined || !mayMove("cancel", row.state)) return undefined;
    if (row.state === "running") this.#record(tx, row);
    this.#cancel.runNamed({ key: row.key, now: tx.now });
    this.#parts.effects.add(row.key, row.lane, "cancelled");
    if (row.state === "waiting") this.#parts.waits.forget(row.key);
    const { limits } = row;
    if (limits !== null && row.state === "pending") this.#parts.limits.in(tx).withdraw({ ...row, limits }, row.gate);
    if (limits !== null && row.state === "running") this.#parts.limits.in(tx).finish(row.lane, limits, true);
    if (row.state === "running") {
      tx.ended(row.key, row.fence);
      // An exclusive claim may have ended: its queue is open again.
      tx.ready(this.#parts.catalog.lane(row.lane).queue);
    }
    tx.wrote();
    return row;
  }

  #record(tx: Tx, { key, lane }: CancelledRow): void {
    const { attempts, settings, catalog } = this.#parts;
    const keep = settings.at(tx.settings).attemptsKept(catalog.lane(lane).queue);
    runSync(attempts.record(tx, tx.now, [{ job: key, keep, ...CANCELLED_ATTEMPT }]));
  }
}

/** Jobs in the order in which they ended, so that nothing walks history. A retried job may be listed; it is checked before it is removed. */
export class Expiring {
  readonly #parts: JobParts;
  readonly #sql;

  constructor(db: Connection, parts: JobParts) {
    this.#parts = parts;
    this.#sql = {
      add: db.prepare("insert into holdfast_expiring (lane, state, finished_at, job) values (?, ?, ?, ?) on conflict do nothing"),
      oldest: db.prepare(
        `select job, finished_at from holdfast_expiring
         where lane = ? and state = ? and finished_at < ? order by finished_at, job limit ?`,
      ),
      forget: db.prepare("delete from holdfast_expiring where lane = ? and state = ? and finished_at = ? and job = ?"),
      still: db.prepare("select 1 from holdfast_jobs where key = ? and state = ? and finished_at = ?"),
      unlisted: db.prepare("select name, backfill from holdfast_queues where backfill is not null limit 1"),
      allUnlisted: db.prepare("select name from holdfast_queues where backfill is not null"),
      endedUpTo: db.prepare(
        `select max(key) from (select key from holdfast_jobs where key > ? order by key limit ${BACKFILL_ROWS})`,
      ),
      ended: db.prepare(
        "select key, lane, state, finished_at from holdfast_jobs where key > ? and key <= ? and finished_at is not null",
      ),
      continueBackfill: db.prepare("update holdfast_queues set backfill = ? where name = ?"),
    };
  }

  add(ended: readonly { job: JobKey; lane: number; state: FinishedState }[], finishedAt: number): void {
    for (const { job, lane, state } of ended) {
      const isKept = this.#parts.settings.view.keep(this.#parts.catalog.lane(lane).queue, state) === undefined;
      if (!isKept) this.#sql.add.run(lane, state, finishedAt, job);
    }
  }

  isDue(now: number, leastAge: number): boolean {
    return this.#sql.unlisted.row() !== undefined || this.#due(now, leastAge, 1).length > 0;
  }

  take(tx: Tx, limit: number, leastAge: number): { taken: number; over: ExpiredJob[] } {
    const due = this.#due(tx.now, leastAge, limit);
    for (const { lane, state, finishedAt, job } of due) this.#sql.forget.run(lane, state, finishedAt, job);
    if (due.length > 0) tx.wrote();
    const over = due.filter(({ job, state, finishedAt }) => this.#sql.still.row(job, state, finishedAt) !== undefined);
    return { taken: due.length, over };
  }

  #due(now: number, leastAge: number, limit: number): ExpiredJob[] {
    const due: ExpiredJob[] = [];
    this.#parts.catalog.reload();
    const kept = {
      set: this.#parts.settings.view.queues,
      lanes: this.#parts.catalog.all(),
      finished: this.#parts.tally.all(),
      unlisted: new Set(this.#sql.allUnlisted.rows().map(([name]) => name as string)),
    };
    for (const { lanes, state, count, countBefore, ageBefore } of findExcess(kept, now, leastAge)) {
      const left = limit - due.length;
      const tooMany = count === 0 ? [] : this.#oldestOf(lanes, state, countBefore, Math.min(count, left));
      const tooOld = ageBefore === null ? [] : this.#oldestOf(lanes, state, ageBefore, left);
      due.push(...longerList(tooMany, tooOld));
      if (due.length >= limit) return due;
    }
    return due;
  }

  backfill(tx: Tx): boolean {
    const unlisted = this.#sql.unlisted.row() as [string, number] | undefined;
    if (unlisted === undefined) return false;
    const [name, from] = unlisted;
    const to = (this.#sql.endedUpTo.row(from)?.[0] ?? null) as number | null;
    for (const row of to === null ? [] : this.#sql.ended.rows(from, to)) {
      const [job, lane, state, finishedAt] = row as [JobKey, number, FinishedState, number];
      if (this.#parts.catalog.lane(lane).queue === name) this.add([{ job, lane, state }], finishedAt);
    }
    this.#sql.continueBackfill.run(to, name);
    tx.wrote();
    return true;
  }

  #oldestOf(lanes: readonly number[], state: FinishedState, before: number, limit: number): ExpiredJob[] {
    return lanes
      .flatMap((lane) =>
        this.#sql.oldest.rows(lane, state, before, limit).map(([job, finishedAt]): ExpiredJob => {
          return { job: job as JobKey, lane, state, finishedAt: finishedAt as number };
        }),
      )
      .sort((a, b) => a.finishedAt - b.finishedAt || a.job - b.job)
      .slice(0, limit);
  }
}
