import assert from "node:assert/strict";
import { test } from "node:test";
import { job, open } from "../../src/index.ts";

const speaking = job<null>({ name: "speaking", queue: { name: "api", limit: { concurrency: 1 } }, run: () => {} });

test("a queue's limit without a key holds for definitions that only name the queue, with limits of their own, too", async () => {
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
