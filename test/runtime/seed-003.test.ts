import assert from "node:assert/strict";
import { suite } from "node:test";
import { type Holdfast, job, type JobContext, NonRetryableError, open } from "../../src/index.ts";
import { home, interruptedChild, memory, see, seeAll, spawnChild, stage, test } from "./parts.ts";
import { chained, DEFINITIONS, followed } from "./children/tasks.ts";

suite("seed 003: resuming interrupted tasks on startup", () => {
  test("after a kill, a task is re-queued, failed or resumed from its checkpoint as its definition says", async (t) => {
    const { hf, path, kill } = await interruptedChild(t);
    assert.equal((await hf.jobs.counts()).running, 3);
    // No process of this program is there when it happens.
    await hf.close();
    await kill();
    await using again = await open(path);
    again.work(DEFINITIONS);
    const retry = await again.jobs.wait("retry");
    assert.deepEqual([retry.state, retry.output, retry.attempt, retry.crashes], ["succeeded", undefined, 2, 1]);
    const fail = await again.jobs.wait("fail");
    assert.deepEqual([fail.state, fail.error?.code, fail.attempt, fail.crashes], ["failed", "INTERRUPTED", 1, 1]);
    const resume = await again.jobs.wait("resume");
    assert.deepEqual([resume.state, resume.output, resume.attempt, resume.crashes], ["succeeded", { done: 3 }, 2, 1]);
  });

  test("a task that another live process runs is left alone at every start", async (t) => {
    const { hf, path } = await interruptedChild(t);
    await hf.close();
    await using again = await open(path);
    again.work(DEFINITIONS);
    await again.recovery.recoverStale();
    await again.recovery.reclaimStale(0);
    assert.equal(await again.claim("resume", { worker: "me" }), null);
    assert.deepEqual(
      (await seeAll(again)).map(({ state, crashes }) => [state, crashes]),
      [
        ["running", 0],
        ["running", 0],
        ["running", 0],
      ],
    );
  });

  test("a task whose holder stopped renewing is run by another active worker", async (t) => {
    const { hf, clock } = await memory(t);
    const slow = stage<JobContext<unknown>>();
    const def = job({ name: "task", run: slow.run });
    const { id } = await hf.enqueue(def, 1);
    hf.work([job({ name: "unrelated", run: () => null })]);
    await hf.claim(def, { worker: "silent", lease: "30s" });
    hf.work([def]);
    await clock.advance("29s");
    assert.equal(slow.calls.length, 0);
    await clock.advance("2s");
    assert.deepEqual(
      slow.calls.map(({ context }) => [context.id, context.attempt]),
      [[id, 2]],
    );
  });

  test("crash counts survive restarts, and a task that keeps killing its process is quarantined", async (t) => {
    const path = await home(t);
    {
      await using hf = await open(path);
      await hf.enqueue(chained, "x", { id: "poison" });
    }
    for (let crash = 1; crash <= 3; crash++) {
      // Its handler is done and its process dies before that is on the disk, each time.
      await crashed(path, "settle:begun");
      await using hf = await open(path);
      await hf.recovery.recoverStale();
      const { state, crashes } = await see(hf, "poison");
      assert.deepEqual([state, crashes], [crash < 3 ? "pending" : "quarantined", crash]);
      await untilDue(hf, "poison");
    }
  });
});

suite("seed 003: processed once", () => {
  test("a processed id is a duplicate, and its handler is not called again", async (t) => {
    const { hf, clock } = await memory(t);
    let calls = 0;
    const def = job({ name: "message", run: () => ++calls });
    hf.work([def]);
    await hf.jobs.wait(await hf.enqueue(def, 1, { id: "message-1" }));
    assert.deepEqual(await hf.enqueue(def, 1, { id: "message-1" }), { id: "message-1", duplicate: true });
    await clock.advance("2m");
    assert.equal(calls, 1);
  });

  for (const state of ["succeeded", "failed", "cancelled"] as const) {
    test(`the id stays taken after its ${state} job was pruned and the database reopened`, async (t) => {
      const path = await home(t);
      const def = job({
        name: "message",
        run: () => {
          if (state === "failed") throw new NonRetryableError("no");
        },
      });
      {
        await using hf = await open(path);
        const { id } = await hf.enqueue(def, 1, { id: "message-1", key: "k" });
        if (state === "cancelled") await hf.jobs.cancel(id);
        else hf.work([def]);
        assert.equal((await hf.jobs.wait(id)).state, state);
        assert.equal((await hf.engine.store.prune({ state, limit: 10 })).removed, 1);
        assert.equal(await hf.jobs.get(id), null);
        assert.deepEqual(await hf.enqueue(def, 1, { id }), { id, duplicate: true });
        assert.equal((await hf.enqueueMany(def, [1], { id }))[0]?.duplicate, true);
      }
      await using hf = await open(path);
      assert.deepEqual(await hf.enqueue(def, 1, { id: "message-1" }), { id: "message-1", duplicate: true });
      assert.equal((await hf.enqueue(def, 1, { key: "k" })).duplicate, false, "a key is free again");
      assert.deepEqual(
        (await seeAll(hf)).map(({ key }) => key),
        ["k"],
      );
    });
  }

  test("a kill before the commit leaves neither the outcome nor its follow-ups", async (t) => {
    const path = await home(t);
    {
      await using hf = await open(path);
      await hf.enqueue(chained, "x", { id: "work" });
    }
    await crashed(path, "settle:written");
    await using hf = await open(path);
    const left = await see(hf, "work");
    assert.deepEqual([left.state, left.crashes, left.output], ["pending", 1, undefined], "opening gave it back");
    assert.equal(await hf.jobs.get("followed-x"), null);
    hf.work([chained]);
    assert.equal((await hf.jobs.wait("work")).output, "followed-x");
    assert.equal((await see(hf, "followed-x")).state, "pending");
    assert.equal((await seeAll(hf)).length, 2);
  });

  test("a kill after the commit leaves both the outcome and its follow-ups", async (t) => {
    const path = await home(t);
    {
      await using hf = await open(path);
      await hf.enqueue(chained, "x", { id: "work" });
    }
    await crashed(path, "settle:committed");
    await using hf = await open(path);
    const done = await see(hf, "work");
    assert.deepEqual([done.state, done.output, done.attempt], ["succeeded", "followed-x", 1]);
    assert.deepEqual(await hf.enqueue(followed, "x", { id: "followed-x" }), { id: "followed-x", duplicate: true });
    assert.deepEqual(await hf.enqueue(chained, "x", { id: "work" }), { id: "work", duplicate: true });
    assert.equal((await seeAll(hf)).length, 2);
  });
});

/** A process that works there until it dies at this point. */
async function crashed(path: string, point: string): Promise<void> {
  const child = spawnChild(path, point);
  const signal = await new Promise((resolve) => child.once("exit", (_, how) => resolve(how)));
  assert.equal(signal, "SIGKILL");
}

/** A backoff is real time here; it is passed by asking for the job again. */
async function untilDue(hf: Holdfast, id: string): Promise<void> {
  if ((await see(hf, id)).state !== "pending") return;
  const claim = await hf.claim(chained, { worker: "me", wait: "10s" });
  assert.equal(claim?.job.id, id);
  await claim.release();
}
