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
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)] ?? Number.NaN;
}
