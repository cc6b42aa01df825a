import assert from "node:assert/strict";
import { suite } from "node:test";
import { Busy } from "../crash/busy.ts";
import { type Claim, type Holdfast, job, type JobContext, LeaseLostError } from "../../src/index.ts";
import { file, interruptedChild, memory, see, seeAll, stage, test } from "./parts.ts";
import { DEFINITIONS } from "./children/tasks.ts";

/**
 * The scenarios that the processing lock's analysis lists, by name. An "entry" is a job of the queue "merge", the
 * "processing lock" that queue's lock; a "worker" that "crashes" claims and is never heard of again.
 */
const merge = job({ name: "merge", crashes: 10, run: (c: JobContext<unknown>) => c.input });

async function claimAs(hf: Holdfast, worker: string, options: object = {}): Promise<Claim> {
  const claim = await hf.claim("merge", { worker, lease: "5m", ...options });
  assert.ok(claim, "there is something to claim");
  return claim;
}

suite("seed 002: the scenarios covered", () => {
  test("Worker crash leaves stale claimed entry", async (t) => {
    const { hf, clock } = await memory(t);
    const { id } = await hf.enqueue(merge, 1);
    await claimAs(hf, "agent-1");
    await clock.advance("5m");
    // No process has looked yet: the entry is as the crash left it.
    const left = await see(hf, id);
    assert.deepEqual([left.state, left.attempt, left.crashes], ["running", 1, 0]);
    const { entriesReclaimed } = await hf.recovery.reclaimStale(0);
    assert.equal(entriesReclaimed, 1);
    const back = await see(hf, id);
    assert.deepEqual([back.state, back.attempt, back.crashes], ["pending", 1, 1]);
  });

  test("Stale processing lock allows new claims", async (t) => {
    const { hf, clock } = await memory(t);
    await hf.enqueue(merge, 1);
    assert.ok(await hf.lock("merge").acquire("agent-1", "5m"));
    assert.equal(await hf.claim("merge", { worker: "agent-2" }), null);
    await clock.advance("5m");
    assert.equal(await hf.lock("merge").isStale(), true);
    assert.ok(await hf.claim("merge", { worker: "agent-2", exclusive: true }));
    assert.equal((await hf.lock("merge").get())?.holder, "agent-2");
  });

  test("Recovery allows new worker to claim work", async (t) => {
    const { hf, clock } = await memory(t);
    const { id } = await hf.enqueue(merge, 1);
    const crashed = await claimAs(hf, "agent-1", { exclusive: true });
    assert.equal(await hf.claim("merge", { worker: "agent-2" }), null);
    await clock.advance("5m");
    await hf.recovery.recoverStale();
    const claim = await claimAs(hf, "agent-2");
    assert.equal(claim.job.id, id);
    await claim.succeed("merged");
    await assert.rejects(crashed.succeed("zombie"), LeaseLostError);
    assert.equal((await see(hf, id)).output, "merged");
  });

  test("No permanent locks after crash", async (t) => {
    const { hf, clock } = await memory(t);
    await hf.enqueue(merge, 1);
    await claimAs(hf, "agent-1", { exclusive: true });
    await hf.lock("other").acquire("agent-1", "1h");
    await clock.advance("1h");
    await hf.recovery.recoverStale();
    assert.equal(await hf.lock("merge").get(), null);
    assert.equal(await hf.lock("other").get(), null);
    assert.ok(await hf.lock("merge").acquire("agent-2", "5m"));
    assert.ok(await hf.lock("other").acquire("agent-2", "5m"));
  });

  test("Recent entries not reclaimed (threshold)", async (t) => {
    const { hf, clock } = await memory(t);
    const { id } = await hf.enqueue(merge, 1);
    await claimAs(hf, "agent-1");
    await clock.advance(299_999);
    assert.equal((await hf.recovery.reclaimStale(0)).entriesReclaimed, 0, "its lease is not over");
    await clock.advance("1m");
    assert.equal((await hf.recovery.reclaimStale("1m")).entriesReclaimed, 0, "not over for a minute");
    assert.equal((await see(hf, id)).state, "running");
    await clock.advance(1);
    assert.equal((await hf.recovery.reclaimStale("1m")).entriesReclaimed, 1);
  });

  test("Mixed stale and recent entries", async (t) => {
    const { hf, clock } = await memory(t);
    await hf.enqueueMany(merge, [1, 2, 3, 4]);
    await claimAs(hf, "agent-1");
    await claimAs(hf, "agent-2");
    await clock.advance("4m");
    const recent = await claimAs(hf, "agent-3");
    await clock.advance("1m");
    assert.equal((await hf.recovery.reclaimStale(0)).entriesReclaimed, 2);
    assert.deepEqual(
      (await seeAll(hf)).map(({ state }) => state),
      ["pending", "pending", "running", "pending"],
    );
    await recent.succeed();
  });

  test("Reclaim is idempotent", async (t) => {
    const { hf, clock } = await memory(t);
    const { id } = await hf.enqueue(merge, 1);
    await claimAs(hf, "agent-1");
    await clock.advance("10m");
    assert.equal((await hf.recovery.reclaimStale(0)).entriesReclaimed, 1);
    const once = await see(hf, id);
    for (let again = 0; again < 3; again++) {
      assert.equal((await hf.recovery.reclaimStale(0)).entriesReclaimed, 0);
      assert.equal((await hf.recovery.recoverStale()).entriesReclaimed, 0);
    }
    assert.deepEqual(await see(hf, id), once);
    assert.equal((await hf.recovery.stats()).entriesReclaimed, 1);
  });

  test("Processing lock prevents new claims", async (t) => {
    const { hf } = await memory(t);
    await hf.enqueueMany(merge, [1, 2]);
    const claim = await claimAs(hf, "agent-1", { exclusive: true });
    assert.equal(await hf.claim("merge", { worker: "agent-2" }), null);
    assert.equal(await hf.claim("merge", { worker: "agent-2", exclusive: true }), null);
    assert.equal(await hf.claim(merge, { worker: "agent-1" }), null, "not even for its holder");
    assert.equal(await hf.lock("merge").acquire("agent-2", "5m"), null);
    await claim.succeed();
    assert.ok(await hf.claim("merge", { worker: "agent-2" }));
  });

  test("Extend lock updates expiration", async (t) => {
    const { hf, clock } = await memory(t);
    const lock = hf.lock("merge");
    const token = (await lock.acquire("agent-1", "5m")) ?? "";
    await clock.advance("4m");
    assert.equal(await lock.extend(token, "5m"), true);
    assert.equal((await lock.get())?.expiresAt, clock.now() + 300_000, "from now");
    await clock.advance("4m");
    assert.equal(await lock.acquire("agent-2", "5m"), null);
    assert.equal(await lock.isStale(), false);
  });

  test("Wrong worker cannot release lock", async (t) => {
    const { hf, clock } = await memory(t);
    const lock = hf.lock("merge");
    const first = (await lock.acquire("agent-1", "5m")) ?? "";
    assert.equal(await lock.release("agent-1"), false, "a name is no token");
    await clock.advance("5m");
    const second = (await lock.acquire("agent-1", "5m")) ?? "";
    assert.equal(await lock.release(first), false, "nor is the token of an earlier holder of that name");
    assert.equal((await lock.get())?.holder, "agent-1");
    assert.equal(await lock.release(second), true);
  });

  test("Concurrent reclaim is safe", async (t) => {
    const { another, clock } = await file(t);
    const handles = [await another(), await another(), await another()];
    const [hf] = handles as [Holdfast, Holdfast, Holdfast];
    await hf.enqueueMany(merge, Array(50).fill(0));
    for (let i = 0; i < 50; i++) await claimAs(hf, `agent-${i}`);
    await clock.advance("5m");
    const stats = await Promise.all(handles.flatMap((one) => [one.recovery.reclaimStale(0), one.recovery.recoverStale()]));
    assert.equal(
      stats.reduce((sum, { entriesReclaimed }) => sum + entriesReclaimed, 0),
      50,
    );
    const jobs = await seeAll(hf);
    assert.ok(jobs.every(({ state, crashes }) => state === "pending" && crashes === 1));
    assert.equal((await hf.recovery.stats()).entriesReclaimed, 50);
  });

  test("Entry state preserved after reclaim", async (t) => {
    const { hf, clock } = await memory(t);
    const { id } = await hf.enqueue(merge, { branch: "main", files: ["a", "b"] }, { id: "entry", key: "main", priority: 7 });
    await hf.enqueue(merge, "later", { priority: 7 });
    const before = await see(hf, id);
    await claimAs(hf, "agent-1");
    await clock.advance("5m");
    await hf.recovery.reclaimStale(0);
    const { attempt, crashes, startedAt, ...after } = await see(hf, id);
    const { attempt: _attempt, crashes: _crashes, ...kept } = before;
    assert.deepEqual(after, kept);
    assert.deepEqual([attempt, crashes, startedAt], [1, 1, before.createdAt]);
    assert.equal((await hf.enqueue(merge, 1, { key: "main" })).id, id, "its key is still its own");
    assert.equal((await claimAs(hf, "agent-2")).job.id, id, "and so is its place");
  });

  test("Worker can reclaim its own lock if expired", async (t) => {
    const { hf, clock } = await memory(t);
    const lock = hf.lock("merge");
    const old = (await lock.acquire("agent-1", "5m")) ?? "";
    assert.equal(await lock.acquire("agent-1", "5m"), null);
    await clock.advance("5m");
    const token = await lock.acquire("agent-1", "5m");
    assert.ok(token);
    assert.notEqual(token, old);
    assert.deepEqual(await lock.get(), { holder: "agent-1", acquiredAt: clock.now(), expiresAt: clock.now() + 300_000 });
    assert.equal(await lock.extend(old, "5m"), false);
  });
});

/** Nothing here calls recoverStale, reclaimStale or any other recovery by hand. */
suite("seed 002: recovery by itself", () => {
  test("the next claim reclaims a crashed worker's entry", async (t) => {
    const { hf, clock } = await memory(t);
    const { id } = await hf.enqueue(merge, 1);
    await claimAs(hf, "agent-1");
    await clock.advance("5m");
    const claim = await claimAs(hf, "agent-2");
    assert.deepEqual([claim.job.id, claim.job.crashes], [id, 1]);
    const stats = { locksCleaned: 0, entriesReclaimed: 1, recoveryTimestamp: clock.now(), staleLocks: 0, staleEntries: 0 };
    assert.deepEqual(await hf.recovery.stats(), stats);
  });

  test("the next claim reclaims a crashed worker's exclusive entry, and its lock", async (t) => {
    const { hf, clock } = await memory(t);
    const { id } = await hf.enqueue(merge, 1);
    await claimAs(hf, "agent-1", { exclusive: true });
    await clock.advance("5m");
    assert.equal((await claimAs(hf, "agent-2", { exclusive: true })).job.id, id);
    assert.equal((await hf.lock("merge").get())?.holder, "agent-2");
  });

  test("the next claim from another process reclaims it, too", async (t) => {
    const { another, clock } = await file(t);
    const [mine, theirs] = [await another(), await another()];
    const { id } = await mine.enqueue(merge, 1);
    await claimAs(mine, "agent-1");
    await clock.advance("5m");
    assert.equal((await claimAs(theirs, "agent-2")).job.id, id);
  });

  test("an idle worker runs a crashed worker's entry within a second of its lease's end", async (t) => {
    const { hf, clock } = await memory(t);
    const slow = stage<JobContext<unknown>>();
    const { id } = await hf.enqueue(merge, 1);
    await claimAs(hf, "agent-1");
    hf.work([merge.handle(slow.run)]);
    await clock.advance(299_999);
    assert.equal(slow.calls.length, 0);
    await clock.advance("1s");
    assert.equal(slow.calls.length, 1);
    assert.equal(slow.calls[0]?.context.id, id);
  });

  test("an expired lock is removed and counted although no process wants it", async (t) => {
    const { hf, clock } = await memory(t);
    hf.work([merge]);
    await hf.lock("somewhere").acquire("agent-1", "5m");
    await clock.advance(299_999);
    assert.ok(await hf.lock("somewhere").get());
    await clock.advance("1s");
    assert.equal(await hf.lock("somewhere").get(), null);
    const { locksCleaned, entriesReclaimed } = await hf.recovery.stats();
    assert.deepEqual([locksCleaned, entriesReclaimed], [1, 0]);
  });

  test("an expired processing lock lets the next claim through", async (t) => {
    const { hf, clock } = await memory(t);
    await hf.enqueue(merge, 1);
    await hf.lock("merge").acquire("agent-1", "5m");
    await clock.advance("5m");
    assert.ok(await hf.claim("merge", { worker: "agent-2" }));
  });

  test("more crashed entries than one claim reclaims all come back", async (t) => {
    const { hf, clock } = await memory(t);
    const accepted = await hf.enqueueMany(merge, Array(120).fill(0));
    for (let i = 0; i < 120; i++) await claimAs(hf, `agent-${i}`, { lease: "1s" });
    await clock.advance("1s");
    hf.work([merge]);
    for (const one of accepted) {
      const { state, crashes } = await hf.jobs.wait(one);
      assert.deepEqual([state, crashes], ["succeeded", 1]);
    }
    assert.equal((await hf.recovery.stats()).entriesReclaimed, 120);
  });

  test("the entries of a killed process run again here within a second, long before their leases end", async (t) => {
    const { hf, kill } = await interruptedChild(t);
    hf.work(DEFINITIONS);
    const killedAt = performance.now();
    const busy = new Busy();
    await kill();
    const ended = await Promise.all((await seeAll(hf)).map(({ id }) => hf.jobs.wait(id)));
    const took = performance.now() - killedAt;
    assert.deepEqual(
      ended.map(({ state, crashes }) => [state, crashes]),
      [
        ["succeeded", 1],
        ["failed", 1],
        ["succeeded", 1],
      ],
    );
    assert.ok(busy.fair(took) < 5_000, `it took ${took} ms, with leases of 30 s`);
    assert.equal((await hf.recovery.stats()).entriesReclaimed, 3);
  });
});
