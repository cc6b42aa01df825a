/** Upper bounds of the histograms of waits and run times, in milliseconds; the last bucket has none. */
export const BUCKET_BOUNDS_MS = [5, 25, 100, 500, 1_000, 5_000, 15_000, 60_000, 300_000, 1_800_000, 7_200_000] as const;
const BUCKETS = BUCKET_BOUNDS_MS.length + 1;

export interface MinuteCounts {
  succeeded: number;
  failed: number;
  retried: number;
  /** How many of these attempts a claim by hand settled. */
  byHand: number;
  /** Sum of the waits, from when a job could start (after its delay and the jobs before it) to its first start. */
  waitMs: number;
  waits: number[];
  runMs: number;
  runs: number[];
}

export interface QueueMinute extends MinuteCounts {
  queue: string;
  /** Minutes since 1970; 0 for the sum of all minutes ever. */
  minute: number;
}

/** One attempt that has ended. `waitMs` is null unless it is the job's first attempt. */
export interface EndedAttempt {
  end: "succeeded" | "failed" | "retried";
  waitMs: number | null;
  runMs: number;
  /** Default: false. */
  byHand?: boolean;
}

export const MINUTE_MS = 60_000;

export function noMinute(): MinuteCounts {
  return {
    succeeded: 0,
    failed: 0,
    retried: 0,
    byHand: 0,
    waitMs: 0,
    waits: Array(BUCKETS).fill(0),
    runMs: 0,
    runs: Array(BUCKETS).fill(0),
  };
}

export function countAttempt(counts: MinuteCounts, { end, waitMs, runMs, byHand = false }: EndedAttempt): void {
  counts[end]++;
  if (byHand) counts.byHand++;
  counts.runMs += Math.max(0, runMs);
  counts.runs[bucketOf(runMs)]!++;
  if (waitMs === null) return;
  counts.waitMs += Math.max(0, waitMs);
  counts.waits[bucketOf(waitMs)]!++;
}

function bucketOf(millis: number): number {
  const found = BUCKET_BOUNDS_MS.findIndex((bound) => millis <= bound);
  return found === -1 ? BUCKETS - 1 : found;
}

export function addMinutes(sum: MinuteCounts, more: MinuteCounts): void {
  for (const name of ["succeeded", "failed", "retried", "byHand", "waitMs", "runMs"] as const) sum[name] += more[name];
  for (let i = 0; i < BUCKETS; i++) {
    sum.waits[i]! += more.waits[i] ?? 0;
    sum.runs[i]! += more.runs[i] ?? 0;
  }
}
