import assert from "node:assert/strict";
import { job, open } from "../../src/index.ts";
import { drain } from "../../src/testing/index.ts";
import { apart, home, memory, test } from "./parts.ts";

test("a `keep` count that is declared late removes the oldest jobs, also among a long history of others", async (t) => {
  const { hf, clock } = await memory(t);
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

test("a waiting caller sees the outcome of each job of a queue that keeps none", async (t) => {
  const { hf, clock } = await memory(t);
  const brief = job<number, number>({
    name: "brief",
    queue: { name: "none", keep: { succeeded: 0 } },
    run: ({ input }) => input,
  });
  const enqueued = await hf.enqueueMany(brief, numbers(20));
  hf.work([brief]);
  await clock.advance(900);
  const ended = await Promise.all(enqueued.map((one) => hf.jobs.wait(one)));
  assert.deepEqual(new Set(ended.map(({ state }) => state)), new Set(["succeeded"]));
  await clock.advance("10s");
  assert.equal((await hf.jobs.list()).items.length, 0);
});

test("history can be removed while workers run, and every waiting caller gets its answer", async (t) => {
  const path = await home(t);
  await using hf = await open(path);
  await using elsewhere = await apart(path);
  const queue = { name: "few", keep: { succeeded: { count: 5 } } };
  const quick = job<number, number>({ name: "quick", queue, run: ({ input }) => input });
  elsewhere.work([quick]);
  const enqueued = await hf.enqueueMany(quick, numbers(500));
  const ended = await Promise.all(enqueued.map((one) => hf.jobs.wait(one)));
  assert.deepEqual(new Set(ended.map(({ state }) => state)), new Set(["succeeded"]));
});

function numbers(count: number): number[] {
  return Array.from({ length: count }, (_, i) => i);
}

test("a check is clean after jobs of a queue with `keep` were retried and removed by hand", async (t) => {
  await using hf = await open(await home(t), { log: false });
  const queue = { name: "kept", keep: { failed: "30d" } } as const;
  const broken = job({ name: "broken", queue, retry: { attempts: 1 }, run: () => Promise.reject(new Error("no")) });
  for (const id of ["retried", "removed"]) await hf.enqueue(broken, 1, { id });
  await drain(hf, [broken]);
  assert.equal(await hf.jobs.retry("retried"), true);
  assert.deepEqual(await hf.jobs.removeAll({ state: "failed" }), { matched: 1, changed: 1 });
  assert.deepEqual(await hf.check(), { ok: true, findings: [] });
});
