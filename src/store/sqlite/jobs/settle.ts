import { untenable } from "../../../core/jobs/admission.ts";
import { EVENT_OF } from "../../../core/jobs/event.ts";
import type { Fence, JobKey } from "../../../core/text/ids.ts";
import { isFinished, type JobState } from "../../../core/jobs/job.ts";
import { type Fate, fateOf, type HeldLease, type LeaseRef } from "../../../core/jobs/lease.ts";
import { decide, hasBegun, isDelayed, type Next, type Outcome } from "../../../core/jobs/retry.ts";
import { type ReclaimedLease, runSync, type Tx as ScriptTx } from "../../sql/script.ts";
import type { NewJob, Settlement } from "../../store.ts";
import type { WorkEnd } from "../../work.ts";
import type { WorkBatch } from "../../sql/work/work-batch.ts";
import type { WorkBatches } from "../../sql/work/work-batches.ts";
import type { Catalog, Settings } from "./catalog.ts";
import type { Connection, Statement } from "../driver.ts";
import type { JobEvents } from "./events.ts";
import type { Tx } from "../group-commit.ts";
import type { Limits } from "./limits.ts";
import type { ClaimedLanes } from "./claim.ts";
import type { SettleEffects, Notes } from "./settle-effects.ts";
import type { Enqueue } from "./enqueue.ts";

/** From this many on it pays to end them with one statement. */
const MANY = 4;

interface SettleParts {
  catalog: Catalog;
  enqueue: Enqueue;
  notes: Notes;
  effects: SettleEffects;
  limits: Limits;
  events: JobEvents;
  settings: Settings;
  lanes: ClaimedLanes;
  batches: WorkBatches;
  random: () => number;
}

/** Ends attempts. Every write is guarded by job, fence and `running`: a zombie's late settle changes nothing. */
export class Settle {
  readonly #parts: SettleParts;
  /** Whether there are any locks, any notes: looked up once a batch. */
  #locked = false;
  #noted = false;
  /** Whether some queue asks for events. */
  #told = false;
  /** The rows of the work items that end in this batch; null: no job of it is one. */
  #work: WorkBatch | null = null;
  /** What the work items that have ended in this batch lead to. */
  #next: NewJob[] = [];
  /** By lane, of this batch. */
  readonly #askedOf = new Map<number, boolean>();
  readonly #succeed: Statement;
  readonly #succeedAll: Statement;
  readonly #savepoint: Statement;
  readonly #rollback: Statement;
  readonly #release: Statement;
  readonly #history: Statement;
  readonly #move: Statement;
  readonly #state: Statement;
  readonly #around: Statement;

  constructor(db: Connection, parts: SettleParts) {
    this.#parts = parts;
    this.#succeed = db.prepare(
      `update holdfast_jobs set state = 'succeeded', output = ?, finished_at = ?, expires_at = null, error = null
       where key = ? and fence = ? and state = 'running'`,
    );
    this.#succeedAll = db.prepare(
      `update holdfast_jobs set state = 'succeeded', output = null, finished_at = ?, expires_at = null, error = null
       where fence = ? and state = 'running' and key in (select value from json_each(?))`,
    );
    this.#savepoint = db.prepare("savepoint holdfast_successes");
    this.#rollback = db.prepare("rollback to holdfast_successes");
    this.#release = db.prepare("release holdfast_successes");
    this.#history = db.prepare(
      `select attempt, errors, crashes, policy, lane, expires_at, priority, limits from holdfast_jobs
       where key = ? and fence = ? and state = 'running'`,
    );
    this.#move = db.prepare(
      `update holdfast_jobs set
         state = ?, gate = ?, run_at = coalesce(?, run_at), attempt = ?, errors = ?, crashes = ?,
         error = coalesce(?, error), finished_at = ?, expires_at = null, holder = null, worker = null
       where key = ? and fence = ? and state = 'running'`,
    );
    this.#state = db.prepare("select state, fence from holdfast_jobs where key = ?");
    // Small tables, mostly empty: what none of them has, no settlement has to look for.
    this.#around = db.prepare(
      `select exists (select 1 from holdfast_locks), exists (select 1 from holdfast_notes),
         exists (select 1 from holdfast_waits), exists (select 1 from holdfast_work)`,
    );
  }

  run(tx: Tx, settlements: readonly Settlement[]): Fate[] {
    const [locked, noted, waited, built] = this.#around.row() as [number, number, number, number];
    const { telling, forgetting } = this.#parts.settings.at(tx.settings);
    this.#locked = locked === 1;
    this.#noted = noted === 1;
    this.#told = telling;
    this.#work = built === 1 ? this.#load(tx, settlements) : null;
    this.#next = [];
    this.#askedOf.clear();
    this.#parts.effects.begin(forgetting || waited === 1);
    const fates: Fate[] = [];
    for (let i = 0; i < settlements.length;) {
      const silent = this.#silentRun(settlements, i);
      const together = silent.length >= MANY && this.#succeededTogether(tx, silent);
      for (const one of silent) fates.push(together ? "held" : this.#one(tx, one));
      i += silent.length;
      const next = settlements[i++];
      if (next !== undefined) fates.push(this.#one(tx, next));
    }
    this.#write(tx);
    return fates;
  }

  /** The rows of the work items among these. */
  #load(tx: Tx, ends: readonly (LeaseRef & { work?: WorkEnd | undefined })[]): WorkBatch | null {
    const ending = ends.flatMap(({ job, work }) => {
      const lane = this.#parts.lanes.lane(job);
      return lane === undefined ? [] : [{ job, lane, work }];
    });
    return runSync(this.#parts.batches.ending(tx, ending));
  }

  #write(tx: Tx): void {
    const work = this.#work;
    if (work !== null) runSync(this.#parts.batches.write(tx, work));
    this.#parts.effects.write(tx);
    if (work === null) return;
    if (this.#next.length > 0) this.#parts.enqueue.run(tx, this.#next, work);
    runSync(this.#parts.batches.close(tx, work));
  }

  /** What became of a lease. */
  fate(lease: LeaseRef): Fate {
    const row = this.#state.row(lease.job) as [JobState, Fence] | undefined;
    return fateOf(lease, row && { state: row[0], fence: row[1] });
  }

  /** Whether this success would be recorded as a failure: a follow-up job or an artifact of it cannot be written. */
  rejects(tx: Tx, settlement: Settlement): boolean {
    const [, , , built] = this.#around.row() as [number, number, number, number];
    this.#work = built === 1 ? this.#load(tx, [settlement]) : null;
    return this.#tenable(settlement) !== settlement.outcome;
  }

  /** Whether the job's row says so inside the current transaction. */
  hasSucceeded(job: JobKey): boolean {
    return this.#state.row(job)?.[0] === "succeeded";
  }

  reclaim(tx: Tx, leases: readonly ReclaimedLease[]): (Next | null)[] {
    const [, , , built] = this.#around.row() as [number, number, number, number];
    this.#work = built === 1 ? this.#load(tx, leases) : null;
    this.#next = [];
    const nexts = leases.map((lease) =>
      this.#end(tx, lease, { kind: lease.kind }, { by: "reclaimer", expiresAt: lease.expiresAt }),
    );
    this.#write(tx);
    return nexts;
  }

  /** Decides by what is in the row, and writes it; null when the lease is gone, or no longer ends at `expiresAt`. */
  #end(tx: Tx, lease: LeaseRef, outcome: Outcome, { by, expiresAt, work }: Ended): Next | null {
    const row = this.#history.row(lease.job, lease.fence) as HistoryRow | undefined;
    if (row === undefined || (expiresAt ?? row[5]) !== row[5]) return null;
    const [attempt, errors, crashes, policy, lane, , priority, limits] = row;
    const next = decide({ attempt, errors, crashes }, this.#parts.catalog.policy(policy), outcome, this.#parts.random());
    const finished = isFinished(next.state);
    const delayed = isDelayed(next);
    let gate = delayed ? "time" : null;
    if (limits !== null) {
      this.#parts.limits.end(tx, lane, limits, hasBegun(outcome));
      if (!finished && !delayed) gate = this.#parts.limits.admit(tx, { key: lease.job, lane, priority, limits });
    }
    const error = next.error === null ? null : JSON.stringify(next.error);
    const runAt = delayed ? tx.now + next.delay : null;
    this.#move.run(
      next.state,
      gate,
      runAt,
      next.attempt,
      next.errors,
      next.crashes,
      error,
      finished ? tx.now : null,
      lease.job,
      lease.fence,
    );
    tx.wrote();
    if (isFinished(next.state)) this.#parts.effects.add(lease.job, lane, next.state);
    this.#work?.ended(tx.now, lease.job, { outcome, next, by, work });
    this.#parts.events.tell(tx, EVENT_OF[next.state], lane, lease.job);
    this.#parts.lanes.forget(lease.job);
    tx.ready(this.#parts.catalog.lane(lane).queue);
    if (next.dropCheckpoint) this.#parts.notes.dropCheckpoint(lease.job);
    return next;
  }

  #one(tx: Tx, settlement: Settlement): Fate {
    const { work } = settlement;
    const outcome = this.#tenable(settlement);
    if (outcome.kind === "succeeded") {
      if (!this.#succeeded(tx, settlement, outcome.output)) return this.fate(settlement);
    } else {
      const next = this.#end(tx, settlement, outcome, { by: "holder", work });
      if (next === null) return this.fate(settlement);
      settlement.decided = next;
    }
    if (outcome !== settlement.outcome || settlement.followUps === undefined || settlement.followUps.length === 0) return "held";
    // What is cancelled by what has ended so far goes first: its key is free for a follow-up.
    if (this.#work !== null) runSync(this.#parts.batches.write(tx, this.#work));
    this.#parts.effects.write(tx);
    this.#parts.enqueue.run(tx, settlement.followUps);
    return "held";
  }

  #tenable({ job, outcome, followUps, work }: Settlement): Outcome {
    if (outcome.kind !== "succeeded") return outcome;
    const refused = followUps === undefined ? undefined : this.#parts.enqueue.refused(followUps);
    if (refused !== undefined) return untenable(refused);
    return (this.#isItem(job) ? this.#work?.refusal(job, work) : undefined) ?? outcome;
  }

  /** The settlements from `start` on that can be written together; the order in which they were given is kept. */
  #silentRun(settlements: readonly Settlement[], start: number): readonly Settlement[] {
    let end = start;
    while (end < settlements.length && this.#isSilent(settlements[end] as Settlement)) end++;
    return start === 0 && end === settlements.length ? settlements : settlements.slice(start, end);
  }

  #isSilent(settlement: Settlement): boolean {
    const { outcome, followUps } = settlement;
    if (outcome.kind !== "succeeded" || outcome.output !== null || followUps !== undefined) return false;
    return this.#work === null || this.#tenable(settlement) === outcome;
  }

  #isItem(job: JobKey): boolean {
    return this.#work?.items.get(job) !== undefined;
  }

  /**
   * Successes that have nothing to say, one statement for all that were claimed together: an eighth of the drain. If it
   * does not find each of them held, it is undone, and they are looked at one by one.
   */
  #succeededTogether(tx: Tx, silent: readonly Settlement[]): boolean {
    const byFence = Map.groupBy(silent, ({ fence }) => fence);
    this.#savepoint.run();
    let ended = 0;
    for (const [fence, group] of byFence)
      ended += this.#succeedAll.run(tx.now, fence, JSON.stringify(group.map(({ job }) => job)));
    const all = ended === silent.length;
    if (!all) this.#rollback.run();
    this.#release.run();
    if (all) for (const settlement of silent) this.#wellEnded(tx, settlement);
    return all;
  }

  #succeeded(tx: Tx, settlement: Settlement, output: string | null): boolean {
    if (this.#succeed.run(output, tx.now, settlement.job, settlement.fence) === 0) return false;
    this.#wellEnded(tx, settlement);
    return true;
  }

  #asked(tx: Tx, lane: number): boolean {
    let asked = this.#askedOf.get(lane);
    if (asked === undefined) this.#askedOf.set(lane, (asked = this.#parts.events.asked(tx, lane)));
    return asked;
  }

  /** What a success means for everything around the job's row. */
  #wellEnded(tx: Tx, { job, work }: Settlement): void {
    tx.wrote();
    const { lane, limits } = this.#parts.lanes.take(job);
    this.#parts.effects.add(job, lane, "succeeded");
    if (limits !== null) this.#parts.limits.end(tx, lane, limits, true);
    if (this.#told && this.#asked(tx, lane)) this.#parts.events.always(tx, "job.succeeded", job);
    // It may have been an exclusive claim: its queue is open again.
    if (this.#locked) tx.ready(this.#parts.catalog.lane(lane).queue);
    if (this.#noted) this.#parts.notes.dropCheckpoint(job);
    if (this.#work !== null) this.#next.push(...this.#work.succeeded(tx.now, job, work));
  }
}

/** Who says how an attempt has ended, and what more there is to it. */
interface Ended {
  by: "holder" | "reclaimer";
  expiresAt?: number;
  work?: WorkEnd | undefined;
}

type HistoryRow = [
  attempt: number,
  errors: number,
  crashes: number,
  policy: number,
  lane: number,
  expiresAt: number,
  priority: number,
  limits: string | null,
];

/** Renewing and inspecting what one believes to hold. */
export class Leases {
  readonly #settle: Settle;
  readonly #renew: Statement;
  readonly #cut: string;

  constructor(db: Connection, settle: Settle) {
    this.#settle = settle;
    // Only a lease that is still the job's; an expired one that was not reclaimed yet may be renewed.
    this.#renew = db.prepare(
      "update holdfast_jobs set expires_at = ?, lease = ? where key = ? and fence = ? and state = 'running'",
    );
    this.#cut = `
      update holdfast_jobs set expires_at = :now + lease
      where key = :job and fence = :fence and expires_at = :expiresAt and state = 'running'`;
  }

  renew(tx: Tx, leases: readonly (LeaseRef & { lease: number })[]): Fate[] {
    return leases.map((held) => {
      const { job, fence, lease } = held;
      if (this.#renew.run(tx.now + lease, lease, job, fence) === 0) return this.#settle.fate(held);
      tx.wrote();
      return "held";
    });
  }

  /** Leases that end further away than they can, because the clock was set back, end a lease from now. */
  cut(tx: ScriptTx, leases: readonly HeldLease[]): void {
    for (const { job, fence, expiresAt } of leases) runSync(tx.run(this.#cut, { job, fence, expiresAt }));
  }

  inspect(leases: readonly LeaseRef[]): Fate[] {
    return leases.map((lease) => this.#settle.fate(lease));
  }
}
