import assert from "node:assert/strict";
import { suite } from "node:test";
import { z } from "zod";
import {
  type Claim,
  type Holdfast,
  job,
  type JobContext,
  LeaseLostError,
  NonRetryableError,
  open,
  RetryAfterError,
} from "../../src/index.ts";
import { code, file, memory, see, stage, test, unchecked } from "./parts.ts";

type C = JobContext<unknown>;
const plain = job({ name: "plain", queue: "lane", run: (c: C) => c.input });

async function take(hf: Holdfast, from: Parameters<Holdfast["claim"]>[0] = plain, options: object = {}): Promise<Claim> {
  const claim = await hf.claim(from, { worker: "me", ...options });
  assert.ok(claim, "there is something to claim");
  return claim;
}

suite("a claim by hand", () => {
  test("a claim takes the job with the highest priority, then the oldest", async (t) => {
    const { hf } = await memory(t);
    for (const [input, priority] of [
      ["a", 0],
      ["b", 0],
      ["vip", 1],
    ] as const)
      await hf.enqueue(plain, input, { priority });
    const inputs = [];
    for (let i = 0; i < 3; i++) inputs.push((await take(hf)).job.input);
    assert.deepEqual(inputs, ["vip", "a", "b"]);
    assert.equal(await hf.claim(plain, { worker: "me" }), null);
  });

  test("a claimed job is running, and its attempt is counted", async (t) => {
    const { hf, clock } = await memory(t);
    const { id } = await hf.enqueue(plain, { a: 1 }, { key: "k" });
    const claim = await take(hf);
    assert.deepEqual(claim.job, await see(hf, id));
    assert.deepEqual(
      [claim.job.state, claim.job.attempt, claim.job.startedAt, claim.job.input],
      ["running", 1, clock.now(), { a: 1 }],
    );
    assert.equal(claim.signal.aborted, false);
  });

  test("a claim from a definition matches name and version; a claim from a queue takes any job", async (t) => {
    const { hf } = await memory(t);
    const next = job({ name: "plain", queue: "lane", version: 2, run: () => null });
    const other = job({ name: "other", queue: "lane", run: () => null });
    await hf.enqueue(next, "v2");
    await hf.enqueue(other, "other");
    await hf.enqueue(plain, "v1");
    assert.equal((await take(hf, plain)).job.input, "v1");
    assert.equal(await hf.claim("plain", { worker: "me" }), null, "a job's name is no queue");
    assert.deepEqual([(await take(hf, "lane")).job.input, (await take(hf, "lane")).job.input], ["v2", "other"]);
  });

  test("two concurrent claims never get the same job", async (t) => {
    const { another } = await file(t);
    const [mine, theirs] = [await another(), await another()];
    await mine.enqueueMany(plain, Array(10).fill(0));
    const claims = await Promise.all(
      Array.from({ length: 12 }, (_, i) => (i % 2 === 0 ? mine : theirs).claim(plain, { worker: `w${i}` })),
    );
    const ids = claims.filter((claim) => claim !== null).map(({ job }) => job.id);
    assert.equal(ids.length, 10);
    assert.equal(new Set(ids).size, 10);
  });

  test("invalid arguments of a claim are rejected", async (t) => {
    const { hf } = await memory(t);
    await hf.enqueue(plain, 1);
    await assert.rejects(hf.claim(plain, { worker: "" }), code("NAME_INVALID"));
    await assert.rejects(hf.claim(plain, unchecked<{ worker: string }>({})), code("NAME_INVALID"));
    await assert.rejects(hf.claim(plain, unchecked<{ worker: string }>(undefined)), code("NAME_INVALID"));
    await assert.rejects(hf.claim("", { worker: "me" }), code("NAME_INVALID"));
    await assert.rejects(hf.claim(plain, { worker: "me", lease: 0 }), code("DURATION_INVALID"));
    await assert.rejects(hf.claim(plain, { worker: "me", lease: unchecked<number>("long") }), code("DURATION_INVALID"));
    await assert.rejects(hf.claim(plain, { worker: "me", wait: -1 }), code("DURATION_INVALID"));
    await assert.rejects(hf.claim(plain, { worker: "me", renew: unchecked<"auto">("always") }), code("OPTION_INVALID"));
    await assert.rejects(hf.claim(unchecked<typeof plain>({}), { worker: "me" }), code("NOT_A_JOB"));
    assert.equal((await hf.jobs.counts()).running, 0);
  });
});

suite("settling by hand", () => {
  test("succeed stores the output, and a second settle is rejected", async (t) => {
    const { hf } = await memory(t);
    const { id } = await hf.enqueue(plain, 1);
    const claim = await take(hf);
    await claim.succeed({ n: 1 });
    assert.deepEqual([(await see(hf, id)).state, (await see(hf, id)).output], ["succeeded", { n: 1 }]);
    for (const again of [() => claim.succeed(), () => claim.fail("x"), () => claim.release(), () => claim.renew()]) {
      await assert.rejects(again(), code("ALREADY_SETTLED"));
    }
    assert.deepEqual((await see(hf, id)).output, { n: 1 });
  });

  test("succeed rejects an output that is not JSON, and the claim is still held", async (t) => {
    const { hf } = await memory(t);
    const { id } = await hf.enqueue(plain, 1);
    const claim = await take(hf);
    await assert.rejects(claim.succeed(new Date()), code("NOT_JSON"));
    assert.equal((await see(hf, id)).state, "running");
    await claim.succeed("text instead");
    assert.equal((await see(hf, id)).output, "text instead");
  });

  test("fail counts like a handler's error: backoff, and failed after the last attempt", async (t) => {
    const { hf, clock } = await memory(t);
    const def = job({ name: "x", retry: { attempts: 2, backoff: "fixed", delay: "5s" }, run: () => null });
    const { id } = await hf.enqueue(def, 1);
    await (await take(hf, def)).fail(new TypeError("first"));
    const between = await see(hf, id);
    assert.deepEqual(
      [between.state, between.runAt, between.error?.name, between.error?.message],
      ["pending", clock.now() + 5_000, "TypeError", "first"],
    );
    assert.equal(await hf.claim(def, { worker: "me" }), null);
    await clock.advance("5s");
    await (await take(hf, def)).fail("second");
    const ended = await see(hf, id);
    assert.deepEqual([ended.state, ended.error, ended.attempt], ["failed", { name: "Error", message: "second" }, 2]);
  });

  test("fail with `retry: false` fails at once, and with `delay` runs again after the delay", async (t) => {
    const { hf, clock } = await memory(t);
    const first = await hf.enqueue(plain, 1);
    await (await take(hf)).fail(new Error("no"), { retry: false });
    assert.equal((await see(hf, first.id)).state, "failed");
    const second = await hf.enqueue(plain, 2);
    await (await take(hf)).fail(new Error("later"), { delay: "7m" });
    assert.deepEqual([(await see(hf, second.id)).state, (await see(hf, second.id)).runAt], ["pending", clock.now() + 420_000]);
    await assert.rejects(
      (async () => {
        await hf.enqueue(plain, 3);
        await (await take(hf)).fail("x", { delay: -1 });
      })(),
      code("DURATION_INVALID"),
    );
  });

  test("fail treats NonRetryableError and RetryAfterError as a handler's errors", async (t) => {
    const { hf, clock } = await memory(t);
    const first = await hf.enqueue(plain, 1);
    await (await take(hf)).fail(new NonRetryableError("never"));
    assert.equal((await see(hf, first.id)).state, "failed");
    const second = await hf.enqueue(plain, 2);
    await (await take(hf)).fail(new RetryAfterError("1m"));
    const later = await see(hf, second.id);
    assert.deepEqual([later.state, later.attempt, later.runAt], ["pending", 0, clock.now() + 60_000]);
  });

  test("release returns the job to its place in the queue at once, without counting an attempt", async (t) => {
    const { hf } = await memory(t);
    const { id } = await hf.enqueue(plain, "first");
    await hf.enqueue(plain, "second");
    await (await take(hf)).release();
    const back = await see(hf, id);
    assert.deepEqual([back.state, back.attempt, back.crashes], ["pending", 0, 0]);
    assert.equal((await take(hf)).job.id, id);
  });

  test("disposing of a claim releases the job only if it was not settled", async (t) => {
    const { hf } = await memory(t);
    const { id } = await hf.enqueue(plain, 1);
    {
      await using claim = await take(hf);
      assert.equal(claim.job.id, id);
    }
    assert.deepEqual([(await see(hf, id)).state, (await see(hf, id)).attempt], ["pending", 0]);
    {
      await using claim = await take(hf);
      await claim.succeed("done");
    }
    assert.equal((await see(hf, id)).output, "done");
  });

  test("disposing of a lost claim is not an error", async (t) => {
    const { hf } = await memory(t);
    const { id } = await hf.enqueue(plain, 1);
    {
      await using claim = await take(hf);
      await hf.jobs.cancel(claim.job.id);
    }
    assert.equal((await see(hf, id)).state, "cancelled");
  });
});

suite("the lease of a claim by hand", () => {
  test("a lease lasts as long as asked for, else as the definition says, else 30 s", async (t) => {
    const { hf, clock } = await memory(t);
    const short = job({ name: "short", lease: "5s", run: () => null });
    for (const [from, options, lease] of [
      [short, {}, 5_000],
      ["short", {}, 30_000],
      [short, { lease: "2m" }, 120_000],
    ] as const) {
      const { id } = await hf.enqueue(short, 1);
      await take(hf, from, options);
      await clock.advance(lease - 1);
      assert.equal((await hf.recovery.recoverStale()).entriesReclaimed, 0);
      await clock.advance(1);
      assert.equal((await hf.recovery.recoverStale()).entriesReclaimed, 1);
      await hf.jobs.cancel(id);
    }
  });

  test("an expired lease lets another worker take the job, although the claiming process lives", async (t) => {
    const { hf, clock } = await memory(t);
    const { id } = await hf.enqueue(plain, 1);
    const zombie = await take(hf, plain, { lease: "10s" });
    await clock.advance("10s");
    const living = await take(hf);
    assert.deepEqual([living.job.id, living.job.attempt, living.job.crashes], [id, 2, 1]);
    assert.ok(zombie.signal.reason instanceof LeaseLostError);
    for (const late of [
      () => zombie.succeed("zombie"),
      () => zombie.fail("zombie"),
      () => zombie.release(),
      () => zombie.renew(),
    ]) {
      await assert.rejects(late(), LeaseLostError);
    }
    assert.equal((await see(hf, id)).state, "running");
    await living.succeed("living");
    assert.equal((await see(hf, id)).output, "living");
  });

  test("a late settle from another process is rejected", async (t) => {
    const { another, clock } = await file(t);
    const [mine, theirs] = [await another(), await another()];
    const { id } = await mine.enqueue(plain, 1);
    const zombie = await take(mine, plain, { lease: "1s" });
    await clock.advance("1s");
    const living = await take(theirs);
    await assert.rejects(zombie.succeed("zombie"), LeaseLostError);
    await living.succeed("living");
    await assert.rejects(zombie.succeed("zombie"), LeaseLostError);
    assert.equal((await see(mine, id)).output, "living");
  });

  test("an expired lease that was not reclaimed can still be settled", async (t) => {
    const { hf, clock } = await memory(t);
    const { id } = await hf.enqueue(plain, 1);
    const claim = await take(hf, plain, { lease: "1s" });
    await clock.advance("1m");
    await claim.succeed("late, but not rejected");
    assert.equal((await see(hf, id)).state, "succeeded");
  });

  test("renew extends the lease from now, by its old or a new duration", async (t) => {
    const { hf, clock } = await memory(t);
    await hf.enqueue(plain, 1);
    const claim = await take(hf, plain, { lease: "10s" });
    await clock.advance("9s");
    await claim.renew();
    await clock.advance("9s");
    assert.equal(await hf.claim(plain, { worker: "other" }), null);
    await claim.renew("1m");
    await clock.advance("59s");
    assert.equal(await hf.claim(plain, { worker: "other" }), null);
    await clock.advance("1s");
    assert.ok(await hf.claim(plain, { worker: "other" }));
  });

  test("a renewal by zero is rejected", async (t) => {
    const { hf } = await memory(t);
    await hf.enqueue(plain, 1);
    const claim = await take(hf);
    await assert.rejects(claim.renew(0), code("DURATION_INVALID"));
    await assert.rejects(claim.renew(unchecked<number>("long")), code("DURATION_INVALID"));
    assert.equal(await hf.claim(plain, { worker: "other" }), null);
  });

  test("a manual lease is not renewed automatically", async (t) => {
    const { hf, clock } = await memory(t);
    await hf.enqueue(plain, 1);
    await take(hf, plain, { lease: "3s" });
    hf.work([job({ name: "something else", run: () => null })]);
    await clock.advance("5s");
    assert.equal((await hf.jobs.counts()).pending, 1);
  });

  test('with renew: "auto" is renewed as long as it is held', async (t) => {
    const { hf, clock } = await memory(t);
    const { id } = await hf.enqueue(plain, 1);
    const claim = await take(hf, plain, { lease: "3s", renew: "auto" });
    await clock.advance("1h");
    assert.equal(await hf.claim(plain, { worker: "other" }), null);
    assert.equal(claim.signal.aborted, false);
    await claim.succeed();
    assert.deepEqual([(await see(hf, id)).state, (await see(hf, id)).attempt], ["succeeded", 1]);
    await clock.advance("1m");
  });

  test('with renew: "auto" the loss of its lease is reported', async (t) => {
    const { hf, clock } = await memory(t);
    const { id } = await hf.enqueue(plain, 1);
    const claim = await take(hf, plain, { renew: "auto" });
    await hf.jobs.cancel(id);
    await clock.advance(0);
    assert.ok(code("CANCELLED")(claim.signal.reason));
    await assert.rejects(claim.succeed(), LeaseLostError);
    await hf.enqueue(plain, 2);
    assert.ok(await take(hf, plain, { renew: "auto" }), "and its place is free again");
  });
});

suite("waiting for a job", () => {
  test("a claim without a job returns null at once, or after `wait`", async (t) => {
    const { hf, clock } = await memory(t);
    assert.equal(await hf.claim(plain, { worker: "me" }), null);
    let answer: unknown = "waiting";
    const waiting = hf.claim(plain, { worker: "me", wait: "20s" }).then((claim) => (answer = claim));
    await clock.advance(19_999);
    assert.equal(answer, "waiting");
    await clock.advance(1);
    await waiting;
    assert.equal(answer, null);
  });

  test("a waiting claim returns as soon as a job is enqueued", async (t) => {
    const { hf, clock } = await memory(t);
    const waiting = hf.claim(plain, { worker: "me", wait: "1h" });
    await clock.advance(1);
    const { id } = await hf.enqueue(plain, 1);
    assert.equal((await waiting)?.job.id, id);
  });

  test("a waiting claim takes a job whose enqueue shares the commit of its first try", async (t) => {
    const { hf, clock } = await memory(t);
    const { store } = hf.engine;
    const claim = store.claim.bind(store);
    let enqueued: Promise<unknown> | undefined;
    store.claim = (request) => {
      const claimed = claim(request);
      enqueued ??= hf.enqueue(plain, 1);
      return claimed;
    };
    const waiting = hf.claim(plain, { worker: "me", wait: "1h" });
    await clock.advance(50);
    assert.ok(await waiting);
    await enqueued;
  });

  test("a waiting claim returns when a delayed job is due", async (t) => {
    const { hf, clock } = await memory(t);
    const { id } = await hf.enqueue(plain, 1, { delay: 12_345 });
    let at = 0;
    const waiting = hf.claim(plain, { worker: "me", wait: "1h" }).then((claim) => {
      at = clock.now();
      return claim;
    });
    const start = clock.now();
    await clock.advance("20s");
    assert.equal((await waiting)?.job.id, id);
    assert.equal(at - start, 12_345);
  });

  test("a waiting claim takes a job soon after another worker's lease expired, with no other process alive", async (t) => {
    const { hf, clock } = await memory(t);
    const { id } = await hf.enqueue(plain, 1);
    await take(hf, plain, { lease: "7s" });
    const waiting = hf.claim(plain, { worker: "other", wait: "1h" });
    await clock.advance("12s");
    assert.equal((await waiting)?.job.id, id);
  });

  test("of several claims that wait for one job, one gets it and the others continue to wait", async (t) => {
    const { hf, clock } = await memory(t);
    const waiting = [1, 2, 3].map(() => hf.claim(plain, { worker: "me", wait: "10s" }));
    await clock.advance(1);
    await hf.enqueue(plain, 1);
    await clock.advance("10s");
    assert.equal((await Promise.all(waiting)).filter((claim) => claim !== null).length, 1);
  });

  test("closing the database ends a waiting claim with CLOSED", async (t) => {
    const { hf, clock } = await memory(t);
    const waiting = hf.claim(plain, { worker: "me", wait: "1h" });
    await clock.advance(1);
    const [, ended] = await Promise.allSettled([hf.close(), waiting]);
    assert.equal(ended.status, "rejected");
    assert.ok(code("CLOSED")(ended.reason));
  });
});

suite("an exclusive claim", () => {
  test("an exclusive claim keeps every other worker from its queue until it is settled", async (t) => {
    const { hf } = await memory(t);
    const other = job({ name: "other", queue: "lane", run: () => null });
    const elsewhere = job({ name: "elsewhere", run: () => null });
    await hf.enqueueMany(plain, [1, 2]);
    await hf.enqueue(other, 1);
    await hf.enqueue(elsewhere, 1);
    const claim = await take(hf, plain, { exclusive: true });
    for (const from of [plain, other, "lane"]) {
      assert.equal(await hf.claim(from, { worker: "other" }), null);
      assert.equal(await hf.claim(from, { worker: "other", exclusive: true }), null);
    }
    assert.ok(await hf.claim(elsewhere, { worker: "other" }), "other queues are open");
    await claim.succeed();
    assert.ok(await hf.claim(plain, { worker: "other" }));
  });

  test("an exclusive claim holds the queue's lock and is shown as its holder", async (t) => {
    const { hf, clock } = await memory(t);
    await hf.enqueue(plain, 1);
    const claim = await take(hf, plain, { exclusive: true, lease: "10s", worker: "agent-1" });
    const lock = hf.lock("lane");
    assert.deepEqual(await lock.get(), { holder: "agent-1", acquiredAt: clock.now(), expiresAt: clock.now() + 10_000 });
    assert.equal(await lock.isStale(), false);
    assert.equal(await lock.acquire("agent-2", "1m"), null);
    await claim.release();
    assert.equal(await lock.get(), null);
    assert.ok(await lock.acquire("agent-2", "1m"));
  });

  test("neither an exclusive claim nor any other is possible while the queue's lock is held", async (t) => {
    const { hf } = await memory(t);
    await hf.enqueue(plain, 1);
    const lock = hf.lock("lane");
    const token = await lock.acquire("maintenance", "1h");
    assert.ok(token);
    assert.equal(await hf.claim(plain, { worker: "me", exclusive: true }), null);
    assert.equal(await hf.claim(plain, { worker: "me" }), null);
    await lock.release(token);
    assert.ok(await hf.claim(plain, { worker: "me", exclusive: true }));
  });

  for (const [how, end] of Object.entries<(claim: Claim, hf: Holdfast) => PromiseLike<unknown>>({
    "has failed": (claim) => claim.fail("no"),
    "was released": (claim) => claim.release(),
    "was disposed of": (claim) => claim[Symbol.asyncDispose](),
    "was cancelled": (claim, hf) => hf.jobs.cancel(claim.job.id),
  })) {
    test(`an exclusive claim opens its queue when it ${how}, and wakes waiting claims`, async (t) => {
      const { hf, clock } = await memory(t);
      await hf.enqueueMany(plain, [1, 2]);
      const claim = await take(hf, plain, { exclusive: true });
      const waiting = hf.claim(plain, { worker: "other", wait: "1s" });
      await clock.advance(1);
      await end(claim, hf);
      await clock.advance(1);
      assert.ok(await waiting);
    });
  }

  test("an exclusive claim ends with its lease", async (t) => {
    const { hf, clock } = await memory(t);
    await hf.enqueue(plain, 1);
    const claim = await take(hf, plain, { exclusive: true, lease: "10s" });
    await clock.advance("9s");
    await claim.renew();
    await clock.advance("9s");
    assert.equal(await hf.claim(plain, { worker: "other" }), null);
    await clock.advance("1s");
    assert.ok(await hf.claim(plain, { worker: "other" }), "expired, the job is reclaimed and the queue is open");
    await assert.rejects(claim.succeed(), LeaseLostError);
  });

  test("an exclusive claim keeps workers out, and they continue by themselves afterwards", async (t) => {
    const { hf, clock } = await memory(t);
    const slow = stage<C>();
    const def = job({ name: "x", run: slow.run });
    await hf.enqueueMany(def, [1, 2]);
    const claim = await take(hf, def, { exclusive: true, renew: "auto" });
    hf.work([def]);
    await clock.advance("1m");
    assert.equal(slow.calls.length, 0);
    await claim.succeed();
    await slow.called(1);
  });
});

suite("a stored input that no longer fits", () => {
  test("a stored input that no longer matches the schema is quarantined, and the claim takes the next job", async (t) => {
    const { hf } = await memory(t);
    const old = job({ name: "x", run: () => null });
    const bad = await hf.enqueueMany(old, ["not a number", null]);
    const good = await hf.enqueue(old, 5);
    const claim = await take(hf, job({ name: "x", input: z.number() }));
    assert.equal(claim.job.id, good.id);
    for (const { id } of bad) {
      const seen = await see(hf, id);
      assert.deepEqual([seen.state, seen.error?.code], ["quarantined", "INPUT_INVALID"]);
    }
  });

  test("a claim returns null if the only job was quarantined for its input", async (t) => {
    const { hf } = await memory(t);
    await hf.enqueue(job({ name: "x", run: () => null }), "not a number");
    const def = job({ name: "x", input: z.number() });
    assert.equal(await hf.claim(def, { worker: "me", exclusive: true }), null);
    assert.equal(await hf.lock("x").get(), null, "and the queue is open");
  });

  test("a claim by queue name returns such a job, because no schema is known", async (t) => {
    const { hf } = await memory(t);
    await hf.enqueue(job({ name: "x", run: () => null }), "not a number");
    assert.equal((await take(hf, "x")).job.input, "not a number");
  });
});

suite("leaving", () => {
  test('close releases unsettled claims with `renew: "auto"`, and counts no attempt', async (t) => {
    const { path } = await file(t);
    let id: string;
    {
      await using hf = await open(path);
      ({ id } = await hf.enqueue(plain, 1));
      await take(hf, plain, { renew: "auto" });
    }
    await using hf = await open(path);
    const left = await see(hf, id);
    assert.deepEqual([left.state, left.attempt, left.crashes], ["pending", 0, 0]);
  });
});
