import type { JobKey } from "../text/ids.ts";
import type { Keep, Lane, QueueSettings } from "./claiming.ts";
import { FINISHED_STATES, type FinishedState } from "./job.ts";

/** Rows read in one step to find jobs that finished before their queue had a retention. */
export const BACKFILL_ROWS = 2_000;

export interface ExpiredJob {
  job: JobKey;
  lane: number;
  state: FinishedState;
  finishedAt: number;
}

export interface Excess {
  lanes: readonly number[];
  state: FinishedState;
  count: number;
  countBefore: number;
  ageBefore: number | null;
}

export interface Kept {
  set: ReadonlyMap<string, Pick<QueueSettings, "keep">>;
  lanes: Iterable<Pick<Lane, "id" | "queue">>;
  finished: Iterable<{ lane: number; state: FinishedState; n: number }>;
  /** Queues whose older jobs may be missing from the list of finished jobs. */
  unlisted: ReadonlySet<string>;
}

export function findExcess({ set, lanes, finished, unlisted }: Kept, now: number, leastAge: number): Excess[] {
  const byQueue = Map.groupBy(lanes, ({ queue }) => queue);
  const counts = new Map<string, number>();
  for (const { lane, state, n } of finished) {
    counts.set(`${lane} ${state}`, (counts.get(`${lane} ${state}`) ?? 0) + n);
  }
  const found: Excess[] = [];
  for (const [name, { keep }] of set) {
    const ids = (byQueue.get(name) ?? []).map(({ id }) => id);
    for (const state of FINISHED_STATES) {
      const kept = keep[state];
      if (kept === undefined) continue;
      const total = ids.reduce((sum, lane) => sum + (counts.get(`${lane} ${state}`) ?? 0), 0);
      // While older jobs may be missing from the list, its oldest jobs are not the surplus ones.
      const excess = excessOf(kept, unlisted.has(name) ? 0 : total, now, leastAge);
      if (excess.count > 0 || excess.ageBefore !== null) found.push({ lanes: ids, state, ...excess });
    }
  }
  return found;
}

function excessOf({ age, count }: Keep, total: number, now: number, leastAge: number): Omit<Excess, "lanes" | "state"> {
  return {
    count: count === undefined ? 0 : Math.max(0, total - count),
    // Ignore the clock, which may have been set back since the jobs finished.
    countBefore: leastAge === 0 ? Number.MAX_SAFE_INTEGER : now - leastAge + 1,
    ageBefore: age === undefined ? null : now - Math.max(age, leastAge),
  };
}

/** Returns the longer list. Both have the oldest jobs, so it contains the other. */
export function longerList<T>(tooMany: readonly T[], tooOld: readonly T[]): readonly T[] {
  return tooMany.length > tooOld.length ? tooMany : tooOld;
}

/** Whether to make another step. A listed job that stays because it was retried says nothing about the jobs behind it. */
export function needsAnotherStep(step: { listing: boolean; taken: number; removed: number; limit: number }): boolean {
  return step.listing || step.taken === step.limit || step.removed < step.taken;
}
