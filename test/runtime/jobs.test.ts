import assert from "node:assert/strict";
import { suite } from "node:test";
import { type Enqueued, type Holdfast, job, type Job, type JobContext, type JobState } from "../../src/index.ts";
import { DEFINITIONS } from "./children/tasks.ts";
import { code, collect, file, interruptedChild, memory, see, stage, test, unchecked } from "./parts.ts";

type C = JobContext<unknown>;
const plain = job({ name: "plain", run: (c: C) => c.input });

suite("get, list and counts", () => {
  test("get returns null for an unknown id", async (t) => {
    const { hf } = await memory(t);
    for (const id of ["", "absent", "0".repeat(17), "x".repeat(5_000)]) assert.equal(await hf.jobs.get(id), null);
  });

  test("attempts lists every ended attempt by its outcome, and then the success", async (t) => {
    const { hf, clock } = await memory(t);
    const at = stage<C>();
    const tried = job({ name: "tried", retry: { attempts: 5, delay: "1s", backoff: "fixed" }, timeout: "1m", run: at.run });
    const { id } = await hf.enqueue(tried, 1);
    const outcomes = async () => (await hf.jobs.attempts(id)).map(({ outcome }) => outcome);
    const first = hf.work([tried]);
    await at.called(1);
    assert.deepEqual(await outcomes(), ["running"]);
    at.calls[0]?.fail(new Error("no"));
    await clock.advance("1s");
    await at.called(2);
    await clock.advance("1m");
    at.calls[1]?.end();
    await clock.advance("1s");
    await at.called(3);
    const third = at.calls[2] as (typeof at.calls)[number];
    const { signal } = third.context;
    signal.addEventListener("abort", () => third.fail(signal.reason));
    await Promise.all([first.stop({ drain: 0 }), clock.advance(0)]);
    hf.work([tried]);
    await at.called(4);
    at.calls[3]?.end();
    await hf.jobs.wait(id);
    assert.deepEqual(await outcomes(), ["failed", "timed-out", "released", "succeeded"]);
    const [failed, timedOut] = await hf.jobs.attempts(id);
    assert.deepEqual([failed?.error?.message, timedOut?.error?.code, failed?.pid], ["no", "TIMEOUT", process.pid]);
    assert.deepEqual(await hf.jobs.attempts("absent"), []);
  });

  test("explain counts the jobs ahead while a worker runs, and reports a missing worker", async (t) => {
    const { hf, clock } = await memory(t);
    const at = stage<C>();
    const slow = job({ name: "slow", concurrency: 1, run: at.run });
    const ids = (await hf.enqueueMany(slow, [1, 2, 3])).map(({ id }) => id);
    const reasons = () => Promise.all(ids.map(async (id) => (await hf.jobs.explain(id))?.reason));
    assert.deepEqual(await reasons(), ["no-worker", "no-worker", "no-worker"]);
    const worker = hf.work([slow]);
    await at.called(1);
    assert.deepEqual(await reasons(), ["running", "behind", "behind"]);
    assert.deepEqual(await hf.jobs.explain(ids[2] as string), {
      state: "pending",
      reason: "behind",
      message: '1 job of queue "slow" comes first.',
      ahead: 1,
    });
    at.calls[0]?.end();
    await at.called(2);
    assert.deepEqual(await reasons(), ["finished", "running", "behind"]);
    at.calls[1]?.end();
    await at.called(3);
    at.calls[2]?.end();
    await hf.jobs.wait(ids[2] as string);
    await Promise.all([worker.stop(), clock.advance(0)]);
    const { id } = await hf.enqueue(slow, 4);
    assert.equal((await hf.jobs.explain(id))?.reason, "no-worker");
    assert.equal(await hf.jobs.explain("absent"), null);
  });

  test("explain names the limit with its next free slot, and the lock of a queue", async (t) => {
    const { hf, clock } = await memory(t);
    const limit = { key: (input: { account: string }) => input.account, rate: "5/m" } as const;
    const call = job<{ account: string }>({ name: "call", limit, run: () => {} });
    const ids = (
      await hf.enqueueMany(
        call,
        Array.from({ length: 6 }, () => ({ account: "acme" })),
      )
    ).map(({ id }) => id);
    for (let i = 0; i < 5; i++) await (await hf.claim(call, { worker: "anna" }))?.succeed();
    assert.deepEqual(await hf.jobs.explain(ids[5] as string), {
      state: "pending",
      reason: "limit",
      message: 'Waits for the limit of key "acme" (5/m); the next slot is free in 12 s.',
      until: clock.now() + 12_000,
      limit: { key: "acme", used: 5, max: 5 },
    });
    await hf.lock("call").acquire("anna", "4m");
    assert.equal((await hf.jobs.explain(ids[5] as string))?.reason, "locked");
  });

  test("explain does not count a killed process as a worker", async (t) => {
    const { hf, kill } = await interruptedChild(t);
    const [def] = DEFINITIONS;
    const reason = async () =>
      (await hf.jobs.explain((await hf.enqueue(def as (typeof DEFINITIONS)[number], "more")).id))?.reason;
    assert.match(String(await reason()), /^(behind|running)$/);
    await kill();
    assert.equal(await reason(), "no-worker");
  });

  test("a queue's `attempts` must be a count", () => {
    for (const attempts of [-1, 1.5, unchecked<number>("5")])
      assert.throws(() => job({ name: "x", queue: { name: "x", attempts }, run: () => null }), code("NUMBER_INVALID"));
  });

  test("list pages through all jobs in creation order while others are added", async (t) => {
    const { hf } = await memory(t);
    const ids = (await hf.enqueueMany(plain, Array(7).fill(0))).map(({ id }) => id);
    const pages: string[][] = [];
    let after: string | undefined;
    do {
      const page = await hf.jobs.list({ limit: 3, after });
      pages.push(page.items.map(({ id }) => id));
      if (pages.length === 1) ids.push((await hf.enqueue(plain, 0, { priority: 9 })).id);
      after = page.next;
    } while (after !== undefined);
    assert.deepEqual(pages.flat(), ids);
    assert.deepEqual(
      pages.map(({ length }) => length),
      [3, 3, 2],
    );
  });

  test("the page with the last job has no `next`", async (t) => {
    const { hf } = await memory(t);
    await hf.enqueueMany(plain, [1, 2]);
    assert.equal((await hf.jobs.list({ limit: 2 })).next, undefined);
    assert.deepEqual(await hf.jobs.list({ queue: "nothing here" }), { items: [] });
  });

  test("list filters by queue, name and state, and by all of them", async (t) => {
    const { hf } = await memory(t);
    const other = job({ name: "other", queue: "plain", run: () => null });
    await hf.enqueue(plain, 1, { id: "a" });
    await hf.enqueue(other, 1, { id: "b" });
    await hf.enqueue(plain, 1, { id: "c" });
    await hf.jobs.cancel("c");
    const ids = async (filter: Parameters<Holdfast["jobs"]["list"]>[0]) =>
      (await hf.jobs.list(filter)).items.map(({ id }) => id).join();
    assert.equal(await ids({ queue: "plain" }), "a,b,c");
    assert.equal(await ids({ name: "plain" }), "a,c");
    assert.equal(await ids({ name: "other", queue: "other" }), "");
    assert.equal(await ids({ state: "cancelled" }), "c");
    assert.equal(await ids({ state: "pending", name: "plain" }), "a");
    assert.equal(await ids({ limit: 1 }), "a");
  });

  test("invalid filters are rejected", async (t) => {
    const { hf } = await memory(t);
    await assert.rejects(hf.jobs.list({ state: unchecked<JobState>("done") }), code("OPTION_INVALID"));
    await assert.rejects(hf.jobs.list({ limit: 0 }), code("NUMBER_INVALID"));
    await assert.rejects(hf.jobs.list({ limit: 1.5 }), code("NUMBER_INVALID"));
    await assert.rejects(hf.jobs.list({ after: "no cursor" }), code("OPTION_INVALID"));
  });

  test("counts has every state, and follows each transition", async (t) => {
    const { hf } = await memory(t);
    const none = { waiting: 0, pending: 0, running: 0, succeeded: 0, failed: 0, cancelled: 0, quarantined: 0 };
    assert.deepEqual(await hf.jobs.counts(), none);
    await hf.enqueueMany(plain, [1, 2, 3, 4]);
    await hf.enqueue(plain, 5, { delay: "1h" });
    assert.deepEqual(await hf.jobs.counts(), { ...none, pending: 5 });
    const claims = await Promise.all([1, 2, 3].map(() => hf.claim(plain, { worker: "me" })));
    assert.deepEqual(await hf.jobs.counts(), { ...none, pending: 2, running: 3 });
    await claims[0]?.succeed();
    await claims[1]?.fail("no", { retry: false });
    await hf.jobs.cancel(claims[2]?.job.id ?? "");
    assert.deepEqual(await hf.jobs.counts(), { ...none, pending: 2, succeeded: 1, failed: 1, cancelled: 1 });
    assert.deepEqual(await hf.jobs.counts({ name: "plain", queue: "plain" }), await hf.jobs.counts());
    assert.deepEqual(await hf.jobs.counts({ name: "other" }), none);
    await hf.jobs.retry(claims[1]?.job.id ?? "");
    assert.deepEqual(await hf.jobs.counts(), { ...none, pending: 3, succeeded: 1, cancelled: 1 });
  });
});

suite("cancel", () => {
  test("a cancelled pending job never runs", async (t) => {
    const { hf, clock } = await memory(t);
    const slow = stage<C>();
    const def = job({ name: "x", run: slow.run });
    const { id } = await hf.enqueue(def, 1);
    assert.equal(await hf.jobs.cancel(id), true);
    hf.work([def]);
    await clock.advance("1m");
    const seen = await see(hf, id);
    assert.deepEqual([slow.calls.length, seen.state, seen.attempt, seen.finishedAt], [0, "cancelled", 0, seen.createdAt]);
  });

  test("a cancelled delayed job never runs", async (t) => {
    const { hf, clock } = await memory(t);
    const slow = stage<C>();
    const def = job({ name: "x", run: slow.run });
    const { id } = await hf.enqueue(def, 1, { delay: "10s" });
    hf.work([def]);
    await clock.advance("5s");
    assert.equal(await hf.jobs.cancel(id), true);
    await clock.advance("1m");
    assert.deepEqual([slow.calls.length, (await see(hf, id)).state], [0, "cancelled"]);
  });

  test("the slot of a cancelled running job is free at once if its handler follows the signal", async (t) => {
    const { hf } = await memory(t);
    const slow = stage<C>();
    const def = job({ name: "x", run: slow.run });
    hf.work([def], { concurrency: 1 });
    const [first, second] = await hf.enqueueMany(def, [1, 2]);
    await slow.called(1);
    const call = slow.calls[0];
    call?.context.signal.addEventListener("abort", () => call.fail(call.context.signal.reason));
    assert.equal(await hf.jobs.cancel(first?.id ?? ""), true);
    await slow.called(2);
    slow.calls[1]?.end();
    assert.equal((await hf.jobs.wait(second?.id ?? "")).state, "succeeded");
    assert.equal((await see(hf, first?.id ?? "")).state, "cancelled");
  });

  test("a cancelled handler that ignores the signal does not hold its slot for ever", async (t) => {
    const { hf, clock } = await memory(t);
    const slow = stage<C>();
    const def = job({ name: "x", run: slow.run });
    hf.work([def], { concurrency: 1 });
    const [first] = await hf.enqueueMany(def, [1, 2]);
    await slow.called(1);
    await hf.jobs.cancel(first?.id ?? "");
    await clock.advance("10s");
    assert.equal(slow.calls.length, 2);
  });

  test("cancelling a claimed job aborts its signal, and its success is rejected", async (t) => {
    const { hf, clock } = await memory(t);
    const { id } = await hf.enqueue(plain, 1);
    const claim = await hf.claim(plain, { worker: "me" });
    assert.ok(claim);
    await hf.jobs.cancel(id);
    await clock.advance(0);
    assert.ok(code("CANCELLED")(claim.signal.reason));
    await assert.rejects(claim.succeed(), code("LEASE_LOST"));
    assert.equal((await see(hf, id)).state, "cancelled");
  });

  test("a finished or unknown job cannot be cancelled", async (t) => {
    const { hf } = await memory(t);
    const { id } = await hf.enqueue(plain, 1);
    await (await hf.claim(plain, { worker: "me" }))?.succeed("kept");
    assert.equal(await hf.jobs.cancel(id), false);
    assert.equal((await see(hf, id)).output, "kept");
    assert.equal(await hf.jobs.cancel("absent"), false);
  });
});

suite("retry by an operator", () => {
  test("a retried failed job starts with fresh counts", async (t) => {
    const { hf, clock } = await memory(t);
    let calls = 0;
    const def = job({
      name: "x",
      retry: { attempts: 2, backoff: "fixed", delay: "1s" },
      run: () => {
        calls++;
        throw new Error(`call ${calls}`);
      },
    });
    hf.work([def]);
    const { id } = await hf.enqueue(def, 1);
    await clock.advance("5s");
    assert.deepEqual([calls, (await see(hf, id)).state], [2, "failed"]);
    assert.equal(await hf.jobs.retry(id), true);
    await clock.advance(0);
    assert.deepEqual([calls, (await see(hf, id)).state], [3, "pending"], "the first error does not fail it");
    await clock.advance("5s");
    const ended = await see(hf, id);
    assert.deepEqual([calls, ended.state, ended.error?.message], [4, "failed", "call 4"]);
  });

  test("a retried quarantined job starts with fresh counts", async (t) => {
    const { hf, clock } = await memory(t);
    const def = job({ name: "x", crashes: 2, run: () => "alive" });
    const { id } = await hf.enqueue(def, 1);
    for (let crash = 0; crash < 2; crash++) {
      assert.ok(await hf.claim(def, { worker: "gone", lease: "1s" }));
      await clock.advance("1s");
      await hf.recovery.recoverStale();
    }
    const quarantined = await see(hf, id);
    assert.deepEqual([quarantined.state, quarantined.crashes, quarantined.error?.code], ["quarantined", 2, "CRASHED"]);
    assert.equal(await hf.jobs.retry(id), true);
    const fresh = await see(hf, id);
    assert.deepEqual([fresh.state, fresh.crashes, fresh.finishedAt], ["pending", 0, undefined]);
    assert.ok(await hf.claim(def, { worker: "gone", lease: "1s" }));
    await clock.advance("1s");
    await hf.recovery.recoverStale();
    assert.deepEqual([(await see(hf, id)).state, (await see(hf, id)).crashes], ["pending", 1], "one crash is one again");
  });

  test("retry is rejected with KEY_TAKEN while another unfinished job has the key", async (t) => {
    const { hf } = await memory(t);
    const first = await hf.enqueue(plain, 1, { key: "k" });
    await (await hf.claim(plain, { worker: "me" }))?.fail("no", { retry: false });
    const second = await hf.enqueue(plain, 2, { key: "k" });
    assert.notEqual(first.id, second.id);
    await assert.rejects(hf.jobs.retry(first.id), code("KEY_TAKEN"));
    assert.equal((await see(hf, first.id)).state, "failed");
    await hf.jobs.cancel(second.id);
    assert.equal(await hf.jobs.retry(first.id), true);
  });

  test("retry changes only failed and quarantined jobs", async (t) => {
    const { hf } = await memory(t);
    const ids: Partial<Record<JobState, string>> = {
      succeeded: (await hf.enqueue(plain, 1)).id,
      running: (await hf.enqueue(plain, 1)).id,
      cancelled: (await hf.enqueue(plain, 1, { delay: 1 })).id,
      pending: (await hf.enqueue(plain, 1, { delay: 1 })).id,
    };
    await (await hf.claim(plain, { worker: "me" }))?.succeed();
    await hf.claim(plain, { worker: "me" });
    await hf.jobs.cancel(ids.cancelled ?? "");
    for (const [state, id] of Object.entries(ids)) {
      assert.equal(await hf.jobs.retry(id), false, state);
      assert.equal((await see(hf, id)).state, state);
    }
    assert.equal(await hf.jobs.retry("absent"), false);
  });
});

/** Puts one job into each end state. */
const ENDS: Record<string, (hf: Holdfast, one: Enqueued) => Promise<unknown>> = {
  succeeded: async (hf) => (await hf.claim(plain, { worker: "me" }))?.succeed({ n: 1 }),
  failed: async (hf) => (await hf.claim(plain, { worker: "me" }))?.fail(new Error("no"), { retry: false }),
  cancelled: async (hf, { id }) => hf.jobs.cancel(id),
  quarantined: async (hf) => {
    const claim = await hf.claim(plain, { worker: "me" });
    const { store } = hf.engine;
    const [held] = await store.recoveries.stale({ dead: [], skewed: false, limit: 1 });
    assert.equal(held, undefined);
    await claim?.release();
    const [claimed] = await store.claim({ from: [{ lease: 1_000 }], max: 1, holder: null, worker: "me" });
    assert.ok(claimed);
    await store.settle([{ ...claimed, outcome: { kind: "unreadable", error: { name: "Error", message: "unreadable" } } }]);
  },
};

suite("wait", () => {
  for (const [state, end] of Object.entries(ENDS)) {
    test(`wait resolves when the job ${state === "succeeded" ? "has" : "is"} ${state}, before and after`, async (t) => {
      const { hf } = await memory(t);
      const one = await hf.enqueue(plain, 1);
      const early = hf.jobs.wait(one);
      await end(hf, one);
      assert.equal((await early).state, state);
      const late = await hf.jobs.wait(one.id);
      assert.deepEqual(late, await early);
      assert.deepEqual(late, await see(hf, one.id));
    });
  }

  test("wait does not resolve for a retry", async (t) => {
    const { hf, clock } = await memory(t);
    const def = job({
      name: "x",
      run: (c: C) => {
        if (c.attempt === 1) throw new Error("again");
        return "done";
      },
    });
    hf.work([def]);
    const waiting = hf.jobs.wait(await hf.enqueue(def, 1));
    await clock.advance("1m");
    assert.equal((await waiting).output, "done");
  });

  test("wait rejects at its timeout, and the job continues", async (t) => {
    const { hf, clock } = await memory(t);
    const { id } = await hf.enqueue(plain, 1);
    let ended: unknown = "waiting";
    const waiting = hf.jobs.wait(id, { timeout: "5s" }).catch((error: unknown) => (ended = error));
    await clock.advance(4_999);
    assert.equal(ended, "waiting");
    await clock.advance(1);
    await waiting;
    assert.ok(code("WAIT_TIMEOUT")(ended));
    assert.equal((await see(hf, id)).state, "pending");
  });

  test("a timeout of wait that is not reached is cleared", async (t) => {
    const { hf, clock } = await memory(t);
    hf.work([plain]);
    const ended = await hf.jobs.wait(await hf.enqueue(plain, 1), { timeout: "5s" });
    await clock.advance("10s");
    assert.equal(ended.state, "succeeded");
    await assert.rejects(hf.jobs.wait("x", { timeout: unchecked<number>("soon") }), code("DURATION_INVALID"));
  });

  test("wait rejects with the signal's reason, before and during the wait", async (t) => {
    const { hf } = await memory(t);
    const one = await hf.enqueue(plain, 1);
    const reason = new Error("enough");
    await assert.rejects(hf.jobs.wait(one, { signal: AbortSignal.abort(reason) }), reason);
    const stop = new AbortController();
    const waiting = hf.jobs.wait(one, { signal: stop.signal, timeout: "1h" });
    setImmediate(() => stop.abort(reason));
    await assert.rejects(waiting, reason);
  });

  test("wait rejects an unknown job with NO_SUCH_JOB", async (t) => {
    const { hf } = await memory(t);
    await assert.rejects(hf.jobs.wait("absent"), code("NO_SUCH_JOB"));
  });

  test("closing the database ends a wait with CLOSED", async (t) => {
    const { hf } = await memory(t);
    const one = await hf.enqueue(plain, 1);
    const waiting = hf.jobs.wait(one);
    const watching = collect(hf.jobs.watch(one.id));
    await hf.enqueue(plain, 2);
    const [, waited, watched] = await Promise.allSettled([hf.close(), waiting, watching]);
    assert.equal(waited.status, "rejected");
    assert.ok(code("CLOSED")(waited.reason));
    assert.equal(watched.status, "rejected");
    assert.ok(code("CLOSED")(watched.reason));
  });

  test("wait resolves for a job that another process settled", async (t) => {
    const { another } = await file(t);
    const [mine, theirs] = [await another(), await another()];
    const one = await mine.enqueue(plain, 1);
    const waiting = mine.jobs.wait(one);
    const claim = await theirs.claim(plain, { worker: "there" });
    assert.equal(claim?.job.id, one.id);
    await claim.succeed("from there");
    assert.equal((await waiting).output, "from there");
  });

  test("a worker in another process runs a job that is enqueued here", async (t) => {
    const { another } = await file(t);
    const [mine, theirs] = [await another(), await another()];
    theirs.work([plain]);
    const ended = await mine.jobs.wait(await mine.enqueue(plain, "over there"));
    assert.equal(ended.output, "over there");
  });
});

suite("watch", () => {
  test("watch yields the job, then each change, and ends with the job", async (t) => {
    const { hf, clock } = await memory(t);
    const slow = stage<C>();
    const def = job({ name: "x", retry: { backoff: "fixed", delay: "1s" }, run: slow.run });
    const { id } = await hf.enqueue(def, 1);
    const seen: Job[] = [];
    const watching = (async () => {
      for await (const one of hf.jobs.watch(id)) seen.push(one);
    })();
    await clock.advance(0);
    hf.work([def]);
    await slow.called(1);
    await clock.advance(0);
    slow.calls[0]?.context.progress(0.5);
    await clock.advance("1s");
    slow.calls[0]?.fail(new Error("again"));
    await clock.advance("1s");
    slow.calls[1]?.end("done");
    await watching;
    assert.deepEqual(
      seen.map(({ state, attempt, progress, output }) => [state, attempt, progress?.fraction, output]),
      [
        ["pending", 0, undefined, undefined],
        ["running", 1, undefined, undefined],
        ["running", 1, 0.5, undefined],
        ["pending", 1, 0.5, undefined],
        ["running", 2, 0.5, undefined],
        ["succeeded", 2, 0.5, "done"],
      ],
    );
  });

  test("watch of a finished job yields it once", async (t) => {
    const { hf } = await memory(t);
    const { id } = await hf.enqueue(plain, 1);
    await hf.jobs.cancel(id);
    const seen: string[] = [];
    for await (const one of hf.jobs.watch(id)) seen.push(one.state);
    assert.deepEqual(seen, ["cancelled"]);
  });

  test("watch does not yield while nothing of the job changes", async (t) => {
    const { hf, clock } = await memory(t);
    const { id } = await hf.enqueue(plain, 1, { delay: "1h" });
    const seen: string[] = [];
    const watching = (async () => {
      for await (const one of hf.jobs.watch(id)) seen.push(one.state);
    })();
    for (let i = 0; i < 5; i++) {
      await hf.enqueue(plain, i, { delay: "1h" });
      await clock.advance(1);
    }
    await hf.jobs.cancel(id);
    await watching;
    assert.deepEqual(seen, ["pending", "cancelled"]);
  });

  test("watch ends with its signal, and when its reader leaves", async (t) => {
    const { hf } = await memory(t);
    const { id } = await hf.enqueue(plain, 1);
    const stop = new AbortController();
    const seen: string[] = [];
    for await (const one of hf.jobs.watch(id, { signal: stop.signal })) {
      seen.push(one.state);
      setImmediate(() => stop.abort());
    }
    for await (const one of hf.jobs.watch(id)) {
      seen.push(one.state);
      break;
    }
    assert.deepEqual(seen, ["pending", "pending"]);
  });

  test("watch rejects an unknown job with NO_SUCH_JOB", async (t) => {
    const { hf } = await memory(t);
    await assert.rejects(collect(hf.jobs.watch("absent")), code("NO_SUCH_JOB"));
  });
});
