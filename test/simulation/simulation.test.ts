import assert from "node:assert/strict";
import { test } from "node:test";
import { describe, runSchedule, shorten } from "./schedule.ts";

/** Bounded by time and by count; whichever comes first is said in the output. */
const SECONDS = 8;
const SCHEDULES = 5_000;
/** The first seed whose schedule is on a file. */
const FILE = 74;

const given = process.env["HOLDFAST_SEED"];
const wanted = process.env["HOLDFAST_SCHEDULES"];

test("whatever workers, crashes, stalls and clocks do, the promises hold", async (t) => {
  const first = given === undefined ? Date.now() % 2 ** 31 : Number(given);
  const steps = process.env["HOLDFAST_STEPS"]?.split(",").map(Number);
  const most = wanted === undefined ? (given === undefined ? SCHEDULES : 1) : Number(wanted);
  const until = wanted === undefined ? performance.now() + SECONDS * 1_000 : Infinity;
  const begun = performance.now();
  let ran = 0;
  let taken = 0;
  for (; ran < most && performance.now() < until; ran++) {
    const run = await runSchedule(first + ran, { steps });
    taken += run.steps;
    if (run.failure !== null) assert.fail(describe(steps === undefined ? await shorten(run.failure, {}) : run.failure));
  }
  const seconds = (performance.now() - begun) / 1_000;
  const bound = ran === most ? `all ${most}` : `as many as fit into ${SECONDS} s`;
  t.diagnostic(
    `${ran} schedules (${bound}), ${taken} steps, seeds ${first} to ${first + ran - 1}, ${Math.round(ran / seconds)}/s`,
  );
});

test("a seed makes the same schedule again, in memory and on a file", async () => {
  for (const seed of [1, 2, FILE]) assert.equal((await runSchedule(seed)).trace(), (await runSchedule(seed)).trace());
});
