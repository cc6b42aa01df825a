import { rejectedFollowUp } from "../../../core/jobs/admission.ts";
import type { Unsuccessful } from "../../../core/jobs/attempts.ts";
import { EVENT_OF } from "../../../core/jobs/event.ts";
import type { Fence, JobKey } from "../../../core/text/ids.ts";
import { type FinishedState, isFinished, type JobState } from "../../../core/jobs/job.ts";
import { type LeaseState, leaseState, type HeldLease, type LeaseRef } from "../../../core/jobs/lease.ts";
import { decide, hasBegun, isDelayed, type Next, type Outcome } from "../../../core/jobs/retry.ts";
import { COUNTED } from "../../job-row.ts";
import type { Cancel } from "../../sql/operate.ts";
import type { FinishedJob } from "../../sql/retention.ts";
import { type ReclaimedLease, runSync, type Tx as ScriptTx } from "../../sql/script.ts";
import type { Added, Settlement } from "../../store.ts";
import type { WorkEnd } from "../../work.ts";
import type { FollowingJob, WorkBatch } from "../../sql/work/work-batch.ts";
import type { Connection, Statement } from "../driver.ts";
import type { Tx } from "../group-commit.ts";
import type { ClaimedLanes } from "./claim.ts";
import type { JobParts } from "./enqueue.ts";
import { type Ending, type RunningJobs, RunningJobTable } from "./running-jobs.ts";

const MANY = 4;

interface SettleParts extends JobParts {
  cancel: Cancel;
  lanes: ClaimedLanes;
  random: () => number;
}

/** Ends attempts. Every write is guarded by job, fence and `running`: a late settle changes nothing. */
export class Settle {
  readonly #parts: SettleParts;
  readonly #running: RunningJobTable;
  /** Whether there are any locks, notes, waiting jobs, and queues with events. A batch looks them up once. */
  #hasLocks = false;
  #hasNotes = false;
  #hasWaits = false;
  #hasEvents = false;
  #work: WorkBatch | null = null;
  #next: { after: Settlement; following: FollowingJob }[] = [];
  /** Jobs that would run again, while another waits to replace them. */
  #replaced: JobKey[] = [];
  readonly #sql;

  constructor(db: Connection, parts: SettleParts) {
    this.#parts = parts;
    this.#running = new RunningJobTable(db);
    this.#sql = {
      succeed: db.prepare(
        `update holdfast_jobs set state = 'succeeded', output = ?, finished_at = ?, expires_at = null, error = null
         where key = ? and fence = ? and state = 'running'`,
      ),
      succeedAll: db.prepare(
        `update holdfast_jobs set state = 'succeeded', output = null, finished_at = ?, expires_at = null, error = null
         where fence = ? and state = 'running' and key in (select value from json_each(?))`,
      ),
      savepoint: db.prepare("savepoint holdfast_successes"),
      rollback: db.prepare("rollback to holdfast_successes"),
      release: db.prepare("release holdfast_successes"),
      state: db.prepare("select state, fence from holdfast_jobs where key = ?"),
      dropCheckpoint: db.prepare(
        "update holdfast_notes set checkpoint = null, checksum = null where job = ? and checkpoint is not null",
      ),
      anyNoted: db.prepare("select 1 from holdfast_notes where job in (select value from json_each(?)) limit 1"),
      // These tables are mostly empty, and then no settlement needs to read them.
      around: db.prepare(
        `select exists (select 1 from holdfast_locks), exists (select 1 from holdfast_notes),
           exists (select 1 from holdfast_waits), exists (select 1 from holdfast_work)`,
      ),
    };
  }

  run(tx: Tx, settlements: readonly Settlement[]): LeaseState[] {
    // An earlier try may have been rolled back, with the jobs that it had claimed.
    for (const settlement of settlements) settlement.continued = undefined;
    this.#begin(tx, settlements);
    const fates: LeaseState[] = [];
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

  #begin(tx: Tx, ends: readonly (LeaseRef & { work?: WorkEnd | undefined })[]): void {
    const [locked, noted, waited, built] = this.#sql.around.row() as [number, number, number, number];
    const { hasEvents, hasRetention } = this.#parts.settings.at(tx.settings);
    this.#hasLocks = locked === 1;
    this.#hasNotes = noted === 1 && this.#sql.anyNoted.row(JSON.stringify(ends.map(({ job }) => job))) !== undefined;
    this.#hasWaits = waited === 1;
    this.#hasEvents = hasEvents;
    this.#work = built === 1 ? this.#load(tx, ends) : null;
    this.#next = [];
    this.#replaced = [];
    this.#parts.effects.begin(hasRetention || this.#hasWaits);
  }

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
    if (this.#replaced.length > 0) runSync(this.#parts.cancel.quietly(tx, this.#replaced.splice(0)));
    if (work === null) return;
    if (this.#next.length > 0) this.#continue(tx, work);
    runSync(this.#parts.batches.close(tx, work));
  }

  #continue(tx: Tx, work: WorkBatch): void {
    const jobs = this.#next.map(({ following }) => following.job);
    const added = this.#parts.enqueue.run(tx, jobs, work);
    for (const [i, { after, following }] of this.#next.entries()) {
      const { claimed } = added[i] as Added;
      if (claimed === undefined) continue;
      after.continued = { claimed, result: following.result, budget: following.budget };
      this.#parts.lanes.add(claimed.job, this.#parts.catalog.laneFor(tx, claimed), null);
    }
  }

  fate(lease: LeaseRef): LeaseState {
    const row = this.#sql.state.row(lease.job) as [JobState, Fence] | undefined;
    return leaseState(lease, row && { state: row[0], fence: row[1] });
  }

  /** Whether this success would be recorded as a failure, because a follow-up job or an artifact of it cannot be written. */
  rejects(tx: Tx, settlement: Settlement): boolean {
    const [, , , built] = this.#sql.around.row() as [number, number, number, number];
    this.#work = built === 1 ? this.#load(tx, [settlement]) : null;
    return this.#tenable(settlement) !== settlement.outcome;
  }

  hasSucceeded(job: JobKey): boolean {
    return this.#sql.state.row(job)?.[0] === "succeeded";
  }

  reclaim(tx: Tx, leases: readonly ReclaimedLease[]): (Next | null)[] {
    this.#begin(tx, leases);
    const nexts = leases.map((): Next | null => null);
    for (const [kind, judged] of Map.groupBy(leases.entries(), ([, lease]) => lease.kind)) {
      const asked = new Map(judged.map(([i, lease]) => [lease.job, i]));
      for (const held of this.#running.find([...asked.keys()])) {
        const leaseOf = (job: JobKey) => leases[asked.get(job) as number] as ReclaimedLease;
        const jobs = held.jobs.filter((job) => isSame(held, leaseOf(job)));
        const [first] = jobs;
        if (first === undefined) continue;
        for (const ending of this.#decide({ ...held, jobs }, { kind }, { by: "reclaimer", isDead: !leaseOf(first).isOwn })) {
          this.#end(tx, ending);
          for (const job of ending.held.jobs) nexts[asked.get(job) as number] = ending.next;
        }
      }
    }
    this.#write(tx);
    return nexts;
  }

  /** Decides how attempts end. A delay, a limit or a job that waits to replace another is decided for each job alone. */
  #decide(held: RunningJobs, outcome: Unsuccessful, ended: Ended): Ending[] {
    const { jobs, attempt, errors, crashes, policy, limits } = held;
    const next = decide({ attempt, errors, crashes }, this.#parts.catalog.policy(policy), outcome, this.#parts.random());
    if (jobs.length > 1 && (isDelayed(next) || limits !== null || this.#hasWaits))
      return jobs.flatMap((job) => this.#decide({ ...held, jobs: [job] }, outcome, ended));
    return [{ held, outcome, next, ...ended }];
  }

  #end(tx: Tx, ending: Ending): void {
    const { settings, catalog, limits, effects, lanes, jobEvents, dependents } = this.#parts;
    const { held, outcome, next, by, work } = ending;
    const { jobs, lane, priority } = held;
    const { queue } = catalog.lane(lane);
    const finished = isFinished(next.state);
    const delayed = isDelayed(next);
    let gate: string | null = delayed ? "time" : null;
    if (held.limits !== null) {
      const [key] = jobs as [JobKey];
      limits.finish(tx, lane, held.limits, hasBegun(outcome));
      if (!finished && !delayed) gate = limits.admit(tx, { key, lane, priority, limits: held.limits });
    }
    this.#running.record(tx, ending, settings.view.attemptsKept(queue));
    this.#running.move(tx, ending, gate);
    for (const job of jobs) {
      if (isFinished(next.state)) effects.add(job, lane, next.state);
      else if (this.#hasWaits && runSync(dependents.replaced(tx, [job])).length > 0) {
        next.replaced = true;
        this.#replaced.push(job);
      }
      this.#work?.ended(tx.now, job, { outcome, next, by, work });
      jobEvents.addIfEnabled(tx, EVENT_OF[next.state], lane, job);
      lanes.forget(job);
      if (next.dropCheckpoint && this.#hasNotes) this.#sql.dropCheckpoint.run(job);
    }
    tx.ready(queue);
  }

  #one(tx: Tx, settlement: Settlement): LeaseState {
    const { work } = settlement;
    const outcome = this.#tenable(settlement);
    if (outcome.kind === "succeeded") {
      const { job, fence } = settlement;
      if (this.#sql.succeed.run(outcome.output, tx.now, job, fence) === 0) return this.fate(settlement);
      this.#wellEnded(tx, settlement);
    } else {
      const [held] = this.#running.find([settlement.job]);
      if (held?.fence !== settlement.fence) return this.fate(settlement);
      const [ending] = this.#decide(held, outcome, { by: "holder", isDead: false, work }) as [Ending];
      this.#end(tx, ending);
      settlement.decided = ending.next;
    }
    if (outcome !== settlement.outcome || settlement.followUps === undefined || settlement.followUps.length === 0) return "held";
    // First cancel jobs because of what ended so far, because a follow-up may use the key of one of them.
    if (this.#work !== null) runSync(this.#parts.batches.write(tx, this.#work));
    this.#parts.effects.write(tx);
    this.#parts.enqueue.run(tx, settlement.followUps);
    this.#hasWaits = true;
    return "held";
  }

  #tenable({ job, outcome, followUps, work }: Settlement): Outcome {
    if (outcome.kind !== "succeeded") return outcome;
    const refused = followUps === undefined ? undefined : this.#parts.enqueue.refused(followUps);
    if (refused !== undefined) return rejectedFollowUp(refused);
    if (this.#work?.items.get(job) === undefined) return outcome;
    return this.#work.refusal(job, work) ?? outcome;
  }

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

  /** Settles jobs claimed together by one statement, which saves an eighth of the time. False: one is not held, none changed. */
  #succeededTogether(tx: Tx, silent: readonly Settlement[]): boolean {
    const byFence = Map.groupBy(silent, ({ fence }) => fence);
    this.#sql.savepoint.run();
    let ended = 0;
    for (const [fence, group] of byFence)
      ended += this.#sql.succeedAll.run(tx.now, fence, JSON.stringify(group.map(({ job }) => job)));
    const all = ended === silent.length;
    if (!all) this.#sql.rollback.run();
    this.#sql.release.run();
    if (all) for (const settlement of silent) this.#wellEnded(tx, settlement);
    return all;
  }

  #wellEnded(tx: Tx, settlement: Settlement): void {
    const { job, work } = settlement;
    tx.wrote();
    const { lane, limits } = this.#parts.lanes.take(job);
    this.#parts.effects.add(job, lane, "succeeded");
    if (limits !== null) this.#parts.limits.finish(tx, lane, limits, true);
    if (this.#hasEvents && this.#parts.jobEvents.isEnabled(tx, lane)) this.#parts.jobEvents.add(tx, "job.succeeded", job);
    // An exclusive claim may have ended, so that its queue is open again.
    if (this.#hasLocks) tx.ready(this.#parts.catalog.lane(lane).queue);
    if (this.#hasNotes) this.#sql.dropCheckpoint.run(job);
    if (this.#work === null) return;
    const following = this.#work.succeeded(tx.now, job, work);
    if (following !== null) this.#next.push({ after: settlement, following });
  }
}

type Ended = Pick<Ending, "by" | "isDead" | "work">;

/** Whether the jobs are still held by this lease: it may have been renewed since it was judged. */
function isSame(held: RunningJobs, { fence, expiresAt }: ReclaimedLease): boolean {
  return held.fence === fence && held.expiresAt === expiresAt;
}

export class Leases {
  readonly #settle: Settle;
  readonly #renew: Statement;
  readonly #cut: string;

  constructor(db: Connection, settle: Settle) {
    this.#settle = settle;
    // A renewal may also extend an expired lease that was not reclaimed yet.
    this.#renew = db.prepare(
      "update holdfast_jobs set expires_at = ?, lease = ? where key = ? and fence = ? and state = 'running'",
    );
    this.#cut = `
      update holdfast_jobs set expires_at = :now + lease
      where key = :job and fence = :fence and expires_at = :expiresAt and state = 'running'`;
  }

  renew(tx: Tx, leases: readonly (LeaseRef & { lease: number })[]): LeaseState[] {
    return leases.map((held) => {
      const { job, fence, lease } = held;
      if (this.#renew.run(tx.now + lease, lease, job, fence) === 0) return this.#settle.fate(held);
      tx.wrote();
      return "held";
    });
  }

  /** Shortens leases that expire later than possible, because the clock was set back: they expire a lease from now. */
  cut(tx: ScriptTx, leases: readonly HeldLease[]): number {
    return leases.filter(({ job, fence, expiresAt }) => runSync(tx.run(this.#cut, { job, fence, expiresAt }))).length;
  }

  inspect(leases: readonly LeaseRef[]): LeaseState[] {
    return leases.map((lease) => this.#settle.fate(lease));
  }
}

export class SettleEffects {
  readonly #parts: JobParts;
  readonly #sql;
  /** Whether another job may wait for an ended one, or a queue does not keep ended jobs for ever. */
  #followed = true;
  #ended: FinishedJob[] = [];
  /** Sums of one operation, which are written once at its end, so that a settled batch changes one row of the tally. */
  readonly #sums = new Map<number, Map<FinishedState, number>>();

  constructor(db: Connection, parts: JobParts) {
    this.#parts = parts;
    this.#sql = {
      anyWaits: db.prepare("select 1 from holdfast_waits limit 1"),
      count: db.prepare(
        `insert into holdfast_tally as old (lane, state, n, ended, fresh, since) values (?, ?, ?, ?, ?, ?)
         on conflict (lane, state) do update set ${COUNTED}`,
      ),
      subtract: db.prepare("update holdfast_tally set n = n + ? where lane = ? and state = ?"),
    };
  }

  /** Called before a batch is settled: if nothing follows from the end of a job, no end is recorded. */
  begin(isFollowed: boolean): void {
    this.#followed = isFollowed;
  }

  add(job: JobKey, lane: number, state: FinishedState): void {
    this.count(lane, state, 1);
    if (this.#followed) this.#ended.push({ job, lane, state });
  }

  count(lane: number, state: FinishedState, n: number): void {
    let states = this.#sums.get(lane);
    if (states === undefined) this.#sums.set(lane, (states = new Map()));
    states.set(state, (states.get(state) ?? 0) + n);
  }

  write(tx: Tx): void {
    if (this.#ended.length > 0) this.#follow(tx);
    for (const [lane, states] of this.#sums) {
      for (const [state, n] of states) {
        if (n > 0) this.#sql.count.run(lane, state, n, n, n, tx.now);
        else if (n < 0) this.#sql.subtract.run(n, lane, state);
      }
    }
    this.#sums.clear();
    this.#parts.limits.write(tx);
    this.#followed = true;
  }

  forget(): void {
    this.#ended = [];
    this.#followed = true;
    this.#sums.clear();
  }

  #follow(tx: Tx): void {
    const { settings, retention, dependents } = this.#parts;
    const forgetting = settings.at(tx.settings).hasRetention;
    const waited = this.#sql.anyWaits.row() !== undefined;
    while (this.#ended.length > 0) {
      const ended = this.#ended;
      this.#ended = [];
      if (forgetting) runSync(retention.add(tx, ended, tx.now));
      const cancelled = waited ? runSync(dependents.follow(tx, tx.now, ended)) : [];
      for (const { job, lane, state } of cancelled) this.add(job, lane, state);
    }
  }
}
