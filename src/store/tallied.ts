import type { FinishedState } from "../core/job.ts";

const MINUTE = 60_000;

/**
 * Counts of the finished jobs of a lane, kept with each change of one, so that counting never walks history. `n` is how
 * many there are, `ended` how many ended ever, and never falls. Two counters of a minute each tell about the last one:
 * `fresh` counts those since `since`, `before` those of the minute that ended there.
 */
export interface Tallied {
  lane: number;
  state: FinishedState;
  n: number;
  ended: number;
  since: number;
  fresh: number;
  before: number;
}

/**
 * What `excluded` more of them, at `excluded.since`, make of the row `old`; both databases read it the same. An instant
 * before the row's own means that the clock was set back since: the count of a minute begins anew.
 */
export const COUNTED = `
  n = old.n + excluded.n, ended = old.ended + excluded.n,
  before = case when excluded.since - old.since between 0 and ${MINUTE - 1} then old.before
                when excluded.since - old.since between ${MINUTE} and ${2 * MINUTE - 1} then old.fresh else 0 end,
  fresh = case when excluded.since - old.since between 0 and ${MINUTE - 1} then old.fresh + excluded.n else excluded.n end,
  since = case when excluded.since - old.since between 0 and ${MINUTE - 1} then old.since else excluded.since end`;

/** How many of them ended within the last minute, as far as two counters of a minute each can tell. */
export function lastMinute({ since, fresh, before }: Tallied, now: number): number {
  const elapsed = now - since;
  if (elapsed < 0 || elapsed >= 2 * MINUTE) return 0;
  if (elapsed >= MINUTE) return Math.round(fresh * (2 - elapsed / MINUTE));
  return Math.round(fresh + before * (1 - elapsed / MINUTE));
}
