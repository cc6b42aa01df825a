import assert from "node:assert/strict";
import { test } from "node:test";
import { job, open, type Limit } from "../../src/index.ts";
import { testClock } from "../../src/testing/index.ts";

const speaking = job<null>({ name: "speaking", queue: { name: "api", limit: { concurrency: 1 } }, run: () => {} });

test("a queue's limit without a key applies to definitions that only name the queue, also with limits of their own", async () => {
  await using hf = await open(":memory:");
  const plain = job<null>({ name: "plain", queue: "api", run: () => {} });
  const limited = job<null>({ name: "limited", queue: "api", limit: { key: () => "one", concurrency: 5 }, run: () => {} });
  await hf.enqueue(speaking, null);
  await hf.enqueue(plain, null);
  await hf.enqueue(limited, null);
  for (const first of [speaking, plain, limited]) {
    const held = await hf.claim(first, { worker: "anna" });
    assert.equal(held?.job.name, first.name);
    for (const other of [speaking, plain, limited]) assert.equal(await hf.claim(other, { worker: "ben" }), null);
    await held?.succeed();
  }
  assert.equal((await hf.jobs.counts()).succeeded, 3);
});

const BOTH: readonly (readonly Limit[])[] = [
  [{ rate: "1/s", concurrency: 1 }],
  [{ concurrency: 1 }, { rate: "1/s" }],
  [{ rate: "1/s" }, { concurrency: 1 }],
];
for (const limit of BOTH) {
  test(`a worker starts the jobs of the limit ${JSON.stringify(limit)} as tokens arrive, without any other job`, async () => {
    const clock = testClock();
    await using hf = await open(":memory:", { clock });
    const mail = job<null>({ name: "mail", limit: [...limit], run: () => new Promise((resolve) => setImmediate(resolve)) });
    await hf.enqueueMany(mail, [null, null, null]);
    hf.work([mail]);
    await clock.advance(10);
    for (const succeeded of [2, 3]) {
      await clock.advance("1s");
      assert.equal((await hf.jobs.counts()).succeeded, succeeded);
    }
  });
}
