import type { FinishedState } from "../../src/core/jobs/job.ts";
import type { QueueSettings } from "../../src/core/jobs/claiming.ts";
import type { Declaration } from "../../src/store/store.ts";
import type { ModelJob } from "./model-job.ts";
import { must } from "./violation.ts";

const NOTHING: QueueSettings = { events: false, keep: {} };
/** So many steps it takes to look through what ended before something was said about keeping it. */
const LISTING = 2;

/** Settings of queues: paused, with events, kept how long. */
export class ModelQueues {
  readonly paused = new Set<string>();
  /** Queues of which something was ever said. */
  readonly spokenOf = new Set<string>();
  readonly #settings = new Map<string, QueueSettings>();
  /** Queues whose history is still looked through, and in how many steps. */
  readonly #unlisted = new Map<string, number>();

  declare({ queue, settings, old = false }: Declaration): void {
    if (settings === undefined || (old && this.spokenOf.has(queue))) return;
    if (JSON.stringify(this.#of(queue)) === JSON.stringify(settings)) return;
    this.spokenOf.add(queue);
    this.#settings.set(queue, settings);
    if (Object.keys(settings.keep).length === 0) this.#unlisted.delete(queue);
    else this.#unlisted.set(queue, LISTING);
  }

  setPaused(queue: string, paused: boolean): void {
    this.spokenOf.add(queue);
    if (paused) this.paused.add(queue);
    else this.paused.delete(queue);
  }

  tells(queue: string): boolean {
    return this.#of(queue).events;
  }

  /** Whether these jobs may have been removed, and all that had to be when nothing `more` is to be done. */
  checkExpired(at: number, jobs: readonly ModelJob[], removed: ReadonlySet<ModelJob>, more: boolean): void {
    const listing = this.#unlisted.size > 0;
    for (const job of removed) must(!job.unfinished, () => `${job.id} is ${job.state} and was removed`);
    const finished = Map.groupBy(
      jobs.filter((job) => !job.unfinished),
      ({ queue, state }) => `${queue}\n${state}`,
    );
    for (const group of finished.values()) this.#checkGroup(at, group.toSorted(byEnd), { removed, more, listing });
    this.#goOnListing();
  }

  /** Of one queue and state, the oldest first. */
  #checkGroup(at: number, group: ModelJob[], how: { removed: ReadonlySet<ModelJob>; more: boolean; listing: boolean }): void {
    const [{ queue, state }] = group as [ModelJob];
    const { age = Infinity, count = Infinity } = this.#of(queue).keep[state as FinishedState] ?? {};
    const excess = group.length - count;
    const isOver = (job: ModelJob, i: number) => i < excess || (job.finishedAt as number) < at - age;
    const goes = (job: ModelJob) => how.removed.has(job);
    for (const [i, job] of group.entries()) {
      if (goes(job) && !how.listing)
        must(isOver(job, i), () => `${job.id} need not go: ${i} of ${group.length}, ${queue} keeps ${count}`);
      if (goes(job) && how.listing) must((job.finishedAt as number) < at - age || excess > 0, () => `${job.id} need not go`);
      if (!goes(job) && !how.more) must(!isOver(job, i), () => `${job.id} is ${state} and over, and was left in ${queue}`);
    }
    must(
      group.filter(goes).length <= Math.max(excess, group.filter((job) => (job.finishedAt as number) < at - age).length),
      "too many go",
    );
  }

  #goOnListing(): void {
    const [queue] = [...this.#unlisted.keys()].sort();
    if (queue === undefined) return;
    const left = (this.#unlisted.get(queue) as number) - 1;
    if (left === 0) this.#unlisted.delete(queue);
    else this.#unlisted.set(queue, left);
  }

  #of(queue: string): QueueSettings {
    return this.#settings.get(queue) ?? NOTHING;
  }
}

function byEnd(a: ModelJob, b: ModelJob): number {
  return (a.finishedAt as number) - (b.finishedAt as number) || a.seq - b.seq;
}
