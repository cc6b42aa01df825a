import assert from "node:assert/strict";
import { fork } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import type { Readable } from "node:stream";
import { text } from "node:stream/consumers";
import { suite, type TestContext } from "node:test";
import { type Holdfast, job, type JobContext, open, type Worker } from "../../src/index.ts";
import { testClock } from "../../src/testing/index.ts";
import { code, deferred, folder, memory, see, stage, test, unchecked } from "./parts.ts";

type C = JobContext<unknown>;

suite("stopping a worker", () => {
  test("a stopping worker lets running jobs finish and starts no more", async (t) => {
    const { hf, clock } = await memory(t);
    const slow = stage<C>();
    const def = job({ name: "x", run: slow.run });
    const worker = hf.work([def], { concurrency: 1 });
    const [first, second] = await hf.enqueueMany(def, [1, 2]);
    await slow.called(1);
    let stopped = false;
    const stopping = worker.stop().then(() => (stopped = true));
    await clock.advance("9s");
    assert.deepEqual([stopped, slow.calls[0]?.context.signal.aborted], [false, false]);
    slow.calls[0]?.end("finished");
    await stopping;
    assert.equal((await see(hf, first?.id ?? "")).output, "finished", "it is on the disk when stop resolves");
    await clock.advance("1m");
    assert.deepEqual([slow.calls.length, (await see(hf, second?.id ?? "")).state], [1, "pending"]);
  });

  test("an idle worker stops at once, and does nothing afterwards", async (t) => {
    const { hf, clock } = await memory(t);
    const slow = stage<C>();
    const def = job({ name: "x", run: slow.run });
    const worker = hf.work([def]);
    await clock.advance("1m");
    await worker.stop();
    const { id } = await hf.enqueue(def, 1);
    await clock.advance("1m");
    assert.deepEqual([slow.calls.length, (await see(hf, id)).attempt], [0, 0]);
  });

  test("jobs left after the drain are released: pending, in their place, attempt not counted", async (t) => {
    const { hf, clock } = await memory(t);
    const slow = stage<C>();
    const def = job({ name: "x", run: slow.run });
    const worker = hf.work([def]);
    const { id } = await hf.enqueue(def, 1);
    await slow.called(1);
    const stopping = worker.stop({ drain: "3s" });
    await clock.advance(2_999);
    assert.equal((await see(hf, id)).state, "running");
    await clock.advance(1);
    await stopping;
    const back = await see(hf, id);
    assert.deepEqual([back.state, back.attempt, back.crashes, back.error], ["pending", 0, 0, undefined]);
    assert.ok(code("STOPPING")(slow.calls[0]?.context.signal.reason), "though the handler does not listen");
    slow.calls[0]?.end("too late");
    hf.work([def]);
    await slow.called(2);
    assert.equal(slow.calls[1]?.context.attempt, 1);
    slow.calls[1]?.end("again");
    assert.equal((await hf.jobs.wait(id)).output, "again");
  });

  test("the default drain is ten seconds", async (t) => {
    const { hf, clock } = await memory(t);
    const slow = stage<C>();
    const def = job({ name: "x", run: slow.run });
    const worker = hf.work([def]);
    const { id } = await hf.enqueue(def, 1);
    await slow.called(1);
    const stopping = worker.stop();
    await clock.advance(9_999);
    assert.equal((await see(hf, id)).state, "running");
    await clock.advance(1);
    await stopping;
    assert.equal((await see(hf, id)).state, "pending");
  });

  test("a handler that ends in the turn of the signal keeps its outcome", async (t) => {
    const { hf, clock } = await memory(t);
    const started = deferred();
    const def = job({
      name: "x",
      run: async ({ signal }: C) => {
        started.resolve();
        await new Promise((resolve) => signal.addEventListener("abort", resolve));
        return "wrapped up";
      },
    });
    const worker = hf.work([def]);
    const { id } = await hf.enqueue(def, 1);
    await started.promise;
    await Promise.all([worker.stop({ drain: 0 }), clock.advance(0)]);
    const ended = await see(hf, id);
    assert.deepEqual([ended.state, ended.output], ["succeeded", "wrapped up"]);
  });

  test("a handler's own error during a stop counts as an error", async (t) => {
    const { hf, clock } = await memory(t);
    const started = deferred();
    const def = job({
      name: "x",
      run: async ({ signal }: C) => {
        started.resolve();
        await new Promise((resolve) => signal.addEventListener("abort", resolve));
        throw new Error("something else");
      },
    });
    const worker = hf.work([def]);
    const { id } = await hf.enqueue(def, 1);
    await started.promise;
    await Promise.all([worker.stop({ drain: 0 }), clock.advance(0)]);
    const ended = await see(hf, id);
    assert.deepEqual([ended.state, ended.attempt, ended.error?.message], ["pending", 1, "something else"]);
  });

  test("an AbortError of fetch and similar calls does not count as an error", async (t) => {
    const { hf, clock } = await memory(t);
    const started = deferred();
    const def = job({
      name: "x",
      run: async ({ signal }: C) => {
        started.resolve();
        await new Promise((resolve) => signal.addEventListener("abort", resolve));
        throw new DOMException("This operation was aborted", "AbortError");
      },
    });
    const worker = hf.work([def]);
    const { id } = await hf.enqueue(def, 1);
    await started.promise;
    await Promise.all([worker.stop({ drain: 0 }), clock.advance(0)]);
    const ended = await see(hf, id);
    assert.deepEqual([ended.state, ended.attempt, ended.error], ["pending", 0, undefined]);
  });

  test('with onInterrupt "fail" what is left fails as interrupted', async (t) => {
    const { hf, clock } = await memory(t);
    const slow = stage<C>();
    const def = job({ name: "x", onInterrupt: "fail", run: slow.run });
    const worker = hf.work([def]);
    const { id } = await hf.enqueue(def, 1);
    await slow.called(1);
    await Promise.all([worker.stop({ drain: 0 }), clock.advance(0)]);
    const ended = await see(hf, id);
    assert.deepEqual([ended.state, ended.error?.code, ended.crashes], ["failed", "INTERRUPTED", 0]);
  });

  test("stopping twice is the same as stopping once", async (t) => {
    const { hf, clock } = await memory(t);
    const slow = stage<C>();
    const def = job({ name: "x", run: slow.run });
    const worker = hf.work([def]);
    await hf.enqueue(def, 1);
    await slow.called(1);
    const stops = [worker.stop({ drain: "1s" }), worker.stop(), worker[Symbol.asyncDispose]()];
    await clock.advance("1s");
    await Promise.all(stops);
    await worker.stop();
  });

  test("stopping one worker leaves the others running", async (t) => {
    const { hf } = await memory(t);
    const def = job({ name: "x", run: () => "done" });
    const first = hf.work([def]);
    hf.work([def]);
    await first.stop();
    assert.equal((await hf.jobs.wait(await hf.enqueue(def, 1))).output, "done");
  });

  test("a malformed drain is rejected, and the worker continues", async (t) => {
    const { hf } = await memory(t);
    const def = job({ name: "x", run: () => "done" });
    const worker = hf.work([def]);
    await assert.rejects(async () => worker.stop({ drain: unchecked<number>("soon") }), code("DURATION_INVALID"));
    assert.equal((await hf.jobs.wait(await hf.enqueue(def, 1))).output, "done");
  });

  test("a job whose claim is in flight when the worker stops is not lost", async (t) => {
    const { hf, clock } = await memory(t);
    const slow = stage<C>();
    const def = job({ name: "x", run: slow.run });
    const accepted = await hf.enqueueMany(def, [1, 2, 3]);
    const worker = hf.work([def]);
    // One turn later the claim is on its way to the disk, its answer not yet here.
    await new Promise((resolve) => setImmediate(resolve));
    await Promise.all([worker.stop({ drain: 0 }), clock.advance(0)]);
    for (const { id } of accepted) {
      const { state, attempt, crashes } = await see(hf, id);
      assert.deepEqual([state, attempt, crashes], ["pending", 0, 0]);
    }
  });
});

suite("closing", () => {
  test("close stops the workers first, and running jobs finish with their results", async (t) => {
    const { hf, clock } = await memory(t);
    const slow = stage<C>();
    const def = job({ name: "x", run: slow.run });
    const outcomes: unknown[] = [];
    const { store } = hf.engine;
    const settle = store.settle.bind(store);
    store.settle = (settlements) => {
      outcomes.push(...settlements.map(({ outcome }) => outcome));
      return settle(settlements);
    };
    hf.work([def]);
    hf.work([def]);
    await hf.enqueue(def, 1);
    await slow.called(1);
    let closed = false;
    const closing = hf.close().then(() => (closed = true));
    assert.throws(() => hf.work([def]), code("CLOSED"), "nothing new is begun");
    await assert.rejects(hf.claim(def, { worker: "late" }), code("CLOSED"));
    await clock.advance("1s");
    assert.equal(closed, false);
    slow.calls[0]?.end("finished");
    await closing;
    assert.deepEqual(outcomes, [{ kind: "succeeded", output: '"finished"' }]);
  });

  test("a job that ends while the workers drain can still be awaited", async (t) => {
    const { hf, clock } = await memory(t);
    const slow = stage<C>();
    const def = job({ name: "x", run: slow.run });
    hf.work([def]);
    const [first, second] = await hf.enqueueMany(def, [1, 2]);
    await slow.called(2);
    const waiting = hf.jobs.wait(first?.id ?? "");
    const late = assert.rejects(hf.jobs.wait(second?.id ?? ""), code("CLOSED"));
    const closing = hf.close();
    await clock.advance("1s");
    slow.calls[0]?.end("finished");
    assert.equal((await waiting).output, "finished");
    await clock.advance("10s");
    await closing;
    await late;
  });

  test("close releases jobs that do not finish within the drain", async (t) => {
    const { hf, clock } = await memory(t);
    const slow = stage<C>();
    const def = job({ name: "x", run: slow.run });
    hf.work([def]);
    await hf.enqueue(def, 1);
    await slow.called(1);
    const closing = hf.close();
    await clock.advance("10s");
    await closing;
    assert.ok(code("STOPPING")(slow.calls[0]?.context.signal.reason));
  });

  test("`await using` stops and closes at the end of the block", async () => {
    const clock = testClock();
    const slow = stage<C>();
    const def = job({ name: "x", run: slow.run });
    let outside: Holdfast;
    let worker: Worker;
    {
      await using hf = await open(":memory:", { clock });
      await using inside = hf.work([def]);
      await hf.enqueue(def, 1);
      await slow.called(1);
      outside = hf;
      worker = inside;
      slow.calls[0]?.end();
    }
    await assert.rejects(outside.jobs.list(), code("CLOSED"));
    await worker.stop();
  });
});

test("handlers may use the handle while the workers drain", async (t) => {
  const { hf } = await memory(t);
  const slow = stage<JobContext<unknown>>();
  const tidy = job({
    name: "tidy",
    retry: { attempts: 1 },
    run: async (c: JobContext<unknown>) => {
      await slow.run(c);
      await hf.enqueue(other, null);
      return (await hf.jobs.counts()).pending;
    },
  });
  const other = job({ name: "other", run: () => {} });
  hf.work([tidy]);
  const { id } = await hf.enqueue(tidy, null);
  await slow.called(1);
  const ended = hf.jobs.wait(id);
  const closing = hf.close();
  slow.calls[0]?.end("go on");
  const done = await ended;
  assert.deepEqual([done.state, done.output], ["succeeded", 1]);
  await closing;
  await assert.rejects(hf.enqueue(other, null), code("CLOSED"));
});

test("a signal stops all handles of a process, which exits when the slowest is done", async (t) => {
  const path = await folder(t);
  const child = fork(new URL("./children/two-handles.ts", import.meta.url), [path]);
  t.after(() => child.kill("SIGKILL"));
  await once(child, "message");
  child.kill("SIGTERM");
  await once(child, "exit");
  await using hf = await open(join(path, "busy.db"));
  const left = await see(hf, "it");
  assert.deepEqual([left.state, left.output, left.crashes], ["succeeded", "done", 0]);
});

for (const how of ["one at a time", "many at once", "a transaction", "another handle"]) {
  test(`a loop that enqueues (${how}) beside a worker with signals ends cleanly on SIGTERM, without a crash`, async (t) => {
    const path = join(await folder(t), "work.db");
    const { code, signal, stderr } = await terminated(t, path, how);
    assert.deepEqual({ code, signal, stderr }, { code: 143, signal: null, stderr: "" });
    await using hf = await open(path);
    assert.equal(await hf.recovery.lastReport(), null);
    assert.ok((await hf.jobs.counts()).running === 0);
  });
}

test("a program's own error during a stop by a signal still exits with 1", async (t) => {
  const path = join(await folder(t), "work.db");
  const { code, stderr } = await terminated(t, path, "another error");
  assert.equal(code, 1);
  assert.match(stderr, /a bug of the program's own/);
});

async function terminated(t: TestContext, path: string, mode: string) {
  const program = new URL("./children/producer.ts", import.meta.url);
  const child = fork(program, [path, mode], { stdio: ["ignore", "inherit", "pipe", "ipc"] });
  t.after(() => child.kill("SIGKILL"));
  const stderr = text(child.stderr as Readable);
  await once(child, "message");
  child.kill("SIGTERM");
  const [code, signal] = (await once(child, "exit")) as [number | null, NodeJS.Signals | null];
  return { code, signal, stderr: await stderr };
}

test("closed handles do not listen to signals", async () => {
  const before = process.listenerCount("SIGTERM");
  for (let i = 0; i < 3; i++) {
    await using hf = await open(":memory:");
    hf.work([job({ name: "x", run: () => {} })], { signals: true });
    assert.equal(process.listenerCount("SIGTERM"), before + 1);
  }
  assert.equal(process.listenerCount("SIGTERM"), before);
});
