import { type Fence, type JobKey, parseGeneratedId, type ProcessId } from "../../src/core/ids.ts";
import { type FinishedState, JOB_STATES, type JobState } from "../../src/core/job.ts";
import type { HeldLease, LeaseRef } from "../../src/core/lease.ts";
import type { Outcome } from "../../src/core/retry.ts";
import type { Claimed, ClaimRequest, Enqueued, Fate, Judgement, NewJob, Reclaimed, Settlement } from "../../src/store/store.ts";
import { checkChoice } from "./claim-order.ts";
import { ModelJob } from "./model-job.ts";
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
  readonly processes = new Set<ProcessId>();
  readonly recovered = { entries: 0, locks: 0 };
  /** Every job that was accepted and not pruned, in the order of acceptance. */
  readonly jobs = new Map<string, ModelJob>();
  /** Whose job an id was or is: chosen ones for ever, made ones as long as their job. */
  readonly owners = new Map<string, string>();
  readonly lanes = new Set<string>();
  /** Ids of jobs that this step had to do with. */
  readonly touched = new Set<string>();
  /** Leases that somebody else than their holder has ended in this step. */
  ended: string[] = [];
  /** Queues in which this step made something claimable. */
  ready = new Set<string>();
  #seq = 0;
  #byKey = new Map<JobKey, ModelJob>();
  #highestFence = 0;
  #generated = new Set<string>();

  enqueue(at: number, jobs: readonly NewJob[], answers: readonly Enqueued[], whole = false): void {
    const taken = whole ? this.#taken(jobs) : undefined;
    if (taken !== undefined) return mustEqual(answers, [taken], "a batch that is whole or nothing");
    must(answers.length === jobs.length, "each enqueued job has an answer");
    for (const [i, job] of jobs.entries()) {
      const known = this.#known(job);
      const answer = answers[i] as Enqueued;
      if (known === undefined) this.#accept(at, job, answer);
      else mustEqual(answer, known, `enqueue of ${job.name} with id ${job.id} and key ${job.key}`);
    }
  }

  claim(at: number, trueTime: number, request: ClaimRequest, claimed: readonly Claimed[]): void {
    const jobs = claimed.map((claim) => {
      const job = this.jobs.get(claim.id);
      must(job !== undefined, () => `claimed job ${claim.id} was accepted and not pruned`);
      return job;
    });
    const sources = checkChoice(this, at, request, jobs);
    for (const job of this.jobs.values()) if (job.gate === "time" && job.runAt.from <= at) job.gate = "maybe";
    for (const [i, claim] of claimed.entries()) {
      const job = jobs[i] as ModelJob;
      must(claim.fence > job.lastFence, () => `the fence of ${job.id} rises: ${job.lastFence} → ${claim.fence}`);
      must(claim.fence >= this.#highestFence, () => `fences rise over all jobs: ${this.#highestFence} → ${claim.fence}`);
      this.#highestFence = claim.fence;
      this.#learnKey(job, claim.job);
      const lease = sources[i] as number;
      job.start(at, { fence: claim.fence, holder: request.holder, lease, expiresAt: at + lease, renewedAt: trueTime });
      this.touched.add(job.id);
      mustEqual(claim, this.#claimed(job, claim), `the claim of ${job.id}`);
    }
    if (request.exclusive === undefined || claimed.length === 0) return;
    const [first] = jobs as [ModelJob];
    this.locks.bind(first, (claimed[0] as Claimed).fence, request.worker, request.exclusive, at);
  }

  renew(at: number, trueTime: number, leases: readonly (LeaseRef & { lease: number })[], fates: readonly Fate[]): void {
    for (const [i, { lease, ...ref }] of leases.entries()) {
      mustEqual(fates[i], this.fate(ref), `the renewal of ${sayLease(ref)}`);
      const job = this.held(ref);
      if (job?.lease) Object.assign(job.lease, { lease, expiresAt: at + lease, renewedAt: trueTime });
    }
  }

  settle(at: number, settlements: readonly Settlement[], fates: readonly Fate[]): void {
    for (const [i, settlement] of settlements.entries()) {
      mustEqual(fates[i], this.fate(settlement), `the settlement of ${sayLease(settlement)} as ${settlement.outcome.kind}`);
      const job = this.held(settlement);
      if (job === undefined) continue;
      const followUps = settlement.followUps ?? [];
      const taken = settlement.outcome.kind === "succeeded" ? this.#taken(followUps) : undefined;
      if (taken !== undefined) {
        this.#end(at, job, { kind: "error", retry: false, error: { name: "HoldfastError", message: "", code: "ID_TAKEN" } });
        continue;
      }
      this.#end(at, job, settlement.outcome);
      for (const followUp of followUps) {
        const id = followUp.id ?? followUp.followUpId;
        must(id !== undefined, "a follow-up has an id before it is committed");
        if (this.#known(followUp) === undefined) this.#accept(at, followUp, { id, duplicate: false });
      }
    }
  }

  saveCheckpoint(ref: LeaseRef, value: string | null, fate: Fate): void {
    mustEqual(fate, this.fate(ref), `the checkpoint of ${sayLease(ref)}`);
    const job = this.held(ref);
    if (job !== undefined) job.checkpoint = value;
  }

  saveProgress(reports: readonly (LeaseRef & { fraction: number; message: string | null })[], fates: readonly Fate[]): void {
    for (const [i, report] of reports.entries()) {
      mustEqual(fates[i], this.fate(report), `the progress of ${sayLease(report)}`);
      const { fraction, message } = report;
      const job = this.held(report);
      if (job !== undefined) job.progress = message === null ? { fraction } : { fraction, message };
    }
  }

  cancel(at: number, id: string, answer: boolean): void {
    const job = this.jobs.get(id);
    mustEqual(answer, job?.unfinished ?? false, `cancelling ${id}`);
    if (job === undefined || !answer) return;
    if (job.lease !== null) this.#endedByOthers(job, job.lease.fence);
    job.cancel(at);
    this.touched.add(id);
  }

  retry(at: number, id: string, answer: boolean | "key-taken"): void {
    const job = this.jobs.get(id);
    const may = job !== undefined && (job.state === "failed" || job.state === "quarantined");
    const taken = may && job.key !== undefined && this.unfinishedOf(job.name, job.key) !== undefined;
    mustEqual(answer, taken ? "key-taken" : may, `retrying ${id}`);
    if (job === undefined || answer !== true) return;
    job.retry(at);
    this.ready.add(job.queue);
    this.touched.add(id);
  }

  prune(filter: PruneFilter, answer: number): void {
    const { ids, finishedBefore } = filter;
    const prunable = [...this.jobs.values()].filter(
      (job) =>
        job.state === filter.state &&
        (filter.queue === undefined || job.queue === filter.queue) &&
        (ids === undefined || ids.includes(job.id)) &&
        (finishedBefore === undefined || (job.finishedAt as number) < finishedBefore),
    );
    mustEqual(answer, Math.min(prunable.length, filter.limit), "how many were pruned");
    for (const job of prunable.slice(0, filter.limit)) {
      this.jobs.delete(job.id);
      if (!job.isChosen) this.owners.delete(job.id);
      if (job.jobKey !== null) this.#byKey.delete(job.jobKey);
      this.touched.add(job.id);
    }
  }

  /** The leases that a healer is shown. */
  stale(at: number, query: { dead: readonly ProcessId[]; skewed: boolean; limit: number }, answer: readonly HeldLease[]): void {
    const stale = this.running().filter(({ lease: { expiresAt, lease, holder } }) => {
      if (expiresAt <= at || (query.skewed && expiresAt > at + lease)) return true;
      return holder !== null && query.dead.includes(holder);
    });
    must(answer.length === Math.min(query.limit, stale.length), () => `${stale.length} leases are stale, ${answer.length} shown`);
    for (const shown of answer) {
      const job = stale.find((one) => one.jobKey === shown.job);
      must(job !== undefined, () => `${sayLease(shown)} is no stale lease`);
      const { fence, holder, expiresAt, lease } = job.lease;
      mustEqual({ ...shown }, { job: shown.job, fence, holder, expiresAt, lease }, `the stale lease of ${job.id}`);
    }
  }

  reclaim(at: number, judgements: readonly Judgement[], answer: Reclaimed): void {
    const expected: Reclaimed = { entries: 0, quarantined: 0, failed: 0 };
    for (const judgement of judgements) {
      const job = this.judged(judgement);
      if (job === undefined) continue;
      if (judgement.verdict === "cut") {
        job.lease.expiresAt = at + job.lease.lease;
        continue;
      }
      this.#endedByOthers(job, judgement.fence);
      this.#end(at, job, { kind: judgement.verdict });
      expected.entries++;
      if (job.state === "quarantined") expected.quarantined++;
      if (job.state === "failed") expected.failed++;
    }
    this.recovered.entries += expected.entries;
    mustEqual(answer, expected, "what was reclaimed");
  }

  cleanLocks(at: number, answer: number): void {
    mustEqual(answer, this.locks.clean(at), "how many locks were cleaned");
    this.recovered.locks += answer;
  }

  unregister(id: ProcessId, answer: boolean): void {
    const holdsAny = this.running().some(({ lease }) => lease.holder === id);
    mustEqual(answer, this.processes.has(id) && !holdsAny, `forgetting process ${id}`);
    if (answer) this.processes.delete(id);
  }

  // ── looking ──

  fate(ref: LeaseRef): Fate {
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

  #known(job: NewJob): Enqueued | undefined {
    const owner = job.id === undefined ? undefined : this.owners.get(job.id);
    if (job.id !== undefined && owner !== undefined) {
      return owner === job.name ? { id: job.id, duplicate: true } : { id: job.id, taken: owner };
    }
    const same = job.key === undefined ? undefined : this.unfinishedOf(job.name, job.key);
    return same && { id: same.id, duplicate: true };
  }

  /** The first whose id belongs to another name, be it one of the same batch. */
  #taken(jobs: readonly NewJob[]): Enqueued | undefined {
    const owners = new Map<string, string>();
    for (const { id, name } of jobs) {
      if (id === undefined) continue;
      const owner = this.owners.get(id) ?? owners.get(id) ?? name;
      if (owner !== name) return { id, taken: owner };
      owners.set(id, name);
    }
    return undefined;
  }

  #accept(at: number, job: NewJob, answer: Enqueued): void {
    must("duplicate" in answer && !answer.duplicate, () => `a new ${job.name} is no duplicate, but ${JSON.stringify(answer)}`);
    const given = job.id ?? job.followUpId;
    if (given === undefined) {
      must(!this.#generated.has(answer.id), () => `the made id ${answer.id} is new`);
      must(parseGeneratedId(answer.id)?.createdAt === at, () => `the made id ${answer.id} says when it was made`);
      this.#generated.add(answer.id);
    } else mustEqual(answer.id, given, "the id that was given");
    must(!this.jobs.has(answer.id), () => `there is one job ${answer.id}`);
    const accepted = new ModelJob(this.#seq++, answer.id, job, at);
    this.jobs.set(answer.id, accepted);
    this.owners.set(answer.id, job.name);
    this.lanes.add(`${job.queue}\n${job.name}\n${job.version}`);
    if (accepted.gate === "open") this.ready.add(job.queue);
    this.touched.add(answer.id);
  }

  #end(at: number, job: ModelJob, outcome: Outcome): void {
    job.end(at, outcome);
    if (job.readyAt(at) === "yes") this.ready.add(job.queue);
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

  #claimed(job: ModelJob, { job: key, fence, policy, ...rest }: Claimed): object {
    mustEqual({ ...policy }, { ...job.policy }, `the policy of ${job.id}`);
    const { id, name, queue, version, input, attempt, priority } = job;
    const { lease, expiresAt } = job.lease ?? { lease: 0, expiresAt: 0 };
    const suspect = "suspect" in rest ? { suspect: job.crashes > 0 } : {};
    // No schedule made any of them.
    const made = { id, name, queue, version, input, attempt, priority, scheduledFor: null };
    return { job: key, fence, policy, ...made, lease, expiresAt, ...suspect };
  }
}

export interface Running {
  lease: NonNullable<ModelJob["lease"]>;
}

function isRunning(job: ModelJob): job is ModelJob & Running {
  return job.lease !== null;
}

export function sayLease(ref: LeaseRef): string {
  return `job key ${ref.job} under fence ${ref.fence}`;
}
