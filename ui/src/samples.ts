import { signal } from "@preact/signals";
import type { Reading } from "./live.ts";
import type { Overview } from "./model.ts";

/** The last overview, for every page. */
export const overview = signal<Reading<Overview>>({ data: null, error: null });

const KEPT_MS = 15 * 60_000;
export const SAMPLED = ["succeeded", "failed", "running"] as const;

/** Times in seconds, then a list for each of `SAMPLED`, since this page was opened. */
export const samples = signal<number[][]>([[], ...SAMPLED.map(() => [])]);

export function addSample({ at, queues, counts }: Overview): void {
  const [times = []] = samples.peek();
  if (at / 1_000 <= (times.at(-1) ?? 0)) return;
  const sum = (state: "succeeded" | "failed") => queues.reduce((total, { lastMinute }) => total + lastMinute[state], 0);
  const values = [at / 1_000, sum("succeeded"), sum("failed"), counts.running];
  const drop = times.findLastIndex((time) => time < (at - KEPT_MS) / 1_000) + 1;
  samples.value = samples.peek().map((list, i) => list.slice(drop).concat(values[i] as number));
}
