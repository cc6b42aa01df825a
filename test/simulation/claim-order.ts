import type { ClaimRequest, ClaimSource } from "../../src/store/store.ts";
import { isHeldBack, isOfLane } from "./held-back.ts";
import type { Model } from "./model.ts";
import { inTurn, type ModelJob } from "./model-job.ts";
import { must } from "./violation.ts";

/**
 * Whether these jobs may be the answer to that request: which queue is served first is the store's to choose, within a
 * queue it is not. Returns the lease of each.
 */
export function checkChoice(model: Model, at: number, request: ClaimRequest, chosen: readonly ModelJob[]): number[] {
  const choice = new Choice(model, at, request, chosen);
  choice.checkEach();
  choice.checkOrder();
  choice.checkNothingLeftOut();
  choice.checkShares();
  return chosen.map((job) => (choice.sourceOf(job) as ClaimSource).lease);
}

class Choice {
  readonly #model: Model;
  readonly #at: number;
  readonly #request: ClaimRequest;
  readonly #chosen: readonly ModelJob[];
  readonly #taken = new Map<ClaimSource, number>();
  readonly #holdsSuspect: boolean;

  constructor(model: Model, at: number, request: ClaimRequest, chosen: readonly ModelJob[]) {
    this.#model = model;
    this.#at = at;
    this.#request = request;
    this.#chosen = chosen;
    const { holder } = request;
    this.#holdsSuspect = holder !== null && model.running().some((job) => job.lease.holder === holder && job.crashes > 0);
  }

  sourceOf(job: { queue: string; name: string; version: number }): ClaimSource | undefined {
    return this.#request.from.find(
      ({ queue, name, version }) =>
        (queue ?? job.queue) === job.queue && (name ?? job.name) === job.name && (version ?? job.version) === job.version,
    );
  }

  checkEach(): void {
    must(this.#chosen.length <= this.#request.max, "no more are claimed than were asked for");
    must(new Set(this.#chosen).size === this.#chosen.length, "no job is claimed twice in one answer");
    for (const job of this.#chosen) {
      const source = this.sourceOf(job);
      must(source !== undefined, () => `${job.id} is of what was asked for`);
      must(job.state === "pending", () => `${job.id} is ${job.state} and was claimed: no two hold it`);
      must(job.readyAt(this.#at) !== "no", () => `${job.id} was claimed before it was due`);
      must(!this.#model.locks.isHeld(job.queue, this.#at), () => `${job.id} was claimed from the locked queue ${job.queue}`);
      must(!this.#model.queues.paused.has(job.queue), () => `${job.id} was claimed from the paused queue ${job.queue}`);
      const taken = (this.#taken.get(source) ?? 0) + 1;
      must(taken <= (source.max ?? Infinity), "no more of a source are claimed than its max");
      this.#taken.set(source, taken);
    }
    const suspects = this.#chosen.filter(isSuspect).length;
    must(suspects <= (this.#holdsSuspect ? 0 : 1), "a holder has at most one suspect");
  }

  /** Within a queue no job is passed over that could have been taken instead. */
  checkOrder(): void {
    for (const queue of new Set(this.#chosen.map((job) => job.queue))) {
      const chosen = this.#chosen.filter((job) => job.queue === queue);
      for (const [i, job] of chosen.entries()) {
        const after = chosen.slice(0, i).find((before) => inTurn(before, job) > 0 && !wasOpened(job, before));
        must(after === undefined, () => `${job.id} was handed out after ${after?.id}`);
      }
      const last = chosen.at(-1) as ModelJob;
      for (const job of this.#leftOut()) {
        if (job.queue !== queue || inTurn(job, last) > 0 || this.#excused(job)) continue;
        for (const other of chosen) {
          if (inTurn(job, other) > 0 || this.#heldBack(job, other)) continue;
          must(false, `${job.id} (priority ${job.priority}) was passed over for ${other.id} (${other.priority})`);
        }
      }
      // The suspect that is taken is the first of its queue's.
      const suspect = chosen.find(isSuspect);
      for (const job of suspect === undefined ? [] : this.#leftOut()) {
        if (job.queue !== queue || !isSuspect(job) || this.#exhausted(job) || this.#heldBack(job, suspect)) continue;
        must(inTurn(job, suspect as ModelJob) > 0, () => `suspect ${job.id} was passed over for suspect ${suspect?.id}`);
      }
    }
  }

  checkNothingLeftOut(): void {
    // Some may stand ready now for the next claim.
    for (const job of this.#model.jobs.values()) job.isParked &&= this.#heldBack(job);
    if (this.#chosen.length === this.#request.max) return;
    for (const job of this.#leftOut()) {
      if (this.#excused(job)) continue;
      must(this.#heldBack(job), () => `${job.id} could be claimed and was not`);
      job.isParked = true;
      const full = job.counters.filter((counter) => this.#model.limits.room(counter) < 1);
      // Of several it is not known at which of them it waits.
      if (full.length === 1) this.#model.limits.observe(full[0] as string);
    }
  }

  /** A queue gets more than its share only when every other has had its own. */
  checkShares(): void {
    const queues = new Set<string>();
    for (const lane of this.#model.lanes) {
      const [queue, name, version] = lane.split("\n") as [string, string, string];
      const source = this.sourceOf({ queue, name, version: Number(version) });
      if (source !== undefined && source.max !== 0 && !this.#model.isShut(queue, this.#at)) queues.add(queue);
    }
    const share = Math.max(1, Math.ceil(this.#request.max / queues.size));
    const got = (queue: string) => this.#chosen.filter((job) => job.queue === queue).length;
    if (![...queues].some((queue) => got(queue) > share)) return;
    for (const job of this.#leftOut()) {
      if (isSuspect(job) || this.sourceOf(job)?.max !== undefined || this.#heldBack(job)) continue;
      must(got(job.queue) >= share, () => `queue ${job.queue} had no share of the claim`);
    }
  }

  /** Jobs that could have been claimed for sure, and were not. */
  *#leftOut(): Iterable<ModelJob> {
    for (const job of this.#model.jobs.values()) {
      if (job.readyAt(this.#at) !== "yes" || this.#chosen.includes(job)) continue;
      const source = this.sourceOf(job);
      if (source === undefined || source.max === 0 || this.#model.isShut(job.queue, this.#at)) continue;
      yield job;
    }
  }

  #excused(job: ModelJob): boolean {
    if (this.#exhausted(job)) return true;
    return isSuspect(job) && (this.#holdsSuspect || this.#chosen.some(isSuspect));
  }

  #heldBack(job: ModelJob, taken?: ModelJob): boolean {
    return isHeldBack(this.#model, this.#at, job, { chosen: this.#chosen, taken });
  }

  #exhausted(job: ModelJob): boolean {
    const source = this.sourceOf(job) as ClaimSource;
    return (this.#taken.get(source) ?? 0) >= (source.max ?? Infinity);
  }
}

/**
 * The job may have passed one of its limits only while the claim was made, behind another job, when `other` was taken
 * already.
 */
function wasOpened(job: ModelJob, other: ModelJob): boolean {
  return job.counters.length > 1 || job.counters.some((counter) => !other.counters.includes(counter) || !isOfLane(job, other));
}

function isSuspect(job: ModelJob): boolean {
  return job.crashes > 0;
}
