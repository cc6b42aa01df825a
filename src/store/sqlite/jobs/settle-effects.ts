import { dependentsOf, isEarly, upstreamEnded, type Wait } from "../../../core/jobs/admission.ts";
import type { FinishedState, JobState } from "../../../core/jobs/job.ts";
import type { LeaseRef } from "../../../core/jobs/lease.ts";
import { damagedRow } from "../../../core/text/errors.ts";
import type { JobKey } from "../../../core/text/ids.ts";
import { COUNTED, ELSEWHERE, publicId, type Tallied } from "../../job-row.ts";
import { runSync } from "../../sql/script.ts";
import type { ProgressReport } from "../../store.ts";
import { type CheckedJob, isIntact, jobChecksum, rowChecksum } from "../checksum.ts";
import type { Connection } from "../driver.ts";
import type { Tx } from "../group-commit.ts";
import type { JobParts } from "./enqueue.ts";

interface Ended {
  job: JobKey;
  lane: number;
  state: FinishedState;
}

type WaitingRow = [key: JobKey, lane: number, priority: number, runAt: number, createdAt: number, limits: string | null];

/** A job that ends other than succeeded cancels, in the same transaction, those that were to come after it, and those after them. */
export class SettleEffects {
  readonly #parts: JobParts;
  readonly #sql;
  /** Whether another job may wait for an ended one, or ended jobs are not kept for ever. */
  #followed = true;
  #ended: Ended[] = [];

  constructor(db: Connection, parts: JobParts) {
    this.#parts = parts;
    const these = "key in (select value from json_each(?)) and state = 'waiting'";
    this.#sql = {
      waiting: db.prepare(
        `select key, lane, priority, run_at, created_at, limits from holdfast_jobs where ${these} order by key`,
      ),
      unblock: db.prepare(`update holdfast_jobs set state = 'pending', gate = ? where ${these}`),
      behind: db.prepare(
        `select key, lane, priority, policy, created_at, id, slot, coalesce(body, input) as input, scheduled_for, limits, meta
         from holdfast_jobs left join holdfast_inputs on job = key and input = '${ELSEWHERE}'
         where key in (select value from json_each(:keys)) and slot >= char(10) and slot < char(11)`,
      ),
      setSlot: db.prepare("update holdfast_jobs set slot = ?, checksum = ? where key = ?"),
      cancel: db.prepare(`update holdfast_jobs set state = 'cancelled', error = ?, finished_at = ? where ${these}`),
      idOf: db.prepare("select created_at, id from holdfast_jobs where key = ?"),
    };
  }

  /** Called before a batch ends: if nothing follows from an end, none is recorded. */
  begin(isFollowed: boolean): void {
    this.#followed = isFollowed;
  }

  add(job: JobKey, lane: number, state: FinishedState): void {
    this.#parts.tally.add(lane, state, 1);
    if (this.#followed) this.#ended.push({ job, lane, state });
  }

  write(tx: Tx): void {
    if (this.#ended.length > 0) this.#follow(tx);
    this.#parts.tally.write(tx.now);
    this.#parts.limits.write(tx);
    this.#followed = true;
  }

  forget(): void {
    this.#ended = [];
    this.#followed = true;
    this.#parts.tally.forget();
  }

  #follow(tx: Tx): void {
    const forgetting = this.#parts.settings.at(tx.settings).hasRetention;
    const waited = this.#parts.waits.any();
    while (this.#ended.length > 0) {
      const ended = this.#ended;
      this.#ended = [];
      if (forgetting) this.#parts.expiring.add(ended, tx.now);
      if (waited) this.#endWaits(tx, ended);
    }
  }

  #endWaits(tx: Tx, ended: readonly Ended[]): void {
    const states = new Map(ended.map(({ job, state }) => [job, state]));
    const pairs = this.#parts.waits.behind([...states.keys()]);
    if (pairs.length === 0) return;
    const { cancelled, unblocked } = dependentsOf(pairs, states);
    this.#parts.waits.over([...states.keys()], [...cancelled.keys()]);
    for (const [upstream, jobs] of Map.groupBy(cancelled.keys(), (job) => cancelled.get(job) as JobKey)) {
      this.#cancelBehind(tx, jobs, upstream, states.get(upstream) as FinishedState);
    }
    const free = this.#parts.waits.free(unblocked);
    this.#takeSlots(free);
    this.#unblocked(tx, free);
    tx.wrote();
  }

  /** A job that waited to replace another has the slot of that one from now on. */
  #takeSlots(jobs: readonly JobKey[]): void {
    if (jobs.length === 0) return;
    for (const row of this.#sql.behind.all<CheckedJob & { slot: string }>({ keys: JSON.stringify(jobs) })) {
      const slot = row.slot.slice(1);
      this.#sql.setSlot.run(slot, jobChecksum({ ...row, slot }), row.key);
    }
  }

  #unblocked(tx: Tx, jobs: readonly JobKey[]): void {
    const open: JobKey[] = [];
    const timed: JobKey[] = [];
    for (const [key, lane, priority, runAt, createdAt, limits] of this.#waitingOf(jobs)) {
      if (isEarly(runAt, createdAt, tx.now)) timed.push(key);
      else if (limits === null) open.push(key);
      else this.#sql.unblock.run(this.#parts.limits.in(tx).admit({ key, lane, priority, limits }), JSON.stringify([key]));
      tx.ready(this.#parts.catalog.lane(lane).queue);
    }
    if (open.length > 0) this.#sql.unblock.run(null, JSON.stringify(open));
    if (timed.length > 0) this.#sql.unblock.run("time", JSON.stringify(timed));
  }

  #cancelBehind(tx: Tx, jobs: readonly JobKey[], upstream: JobKey, state: FinishedState): void {
    const [createdAt, id] = this.#sql.idOf.row(upstream) as [number, string | null];
    const rows = this.#waitingOf(jobs);
    const error = JSON.stringify(upstreamEnded(publicId(id, createdAt, upstream), state));
    this.#sql.cancel.run(error, tx.now, JSON.stringify(jobs));
    for (const [key, lane] of rows) {
      this.#parts.jobEvents.addIfEnabled(tx, "job.cancelled", lane, key);
      this.add(key, lane, "cancelled");
    }
    const cancelled = rows.map(([job, lane]) => ({ job, lane, was: "waiting" }) as const);
    runSync(this.#parts.batches.cancelled(tx, tx.now, cancelled));
  }

  #waitingOf(jobs: readonly JobKey[]): WaitingRow[] {
    return jobs.length === 0 ? [] : (this.#sql.waiting.rows(JSON.stringify(jobs)) as WaitingRow[]);
  }
}

export class Waits {
  readonly #sql;

  constructor(db: Connection) {
    this.#sql = {
      any: db.prepare("select 1 from holdfast_waits limit 1"),
      add: db.prepare("insert into holdfast_waits (job, upstream) values (?, ?) on conflict do nothing"),
      waiting: db.prepare(
        `select wait.job, wait.upstream, coalesce(job.slot >= char(10) and job.slot < char(11), 0) from json_each(?) as ended
         cross join holdfast_waits as wait on wait.upstream = ended.value
         left join holdfast_jobs as job on job.key = wait.job order by wait.job`,
      ),
      removeBehind: db.prepare("delete from holdfast_waits where upstream in (select value from json_each(?))"),
      removeOf: db.prepare("delete from holdfast_waits where job in (select value from json_each(?))"),
      free: db.prepare(
        "select value from json_each(?) as one where not exists (select 1 from holdfast_waits where job = one.value)",
      ),
      removeAll: db.prepare("delete from holdfast_waits where job = ?"),
      state: db.prepare("select state from holdfast_jobs where key = ?"),
      remembered: db.prepare("select ended from holdfast_ids where id = ? and ended is not null"),
    };
  }

  any(): boolean {
    return this.#sql.any.row() !== undefined;
  }

  add(job: JobKey, upstream: JobKey): void {
    this.#sql.add.run(job, upstream);
  }

  /** Null: unknown. The state of a pruned job is found by the id that its caller chose. */
  stateOf(id: string, key: JobKey | null): JobState | null {
    const row = (key === null ? undefined : this.#sql.state.row(key)) ?? this.#sql.remembered.row(id);
    return (row?.[0] ?? null) as JobState | null;
  }

  behind(ended: readonly JobKey[]): Wait[] {
    return this.#sql.waiting.rows(JSON.stringify(ended)).map(([job, upstream, replaces]) => {
      return { job: job as JobKey, upstream: upstream as JobKey, replaces: replaces === 1 };
    });
  }

  over(upstreams: readonly JobKey[], jobs: readonly JobKey[]): void {
    this.#sql.removeBehind.run(JSON.stringify(upstreams));
    if (jobs.length > 0) this.#sql.removeOf.run(JSON.stringify(jobs));
  }

  free(jobs: readonly JobKey[]): JobKey[] {
    if (jobs.length === 0) return [];
    return this.#sql.free.rows(JSON.stringify(jobs)).map(([job]) => job as JobKey);
  }

  forget(job: JobKey): void {
    this.#sql.removeAll.run(job);
  }
}

export class Tally {
  readonly #sql;
  /** Sums of one operation, written once at its end: a settled batch is one row here. */
  #sums = new Map<number, Map<FinishedState, number>>();

  constructor(db: Connection) {
    this.#sql = {
      add: db.prepare(
        `insert into holdfast_tally as old (lane, state, n, ended, fresh, since) values (?, ?, ?, ?, ?, ?)
         on conflict (lane, state) do update set ${COUNTED}`,
      ),
      subtract: db.prepare("update holdfast_tally set n = n + ? where lane = ? and state = ?"),
      all: db.prepare("select lane, state, n, ended, since, fresh, before from holdfast_tally"),
    };
  }

  add(lane: number, state: FinishedState, n: number): void {
    let states = this.#sums.get(lane);
    if (states === undefined) this.#sums.set(lane, (states = new Map()));
    states.set(state, (states.get(state) ?? 0) + n);
  }

  write(now: number): void {
    if (this.#sums.size === 0) return;
    for (const [lane, states] of this.#sums) {
      for (const [state, n] of states) {
        if (n > 0) this.#sql.add.run(lane, state, n, n, n, now);
        else if (n < 0) this.#sql.subtract.run(n, lane, state);
      }
    }
    this.#sums.clear();
  }

  forget(): void {
    this.#sums.clear();
  }

  all(): Tallied[] {
    return this.#sql.all.all<Tallied>();
  }
}

/** Checkpoints and progress, beside the job's row so that saving them does not rewrite its input. */
export class Notes {
  readonly #sql;

  constructor(db: Connection) {
    const held = "from holdfast_jobs where key = ? and fence = ? and state = 'running'";
    this.#sql = {
      checkpoint: db.prepare(
        `insert into holdfast_notes (job, checkpoint, checksum) select key, ?, ? ${held}
         on conflict (job) do update set checkpoint = excluded.checkpoint, checksum = excluded.checksum`,
      ),
      progress: db.prepare(
        `insert into holdfast_notes (job, fraction, message) select key, ?, ? ${held}
         on conflict (job) do update set fraction = excluded.fraction, message = excluded.message`,
      ),
      load: db.prepare("select checkpoint, checksum from holdfast_notes where job = ?"),
      drop: db.prepare("update holdfast_notes set checkpoint = null, checksum = null where job = ? and checkpoint is not null"),
    };
  }

  saveCheckpoint(tx: Tx, lease: LeaseRef, value: string | null): boolean {
    const { job, fence } = lease;
    const checksum = value === null ? null : rowChecksum("holdfast_notes", { job, checkpoint: value });
    return this.#wrote(tx, this.#sql.checkpoint.run(value, checksum, job, fence));
  }

  saveProgress(tx: Tx, report: ProgressReport): boolean {
    const { fraction, job, fence } = report;
    // Node 22 reads a text up to its first NUL.
    const message = report.message?.replaceAll("\0", "\uFFFD") ?? null;
    return this.#wrote(tx, this.#sql.progress.run(fraction, message, job, fence));
  }

  checkpoint(job: JobKey): string | null {
    const row = this.#sql.load.row(job) as [string | null, number | null] | undefined;
    if (row === undefined) return null;
    const [checkpoint, checksum] = row;
    const isEmpty = checkpoint === null && checksum === null;
    if (!isEmpty && !isIntact("holdfast_notes", { job, checkpoint, checksum })) throw damagedRow(`The checkpoint of job ${job}`);
    return checkpoint;
  }

  dropCheckpoint(job: JobKey): void {
    this.#sql.drop.run(job);
  }

  #wrote(tx: Tx, changes: number): boolean {
    if (changes > 0) tx.wrote();
    return changes > 0;
  }
}
