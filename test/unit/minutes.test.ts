import assert from "node:assert/strict";
import { test } from "node:test";
import { addMinutes, BUCKET_BOUNDS_MS, countAttempt, noMinute } from "../../src/core/jobs/minutes.ts";

test("an attempt is counted by its outcome, in the bucket of its times", () => {
  const counts = noMinute();
  countAttempt(counts, { end: "succeeded", waitMs: 5, runMs: 6 });
  countAttempt(counts, { end: "retried", waitMs: null, runMs: 1e9 });
  countAttempt(counts, { end: "failed", waitMs: -3, runMs: 100 });
  assert.deepEqual([counts.succeeded, counts.retried, counts.failed], [1, 1, 1]);
  assert.deepEqual([counts.waitMs, counts.runMs], [5, 1e9 + 106]);
  assert.equal(counts.waits[0], 2);
  assert.deepEqual([counts.runs[1], counts.runs[2], counts.runs[BUCKET_BOUNDS_MS.length]], [1, 1, 1]);
});

test("minutes are added by count and by bucket", () => {
  const counts = noMinute();
  for (const runMs of [1, 20, 20, 400]) countAttempt(counts, { end: "succeeded", waitMs: null, runMs });
  countAttempt(counts, { end: "succeeded", waitMs: null, runMs: 1e9 });
  const sum = noMinute();
  addMinutes(sum, counts);
  addMinutes(sum, counts);
  assert.deepEqual([sum.succeeded, sum.runs[1]], [10, 4]);
});
