import assert from "node:assert/strict";
import { test } from "node:test";
import { LONG } from "../selection.ts";
import { rangesOf, sayRanges } from "./ranges.ts";
import { describe, runSchedule, shorten } from "./schedule.ts";

/** Schedules from seed 1 on, and schedules from the fresh seed on. */
const [FIXED, FRESH] = LONG ? [2_000, 500] : [80, 30];
/** The first seed whose schedule is on a file. */
const FILE = 74;

test("whatever workers, crashes, stalls and clocks do, the promises hold", async (t) => {
  const steps = process.env["HOLDFAST_STEPS"]?.split(",").map(Number);
  const ranges = rangesOf(process.env, FIXED, FRESH);
  const begun = performance.now();
  let ran = 0;
  let taken = 0;
  for (const { first, count } of ranges) {
    for (let seed = first; seed < first + count; seed++, ran++) {
      const run = await runSchedule(seed, { steps });
      taken += run.steps;
      if (run.failure !== null) assert.fail(describe(steps === undefined ? await shorten(run.failure, {}) : run.failure));
    }
  }
  const seconds = (performance.now() - begun) / 1_000;
  t.diagnostic(`${ran} schedules, ${taken} steps, ${sayRanges(ranges)}, ${Math.round(ran / seconds)}/s`);
});

test("a seed makes the same schedule again, in memory and on a file", async () => {
  for (const seed of [1, 2, FILE]) assert.equal((await runSchedule(seed)).trace(), (await runSchedule(seed)).trace());
});
