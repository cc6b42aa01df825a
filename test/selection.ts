/*
 * What `npm test` leaves to `npm run test:all`. A selection depends on the case alone: two runs of the same commit run the same
 * tests.
 */

/** Set by `npm run test:all`: every case, long random runs and large numbers. */
export const LONG = Boolean(process.env["HOLDFAST_LONG"]);

/** Options of a test that only `npm run test:all` runs. */
export const testAllOnly: { skip?: string } = LONG ? {} : { skip: "npm run test:all runs this test" };

/** Whether `npm test` runs the case at `position`: the first of each group of `every` cases. */
export function isSelected(position: number, every: number): boolean {
  return LONG || position % every === 0;
}

/** Options of the test at `position`: `npm test` runs the first of each group of `every`, `npm run test:all` runs all. */
export function firstOf(every: number, position: number): { skip?: string } {
  return isSelected(position, every) ? {} : testAllOnly;
}

/** The cases of a list that `npm test` runs: the first of each group of `every`. */
export function selectFrom<T>(all: readonly T[], every: number): readonly T[] {
  return all.filter((_, position) => isSelected(position, every));
}

/** The variant that `npm test` runs of a case: the variants take turns from position to position. */
export function selectVariant<T>(all: readonly T[], position = 0): readonly T[] {
  return LONG ? all : [all[position % all.length] as T];
}
