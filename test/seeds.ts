/*
 * Seeds of random schedules. Every run uses the same fixed seeds and one fresh seed, which is part of the test's name.
 * `HOLDFAST_SEED=42` replaces them by that one seed.
 */
const given = process.env["HOLDFAST_SEED"];

export const FIXED_SEED = 1;

/** A seed that no run has used before, unless `HOLDFAST_SEED` names one. */
export const FRESH_SEED = given === undefined ? Math.floor(Math.random() * 2 ** 31) : Number(given);

export const SEEDS: readonly number[] = given === undefined ? [FIXED_SEED, FRESH_SEED] : [FRESH_SEED];

/** Mulberry32: the same numbers for the same seed. */
export function randomFrom(seed: number): () => number {
  let state = Math.imul(seed, 0x9e3779b1) >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let word = Math.imul(state ^ (state >>> 15), state | 1);
    word ^= word + Math.imul(word ^ (word >>> 7), word | 61);
    return ((word ^ (word >>> 14)) >>> 0) / 2 ** 32;
  };
}
