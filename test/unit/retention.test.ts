import assert from "node:assert/strict";
import { test } from "node:test";
import type { QueueSettings } from "../../src/core/jobs/claiming.ts";
import { type Excess, findExcess, needsAnotherStep, longerList } from "../../src/core/jobs/retention.ts";

const NOW = 1_000_000;
const LANES = [
  { id: 1, queue: "mail", name: "a", version: 1 },
  { id: 2, queue: "mail", name: "b", version: 1 },
  { id: 3, queue: "scan", name: "c", version: 1 },
];

test("surplus jobs are counted over all lanes of a queue, and in all parts of its count", () => {
  const [found] = over({ succeeded: { count: 4 } });
  assert.deepEqual(found, {
    lanes: [1, 2],
    state: "succeeded",
    count: 3,
    countBefore: Number.MAX_SAFE_INTEGER,
    ageBefore: null,
  });
  assert.deepEqual(over({ succeeded: { count: 7 } }), []);
  assert.deepEqual(over({}), []);
});

test("while older jobs may be missing from the list, none is surplus, and age still counts", () => {
  assert.deepEqual(over({ succeeded: { count: 0 } }, { unlisted: ["mail"] }), []);
  const [found] = over({ succeeded: { count: 0, age: 10 } }, { unlisted: ["mail"] });
  assert.deepEqual([found?.count, found?.ageBefore], [0, NOW - 10]);
});

test("no job is removed before its minimum age", () => {
  const [found] = over({ succeeded: { count: 0, age: 10 } }, { leastAge: 500 });
  assert.deepEqual([found?.countBefore, found?.ageBefore], [NOW - 499, NOW - 500]);
  assert.deepEqual(over({ succeeded: { age: 900 } }, { leastAge: 500 })[0]?.ageBefore, NOW - 900);
});

test("of surplus and expired jobs, the longer list contains the other", () => {
  assert.deepEqual(longerList([1, 2, 3], [1]), [1, 2, 3]);
  assert.deepEqual(longerList([1], [1, 2]), [1, 2]);
});

test("another step is useful unless this one found less than its limit", () => {
  const step = { listing: false, taken: 3, removed: 3, limit: 5 };
  assert.equal(needsAnotherStep(step), false);
  assert.equal(needsAnotherStep({ ...step, limit: 3 }), true);
  assert.equal(needsAnotherStep({ ...step, listing: true }), true);
  assert.equal(needsAnotherStep({ ...step, removed: 2 }), true, "one was retried since: behind it there may be more");
});

function over(keep: QueueSettings["keep"], given: { unlisted?: string[]; leastAge?: number } = {}): Excess[] {
  const kept = {
    set: new Map([["mail", { keep }]]),
    lanes: LANES,
    // Two rows of one lane and state are two parts of its count.
    finished: [
      { lane: 1, state: "succeeded" as const, n: 2 },
      { lane: 1, state: "succeeded" as const, n: 1 },
      { lane: 2, state: "succeeded" as const, n: 4 },
      { lane: 3, state: "succeeded" as const, n: 50 },
    ],
    unlisted: new Set(given.unlisted),
  };
  return findExcess(kept, NOW, given.leastAge ?? 0);
}
