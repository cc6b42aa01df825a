import { signal } from "@preact/signals";
import { duration } from "./format.ts";
import type { QueueMinute } from "../../src/core/jobs/minutes.ts";
import type { Reading } from "./live.ts";
import type { Overview } from "./model.ts";

/** The last overview, for every page. */
export const overview = signal<Reading<Overview>>({ data: null, error: null });

export interface Stats {
  boundsMs: number[];
  items: QueueMinute[];
}

/** How many minutes a chart shows, and how many of them are one point. */
export const RANGES = {
  "1h": { minutes: 60, step: 1, text: "1 hour" },
  "6h": { minutes: 360, step: 5, text: "6 hours" },
  "24h": { minutes: 1_440, step: 15, text: "24 hours" },
  "7d": { minutes: 7 * 1_440, step: 120, text: "7 days" },
} as const;
export type Range = keyof typeof RANGES;

type Point = (number | null)[];

export interface Charts {
  /** Times in seconds; succeeded, failed and retried a minute. */
  rates: Point[];
  /** Times in seconds; milliseconds within which half and 95 % of the attempts ran, and 95 % of the jobs waited. */
  times: Point[];
}

/** Sums queues and minutes into points. Minutes in which nothing ended have no row. */
export function chartsOf({ boundsMs, items }: Stats, range: Range, now: number): Charts {
  const { minutes, step } = RANGES[range];
  // Of the minute that runs, nothing is written yet.
  const last = Math.floor((now / 60_000 - 1) / step) * step;
  const starts = Array.from({ length: minutes / step }, (_, i) => last - minutes + step * (i + 1));
  const byStart = Map.groupBy(items, ({ minute }) => Math.floor(minute / step) * step);
  const points = starts.map((start) => byStart.get(start) ?? []);
  const sum = (of: QueueMinute[], part: "succeeded" | "failed" | "retried") =>
    of.reduce((total, one) => total + one[part], 0) / step;
  const within = (share: number, part: "runs" | "waits") =>
    points.map((of) => percentile(addBuckets(of.map((one) => one[part])), boundsMs, share));
  const seconds = starts.map((start) => start * 60);
  return {
    rates: [seconds, ...(["succeeded", "failed", "retried"] as const).map((part) => points.map((of) => sum(of, part)))],
    times: [seconds, within(0.5, "runs"), within(0.95, "runs"), within(0.95, "waits")],
  };
}

function addBuckets(all: number[][]): number[] {
  const [first = [], ...rest] = all;
  return first.map((n, i) => rest.reduce((total, one) => total + (one[i] ?? 0), n));
}

/** Buckets above this are too wide for an estimate within them. */
const MAX_ESTIMATED_MS = 60_000;

/** A percentile in words: `42 ms`, `≤ 5 min`, `> 2 h`. */
export function percentileText(ms: number, boundsMs: readonly number[]): string {
  const last = boundsMs.at(-1) ?? 0;
  if (ms > last) return `> ${duration(last)}`;
  return ms > MAX_ESTIMATED_MS ? `≤ ${duration(ms)}` : duration(ms);
}

/** Estimated within its bucket, or the bound of a wide one; twice the last bound above it; null where there is nothing. */
export function percentile(buckets: number[], boundsMs: number[], share: number): number | null {
  const wanted = buckets.reduce((sum, n) => sum + n, 0) * share;
  if (wanted === 0) return null;
  let below = 0;
  for (const [i, n] of buckets.entries()) {
    const [low = 0, high] = [boundsMs[i - 1], boundsMs[i]];
    if (below + n >= wanted) {
      if (high === undefined) return low * 2;
      return low < MAX_ESTIMATED_MS ? low + ((high - low) * (wanted - below)) / n : high;
    }
    below += n;
  }
  return null;
}

/** What ended a minute in a queue, for its row: the path of a line in a box of 100 × 24. */
export function sparkline({ items }: Stats, queue: string, now: number): string | null {
  const { minutes } = RANGES["1h"];
  const last = Math.floor(now / 60_000) - 1;
  const ended = new Map(
    items.filter((one) => one.queue === queue).map(({ minute, succeeded, failed }) => [minute, succeeded + failed]),
  );
  const values = Array.from({ length: minutes }, (_, i) => ended.get(last - minutes + i + 1) ?? 0);
  const most = Math.max(...values);
  if (most === 0) return null;
  return values
    .map((n, i) => `${i === 0 ? "M" : "L"}${((i / (minutes - 1)) * 100).toFixed(1)} ${(22 - (n / most) * 20).toFixed(1)}`)
    .join("");
}
