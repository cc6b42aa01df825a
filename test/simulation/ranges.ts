import { FRESH_SEED } from "../seeds.ts";

/** Seeds `first` to `first + count - 1`. */
export interface SeedRange {
  first: number;
  count: number;
}

/**
 * The seeds of a run: `fixed` seeds from 1 on and `fresh` seeds from the fresh one on. `HOLDFAST_SEED=42` runs that schedule alone,
 * `HOLDFAST_SCHEDULES=100000` that many from the fresh seed on.
 */
export function rangesOf(env: NodeJS.ProcessEnv, fixed: number, fresh: number): SeedRange[] {
  const { HOLDFAST_SEED: seed, HOLDFAST_SCHEDULES: schedules } = env;
  if (seed === undefined && schedules === undefined) {
    return [
      { first: 1, count: fixed },
      { first: FRESH_SEED, count: fresh },
    ];
  }
  return [{ first: FRESH_SEED, count: Number(schedules ?? 1) }];
}

export function sayRanges(ranges: readonly SeedRange[]): string {
  return `seeds ${ranges.map(({ first, count }) => `${first} to ${first + count - 1}`).join(" and ")}`;
}
