import { behind, isEarly, upstreamEnded, type Wait } from "../../../core/jobs/admission.ts";
import type { FinishedState, JobState } from "../../../core/jobs/job.ts";
import type { LeaseRef } from "../../../core/jobs/lease.ts";
import { damagedRow } from "../../../core/text/errors.ts";
import type { JobKey } from "../../../core/text/ids.ts";
import { COUNTED, publicId, type Tallied } from "../../job-row.ts";
import { runSync } from "../../sql/script.ts";
import type { WorkBatches } from "../../sql/work/work-batches.ts";
import type { ProgressReport } from "../../store.ts";
import { isIntact, rowChecksum } from "../checksum.ts";
import type { Connection, Statement } from "../driver.ts";
import type { Tx } from "../group-commit.ts";
import type { Catalog, Settings } from "./catalog.ts";
import type { JobEvents } from "./events.ts";
import type { Expiring } from "./operate.ts";
import type { Limits } from "./limits.ts";

interface Ended {
  job: JobKey;
  lane: number;
  state: FinishedState;
}

type WaitingRow = [key: JobKey, lane: number, priority: number, runAt: number, createdAt: number, limits: string | null];

interface EndingsParts {
  catalog: Catalog;
  settings: Settings;
  tally: Tally;
  waits: Waits;
  limits: Limits;
  expiring: Expiring;
  events: JobEvents;
  batches: WorkBatches;
}

/**
 * What the end of a job means for everything around its row: counts, how long it is kept, and the jobs that come after
 * it. Nothing waits for ever: a job that ends otherwise than succeeded cancels those that were to come after it, and
 * those after them, in the same transaction.
 */
export class SettleEffects {
  readonly #parts: EndingsParts;
  readonly #waiting: Statement;
  readonly #unblock: Statement;
  readonly #cancel: Statement;
  readonly #idOf: Statement;
  /** Another job may wait for what ends, or it is not kept for ever. */
  #followed = true;
  #ended: Ended[] = [];

  constructor(db: Connection, parts: EndingsParts) {
    this.#parts = parts;
    const these = "key in (select value from json_each(?)) and state = 'waiting'";
    this.#waiting = db.prepare(
      `select key, lane, priority, run_at, created_at, limits from holdfast_jobs where ${these} order by key`,
    );
    this.#unblock = db.prepare(`update holdfast_jobs set state = 'pending', gate = ? where ${these}`);
    this.#cancel = db.prepare(`update holdfast_jobs set state = 'cancelled', error = ?, finished_at = ? where ${these}`);
    this.#idOf = db.prepare("select created_at, id from holdfast_jobs where key = ?");
  }

  /** Before a whole batch ends: if nothing follows from the end of a job, no end is remembered. */
  begin(isFollowed: boolean): void {
    this.#followed = isFollowed;
  }

  add(job: JobKey, lane: number, state: FinishedState): void {
    this.#parts.tally.add(lane, state, 1);
    if (this.#followed) this.#ended.push({ job, lane, state });
  }

  /** The last act of each operation, so that an undone one leaves nothing here. */
  write(tx: Tx): void {
    if (this.#ended.length > 0) this.#follow(tx);
    this.#parts.tally.write(tx.now);
    this.#parts.limits.write(tx);
    this.#followed = true;
  }

  /** After an undone transaction. */
  forget(): void {
    this.#ended = [];
    this.#followed = true;
    this.#parts.tally.forget();
  }

  #follow(tx: Tx): void {
    const forgetting = this.#parts.settings.at(tx.settings).forgetting;
    const waited = this.#parts.waits.any();
    // What is cancelled on the way has ended, too, and is looked at in the next round.
    while (this.#ended.length > 0) {
      const ended = this.#ended;
      this.#ended = [];
      if (forgetting) this.#parts.expiring.add(ended, tx.now);
      if (waited) this.#tellBehind(tx, ended);
    }
  }

  /** In a handful of statements, however many come after them. */
  #tellBehind(tx: Tx, ended: readonly Ended[]): void {
    const states = new Map(ended.map(({ job, state }) => [job, state]));
    const pairs = this.#parts.waits.behind([...states.keys()]);
    if (pairs.length === 0) return;
    const { cancelled, freer } = behind(pairs, states);
    this.#parts.waits.over([...states.keys()], [...cancelled.keys()]);
    for (const [upstream, jobs] of Map.groupBy(cancelled.keys(), (job) => cancelled.get(job) as JobKey)) {
      this.#cancelBehind(tx, jobs, upstream, states.get(upstream) as FinishedState);
    }
    this.#unblocked(tx, this.#parts.waits.free(freer));
    tx.wrote();
  }

  #unblocked(tx: Tx, jobs: readonly JobKey[]): void {
    const open: JobKey[] = [];
    const timed: JobKey[] = [];
    for (const [key, lane, priority, runAt, createdAt, limits] of this.#waitingOf(jobs)) {
      if (isEarly(runAt, createdAt, tx.now)) timed.push(key);
      else if (limits === null) open.push(key);
      else this.#unblock.run(this.#parts.limits.admit(tx, { key, lane, priority, limits }), JSON.stringify([key]));
      tx.ready(this.#parts.catalog.lane(lane).queue);
    }
    if (open.length > 0) this.#unblock.run(null, JSON.stringify(open));
    if (timed.length > 0) this.#unblock.run("time", JSON.stringify(timed));
  }

  #cancelBehind(tx: Tx, jobs: readonly JobKey[], upstream: JobKey, state: FinishedState): void {
    const [createdAt, id] = this.#idOf.row(upstream) as [number, string | null];
    const rows = this.#waitingOf(jobs);
    const error = JSON.stringify(upstreamEnded(publicId(id, createdAt, upstream), state));
    this.#cancel.run(error, tx.now, JSON.stringify(jobs));
    for (const [key, lane] of rows) {
      this.#parts.events.tell(tx, "job.cancelled", lane, key);
      this.add(key, lane, "cancelled");
    }
    const cancelled = rows.map(([job, lane]) => ({ job, lane, was: "waiting" }) as const);
    runSync(this.#parts.batches.cancelled(tx, tx.now, cancelled));
  }

  #waitingOf(jobs: readonly JobKey[]): WaitingRow[] {
    return jobs.length === 0 ? [] : (this.#waiting.rows(JSON.stringify(jobs)) as WaitingRow[]);
  }
}

const FEW = 32;

/** A job that comes after others. */
export class Waits {
  readonly #any: Statement;
  readonly #add: Statement;
  readonly #waiting: Statement;
  readonly #upstreams: Statement;
  readonly #removeBehind: Statement;
  readonly #removeOf: Statement;
  readonly #free: Statement;
  readonly #removeAll: Statement;
  readonly #state: Statement;
  readonly #remembered: Statement;

  constructor(db: Connection) {
    this.#any = db.prepare("select 1 from holdfast_waits limit 1");
    this.#add = db.prepare("insert into holdfast_waits (job, upstream) values (?, ?) on conflict do nothing");
    // By holdfast_waits_upstream.
    this.#waiting = db.prepare(
      `select wait.job, wait.upstream from json_each(?) as ended
       cross join holdfast_waits as wait on wait.upstream = ended.value order by wait.job`,
    );
    // From one to the next by holdfast_waits_upstream: `distinct` would walk all that wait for each.
    this.#upstreams = db.prepare(
      `with recursive awaited (job) as (
         select min(upstream) from holdfast_waits
         union all
         select (select min(upstream) from holdfast_waits where upstream > awaited.job) from awaited where job is not null)
       select job from awaited where job is not null limit ${FEW}`,
    );
    this.#removeBehind = db.prepare("delete from holdfast_waits where upstream in (select value from json_each(?))");
    this.#removeOf = db.prepare("delete from holdfast_waits where job in (select value from json_each(?))");
    this.#free = db.prepare(
      "select value from json_each(?) as one where not exists (select 1 from holdfast_waits where job = one.value)",
    );
    this.#removeAll = db.prepare("delete from holdfast_waits where job = ?");
    this.#state = db.prepare("select state from holdfast_jobs where key = ?");
    this.#remembered = db.prepare("select ended from holdfast_ids where id = ? and ended is not null");
  }

  /** Whether any job waits for another. */
  any(): boolean {
    return this.#any.row() !== undefined;
  }

  add(job: JobKey, upstream: JobKey): void {
    this.#add.run(job, upstream);
  }

  /** How an upstream job stands; a pruned one is remembered by the id that its caller chose. Null: it is not known. */
  stateOf(id: string, key: JobKey | null): JobState | null {
    const row = (key === null ? undefined : this.#state.row(key)) ?? this.#remembered.row(id);
    return (row?.[0] ?? null) as JobState | null;
  }

  /** Those that wait for one of these, in the order in which they were made. */
  behind(ended: readonly JobKey[]): Wait[] {
    const upstreams = this.#awaited(ended);
    if (upstreams.length === 0) return [];
    return this.#waiting.rows(JSON.stringify(upstreams)).map(([job, upstream]) => {
      return { job: job as JobKey, upstream: upstream as JobKey };
    });
  }

  /** Those that other jobs may wait for. Where few are waited for at all, that is known without asking for each that ended. */
  #awaited(ended: readonly JobKey[]): readonly JobKey[] {
    if (ended.length < FEW) return ended;
    const all = this.#upstreams.rows();
    if (all.length === FEW) return ended;
    const awaited = new Set(all.map(([upstream]) => upstream as JobKey));
    return ended.filter((job) => awaited.has(job));
  }

  /** These have ended, and those wait no longer for whatever it is. */
  over(upstreams: readonly JobKey[], jobs: readonly JobKey[]): void {
    this.#removeBehind.run(JSON.stringify(upstreams));
    if (jobs.length > 0) this.#removeOf.run(JSON.stringify(jobs));
  }

  /** Those of them that wait for nothing any more. */
  free(jobs: readonly JobKey[]): JobKey[] {
    if (jobs.length === 0) return [];
    return this.#free.rows(JSON.stringify(jobs)).map(([job]) => job as JobKey);
  }

  forget(job: JobKey): void {
    this.#removeAll.run(job);
  }
}

/** Counts of finished jobs, kept with each change of one, so that counting never walks history. */
export class Tally {
  readonly #add: Statement;
  readonly #subtract: Statement;
  readonly #all: Statement;
  /** Sums of one operation, written once at its end: a settled batch is one row here. */
  #sums = new Map<number, Map<FinishedState, number>>();

  constructor(db: Connection) {
    this.#add = db.prepare(
      `insert into holdfast_tally as old (lane, state, n, ended, fresh, since) values (?, ?, ?, ?, ?, ?)
       on conflict (lane, state) do update set ${COUNTED}`,
    );
    this.#subtract = db.prepare("update holdfast_tally set n = n + ? where lane = ? and state = ?");
    this.#all = db.prepare("select lane, state, n, ended, since, fresh, before from holdfast_tally");
  }

  add(lane: number, state: FinishedState, n: number): void {
    let states = this.#sums.get(lane);
    if (states === undefined) this.#sums.set(lane, (states = new Map()));
    states.set(state, (states.get(state) ?? 0) + n);
  }

  /** Called by each operation as its last act, so that an undone one leaves nothing here. */
  write(now: number): void {
    if (this.#sums.size === 0) return;
    for (const [lane, states] of this.#sums) {
      for (const [state, n] of states) {
        if (n > 0) this.#add.run(lane, state, n, n, n, now);
        else if (n < 0) this.#subtract.run(n, lane, state);
      }
    }
    this.#sums.clear();
  }

  forget(): void {
    this.#sums.clear();
  }

  all(): Tallied[] {
    return this.#all.all<Tallied>();
  }
}

/** Checkpoints and progress, beside the job's row so that saving them does not rewrite its input. */
export class Notes {
  readonly #checkpoint: Statement;
  readonly #progress: Statement;
  readonly #load: Statement;
  readonly #drop: Statement;

  constructor(db: Connection) {
    const held = "from holdfast_jobs where key = ? and fence = ? and state = 'running'";
    this.#checkpoint = db.prepare(
      `insert into holdfast_notes (job, checkpoint, checksum) select key, ?, ? ${held}
       on conflict (job) do update set checkpoint = excluded.checkpoint, checksum = excluded.checksum`,
    );
    this.#progress = db.prepare(
      `insert into holdfast_notes (job, fraction, message) select key, ?, ? ${held}
       on conflict (job) do update set fraction = excluded.fraction, message = excluded.message`,
    );
    this.#load = db.prepare("select checkpoint, checksum from holdfast_notes where job = ?");
    this.#drop = db.prepare(
      "update holdfast_notes set checkpoint = null, checksum = null where job = ? and checkpoint is not null",
    );
  }

  saveCheckpoint(tx: Tx, lease: LeaseRef, value: string | null): boolean {
    const { job, fence } = lease;
    const checksum = value === null ? null : rowChecksum("holdfast_notes", { job, checkpoint: value });
    return this.#wrote(tx, this.#checkpoint.run(value, checksum, job, fence));
  }

  saveProgress(tx: Tx, report: ProgressReport): boolean {
    const { fraction, job, fence } = report;
    // Node 22 reads a text up to its first NUL.
    const message = report.message?.replaceAll("\0", "\uFFFD") ?? null;
    return this.#wrote(tx, this.#progress.run(fraction, message, job, fence));
  }

  checkpoint(job: JobKey): string | null {
    const row = this.#load.row(job) as [string | null, number | null] | undefined;
    if (row === undefined) return null;
    const [checkpoint, checksum] = row;
    const isEmpty = checkpoint === null && checksum === null;
    if (!isEmpty && !isIntact("holdfast_notes", { job, checkpoint, checksum })) throw damagedRow(`The checkpoint of job ${job}`);
    return checkpoint;
  }

  dropCheckpoint(job: JobKey): void {
    this.#drop.run(job);
  }

  #wrote(tx: Tx, changes: number): boolean {
    if (changes > 0) tx.wrote();
    return changes > 0;
  }
}
