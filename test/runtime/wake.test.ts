import assert from "node:assert/strict";
import { fork } from "node:child_process";
import { once } from "node:events";
import { job, open } from "../../src/index.ts";
import { home, test } from "./parts.ts";

const ROUNDS = 30;
/** Shortest interval at which a store polls when no notification comes. */
const FALLBACK = 1_000;

test("each commit wakes a worker in another process, and its commits wake the waiting caller here", async (t) => {
  const path = await home(t);
  await using hf = await open(path);
  const echo = job<number, number>({ name: "echo", run: ({ input }) => input });
  const child = fork(new URL("./children/echo-worker.ts", import.meta.url), [path]);
  let each = 0;
  try {
    await once(child, "message");
    const start = performance.now();
    for (let i = 0; i < ROUNDS; i++) {
      const done = await hf.jobs.wait(await hf.enqueue(echo, i));
      assert.equal(done.output, i);
    }
    each = (performance.now() - start) / ROUNDS;
  } finally {
    // Not in a hook: hooks run in the order in which they were added, and the first one removes the worker's folder.
    child.kill("SIGKILL");
    await once(child, "exit");
  }
  // Each round is two wake-ups. Were they left to the fallback, a round would take about one of its intervals.
  assert.ok(each < FALLBACK / 2, `a round took ${each.toFixed(0)} ms: the wake-ups came from the fallback`);
});

test("a worker runs a job whose producer was killed between the commit and its notification", async (t) => {
  const path = await home(t);
  const hf = await open(path);
  t.after(() => hf.close());
  const ran = Promise.withResolvers<number>();
  hf.work([job<number>({ name: "echo", run: ({ input }) => ran.resolve(input) })]);
  const child = fork(new URL("./children/killed-producer.ts", import.meta.url), [path]);
  const [, signal] = await once(child, "exit");
  assert.equal(signal, "SIGKILL");
  assert.equal(await ran.promise, 1);
});
