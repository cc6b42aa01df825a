import type { JobEventType } from "../../src/core/jobs/event.ts";
import type { Fence, JobKey, ProcessId } from "../../src/core/text/ids.ts";
import { type FinishedState, JOB_STATES, type JobState } from "../../src/core/jobs/job.ts";
import type { LeaseRef } from "../../src/core/jobs/lease.ts";
import type { Outcome } from "../../src/core/jobs/retry.ts";
import type { Judgement } from "../../src/store/recoveries.ts";
import type {
  Claimed,
  ClaimRequest,
  Declaration,
  Enqueued,
  LeaseState,
  NewJob,
  Settlement,
  ProgressReport,
} from "../../src/store/store.ts";
import { checkChoice } from "./claim-order.ts";
import { isHeldBack } from "./held-back.ts";
import { ModelReclaim } from "./model-reclaim.ts";
import { ModelEnqueue } from "./model-enqueue.ts";
import type { ModelJob } from "./model-job.ts";
import { ModelLimits } from "./model-limits.ts";
import { ModelEvents } from "./model-events.ts";
import { ModelRecoveries } from "./model-recoveries.ts";
import { ModelSchedules } from "./model-schedules.ts";
import { ModelQueues } from "./model-queues.ts";
import { ModelLocks } from "./model-locks.ts";
import { must, mustEqual } from "./violation.ts";

export interface PruneFilter {
  state: FinishedState;
  queue?: string;
  ids?: readonly string[];
  finishedBefore?: number;
  limit: number;
}

/**
 * What the store should contain. Each method takes what was asked and what was answered: it predicts the answer where
 * there is only one right one, checks it where there are several, and then goes the same way.
 */
export class Model {
  readonly locks = new ModelLocks();
  readonly limits = new ModelLimits();
  readonly queues = new ModelQueues();
  readonly events = new ModelEvents();
  readonly schedules = new ModelSchedules(this);
  readonly reclaims = new ModelReclaim(this);
  readonly recoveries = new ModelRecoveries(this);
  readonly enqueues = new ModelEnqueue(this);
  readonly processes = new Set<ProcessId>();
  /** Every job that was accepted and not pruned, in the order of acceptance. */
  readonly jobs = new Map<string, ModelJob>();
  readonly lanes = new Set<string>();
  /** Ids of jobs that this step had to do with. */
  readonly touched = new Set<string>();
  /** The jobs whose success committed a row of the user's own. */
  readonly rows: JobKey[] = [];
  /** Leases that an actor other than their holder has ended in this step. */
  ended: string[] = [];
  /** Queues in which this step made something claimable. */
  ready = new Set<string>();
  #byKey = new Map<JobKey, ModelJob>();
  #highestFence = 0;

  enqueue(at: number, jobs: readonly NewJob[], answers: readonly Enqueued[], whole = false): void {
    this.enqueues.enqueue(at, jobs, answers, whole);
  }

  declare(at: number, declarations: readonly Declaration[]): void {
    for (const declaration of declarations) {
      const parked = [...this.jobs.values()].filter((job) => job.queue === declaration.queue && job.isParked);
      const held = parked.filter((job) => job.readyAt(at) === "yes" && isHeldBack(this, at, job));
      this.queues.declare(declaration);
      this.limits.declare(declaration);
      if (held.some((job) => !isHeldBack(this, at, job))) this.ready.add(declaration.queue);
      // Whether they are held by what is said now is seen by the next claim.
      for (const job of parked) job.isParked = false;
    }
  }

  /** A job is accepted. */
  add(at: number, job: ModelJob): void {
    this.jobs.set(job.id, job);
    this.lanes.add(`${job.queue}\n${job.name}\n${job.version}`);
    this.touched.add(job.id);
    if (job.readyAt(at) === "yes") this.ready.add(job.queue);
    this.#tell(at, "job.enqueued", job);
    if (job.state === "cancelled") this.#tell(at, "job.cancelled", job);
  }

  claim(at: number, trueTime: number, request: ClaimRequest, claimed: readonly Claimed[]): void {
    const jobs = claimed.map((claim) => {
      const job = this.jobs.get(claim.id);
      must(job !== undefined, () => `claimed job ${claim.id} was accepted and not pruned`);
      return job;
    });
    const sources = checkChoice(this, at, request, jobs);
    for (const job of this.jobs.values()) if (job.gate === "time" && job.runAt.from <= at) job.gate = "maybe";
    // A claim that is made in several rounds takes a fence for each; its jobs are sorted by their turn.
    const before = this.#highestFence;
    for (const [i, claim] of claimed.entries()) {
      const job = jobs[i] as ModelJob;
      must(claim.fence > job.lastFence, () => `the fence of ${job.id} rises: ${job.lastFence} → ${claim.fence}`);
      must(claim.fence >= before, () => `fences do not fall from claim to claim: ${before} → ${claim.fence}`);
      this.#highestFence = Math.max(this.#highestFence, claim.fence);
      this.#learnKey(job, claim.job);
      const lease = sources[i] as number;
      this.limits.start(job);
      const { holder, worker } = request;
      job.start(at, { fence: claim.fence, holder, worker, lease, expiresAt: at + lease, renewedAt: trueTime });
      this.touched.add(job.id);
      this.#tell(at, "job.started", job);
      mustEqual(claim, this.#claimed(job, claim), `the claim of ${job.id}`);
    }
    if (request.exclusive === undefined || claimed.length === 0) return;
    const [first] = jobs as [ModelJob];
    this.locks.bind(first, (claimed[0] as Claimed).fence, request.worker, request.exclusive, at);
  }

  renew(at: number, trueTime: number, leases: readonly (LeaseRef & { lease: number })[], fates: readonly LeaseState[]): void {
    for (const [i, { lease, ...ref }] of leases.entries()) {
      mustEqual(fates[i], this.fate(ref), `the renewal of ${sayLease(ref)}`);
      const job = this.held(ref);
      if (job?.lease) Object.assign(job.lease, { lease, expiresAt: at + lease, renewedAt: trueTime });
    }
  }

  settle(at: number, settlements: readonly Settlement[], fates: readonly LeaseState[]): void {
    for (const [i, settlement] of settlements.entries()) {
      mustEqual(fates[i], this.fate(settlement), `the settlement of ${sayLease(settlement)} as ${settlement.outcome.kind}`);
      const job = this.held(settlement);
      if (job === undefined) continue;
      const followUps = settlement.followUps ?? [];
      const refused = settlement.outcome.kind === "succeeded" ? this.enqueues.refused(followUps) : undefined;
      if (refused !== undefined) {
        const code = "taken" in refused ? "ID_TAKEN" : "NO_SUCH_JOB";
        this.#end(at, job, { kind: "error", retry: false, error: { name: "HoldfastError", message: "", code } });
        continue;
      }
      this.#end(at, job, settlement.outcome);
      if (settlement.commit !== undefined) this.rows.push(settlement.job);
      this.enqueues.followUp(at, followUps);
    }
  }

  saveProgress(reports: readonly ProgressReport[], fates: readonly LeaseState[]): void {
    for (const [i, report] of reports.entries()) {
      mustEqual(fates[i], this.fate(report), `the progress of ${sayLease(report)}`);
      const job = this.held(report);
      if (job === undefined) continue;
      if ("checkpoint" in report) job.checkpoint = report.checkpoint;
      else if ("fraction" in report)
        job.progress =
          report.message === null ? { fraction: report.fraction } : { fraction: report.fraction, message: report.message };
    }
  }

  cancel(at: number, id: string, answer: boolean): void {
    const job = this.jobs.get(id);
    mustEqual(answer, job?.unfinished ?? false, `cancelling ${id}`);
    if (job === undefined || !answer) return;
    // It may have been in the way of others.
    for (const other of this.jobs.values()) if (other.counters.some((one) => job.counters.includes(one))) other.isParked = false;
    if (job.lease !== null) {
      this.#endedByOthers(job, job.lease.fence);
      this.#giveBack(at, job, true);
    }
    job.cancel(at);
    this.touched.add(id);
    this.events.tellOf(at, "job.cancelled", job);
    this.#follow(at, job);
  }

  setPaused(at: number, queue: string, paused: boolean, answer: boolean): void {
    mustEqual(answer, this.queues.paused.has(queue) !== paused, `${paused ? "pausing" : "resuming"} ${queue}`);
    if (!answer) return;
    this.queues.setPaused(queue, paused);
    this.events.tell(at, paused ? "queue.paused" : "queue.resumed", queue);
    if (!paused) this.ready.add(queue);
  }

  /** Nothing is handed out from it. */
  isShut(queue: string, at: number): boolean {
    return this.queues.paused.has(queue) || this.locks.isHeld(queue, at);
  }

  retry(at: number, id: string, answer: boolean | "key-taken"): void {
    const job = this.jobs.get(id);
    const may = job !== undefined && (job.state === "failed" || job.state === "quarantined");
    const taken = may && job.key !== undefined && this.unfinishedOf(job.name, job.key) !== undefined;
    mustEqual(answer, taken ? "key-taken" : may, `retrying ${id}`);
    if (job === undefined || answer !== true) return;
    job.retry(at);
    this.events.tellOf(at, "job.retried", job);
    this.ready.add(job.queue);
    this.touched.add(id);
  }

  prune(at: number, filter: PruneFilter, answer: number): void {
    const { ids, finishedBefore } = filter;
    const prunable = [...this.jobs.values()].filter(
      (job) =>
        job.state === filter.state &&
        (filter.queue === undefined || job.queue === filter.queue) &&
        (ids === undefined || ids.includes(job.id)) &&
        (finishedBefore === undefined || (job.finishedAt as number) < finishedBefore),
    );
    mustEqual(answer, Math.min(prunable.length, filter.limit), "how many were pruned");
    for (const job of prunable.slice(0, filter.limit)) this.#remove(job);
    if (answer > 0) this.events.tell(at, "jobs.removed");
  }

  /** `left`: the ids of all jobs that are there now. */
  expire(
    at: number,
    limit: number,
    { removed, more }: { removed: number; more: boolean },
    left: { has(id: string): boolean },
  ): void {
    const jobs = [...this.jobs.values()];
    const gone = jobs.filter(({ id }) => !left.has(id));
    mustEqual(gone.length, removed, "how many are gone");
    must(removed <= limit, "no more are removed than in one step");
    this.queues.checkExpired(at, jobs, new Set(gone), more);
    for (const job of gone) this.#remove(job);
  }

  // ── looking ──

  fate(ref: LeaseRef): LeaseState {
    const job = this.#byKey.get(ref.job);
    if (job === undefined) return "gone";
    if (job.lease?.fence === ref.fence) return "held";
    return job.state === "cancelled" ? "cancelled" : "lost";
  }

  /** The job whose lease this is, now. */
  held(ref: LeaseRef): ModelJob | undefined {
    const job = this.#byKey.get(ref.job);
    if (job?.lease?.fence !== ref.fence) return undefined;
    this.touched.add(job.id);
    return job;
  }

  /** The job whose lease is still exactly the one that was judged. */
  judged(judgement: Judgement): (ModelJob & Running) | undefined {
    const job = this.held(judgement);
    return job !== undefined && isRunning(job) && job.lease.expiresAt === judgement.expiresAt ? job : undefined;
  }

  running(): (ModelJob & Running)[] {
    return [...this.jobs.values()].filter(isRunning);
  }

  unfinishedOf(name: string, key: string): ModelJob | undefined {
    for (const job of this.jobs.values()) if (job.unfinished && job.name === name && job.key === key) return job;
    return undefined;
  }

  counts(filter: { queue?: string; name?: string }): Record<JobState, number> {
    const counts = Object.fromEntries(JOB_STATES.map((state) => [state, 0])) as Record<JobState, number>;
    for (const job of this.jobs.values()) {
      if ((filter.queue ?? job.queue) === job.queue && (filter.name ?? job.name) === job.name) counts[job.state]++;
    }
    return counts;
  }

  // ── helpers ──

  /** An attempt is over because an actor other than its holder ended it. */
  takeBack(at: number, job: ModelJob & Running, outcome: Outcome): void {
    this.#endedByOthers(job, job.lease.fence);
    this.#end(at, job, outcome);
  }

  #end(at: number, job: ModelJob, outcome: Outcome): void {
    this.#giveBack(at, job, outcome.kind !== "released");
    job.end(at, outcome);
    this.#tell(at, TOLD[job.state] as JobEventType, job);
    if (job.readyAt(at) === "yes") this.ready.add(job.queue);
    this.touched.add(job.id);
    this.#follow(at, job);
  }

  /** Gives back what the job took of its limits, and notifies the jobs that wait for it. */
  #giveBack(at: number, job: ModelJob, began: boolean): void {
    if (job.counters.length === 0) return;
    const full = new Set(job.counters.filter((counter) => this.limits.isFull(counter)));
    this.limits.end(job, began);
    for (const other of this.jobs.values()) {
      if (!other.isParked || other.readyAt(at) !== "yes" || !other.counters.some((counter) => full.has(counter))) continue;
      // A rate may have let it pass before, when another job was there.
      if (other.counters.some((counter) => this.limits.hasRate(counter))) continue;
      if (isHeldBack(this, at, other)) continue;
      other.isParked = false;
      this.ready.add(other.queue);
    }
  }

  /** The end of a job is the end of waiting, or of everything that waits for it, and of what waits for that. */
  #follow(at: number, ended: ModelJob): void {
    if (ended.unfinished) return;
    for (const job of this.jobs.values()) {
      if (!job.upstreams.has(ended.id)) continue;
      this.touched.add(job.id);
      if (ended.state === "succeeded") {
        if (job.passUpstream(at, ended.id) && job.readyAt(at) === "yes") this.ready.add(job.queue);
        continue;
      }
      job.loseUpstream(at);
      this.#tell(at, "job.cancelled", job);
      this.#follow(at, job);
    }
  }

  #tell(at: number, type: JobEventType, job: ModelJob): void {
    if (this.queues.tells(job.queue)) this.events.tellOf(at, type, job);
  }

  #remove(job: ModelJob): void {
    this.jobs.delete(job.id);
    this.enqueues.forget(job);
    if (job.jobKey !== null) this.#byKey.delete(job.jobKey);
    this.touched.add(job.id);
  }

  #endedByOthers(job: ModelJob, fence: Fence): void {
    this.ended.push(`${job.jobKey}:${fence}`);
  }

  /** Keys rise with the order of acceptance and belong to one job for ever. */
  #learnKey(job: ModelJob, key: JobKey): void {
    if (job.jobKey !== null) return mustEqual(key, job.jobKey, `the key of ${job.id}`);
    for (const other of this.#byKey.values()) {
      must(Math.sign((other.jobKey as number) - key) === Math.sign(other.seq - job.seq), "keys rise in the order of acceptance");
    }
    job.jobKey = key;
    this.#byKey.set(key, job);
  }

  #claimed(job: ModelJob, { job: key, fence, policy, runAt, ...rest }: Claimed): object {
    must(runAt >= job.runAt.from && runAt <= job.runAt.to, () => `${job.id} was claimed with run time ${runAt}`);
    mustEqual({ ...policy }, { ...job.policy }, `the policy of ${job.id}`);
    const { id, name, queue, version, input, attempt, priority } = job;
    const { lease, expiresAt } = job.lease ?? { lease: 0, expiresAt: 0 };
    const suspect = "suspect" in rest ? { suspect: job.crashes > 0 } : {};
    const { scheduledFor, createdAt } = job;
    const made = { id, name, queue, version, input, attempt, priority, scheduledFor, createdAt };
    return { job: key, fence, policy, runAt, ...made, lease, expiresAt, trace: null, ...suspect };
  }
}

/** Event of each end of an attempt. */
const TOLD: Partial<Record<JobState, JobEventType>> = {
  succeeded: "job.succeeded",
  pending: "job.returned",
  failed: "job.failed",
  quarantined: "job.quarantined",
};

export interface Running {
  lease: NonNullable<ModelJob["lease"]>;
}

function isRunning(job: ModelJob): job is ModelJob & Running {
  return job.lease !== null;
}

export function sayLease(ref: LeaseRef): string {
  return `job key ${ref.job} under fence ${ref.fence}`;
}
