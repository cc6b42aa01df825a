import assert from "node:assert/strict";
import { suite } from "node:test";
import { job, type JobContext } from "../../src/index.ts";
import { code, file, memory, stage, test, unchecked } from "./parts.ts";

suite("a lock", () => {
  test("a lock has one holder until it is released", async (t) => {
    const { hf } = await memory(t);
    const lock = hf.lock("deploy");
    const token = await lock.acquire("a", "1m");
    assert.ok(token);
    assert.equal(await lock.acquire("b", "1m"), null);
    assert.equal(await lock.acquire("a", "1m"), null, "not even by its own holder");
    assert.equal(await lock.release(token), true);
    assert.equal(await lock.release(token), false, "once is enough");
    assert.ok(await lock.acquire("b", "1m"));
  });

  test("locks with different names are independent", async (t) => {
    const { hf } = await memory(t);
    const token = await hf.lock("a").acquire("me", "1m");
    assert.ok(token);
    assert.ok(await hf.lock("b").acquire("me", "1m"));
    assert.equal(await hf.lock("b").release(token), false, "a token opens its own lock only");
  });

  test("of ten concurrent acquires in two processes, one succeeds", async (t) => {
    const { another } = await file(t);
    const handles = [await another(), await another()];
    const tokens = await Promise.all(
      Array.from({ length: 10 }, (_, i) => handles[i % 2]?.lock("deploy").acquire(`agent-${i}`, "1m")),
    );
    assert.equal(tokens.filter((token) => token !== null).length, 1);
  });

  test("a lock shows its holder, start and expiry; a free lock is null", async (t) => {
    const { hf, clock } = await memory(t);
    const lock = hf.lock("deploy");
    assert.equal(await lock.get(), null);
    assert.equal(await lock.isStale(), false);
    await lock.acquire("agent-1", "1m");
    const held = { holder: "agent-1", acquiredAt: clock.now(), expiresAt: clock.now() + 60_000 };
    assert.deepEqual(await lock.get(), held);
    await clock.advance("1m");
    assert.deepEqual(await lock.get(), held, "an expired one is shown, too");
    assert.equal(await lock.isStale(), true);
  });

  test("a lock acquired without a duration lasts five minutes", async (t) => {
    const { hf, clock } = await memory(t);
    const lock = hf.lock("deploy");
    assert.ok(await lock.acquire("a"));
    assert.equal((await lock.get())?.expiresAt, clock.now() + 300_000);
    await clock.advance("299999ms");
    assert.equal(await lock.acquire("b"), null);
    await clock.advance(1);
    assert.ok(await lock.acquire("b"));
  });

  test("a lock expires to the millisecond, and is free then", async (t) => {
    const { hf, clock } = await memory(t);
    const lock = hf.lock("deploy");
    await lock.acquire("a", "1m");
    await clock.advance(59_999);
    assert.deepEqual([await lock.isStale(), await lock.acquire("b", "1m")], [false, null]);
    await clock.advance(1);
    assert.equal(await lock.isStale(), true);
    assert.ok(await lock.acquire("b", "1m"));
    assert.equal((await lock.get())?.holder, "b");
    assert.equal(await lock.isStale(), false);
  });

  test("an extension counts from now, not from the expiry, and may shorten the lock", async (t) => {
    const { hf, clock } = await memory(t);
    const lock = hf.lock("deploy");
    const token = (await lock.acquire("a", "1m")) ?? "";
    await clock.advance("10s");
    assert.equal(await lock.extend(token, "1m"), true);
    assert.equal((await lock.get())?.expiresAt, clock.now() + 60_000);
    assert.equal(await lock.extend(token, "1s"), true);
    assert.equal((await lock.get())?.expiresAt, clock.now() + 1_000);
  });

  test("only the current token extends or releases a lock", async (t) => {
    const { hf, clock } = await memory(t);
    const lock = hf.lock("deploy");
    const zombie = (await lock.acquire("agent-1", "1m")) ?? "";
    await clock.advance("1m");
    assert.equal(await lock.extend(zombie, "1m"), false, "expired is expired, even when no other holder has it");
    assert.equal(await lock.release(zombie), false);
    const living = await lock.acquire("agent-1", "1m");
    assert.ok(living && living !== zombie);
    assert.equal(await lock.extend(zombie, "1h"), false);
    assert.equal(await lock.release(zombie), false, "the same name is not the same holder");
    assert.equal((await lock.get())?.expiresAt, clock.now() + 60_000);
    for (const wrong of ["", "agent-1", "no token"]) {
      assert.equal(await lock.extend(wrong, "1h"), false);
      assert.equal(await lock.release(wrong), false);
    }
    assert.equal(await lock.release(living), true);
  });

  test("a lock and its token survive a reopening", async (t) => {
    const { another } = await file(t);
    const first = await another();
    const token = (await first.lock("deploy").acquire("a", "1h")) ?? "";
    await first.close();
    const lock = (await another()).lock("deploy");
    assert.equal(await lock.acquire("b", "1h"), null);
    assert.equal(await lock.release(token), true);
  });

  test("invalid arguments of locks are rejected, and nothing changes", async (t) => {
    const { hf } = await memory(t);
    const lock = hf.lock("deploy");
    for (const name of ["", "a\nb", "x".repeat(201), unchecked<string>(7)])
      assert.throws(() => hf.lock(name), code("NAME_INVALID"));
    await assert.rejects(lock.acquire("", "1m"), code("NAME_INVALID"));
    for (const ttl of [0, -1, Number.NaN, unchecked<number>("long")]) {
      await assert.rejects(lock.acquire("a", ttl), code("DURATION_INVALID"));
    }
    assert.equal(await lock.get(), null);
    const token = (await lock.acquire("a", "1m")) ?? "";
    const before = await lock.get();
    await assert.rejects(lock.extend(token, 0), code("DURATION_INVALID"));
    assert.deepEqual(await lock.get(), before);
  });
});

suite("the lock of a queue", () => {
  type C = JobContext<unknown>;

  test("the lock of a queue keeps workers out while it is held, and they continue at its release", async (t) => {
    const { hf, clock } = await memory(t);
    const slow = stage<C>();
    const def = job({ name: "x", queue: "lane", run: slow.run });
    const token = (await hf.lock("lane").acquire("maintenance", "1h")) ?? "";
    hf.work([def]);
    await hf.enqueue(def, 1);
    await clock.advance("1m");
    assert.equal(slow.calls.length, 0);
    await hf.lock("lane").release(token);
    await slow.called(1);
  });

  test("the lock of a queue lets running jobs finish and does not affect other queues", async (t) => {
    const { hf, clock } = await memory(t);
    const slow = stage<C>();
    const def = job({ name: "x", queue: "lane", run: slow.run });
    const other = job({ name: "other", run: slow.run });
    hf.work([def, other]);
    const running = await hf.enqueue(def, "running");
    await slow.called(1);
    await hf.lock("lane").acquire("maintenance", "1h");
    await hf.enqueue(def, "kept out");
    await hf.enqueue(other, "elsewhere");
    await slow.called(2);
    slow.calls[0]?.end("finished");
    assert.equal((await hf.jobs.wait(running)).output, "finished");
    await clock.advance("1m");
    assert.deepEqual(
      slow.calls.map(({ context }) => context.input),
      ["running", "elsewhere"],
    );
  });

  for (const seconds of [7, 8, 9, 10, 11]) {
    test(`the lock of a queue that expires after ${seconds} s opens the queue within a second, without any call`, async (t) => {
      const { hf, clock } = await memory(t);
      const slow = stage<C>();
      const def = job({ name: "x", run: slow.run });
      await hf.lock("x").acquire("gone", `${seconds}s`);
      hf.work([def]);
      await hf.enqueue(def, 1);
      await clock.advance(`${seconds - 1}s`);
      assert.equal(slow.calls.length, 0);
      await clock.advance("2s");
      assert.equal(slow.calls.length, 1);
    });
  }
});
