import assert from "node:assert/strict";
import { suite } from "node:test";
import { z } from "zod";
import { HoldfastError, job, type JobContext, NonRetryableError, RetryAfterError } from "../../src/index.ts";
import { code, deferred, memory, see, seeAll, stage, test, unchecked } from "./parts.ts";

type C = JobContext<unknown>;

suite("a worker runs what is enqueued", () => {
  test("a worker runs jobs from before and after its start, and stores their outputs", async (t) => {
    const { hf, clock } = await memory(t);
    const double = job({ name: "double", run: ({ input }: JobContext<number>) => input * 2 });
    const before = await hf.enqueue(double, 1);
    hf.work([double]);
    const later = await hf.enqueue(double, 2);
    const ended = await hf.jobs.wait(before);
    assert.deepEqual(
      [ended.state, ended.output, ended.attempt, ended.startedAt, ended.finishedAt, ended.error],
      ["succeeded", 2, 1, clock.now(), clock.now(), undefined],
    );
    assert.equal((await hf.jobs.wait(later)).output, 4);
  });

  test("a worker without jobs logs that it runs nothing", async (t) => {
    const { hf, logged } = await memory(t);
    hf.work([]);
    assert.deepEqual(
      logged.map(({ level, message }) => [level, message]),
      [["warn", "hf.work was given no jobs: this worker runs nothing"]],
    );
  });

  test("a worker runs higher priorities first, then first in, first out", async (t) => {
    const { hf } = await memory(t);
    const order: unknown[] = [];
    const note = job({ name: "note", run: ({ input }: C) => void order.push(input) });
    for (const [input, priority] of [
      ["a", 0],
      ["b", 0],
      ["vip", 1],
      ["c", 0],
      ["last", -1],
    ] as const) {
      await hf.enqueue(note, input, { priority });
    }
    const last = await hf.enqueue(note, "very last", { priority: -2 });
    hf.work([note], { concurrency: 1 });
    await hf.jobs.wait(last);
    assert.deepEqual(order, ["vip", "a", "b", "c", "last", "very last"]);
  });

  test("a worker runs a delayed job at its time, and not before", async (t) => {
    const { hf, clock } = await memory(t);
    const at: number[] = [];
    const note = job({ name: "note", run: () => void at.push(clock.now()) });
    const start = clock.now();
    hf.work([note]);
    await hf.enqueue(note, 1, { delay: "90s" });
    await hf.enqueue(note, 2, { runAt: start + 30_000 });
    await clock.advance("2m");
    assert.deepEqual(
      at.map((time) => time - start),
      [30_000, 90_000],
    );
  });

  test("handlers may be synchronous, asynchronous, or return a thenable", async (t) => {
    const { hf } = await memory(t);
    const defs = [
      job({ name: "sync", run: (): unknown => "done" }),
      job({ name: "async", run: async (): Promise<unknown> => Promise.resolve("done") }),
      // oxlint-disable-next-line unicorn/no-thenable
      job({ name: "thenable", run: (): unknown => ({ then: (tell: (value: string) => void) => tell("done") }) }),
      job({ name: "throws", run: (): unknown => Promise.resolve("done") }),
    ];
    hf.work(defs);
    for (const def of defs) assert.equal((await hf.jobs.wait(await hf.enqueue(def, 1))).output, "done");
  });

  test("a worker runs hundreds of jobs, each exactly once", async (t) => {
    const { hf } = await memory(t);
    const seen = new Map<unknown, number>();
    const note = job({ name: "note", run: ({ input }: C) => void seen.set(input, (seen.get(input) ?? 0) + 1) });
    hf.work([note]);
    hf.work([note], { concurrency: 3 });
    const accepted = await hf.enqueueMany(
      note,
      Array.from({ length: 500 }, (_, n) => n),
    );
    await Promise.all(accepted.map((one) => hf.jobs.wait(one)));
    assert.equal(seen.size, 500);
    assert.deepEqual(new Set(seen.values()), new Set([1]));
    assert.equal((await hf.jobs.counts()).succeeded, 500);
  });
});

suite("concurrency", () => {
  for (const most of [1, 2, 7]) {
    test(`a worker with concurrency ${most} runs that many jobs at once, and no more`, async (t) => {
      const { hf, clock } = await memory(t);
      const slow = stage<C>();
      const def = job({ name: "slow", run: slow.run });
      await hf.enqueueMany(
        def,
        Array.from({ length: 10 }, (_, n) => n),
      );
      hf.work([def], { concurrency: most });
      await slow.called(most);
      await clock.advance("1m");
      assert.equal(slow.calls.length, most);
      assert.equal((await hf.jobs.counts()).running, most, "none is claimed ahead while all hands are busy");
      slow.calls[0]?.end();
      await slow.called(most + 1);
      await clock.advance("1m");
      assert.equal(slow.calls.length, most + 1);
    });
  }

  test("the default concurrency is ten", async (t) => {
    const { hf, clock } = await memory(t);
    const slow = stage<C>();
    const def = job({ name: "slow", run: slow.run });
    await hf.enqueueMany(def, Array(20).fill(0));
    hf.work([def]);
    await slow.called(10);
    await clock.advance("10s");
    assert.equal(slow.calls.length, 10);
  });

  test("a job's own concurrency applies within the worker's, and leaves room for others", async (t) => {
    const { hf, clock } = await memory(t);
    const heavy = stage<C>();
    const light = stage<C>();
    const heavyDef = job({ name: "heavy", concurrency: 2, run: heavy.run });
    const lightDef = job({ name: "light", run: light.run });
    await hf.enqueueMany(heavyDef, [1, 2, 3, 4, 5]);
    await hf.enqueueMany(lightDef, [1, 2, 3, 4]);
    hf.work([heavyDef, lightDef], { concurrency: 6 });
    await light.called(4);
    await clock.advance("1m");
    assert.deepEqual([heavy.calls.length, light.calls.length], [2, 4]);
    heavy.calls[0]?.end();
    await heavy.called(3);
    heavy.calls[1]?.fail(new NonRetryableError("no"));
    await heavy.called(4);
    await clock.advance("1m");
    assert.deepEqual([heavy.calls.length, light.calls.length], [4, 4]);
  });

  test("a worker's options are checked", async (t) => {
    const { hf } = await memory(t);
    const def = job({ name: "x", run: () => null });
    for (const concurrency of [0, -1, 1.5, Number.NaN]) {
      assert.throws(() => hf.work([def], { concurrency }), code("NUMBER_INVALID"));
    }
  });
});

suite("several queues, versions and workers", () => {
  test("a long queue does not starve a short one", async (t) => {
    const { hf } = await memory(t);
    const order: string[] = [];
    const flood = job({ name: "flood", run: () => void order.push("flood") });
    const trickle = job({ name: "trickle", run: () => void order.push("trickle") });
    const floods = await hf.enqueueMany(flood, Array(300).fill(0));
    const [one] = await hf.enqueueMany(trickle, [1]);
    hf.work([flood, trickle], { concurrency: 1 });
    assert.ok(one);
    await hf.jobs.wait(one);
    assert.ok(order.indexOf("trickle") <= 2, `the trickle came after ${order.indexOf("trickle")} of the flood`);
    await hf.jobs.wait(floods.at(-1)?.id ?? "");
  });

  test("two names in one queue share its order", async (t) => {
    const { hf } = await memory(t);
    const order: string[] = [];
    const a = job({ name: "a", queue: "q", run: () => void order.push("a") });
    const b = job({ name: "b", queue: "q", run: () => void order.push("b") });
    for (const def of [a, b, b, a]) await hf.enqueue(def, 0);
    const last = await hf.enqueue(b, 0);
    hf.work([a, b], { concurrency: 1 });
    await hf.jobs.wait(last);
    assert.deepEqual(order, ["a", "b", "b", "a", "b"]);
  });

  test("an old and a new definition side by side each get their own version's jobs", async (t) => {
    const { hf } = await memory(t);
    const v1 = job({ name: "render", version: 1, run: () => "old" });
    const v2 = job({ name: "render", version: 2, run: () => "new" });
    const first = await hf.enqueue(v1, 1);
    const second = await hf.enqueue(v2, 1);
    hf.work([v1, v2]);
    assert.equal((await hf.jobs.wait(first)).output, "old");
    assert.equal((await hf.jobs.wait(second)).output, "new");
  });

  test("a worker does not claim versions and names that it does not know", async (t) => {
    const { hf, clock } = await memory(t);
    const v1 = job({ name: "render", run: () => "old" });
    const v2 = job({ name: "render", version: 2, run: () => "new" });
    const other = job({ name: "other", queue: "render", run: () => "other" });
    const [newer, stranger, mine] = await Promise.all([hf.enqueue(v2, 1), hf.enqueue(other, 1), hf.enqueue(v1, 1)]);
    hf.work([v1]);
    assert.equal((await hf.jobs.wait(mine)).output, "old");
    await clock.advance("1m");
    assert.deepEqual([(await see(hf, newer.id)).state, (await see(hf, stranger.id)).state], ["pending", "pending"]);
    assert.equal((await see(hf, newer.id)).attempt, 0);
    hf.work([v2]);
    assert.equal((await hf.jobs.wait(newer)).output, "new");
  });

  test("several workers in one process share the work, and never a job", async (t) => {
    const { hf } = await memory(t);
    const running = new Set<string>();
    const twice: string[] = [];
    const gate = deferred();
    let started = 0;
    const def = job({
      name: "x",
      run: async ({ id }: C) => {
        if (running.has(id)) twice.push(id);
        running.add(id);
        if (++started === 4) gate.resolve();
        await gate.promise;
      },
    });
    const accepted = await hf.enqueueMany(def, Array(4).fill(0));
    // None of them alone has hands enough: the gate opens only when all of them work.
    for (let i = 0; i < 4; i++) hf.work([def], { concurrency: 1 });
    await Promise.all(accepted.map((one) => hf.jobs.wait(one)));
    assert.deepEqual(twice, []);
  });

  test("a job without a handler is rejected, and so is one that is given twice", async (t) => {
    const { hf } = await memory(t);
    const bare = job({ name: "bare", input: z.string() });
    assert.throws(() => hf.work([bare]), code("NO_HANDLER"));
    const def = job({ name: "x", run: () => null });
    assert.throws(() => hf.work([def, job({ name: "x", run: () => 1 })]), code("JOB_TWICE"));
    // Nothing of the refused workers is left behind: these would be claimed.
    await hf.enqueue(def, 1);
    await hf.enqueue(bare, "x");
    assert.equal((await hf.jobs.counts()).pending, 2);
  });

  test("the handler may be given elsewhere than the definition", async (t) => {
    const { hf } = await memory(t);
    const bare = job({ name: "greet", queue: "q", version: 3, input: z.string(), retry: { attempts: 1 }, output: z.string() });
    const accepted = await hf.enqueue(bare, "you");
    const greet = bare.handle(({ input }) => `hello ${input}`);
    assert.deepEqual([greet.name, greet.queue], ["greet", "q"]);
    hf.work([greet]);
    assert.equal((await hf.jobs.wait(accepted)).output, "hello you");
    assert.throws(() => hf.work([bare]), code("NO_HANDLER"), "the definition itself is as it was");
    const louder = greet.handle(({ input }) => `HELLO ${input}`);
    assert.notEqual(louder, greet);
  });
});

suite("errors and retries", () => {
  test("an error is retried with exponential backoff and jitter, up to `attempts`", async (t) => {
    const { hf, clock } = await memory(t);
    const at: number[] = [];
    const def = job({
      name: "flaky",
      retry: { attempts: 4, delay: "1s" },
      run: ({ attempt }: C) => {
        at.push(clock.now());
        throw new Error(`attempt ${attempt}`);
      },
    });
    hf.work([def]);
    const { id } = await hf.enqueue(def, 1);
    await clock.advance("1m");
    const gaps = at.slice(1).map((time, i) => time - (at[i] as number));
    assert.equal(at.length, 4);
    for (const [i, full] of [1_000, 2_000, 4_000].entries()) {
      const gap = gaps[i] as number;
      assert.ok(gap >= full / 2 && gap <= full, `gap ${i + 1} is ${gap} ms, of ${full}`);
    }
    const ended = await see(hf, id);
    assert.deepEqual([ended.state, ended.attempt, ended.crashes, ended.error?.message], ["failed", 4, 0, "attempt 4"]);
    assert.equal(ended.finishedAt, at[3]);
  });

  test("jitter spreads jobs that failed together over the upper half of the backoff", async (t) => {
    const { hf, clock } = await memory(t);
    const def = job({
      name: "flaky",
      retry: { attempts: 2, delay: "100s" },
      run: () => {
        throw new Error("no");
      },
    });
    await hf.enqueueMany(def, Array(200).fill(0));
    const start = clock.now();
    hf.work([def], { concurrency: 200 });
    await clock.advance(1);
    const delays = (await seeAll(hf)).map(({ runAt }) => runAt - start);
    assert.ok(Math.min(...delays) >= 50_000 && Math.max(...delays) <= 100_000, `${Math.min(...delays)}…${Math.max(...delays)}`);
    assert.ok(new Set(delays).size > 150, "they do not come back together");
    assert.ok(Math.min(...delays) < 60_000 && Math.max(...delays) > 90_000, "the whole half is used");
  });

  test("the backoff stops growing at maxDelay", async (t) => {
    const { hf, clock } = await memory(t);
    const at: number[] = [];
    const def = job({
      name: "flaky",
      retry: { attempts: 6, delay: "1s", maxDelay: "2s" },
      run: () => {
        at.push(clock.now());
        throw new Error("no");
      },
    });
    hf.work([def]);
    await hf.enqueue(def, 1);
    await clock.advance("20s");
    assert.equal(at.length, 6);
    for (let i = 2; i < 6; i++) assert.ok((at[i] as number) - (at[i - 1] as number) <= 2_000);
  });

  test("a fixed backoff is constant", async (t) => {
    const { hf, clock } = await memory(t);
    const start = clock.now();
    const at: number[] = [];
    const def = job({
      name: "flaky",
      retry: { attempts: 3, backoff: "fixed", delay: "5s" },
      run: () => {
        at.push(clock.now() - start);
        throw new Error("no");
      },
    });
    hf.work([def]);
    await hf.enqueue(def, 1);
    await clock.advance("1m");
    assert.deepEqual(at, [0, 5_000, 10_000]);
  });

  test("the default is three attempts in all", async (t) => {
    const { hf, clock } = await memory(t);
    let calls = 0;
    const def = job({
      name: "flaky",
      run: () => {
        calls++;
        throw new Error("no");
      },
    });
    hf.work([def]);
    const { id } = await hf.enqueue(def, 1);
    await clock.advance("2m");
    assert.deepEqual([calls, (await see(hf, id)).state], [3, "failed"]);
  });

  test("a success after errors has no error", async (t) => {
    const { hf, clock } = await memory(t);
    const def = job({
      name: "flaky",
      run: ({ attempt }: C) => {
        if (attempt < 3) throw new Error("not yet");
        return attempt;
      },
    });
    hf.work([def]);
    const { id } = await hf.enqueue(def, 1);
    await clock.advance(0);
    const between = await see(hf, id);
    assert.deepEqual([between.state, between.error?.message], ["pending", "not yet"]);
    await clock.advance("1m");
    const ended = await see(hf, id);
    assert.deepEqual([ended.state, ended.output, ended.error], ["succeeded", 3, undefined]);
  });

  test("a retried job keeps its place before later jobs after its backoff", async (t) => {
    const { hf, clock } = await memory(t);
    const order: unknown[] = [];
    const gate = deferred();
    const def = job({
      name: "x",
      retry: { backoff: "fixed", delay: 10 },
      run: async ({ input, attempt }: C) => {
        order.push(input);
        if (input === "first" && attempt === 1) throw new Error("again");
        if (input === "second") await gate.promise;
      },
    });
    await hf.enqueue(def, "first");
    await hf.enqueue(def, "second");
    await hf.enqueue(def, "third");
    hf.work([def], { concurrency: 1 });
    // Long enough for what was claimed ahead to be given back.
    await clock.advance("2s");
    gate.resolve();
    await clock.advance("2s");
    assert.deepEqual(order, ["first", "second", "first", "third"]);
  });

  test("NonRetryableError fails the job at once", async (t) => {
    const { hf, clock } = await memory(t);
    let calls = 0;
    const def = job({
      name: "x",
      run: () => {
        calls++;
        throw new NonRetryableError("never", { cause: "a cause" });
      },
    });
    hf.work([def]);
    const ended = await hf.jobs.wait(await hf.enqueue(def, 1));
    assert.deepEqual([ended.state, ended.error?.name, ended.error?.message], ["failed", "NonRetryableError", "never"]);
    await clock.advance("2m");
    assert.equal(calls, 1);
  });

  test("RetryAfterError runs the job again at that time, any number of times, without counting an attempt", async (t) => {
    const { hf, clock } = await memory(t);
    const start = clock.now();
    const seen: [number, number][] = [];
    const def = job({
      name: "x",
      retry: { attempts: 1 },
      run: ({ attempt }: C) => {
        seen.push([attempt, clock.now() - start]);
        if (seen.length === 1) throw new RetryAfterError("30s");
        if (seen.length === 2) throw new RetryAfterError(new Date(clock.now() + 60_000), "busy");
        if (seen.length === 3) throw new RetryAfterError(500);
        if (seen.length === 4) throw new RetryAfterError(new Date(0));
        return "done";
      },
    });
    hf.work([def]);
    const { id } = await hf.enqueue(def, 1);
    await clock.advance("30s");
    assert.deepEqual([(await see(hf, id)).attempt, (await see(hf, id)).error?.message], [0, "busy"]);
    await clock.advance("5m");
    assert.deepEqual(seen, [
      [1, 0],
      [1, 30_000],
      [1, 90_000],
      [1, 90_500],
      [1, 90_500],
    ]);
    const ended = await see(hf, id);
    assert.deepEqual([ended.state, ended.output, ended.attempt], ["succeeded", "done", 1]);
  });

  test("a RetryAfterError without a usable time counts as an ordinary error, so that it does not loop", async (t) => {
    const { hf, clock } = await memory(t);
    let calls = 0;
    const def = job({
      name: "x",
      run: () => {
        calls++;
        throw new RetryAfterError(new Date("not a date"));
      },
    });
    hf.work([def]);
    const { id } = await hf.enqueue(def, 1);
    await clock.advance("2m");
    const ended = await see(hf, id);
    assert.deepEqual([calls, ended.state, ended.error?.code], [3, "failed", "DURATION_INVALID"]);
    assert.throws(() => new RetryAfterError(unchecked<"1s">("soon")), code("DURATION_INVALID"));
  });

  test("errors of another copy of the package are recognised by name", async (t) => {
    const { hf } = await memory(t);
    const foreign = Object.assign(new Error("never"), { name: "NonRetryableError" });
    const def = job({
      name: "x",
      run: () => {
        throw foreign;
      },
    });
    hf.work([def]);
    assert.equal((await hf.jobs.wait(await hf.enqueue(def, 1))).state, "failed");
  });

  test("a thrown error is recorded with name, message, code and stack", async (t) => {
    const { hf } = await memory(t);
    class ApiError extends Error {
      override readonly name = "ApiError";
      readonly code = "E_QUOTA";
    }
    const thrown: [unknown, object][] = [
      [new ApiError("no more"), { name: "ApiError", message: "no more", code: "E_QUOTA" }],
      [new TypeError("not a function"), { name: "TypeError", message: "not a function" }],
      [Object.assign(new Error("errno"), { code: 7 }), { name: "Error", message: "errno", code: "7" }],
      [new HoldfastError("X", "mine", "a hint"), { name: "HoldfastError", message: "mine", code: "X" }],
      ["just text", { name: "Error", message: "just text" }],
      [undefined, { name: "Error", message: "undefined" }],
      [null, { name: "Error", message: "null" }],
      [{ status: 500 }, { name: "Error", message: '{"status":500}' }],
    ];
    const def = job({
      name: "x",
      retry: { attempts: 1 },
      run: ({ input }: JobContext<number>) => {
        throw thrown[input]?.[0];
      },
    });
    hf.work([def]);
    for (const [i, [value, expected]] of thrown.entries()) {
      const { error, state } = await hf.jobs.wait(await hf.enqueue(def, i));
      assert.equal(state, "failed");
      const { stack, ...rest } = error ?? { name: "", message: "" };
      assert.deepEqual(rest, expected);
      if (value instanceof Error) assert.match(stack ?? "", /worker\.test\.ts/);
    }
  });

  test("an output that is not JSON fails without a retry", async (t) => {
    const { hf, clock } = await memory(t);
    const outputs = [new Date(), 1n, new Map(), [undefined], Number.NaN, () => 1];
    let calls = 0;
    const def = job({
      name: "x",
      run: ({ input }: JobContext<number>) => {
        calls++;
        return outputs[input];
      },
    });
    hf.work([def]);
    for (let i = 0; i < outputs.length; i++) {
      const ended = await hf.jobs.wait(await hf.enqueue(def, i));
      assert.deepEqual([ended.state, ended.error?.code, ended.output], ["failed", "NOT_JSON", undefined]);
    }
    await clock.advance("2m");
    assert.equal(calls, outputs.length);
  });

  test("no output is stored as none, and null as null", async (t) => {
    const { hf } = await memory(t);
    const def = job({ name: "x", run: ({ input }: C) => (input === 1 ? null : undefined) });
    hf.work([def]);
    assert.equal((await hf.jobs.wait(await hf.enqueue(def, 1))).output, null);
    assert.equal("output" in (await hf.jobs.wait(await hf.enqueue(def, 2))), false);
  });

  test("one job's error does not affect others", async (t) => {
    const { hf } = await memory(t);
    const def = job({
      name: "x",
      retry: { attempts: 1 },
      run: ({ input }: JobContext<number>) => {
        if (input % 2 === 0) throw new Error("even");
        return input;
      },
    });
    const accepted = await hf.enqueueMany(def, [1, 2, 3, 4, 5, 6]);
    hf.work([def]);
    const ended = await Promise.all(accepted.map((one) => hf.jobs.wait(one)));
    assert.deepEqual(
      ended.map(({ state }) => state),
      ["succeeded", "failed", "succeeded", "failed", "succeeded", "failed"],
    );
  });
});

suite("jobs that were running when their worker died", () => {
  test("crashed jobs run again one at a time in a process, and all of them run", async (t) => {
    const { hf, clock } = await memory(t);
    const slow = stage<C>();
    const def = job({ name: "x", run: slow.run });
    const accepted = await hf.enqueueMany(def, [1, 2, 3]);
    // Claimed by hand and left: three leases that expire are three crashes.
    for (let i = 0; i < 3; i++) assert.ok(await hf.claim(def, { worker: "gone", lease: "1s" }));
    await clock.advance("1s");
    hf.work([def]);
    for (let run = 1; run <= 3; run++) {
      await slow.called(run);
      assert.equal(slow.calls.length, run, "one suspect at a time");
      slow.calls[run - 1]?.end();
    }
    for (const one of accepted) assert.equal((await hf.jobs.wait(one)).state, "succeeded");
  });

  test("crashed jobs do not keep the process from running others", async (t) => {
    const { hf, clock } = await memory(t);
    const slow = stage<C>();
    const def = job({ name: "x", run: slow.run });
    await hf.enqueueMany(def, ["suspect", "suspect too"]);
    for (let i = 0; i < 2; i++) await hf.claim(def, { worker: "gone", lease: "1s" });
    await clock.advance("1s");
    await hf.enqueueMany(def, ["clean", "clean too"]);
    hf.work([def]);
    await slow.called(3);
    await clock.advance("1s");
    assert.deepEqual(slow.calls.map(({ context }) => context.input).toSorted(), ["clean", "clean too", "suspect"]);
  });
});

test("a handler may throw or return any value: its job ends, and the worker continues", async (t) => {
  const { hf } = await memory(t);
  const odd: (() => unknown)[] = [
    () => {
      // oxlint-disable-next-line no-throw-literal
      throw null;
    },
    () => {
      throw Object.defineProperty(new Error("x"), "message", {
        get: () => {
          throw new Error("no");
        },
      });
    },
    () => Promise.reject(Object.create(null)),
    () => ({
      // oxlint-disable-next-line unicorn/no-thenable
      get then() {
        throw new Error("no");
      },
    }),
    // oxlint-disable-next-line unicorn/no-thenable
    () => ({ then: (ok: (value: number) => void) => (ok(1), ok(2)) }),
  ];
  const strange = job<number, unknown>({ name: "strange", retry: { attempts: 1 }, run: ({ input }) => odd[input]?.() });
  hf.work([strange]);
  const states = [];
  for (let i = 0; i <= odd.length; i++) states.push((await hf.jobs.wait(await hf.enqueue(strange, i))).state);
  assert.deepEqual(states, ["failed", "failed", "failed", "failed", "succeeded", "succeeded"]);
});

test("an outcome that cannot be written fails its own job only", async (t) => {
  const { hf, clock } = await memory(t);
  const { store } = hf.engine;
  const settle = store.settle.bind(store);
  store.settle = async (settlements) => {
    for (const { outcome } of settlements) {
      if (outcome.kind === "succeeded" && outcome.output === '"poison"') throw new HoldfastError("VALUE_INVALID", "no", "no");
    }
    return settle(settlements);
  };
  const echo = job<string, string>({ name: "echo", run: async ({ input }) => input });
  const jobs = await hf.enqueueMany(echo, ["a", "poison", "b", "c"]);
  hf.work([echo]);
  await clock.advance("1s");
  const ends = await Promise.all(jobs.map((one) => hf.jobs.wait(one)));
  assert.deepEqual(
    ends.map(({ state }) => state),
    ["succeeded", "failed", "succeeded", "succeeded"],
  );
  assert.equal(ends[1]?.error?.code, "VALUE_INVALID");
});

test("an error that can never be written is replaced, and its job is retried as usual", async (t) => {
  const { hf, clock } = await memory(t);
  const { store } = hf.engine;
  const settle = store.settle.bind(store);
  store.settle = async (settlements) => {
    for (const { outcome } of settlements)
      if (outcome.kind === "error" && outcome.error.message === "poison") throw new HoldfastError("VALUE_INVALID", "no", "no");
    return settle(settlements);
  };
  const fails = job<null>({
    name: "fails",
    retry: { attempts: 2 },
    run: () => {
      throw new Error("poison");
    },
  });
  hf.work([fails]);
  const accepted = await hf.enqueue(fails, null);
  await clock.advance("10s");
  const { state, attempt, error } = await hf.jobs.wait(accepted);
  assert.deepEqual([state, attempt, error?.code], ["failed", 2, "VALUE_INVALID"]);
});

test("an error without a known code is retried with growing delays, and delays no other job", async (t) => {
  const { hf, clock, logged } = await memory(t);
  const { store } = hf.engine;
  const settle = store.settle.bind(store);
  let tries = 0;
  let trouble: Error | null = new Error("a connection was made of cheese");
  store.settle = async (settlements) => {
    if (trouble !== null && settlements.some(({ outcome }) => outcome.kind === "succeeded" && outcome.output === '"unlucky"')) {
      tries++;
      throw trouble;
    }
    return settle(settlements);
  };
  const echo = job<string, string>({ name: "echo", run: async ({ input }) => input });
  const [lucky, unlucky] = (await hf.enqueueMany(echo, ["lucky", "unlucky"])).map(({ id }) => id) as [string, string];
  hf.work([echo]);
  await clock.advance("500ms");
  assert.equal((await hf.jobs.wait(lucky)).state, "succeeded");
  await clock.advance("20s");
  assert.ok(tries >= 5 && tries <= 10, `${tries} tries in 20 s`);
  assert.equal(logged.filter(({ message }) => message.includes("could not be recorded")).length, tries);
  assert.equal((await hf.jobs.get(unlucky))?.state, "running");
  trouble = null;
  await clock.advance("5s");
  const { state, attempt } = await hf.jobs.wait(unlucky);
  assert.deepEqual([state, attempt], ["succeeded", 1]);
});

for (const code of ["DAMAGED", "DISK_FULL"]) {
  test(`a success that the disk rejects for a while (${code}) is recorded in the end`, async (t) => {
    const { hf, clock } = await memory(t);
    const { store } = hf.engine;
    const settle = store.settle.bind(store);
    let refused = 0;
    store.settle = async (settlements) => {
      if (refused++ < 3) throw new HoldfastError(code, "no", "no");
      return settle(settlements);
    };
    const echo = job<string, string>({ name: "echo", run: async ({ input }) => input });
    const jobs = await hf.enqueueMany(echo, ["a", "b"]);
    hf.work([echo]);
    await clock.advance("2s");
    const ends = await Promise.all(jobs.map((one) => hf.jobs.wait(one)));
    assert.deepEqual(
      ends.map(({ state, attempt }) => [state, attempt]),
      [
        ["succeeded", 1],
        ["succeeded", 1],
      ],
    );
  });
}

test("repeated claim errors are logged once with a hint, and again after a recovery", async (t) => {
  const { hf, clock, logged } = await memory(t);
  const { store } = hf.engine;
  const claim = store.claim.bind(store);
  let trouble: Error | null = null;
  let tries = 0;
  store.claim = async (request) => {
    tries++;
    if (trouble !== null) throw trouble;
    return claim(request);
  };
  const said = () => logged.filter(({ message }) => message.startsWith("claiming failed")).map(({ data }) => data);
  const echo = job<string, string>({ name: "echo", run: async ({ input }) => input });
  hf.work([echo]);
  await hf.jobs.wait(await hf.enqueue(echo, "before"));

  const full = new HoldfastError("DISK_FULL", "The disk is full.", "Make room.");
  trouble = full;
  tries = 0;
  const waiting = await hf.enqueue(echo, "a");
  await clock.advance("5s");
  assert.ok(tries > 10, `${tries} tries`);
  assert.deepEqual(said(), [{ error: "HoldfastError: The disk is full.", hint: "Make room." }]);
  trouble = new Error("something else");
  await clock.advance("5s");
  assert.deepEqual(said().slice(1), [{ error: "Error: something else" }]);

  trouble = null;
  await clock.advance("1s");
  assert.equal((await hf.jobs.wait(waiting)).output, "a");
  trouble = full;
  await hf.enqueue(echo, "b");
  await clock.advance("5s");
  assert.equal(said().length, 3);
  trouble = null;
});
