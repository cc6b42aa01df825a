import type { JobKey } from "../text/ids.ts";
import type { Keep, Lane, QueueSettings } from "./claiming.ts";
import { FINISHED_STATES, type FinishedState } from "./job.ts";

/** Rows that are looked through in one step for jobs that ended before their queue said how long to keep them. */
export const BACKFILL = 2_000;

/** A finished job that need not be kept. */
export interface Over {
  job: JobKey;
  lane: number;
  state: FinishedState;
  finishedAt: number;
}

/** Of the finished jobs of a state in a queue, in the order in which they ended: what has to go, from the oldest on. */
export interface Excess {
  lanes: readonly number[];
  state: FinishedState;
  /** So many are too many, of those that ended before this instant. */
  count: number;
  countBefore: number;
  /** Those that ended before this instant are too old; null: none is. */
  ageBefore: number | null;
}

export interface Kept {
  /** What is set for queues, by name. */
  set: ReadonlyMap<string, Pick<QueueSettings, "keep">>;
  lanes: Iterable<Lane>;
  /** How many there are. */
  finished: Iterable<{ lane: number; state: FinishedState; n: number }>;
  /** Queues whose older jobs may be missing from the list of what has ended. */
  unlisted: ReadonlySet<string>;
}

/** Where something may have to go; but nothing that ended less than `leastAge` ago. */
export function excesses({ set, lanes, finished, unlisted }: Kept, now: number, leastAge: number): Excess[] {
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
      // As long as older ones may be missing from the list, its oldest are not those that are one too many.
      const excess = excessOf(kept, unlisted.has(name) ? 0 : total, now, leastAge);
      if (excess.count > 0 || excess.ageBefore !== null) found.push({ lanes: ids, state, ...excess });
    }
  }
  return found;
}

function excessOf({ age, count }: Keep, total: number, now: number, leastAge: number): Omit<Excess, "lanes" | "state"> {
  return {
    count: count === undefined ? 0 : Math.max(0, total - count),
    // Whatever the clock says now: it may have been set back since they ended.
    countBefore: leastAge === 0 ? Number.MAX_SAFE_INTEGER : now - leastAge + 1,
    ageBefore: age === undefined ? null : now - Math.max(age, leastAge),
  };
}

/** Both are the oldest, as far as each reason goes: one has the other in it. */
export function longer<T>(tooMany: readonly T[], tooOld: readonly T[]): readonly T[] {
  return tooMany.length > tooOld.length ? tooMany : tooOld;
}

/**
 * Whether another step is worth while, after one that took so many of at most `limit` off the list and removed so many
 * of them. One that stays (it was retried since) says nothing about those behind it.
 */
export function isMore(step: { listing: boolean; taken: number; removed: number; limit: number }): boolean {
  return step.listing || step.taken === step.limit || step.removed < step.taken;
}
