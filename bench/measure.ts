import type { Durability } from "../src/store/store.ts";

/** One line of the report. `limit` is raw SQLite in the same run, or the bound that was set. */
export interface Figure {
  what: string;
  durability?: Durability;
  ours: number;
  limit: number;
  unit: string;
  /** ours / limit must be at least this (rates), or at most (times). */
  target: { atLeast: number } | { atMost: number };
}

export function ratioOf(figure: Figure): number {
  return figure.ours / figure.limit;
}

export function holds(figure: Figure): boolean {
  const ratio = ratioOf(figure);
  return "atLeast" in figure.target ? ratio >= figure.target.atLeast : ratio <= figure.target.atMost;
}

export function median(values: number[]): number {
  return quantile(values, 0.5);
}

export function quantile(values: number[], share: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length * share)] ?? Number.NaN;
}

/** Jobs a second. */
export function rate(jobs: number, start: number): number {
  return (jobs / (performance.now() - start)) * 1_000;
}

/** The kernel's clock, which all processes of this machine share, in milliseconds. */
export function kernelTime(): number {
  return Number(process.hrtime.bigint()) / 1e6;
}
