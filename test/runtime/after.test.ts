import assert from "node:assert/strict";
import { describe } from "node:test";
import { job, type JobContext, NonRetryableError } from "../../src/index.ts";
import { definitionOf } from "../../src/engine/definition.ts";
import { drain } from "../../src/testing/index.ts";
import { code, file, memory, see, seeAll, stage, test, unchecked } from "./parts.ts";

const noop = job<{ n?: number }>({ name: "noop", run: () => {} });

describe("a job that comes after others", () => {
  test("a dependent job starts only after the jobs it waits for have succeeded", async (t) => {
    const { hf } = await memory(t);
    const { run, calls, called } = stage<JobContext<{ n?: number }>>();
    const held = job<{ n?: number }>({ name: "held", run: (context) => run(context) as Promise<void> });
    const first = await hf.enqueue(held, {});
    const second = await hf.enqueue(held, {}, { after: [first.id] });
    const worker = hf.work([held]);
    await called(1);
    assert.equal((await see(hf, second.id)).state, "waiting");
    calls[0]?.end();
    await called(2);
    assert.deepEqual(
      calls.map(({ context }) => context.id),
      [first.id, second.id],
    );
    calls[1]?.end();
    assert.equal((await hf.jobs.wait(second.id)).state, "succeeded");
    await worker.stop();
  });

  test("a dependent job is cancelled with the reason when an upstream job fails, and its waiters are notified", async (t) => {
    const { hf } = await memory(t);
    const fails = job({
      name: "fails",
      run: () => {
        throw new NonRetryableError("no");
      },
    });
    const upstream = await hf.enqueue(fails, undefined, { id: "up" });
    const child = await hf.enqueue(noop, {}, { after: [upstream.id] });
    const grandchild = await hf.enqueue(noop, {}, { after: [child.id] });
    const waiting = hf.jobs.wait(grandchild.id);
    await drain(hf, [fails, noop]);
    const { state, error } = await waiting;
    assert.deepEqual([state, error?.code], ["cancelled", "UPSTREAM_ENDED"]);
    assert.match((await see(hf, child.id)).error?.message ?? "", /Job up, which this job waited for, failed/);
  });

  test("a dependency on an unknown job is rejected, and nothing is added", async (t) => {
    const { hf } = await memory(t);
    await assert.rejects(hf.enqueue(noop, {}, { after: ["absent"] }), code("NO_SUCH_JOB"));
    await assert.rejects(hf.enqueueMany(noop, [{}, {}], { after: ["absent"] }), code("NO_SUCH_JOB"));
    assert.deepEqual(await seeAll(hf), []);
  });

  test("an `after` that is not a list of ids is rejected with a hint", async (t) => {
    const { hf } = await memory(t);
    for (const wrong of ["id", 1, {}, [1], [""], [null], ["\ud800"]]) {
      await assert.rejects(hf.enqueue(noop, {}, { after: unchecked(wrong) }), code("OPTION_INVALID"), JSON.stringify(wrong));
    }
    assert.deepEqual(await seeAll(hf), []);
  });

  test("an empty `after` adds no dependency, and a repeated id counts once", async (t) => {
    const { hf } = await memory(t);
    const { id } = await hf.enqueue(noop, {}, { after: [] });
    await hf.enqueue(noop, {}, { after: [id, id] });
    const { ran } = await drain(hf, [noop]);
    assert.equal(ran, 2);
  });
});

describe("follow-ups", () => {
  test("follow-ups of a handler run after each other, and after the handler's own job", async (t) => {
    const { hf } = await memory(t);
    const ran: number[] = [];
    const step = job<{ n: number }>({ name: "step", run: ({ input }) => void ran.push(input.n) });
    const plan = job({
      name: "plan",
      run: ({ enqueue, id }) => {
        const three = enqueue(step, { n: 3 }, { after: [id], delay: 0 });
        const two = enqueue(step, { n: 2 }, { priority: -1, after: [id] });
        enqueue(step, { n: 1 }, { priority: 9, after: [three.id, two.id] });
      },
    });
    await hf.enqueue(plan, undefined);
    await drain(hf, [plan, step]);
    assert.deepEqual(ran, [3, 2, 1]);
  });

  test("a follow-up that depends on an unknown job fails the attempt, and nothing of the attempt is kept", async (t) => {
    const { hf } = await memory(t);
    const plan = job({
      name: "plan",
      run: ({ enqueue }) => {
        enqueue(noop, {});
        enqueue(noop, {}, { after: ["absent"] });
      },
    });
    const { id } = await hf.enqueue(plan, undefined);
    await drain(hf, [plan, noop]);
    const { state, error } = await see(hf, id);
    assert.deepEqual([state, error?.code], ["failed", "NO_SUCH_JOB"]);
    assert.equal((await seeAll(hf)).length, 1);
  });
});

test("an idle worker applies changed limits, pauses and declarations", async (t) => {
  const { hf } = await memory(t);
  const { run, calls, called } = stage<JobContext<{ n?: number }>>();
  const held = (concurrency: number) =>
    job<{ n?: number }>({ name: "held", limit: { concurrency }, run: (context) => run(context) as Promise<void> });
  await hf.enqueueMany(held(1), [{}, {}, {}]);
  const worker = hf.work([held(1)]);
  await called(1);
  // Another definition of it, in this very process: nothing has ended, and no time has passed.
  await hf.engine.store.queues.declare([definitionOf(held(3)).declared.declaration]);
  await called(3);
  await hf.queues.pause("held");
  for (const { end } of calls) end();
  const late = await hf.enqueue(held(3), {});
  assert.equal((await see(hf, late.id)).state, "pending");
  await hf.queues.resume("held");
  await called(4);
  calls[3]?.end();
  await worker.stop();
});

test("a worker in another process applies what was declared, paused and resumed here", async (t) => {
  const { another } = await file(t);
  const [here, there] = [await another(), await another()];
  const { run, calls, called } = stage<JobContext<{ n?: number }>>();
  const held = job<{ n?: number }>({ name: "held", limit: { concurrency: 1 }, run: (context) => run(context) as Promise<void> });
  const first = await here.enqueue(noop, {});
  await here.enqueue(held, {}, { after: [first.id] });
  await here.enqueue(held, {}, { after: [first.id] });
  there.work([held]);
  const claim = await here.claim(noop, { worker: "by hand" });
  assert.ok(claim);
  await claim.succeed();
  await called(1);
  assert.deepEqual(await here.jobs.counts({ name: "held" }), {
    waiting: 0,
    pending: 1,
    running: 1,
    succeeded: 0,
    failed: 0,
    cancelled: 0,
    quarantined: 0,
  });
  calls[0]?.end();
  await called(2);
  calls[1]?.end();
});
