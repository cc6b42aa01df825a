import assert from "node:assert/strict";
import { test } from "node:test";
import { job, open } from "../../src/index.ts";
import { drain, testClock } from "../../src/testing/index.ts";

test("a count that is said late removes the oldest, also while a long history of others is looked through", async () => {
  const clock = testClock();
  await using hf = await open(":memory:", { clock });
  const other = job<number>({ name: "other", run: () => {} });
  const before = job<number>({ name: "it", queue: "kept", run: () => {} });
  const after = job<number>({ name: "it", queue: { name: "kept", keep: { succeeded: { count: 30 } } }, run: () => {} });
  // More than one step looks through.
  await hf.enqueueMany(other, numbers(5_000));
  await drain(hf, [other]);
  await hf.enqueueMany(before, numbers(50), (n) => ({ id: `old ${n}` }));
  await drain(hf, [before]);
  await clock.advance("1h");
  await hf.enqueueMany(after, numbers(20), (n) => ({ id: `new ${n}` }));
  hf.work([after]);
  await clock.advance("1m");
  const left = (await hf.jobs.list({ queue: "kept", limit: 100 })).items.map(({ id }) => id);
  assert.deepEqual(left, [...numbers(10).map((n) => `old ${40 + n}`), ...numbers(20).map((n) => `new ${n}`)]);
  assert.equal((await hf.jobs.counts({ name: "other" })).succeeded, 5_000);
});

function numbers(count: number): number[] {
  return Array.from({ length: count }, (_, i) => i);
}
