import assert from "node:assert/strict";
import { suite } from "node:test";
import { job, type JobContext, LeaseLostError, NonRetryableError } from "../../src/index.ts";
import { code, deferred, file, memory, see, seeAll, stage, test, unchecked } from "./parts.ts";

type C = JobContext<unknown>;

/** Ends when the signal aborts, with its reason: what a well-behaved handler does. */
function untilAborted({ signal }: C): Promise<never> {
  return new Promise((_, reject) => {
    if (signal.aborted) reject(signal.reason);
    else signal.addEventListener("abort", () => reject(signal.reason));
  });
}

suite("signal", () => {
  test("the signal aborts with CANCELLED when the job is cancelled, and nothing of the attempt is kept", async (t) => {
    const { hf } = await memory(t);
    const slow = stage<C>();
    const def = job({ name: "x", run: slow.run });
    hf.work([def]);
    const { id } = await hf.enqueue(def, 1);
    await slow.called(1);
    const call = slow.calls[0] as (typeof slow.calls)[0];
    assert.equal(call.context.signal.aborted, false);
    const aborted = new Promise((resolve) => call.context.signal.addEventListener("abort", resolve));
    assert.equal(await hf.jobs.cancel(id), true);
    await aborted;
    assert.ok(code("CANCELLED")(call.context.signal.reason));
    call.context.enqueue(def, 2);
    call.end("too late");
    await assert.rejects(call.context.checkpoint.save(1), LeaseLostError);
    const ended = await hf.jobs.wait(id);
    assert.deepEqual([ended.state, ended.output, ended.error], ["cancelled", undefined, undefined]);
    assert.equal((await seeAll(hf)).length, 1);
  });

  test("a handler may throw signal.reason after CANCELLED", async (t) => {
    const { hf, clock, logged } = await memory(t);
    const started = deferred();
    const def = job({
      name: "x",
      run: (c: C) => {
        started.resolve();
        return untilAborted(c);
      },
    });
    hf.work([def]);
    const { id } = await hf.enqueue(def, 1);
    await started.promise;
    await hf.jobs.cancel(id);
    await clock.advance("1m");
    const ended = await see(hf, id);
    assert.deepEqual([ended.state, ended.error], ["cancelled", undefined]);
    assert.deepEqual(logged, []);
  });

  test("the signal aborts with TIMEOUT when the attempt takes too long: an error that is retried, not a crash", async (t) => {
    const { hf, clock } = await memory(t);
    const slow = stage<C>();
    const def = job({ name: "x", timeout: "10s", retry: { attempts: 2, backoff: "fixed", delay: "1s" }, run: slow.run });
    hf.work([def]);
    const { id } = await hf.enqueue(def, 1);
    await slow.called(1);
    await clock.advance(9_999);
    assert.equal(slow.calls[0]?.context.signal.aborted, false);
    await clock.advance(1);
    assert.ok(code("TIMEOUT")(slow.calls[0]?.context.signal.reason));
    const between = await see(hf, id);
    assert.deepEqual([between.state, between.crashes, between.error?.code], ["pending", 0, "TIMEOUT"]);
    slow.calls[0]?.end("too late");
    await clock.advance("1s");
    assert.equal(slow.calls.length, 2);
    await clock.advance("10s");
    const ended = await see(hf, id);
    assert.deepEqual([ended.state, ended.attempt, ended.crashes, ended.output], ["failed", 2, 0, undefined]);
  });

  test("the timeout counts from the attempt's start, and renewals do not extend it", async (t) => {
    const { hf, clock } = await memory(t);
    const slow = stage<C>();
    const def = job({ name: "x", timeout: "2m", lease: "1s", run: slow.run });
    hf.work([def]);
    const { id } = await hf.enqueue(def, 1);
    await slow.called(1);
    await clock.advance("119s");
    assert.deepEqual([(await see(hf, id)).state, slow.calls[0]?.context.signal.aborted], ["running", false]);
    await clock.advance("1s");
    assert.equal(slow.calls[0]?.context.signal.aborted, true);
  });

  test("the signal aborts with LEASE_LOST when another worker has the job, and the late success is rejected", async (t) => {
    const { hf, logged } = await memory(t);
    const slow = stage<C>();
    const def = job({ name: "x", run: slow.run });
    hf.work([def], { concurrency: 2 });
    const { id } = await hf.enqueue(def, 1);
    await slow.called(1);
    const zombie = slow.calls[0] as (typeof slow.calls)[0];
    // As an observer that takes the holder for dead would do.
    await lose(hf, "crashed");
    await slow.called(2);
    // On a server another may have it before this one has heard.
    await assert.rejects(untilAborted(zombie.context), LeaseLostError);
    assert.equal(zombie.context.signal.reason.code, "LEASE_LOST");
    await assert.rejects(zombie.context.checkpoint.save("zombie"), LeaseLostError);
    zombie.context.progress(0.9);
    zombie.context.enqueue(def, "never");
    zombie.end("zombie");
    slow.calls[1]?.end("living");
    const ended = await hf.jobs.wait(id);
    assert.deepEqual([ended.state, ended.output, ended.crashes, ended.attempt], ["succeeded", "living", 1, 2]);
    assert.equal((await seeAll(hf)).length, 1);
    assert.deepEqual(
      logged.filter(({ level }) => level === "error"),
      [],
    );
  });

  test("the signal aborts with STOPPING when the worker stops, and throwing signal.reason releases the job uncounted", async (t) => {
    const { hf, clock } = await memory(t);
    const codes: string[] = [];
    const started = deferred();
    const def = job({
      name: "x",
      run: async (c: C) => {
        started.resolve();
        await untilAborted(c).catch((error: { code: string }) => {
          codes.push(error.code);
          throw error;
        });
      },
    });
    const worker = hf.work([def]);
    const { id } = await hf.enqueue(def, 1);
    await started.promise;
    const stopped = worker.stop({ drain: "5s" });
    await clock.advance("5s");
    await stopped;
    const back = await see(hf, id);
    assert.deepEqual(codes, ["STOPPING"]);
    assert.deepEqual(
      [back.state, back.attempt, back.crashes, back.error, back.runAt],
      ["pending", 0, 0, undefined, back.createdAt],
    );
  });
});

suite("what the context gives a handler", () => {
  test("the context has input, id and attempt, and no schedule for a plain job", async (t) => {
    const { hf } = await memory(t);
    const slow = stage<C>();
    const def = job({ name: "x", run: slow.run });
    hf.work([def]);
    const { id } = await hf.enqueue(def, { a: 1 });
    await slow.called(1);
    const [call] = slow.calls;
    assert.ok(call);
    const { input, attempt, scheduledFor, id: told } = call.context;
    assert.deepEqual({ input, attempt, scheduledFor, told }, { input: { a: 1 }, attempt: 1, scheduledFor: null, told: id });
  });

  test("attempt counts errors and crashes, but no released attempt", async (t) => {
    const { hf, clock } = await memory(t);
    const slow = stage<C>();
    const def = job({ name: "x", retry: { attempts: 9, backoff: "fixed", delay: 0 }, run: slow.run });
    const first = hf.work([def]);
    await hf.enqueue(def, 1);
    await slow.called(1);
    slow.calls[0]?.fail(new Error("1"));
    await slow.called(2);
    const stopped = first.stop({ drain: 0 });
    await clock.advance(0);
    await stopped;
    hf.work([def]);
    await slow.called(3);
    await lose(hf, "crashed");
    await slow.called(4);
    assert.deepEqual(
      slow.calls.map(({ context }) => context.attempt),
      [1, 2, 2, 3],
    );
  });

  test("idempotencyKey is the same in every attempt, and differs between jobs and databases", async (t) => {
    const keys: string[] = [];
    const def = job({
      name: "x",
      retry: { backoff: "fixed", delay: 0 },
      run: (c: C) => {
        keys.push(c.idempotencyKey);
        if (c.attempt < 3) throw new Error("again");
      },
    });
    const one = await memory(t);
    const two = await memory(t);
    one.hf.work([def]);
    two.hf.work([def]);
    await one.hf.jobs.wait(await one.hf.enqueue(def, 1, { id: "invoice" }));
    assert.equal(keys.length, 3);
    assert.equal(new Set(keys).size, 1);
    await two.hf.jobs.wait(await two.hf.enqueue(def, 1, { id: "invoice" }));
    assert.equal(new Set(keys).size, 2, "the same id in another database is another job");
    await one.hf.jobs.wait(await one.hf.enqueue(def, 1, { id: "receipt" }));
    assert.equal(new Set(keys).size, 3);
  });

  test("idempotencyKey is the same after the database is reopened", async (t) => {
    const { another, clock } = await file(t);
    const slow = stage<C>();
    const def = job({ name: "x", run: slow.run });
    const first = await another();
    first.work([def]);
    await first.enqueue(def, 1);
    await slow.called(1);
    slow.calls[0]?.fail(new Error("again"));
    await first.close();
    const second = await another();
    second.work([def]);
    await clock.advance("1s");
    assert.equal(slow.calls.length, 2);
    assert.equal(slow.calls[1]?.context.idempotencyKey, slow.calls[0]?.context.idempotencyKey);
  });

  test("log lines name their job", async (t) => {
    const { hf, logged } = await memory(t);
    const def = job({
      name: "x",
      run: (c: C) => {
        c.log.info("hello", { more: 1 });
        c.log.warn("careful");
      },
    });
    hf.work([def]);
    const { id } = await hf.enqueue(def, 1);
    await hf.jobs.wait(id);
    assert.deepEqual(logged, [
      { level: "info", message: "hello", data: { job: id, name: "x", attempt: 1, more: 1 } },
      { level: "warn", message: "careful", data: { job: id, name: "x", attempt: 1 } },
    ]);
  });

  test("the context can be spread, and its parts work on their own", async (t) => {
    const { hf } = await memory(t);
    const next = job({ name: "next", run: () => null });
    const def = job({
      name: "x",
      run: async (given: JobContext<{ n: number }>) => {
        const c = { ...given, extra: true };
        const { checkpoint, enqueue, progress, signal, idempotencyKey, log, input } = c;
        const { load, save } = checkpoint;
        await save({ n: input.n });
        progress(0.5, "half");
        log.debug("spread");
        enqueue(next, 1);
        return { loaded: await load(), aborted: signal.aborted, key: typeof idempotencyKey, extra: c.extra };
      },
    });
    hf.work([def]);
    const ended = await hf.jobs.wait(await hf.enqueue(def, { n: 7 }));
    assert.deepEqual(ended.output, { loaded: { n: 7 }, aborted: false, key: "string", extra: true });
    assert.equal((await hf.jobs.counts({ name: "next" })).pending, 1);
  });
});

suite("checkpoint", () => {
  test("checkpoint.load returns undefined before a save, then the last saved value", async (t) => {
    const { hf } = await memory(t);
    const def = job({
      name: "x",
      run: async ({ checkpoint }: C) => {
        const loaded = [await checkpoint.load()];
        for (const value of [{ page: 1 }, [2], null, "three"]) {
          await checkpoint.save(value);
          loaded.push(await checkpoint.load());
        }
        return loaded.map((value) => value ?? String(value));
      },
    });
    hf.work([def]);
    assert.deepEqual((await hf.jobs.wait(await hf.enqueue(def, 1))).output, ["undefined", { page: 1 }, [2], "null", "three"]);
  });

  test("checkpoint.save rejects what is not JSON and keeps the previous value", async (t) => {
    const { hf } = await memory(t);
    const def = job({
      name: "x",
      run: async ({ checkpoint }: C) => {
        await checkpoint.save(1);
        await assert.rejects(checkpoint.save(new Date()), code("NOT_JSON"));
        return checkpoint.load();
      },
    });
    hf.work([def]);
    assert.equal((await hf.jobs.wait(await hf.enqueue(def, 1))).output, 1);
  });

  for (const onInterrupt of ["retry", "resume", "fail"] as const) {
    test(`the next attempt after an error loads the checkpoint, with onInterrupt "${onInterrupt}"`, async (t) => {
      const { hf } = await memory(t);
      const def = job({
        name: "x",
        onInterrupt,
        retry: { backoff: "fixed", delay: 0 },
        run: async ({ checkpoint, attempt }: C) => {
          if (attempt > 1) return checkpoint.load();
          await checkpoint.save("saved");
          throw new Error("again");
        },
      });
      hf.work([def]);
      assert.equal((await hf.jobs.wait(await hf.enqueue(def, 1))).output, "saved");
    });
  }

  const interruptions = {
    "its worker stops": "stop",
    "its holder dies": "crashed",
    "its host restarts": "interrupted",
    "its lease runs out under a stalled holder": "stalled",
  } as const;
  for (const [what, how] of Object.entries(interruptions)) {
    for (const onInterrupt of ["resume", "retry", "fail"] as const) {
      const then = { resume: "continues from it", retry: "starts from nothing", fail: "fails" }[onInterrupt];
      test(`when ${what}, a job with onInterrupt "${onInterrupt}" ${then}`, async (t) => {
        const { hf, clock } = await memory(t);
        const saved = deferred();
        const seen: unknown[] = [];
        const def = job({
          name: "x",
          onInterrupt,
          run: async (c: C) => {
            const loaded = await c.checkpoint.load();
            seen.push(loaded);
            if (seen.length > 1) return;
            await c.checkpoint.save({ page: 3 });
            saved.resolve();
            await untilAborted(c);
          },
        });
        const worker = hf.work([def]);
        const { id } = await hf.enqueue(def, 1);
        await saved.promise;
        if (how === "stop") {
          await Promise.all([worker.stop({ drain: 0 }), clock.advance(0)]);
          hf.work([def]);
        } else await lose(hf, how);
        const ended = await hf.jobs.wait(id);
        assert.equal(ended.crashes, how === "crashed" || how === "stalled" ? 1 : 0);
        if (onInterrupt === "fail") {
          assert.deepEqual([ended.state, ended.error?.code, seen.length], ["failed", "INTERRUPTED", 1]);
        } else {
          assert.deepEqual([ended.state, seen[1]], ["succeeded", onInterrupt === "resume" ? { page: 3 } : undefined]);
        }
      });
    }
  }

  test("by default an interrupted job continues from its checkpoint", async (t) => {
    const { hf } = await memory(t);
    const saved = deferred();
    const def = job({
      name: "x",
      run: async (c: C) => {
        if (c.attempt > 1) return c.checkpoint.load();
        await c.checkpoint.save("saved");
        saved.resolve();
        return untilAborted(c);
      },
    });
    hf.work([def]);
    const { id } = await hf.enqueue(def, 1);
    await saved.promise;
    await lose(hf, "crashed");
    assert.equal((await hf.jobs.wait(id)).output, "saved");
  });
});

suite("progress", () => {
  test("the last progress report before the end is kept", async (t) => {
    const { hf } = await memory(t);
    const quick = job({ name: "quick", run: ({ progress }: C) => progress(1, "all of it") });
    hf.work([quick]);
    const done = await hf.jobs.wait(await hf.enqueue(quick, null));
    assert.deepEqual(done.progress, { fraction: 1, message: "all of it" });
  });

  test("an enqueue after the handler has ended is rejected", async (t) => {
    const { hf } = await memory(t);
    const kept: C[] = [];
    const careless = job({ name: "careless", run: (c: C) => void kept.push(c) });
    hf.work([careless]);
    await hf.jobs.wait(await hf.enqueue(careless, null));
    assert.throws(() => kept[0]?.enqueue(careless, null), code("TOO_LATE"));
  });

  test("progress is written in batches; the newest report of each job wins", async (t) => {
    const { hf, clock } = await memory(t);
    const slow = stage<C>();
    const def = job({ name: "x", run: slow.run });
    hf.work([def]);
    const [a, b] = await hf.enqueueMany(def, [1, 2]);
    await slow.called(2);
    let writes = 0;
    const { store } = hf.engine;
    const save = store.saveProgress.bind(store);
    store.saveProgress = (reports) => {
      writes++;
      return save(reports);
    };
    for (let i = 0; i <= 100; i++) slow.calls[0]?.context.progress(i / 200, `step ${i}`);
    slow.calls[1]?.context.progress(0.25);
    assert.equal((await see(hf, a?.id ?? "")).progress, undefined);
    await clock.advance("500ms");
    assert.equal(writes, 1);
    assert.deepEqual((await see(hf, a?.id ?? "")).progress, { fraction: 0.5, message: "step 100" });
    assert.deepEqual((await see(hf, b?.id ?? "")).progress, { fraction: 0.25 });
  });

  test("progress is a fraction from 0 to 1", async (t) => {
    const { hf } = await memory(t);
    const def = job({
      name: "x",
      run: ({ progress }: C) => {
        for (const bad of [-0.1, 1.1, Number.NaN, unchecked<number>("half")]) {
          assert.throws(() => progress(bad), code("NUMBER_INVALID"));
        }
        progress(0);
        progress(1);
        return "checked";
      },
    });
    hf.work([def]);
    assert.equal((await hf.jobs.wait(await hf.enqueue(def, 1))).output, "checked");
  });

  test("progress reported right before a worker stops is not lost", async (t) => {
    const { hf, clock } = await memory(t);
    const slow = stage<C>();
    const def = job({ name: "x", run: slow.run });
    const worker = hf.work([def]);
    const { id } = await hf.enqueue(def, 1);
    await slow.called(1);
    slow.calls[0]?.context.progress(0.75);
    await Promise.all([worker.stop({ drain: "1s" }), clock.advance("1s")]);
    assert.deepEqual((await see(hf, id)).progress, { fraction: 0.75 });
  });
});

suite("follow-ups", () => {
  const next = job({ name: "next", run: (c: C) => c.input });

  test("follow-ups exist once the job has succeeded, and not before", async (t) => {
    const { hf } = await memory(t);
    const gate = deferred();
    const asked = deferred<{ id: string }>();
    const def = job({
      name: "x",
      run: async (c: C) => {
        asked.resolve(c.enqueue(next, { from: c.id }, { priority: 4, key: "k", delay: "1m" }));
        await gate.promise;
      },
    });
    hf.work([def]);
    const parent = await hf.enqueue(def, 1);
    const { id } = await asked.promise;
    assert.equal(await hf.jobs.get(id), null);
    gate.resolve();
    await hf.jobs.wait(parent);
    const child = await see(hf, id);
    assert.deepEqual(
      [child.name, child.state, child.input, child.priority, child.key, child.runAt - child.createdAt],
      ["next", "pending", { from: parent.id }, 4, "k", 60_000],
    );
  });

  test("follow-ups run by themselves, under the ids that the handler got", async (t) => {
    const { hf } = await memory(t);
    const def = job({
      name: "x",
      run: (c: C) => [c.enqueue(next, "a").id, c.enqueue(next, "b").id, c.enqueue(next, "c", { id: "chosen" }).id],
    });
    hf.work([def, next]);
    const ids = (await hf.jobs.wait(await hf.enqueue(def, 1))).output as string[];
    assert.equal(ids[2], "chosen");
    assert.equal(new Set(ids).size, 3);
    const outputs: unknown[] = [];
    for (const id of ids) outputs.push((await hf.jobs.wait(id)).output);
    assert.deepEqual(outputs, ["a", "b", "c"]);
  });

  for (const [how, error] of [
    ["is retried", new Error("again")],
    ["fails", new NonRetryableError("no")],
  ] as const) {
    test(`no follow-up exists when the attempt ${how}`, async (t) => {
      const { hf } = await memory(t);
      const def = job({
        name: "x",
        retry: { backoff: "fixed", delay: "1h" },
        run: (c: C) => {
          c.enqueue(next, 1);
          c.enqueue(next, 2, { id: "chosen" });
          throw error;
        },
      });
      hf.work([def]);
      const { id } = await hf.enqueue(def, 1);
      for await (const seen of hf.jobs.watch(id)) if (seen.error !== undefined) break;
      assert.equal((await seeAll(hf)).length, 1);
      assert.deepEqual(await hf.enqueue(next, 3, { id: "chosen" }), { id: "chosen", duplicate: false }, "the id is free");
    });
  }

  test("only the follow-ups of the succeeding attempt exist", async (t) => {
    const { hf } = await memory(t);
    const def = job({
      name: "x",
      retry: { backoff: "fixed", delay: 0 },
      run: (c: C) => {
        c.enqueue(next, c.attempt);
        if (c.attempt < 3) throw new Error("again");
      },
    });
    hf.work([def]);
    await hf.jobs.wait(await hf.enqueue(def, 1));
    assert.deepEqual(
      (await hf.jobs.list({ name: "next" })).items.map(({ input }) => input),
      [3],
    );
  });

  test("a rejected output creates no follow-ups", async (t) => {
    const { hf } = await memory(t);
    const def = job({
      name: "x",
      run: (c: C): unknown => {
        c.enqueue(next, 1);
        return new Date();
      },
    });
    hf.work([def]);
    assert.equal((await hf.jobs.wait(await hf.enqueue(def, 1))).state, "failed");
    assert.equal((await seeAll(hf)).length, 1);
  });

  test("a follow-up that exists already is a duplicate, and the parent succeeds", async (t) => {
    const { hf } = await memory(t);
    await hf.enqueue(next, "first", { id: "chosen" });
    const def = job({ name: "x", run: (c: C) => c.enqueue(next, "second", { id: "chosen" }).id });
    hf.work([def]);
    assert.equal((await hf.jobs.wait(await hf.enqueue(def, 1))).output, "chosen");
    assert.equal((await see(hf, "chosen")).input, "first");
    assert.equal((await seeAll(hf)).length, 2);
  });

  test("a follow-up whose id belongs to another name fails the attempt with ID_TAKEN, and no other is added", async (t) => {
    const { hf, clock } = await memory(t);
    const other = job({ name: "other", run: () => null });
    await hf.enqueue(other, 1, { id: "taken" });
    let calls = 0;
    const def = job({
      name: "x",
      run: (c: C) => {
        calls++;
        c.enqueue(next, "sibling");
        c.enqueue(next, 1, { id: "taken" });
        return "done";
      },
    });
    hf.work([def]);
    const ended = await hf.jobs.wait(await hf.enqueue(def, 1));
    assert.deepEqual([ended.state, ended.error?.code, ended.output], ["failed", "ID_TAKEN", undefined]);
    await clock.advance("2m");
    assert.equal(calls, 1);
    assert.equal((await hf.jobs.counts({ name: "next" })).pending, 0);
  });

  test("one id for follow-ups of two names is rejected at once", async (t) => {
    const { hf } = await memory(t);
    const other = job({ name: "other", run: () => null });
    const def = job({
      name: "x",
      run: (c: C) => {
        c.enqueue(next, 1, { id: "both" });
        assert.throws(() => c.enqueue(other, 1, { id: "both" }), code("ID_TAKEN"));
      },
    });
    hf.work([def]);
    assert.equal((await hf.jobs.wait(await hf.enqueue(def, 1))).state, "succeeded");
    assert.equal((await see(hf, "both")).name, "next");
  });

  test("a follow-up with bad input is rejected at once, and nothing is added", async (t) => {
    const { hf } = await memory(t);
    const def = job({
      name: "x",
      run: (c: C) => {
        assert.throws(() => c.enqueue(next, new Date()), code("NOT_JSON"));
        assert.throws(() => c.enqueue(next, 1, { delay: -1 }), code("DURATION_INVALID"));
        assert.throws(() => c.enqueue(unchecked<typeof next>({}), 1), code("NOT_A_JOB"));
      },
    });
    hf.work([def]);
    assert.equal((await hf.jobs.wait(await hf.enqueue(def, 1))).state, "succeeded");
    assert.equal((await seeAll(hf)).length, 1);
  });

  test("a job may enqueue itself as a follow-up, also with its own key", async (t) => {
    const { hf } = await memory(t);
    const def = job({
      name: "countdown",
      run: (c: JobContext<number>): void => void (c.input > 0 && c.enqueue(def, c.input - 1, { key: "k" })),
    });
    hf.work([def]);
    await hf.enqueue(def, 3, { key: "k" });
    for (let n = 3; n >= 0; n--) {
      for (;;) {
        const found = (await seeAll(hf)).find(({ input }) => input === n);
        if (found === undefined) continue;
        await hf.jobs.wait(found.id);
        break;
      }
    }
    assert.equal((await hf.jobs.counts()).succeeded, 4);
  });
});

/** Every lease is taken back, as an observer would that judges so. */
async function lose(hf: Awaited<ReturnType<typeof memory>>["hf"], verdict: "crashed" | "interrupted" | "stalled"): Promise<void> {
  const { store } = hf.engine;
  const held = await store.recoveries.stale({ dead: [hf.engine.self], skewed: false, limit: 100 });
  assert.ok(held.length > 0, "something is held");
  await store.recoveries.reclaim(
    held.map((lease) => Object.assign(lease, { verdict })),
    "a test",
  );
}
