import assert from "node:assert/strict";
import type { ProcessId } from "../../src/core/text/ids.ts";
import {
  add,
  addOne,
  changesDuring,
  claim,
  claimOne,
  judged,
  LEASE,
  pass,
  register,
  running,
  see,
  seeAll,
  settle,
  SUCCEEDED,
  takeBack,
} from "./parts.ts";
import type { Check } from "./suite.ts";
import type { ReclaimTotals } from "../../src/store/recoveries.ts";
import type { Store } from "../../src/store/store.ts";
import { countJobs } from "../../src/store/queries.ts";

const NOTHING = { entries: 0, quarantined: 0, failed: 0, replaced: 0, shortened: 0 };

export function reclaimCases(check: Check): void {
  // ── what is stale ──

  check("without running jobs nothing is stale", async ({ store }) => {
    await add(store, {});
    assert.deepEqual(await store.recoveries.stale({ dead: [], skewed: true, limit: 10 }), []);
  });

  check("a dead process's leases are stale at once, and a live one's are not", async ({ store }) => {
    const [dead, alive] = [await register(store), await register(store)];
    await add(store, {}, {}, {});
    const mine = await claim(store, { holder: dead, max: 2 });
    await claim(store, { holder: alive });
    const stale = await store.recoveries.stale({ dead: [dead], skewed: false, limit: 10 });
    assert.deepEqual(
      stale.map(({ job, holder }) => [job, holder]),
      mine.map(({ job }) => [job, dead]),
    );
    assert.deepEqual(await store.recoveries.stale({ dead: [], skewed: false, limit: 10 }), []);
    assert.deepEqual(await store.recoveries.stale({ dead: [12_345 as ProcessId], skewed: false, limit: 10 }), []);
  });

  check("a stale lease is listed once, whatever the reasons", async ({ store, clock }) => {
    const dead = await register(store);
    await add(store, {});
    await claim(store, { holder: dead });
    pass(clock, LEASE);
    assert.equal((await store.recoveries.stale({ dead: [dead, dead], skewed: true, limit: 10 })).length, 1);
  });

  check("the longest expired leases are listed first, up to the limit", async ({ store, clock }) => {
    const first = await running(store);
    pass(clock, 1_000);
    const second = await running(store);
    pass(clock, 1_000);
    await running(store);
    pass(clock, LEASE);
    const stale = await store.recoveries.stale({ dead: [], skewed: false, limit: 2 });
    assert.deepEqual(
      stale.map(({ job }) => job),
      [first.job, second.job],
    );
  });

  check("the limit applies over all reasons together", async ({ store, clock }) => {
    const dead = await register(store);
    await add(store, {}, {});
    await claim(store, { holder: dead });
    pass(clock, LEASE);
    await add(store, {}, {});
    await claim(store, { holder: dead });
    for (const limit of [1, 2, 3, 4])
      assert.equal((await store.recoveries.stale({ dead: [dead], skewed: true, limit })).length, limit);
  });

  check("a lease with an impossible expiry is listed only if asked for", async ({ store, clock }) => {
    const claimed = await running(store);
    clock.set(clock.now() - 1);
    assert.deepEqual(await store.recoveries.stale({ dead: [], skewed: false, limit: 10 }), []);
    const stale = await store.recoveries.stale({ dead: [], skewed: true, limit: 10 });
    assert.deepEqual(
      stale.map(({ job, left }) => [job, left]),
      [[claimed.job, LEASE + 1]],
    );
    clock.set(clock.now() + 1);
    assert.deepEqual(await store.recoveries.stale({ dead: [], skewed: true, limit: 10 }), []);
  });

  check("a settled, cancelled or released job is not stale", async ({ store, clock }) => {
    const [a, b, c] = [await running(store), await running(store), await running(store, { delay: 0 })];
    pass(clock, LEASE);
    await settle(store, a, SUCCEEDED);
    await store.cancel(b.id);
    await settle(store, c, { kind: "released" });
    assert.deepEqual(await store.recoveries.stale({ dead: [], skewed: true, limit: 10 }), []);
  });

  // ── reclaim ──

  check("a reclaimed job is unchanged but for its crash count", async ({ store, clock }) => {
    const id = await addOne(store, { id: "a", key: "k", priority: 3, input: JSON.stringify("v".repeat(4_000)) });
    const before = await see(store, id);
    const claimed = await claimOne(store);
    pass(clock, LEASE);
    assert.deepEqual(await takeBack(store, "crashed", claimed), { ...NOTHING, entries: 1, quarantined: 0, failed: 0 });
    const { startedAt: _, ...after } = await see(store, id);
    assert.deepEqual(after, { ...before, attempt: 1, crashes: 1 });
    const again = await claimOne(store);
    assert.deepEqual([again.id, again.attempt, again.input], [id, 2, claimed.input]);
    assert.ok(again.fence > claimed.fence);
  });

  check("a reclaimed job has no holder", async ({ store }) => {
    const holder = await register(store);
    await add(store, {});
    await takeBack(store, "crashed", await claimOne(store, { holder }));
    assert.deepEqual((await store.queries.overview()).running, new Map());
    await claimOne(store);
    assert.deepEqual((await store.queries.overview()).running, new Map([[null, 1]]));
  });

  check("a reclaim is idempotent", async ({ store }) => {
    const claimed = await running(store);
    await takeBack(store, "crashed", claimed);
    const before = { jobs: await seeAll(store), recovery: (await store.recoveries.history({ limit: 0 })).totals };
    assert.deepEqual(await takeBack(store, "crashed", claimed), NOTHING);
    assert.deepEqual(await takeBack(store, "crashed", claimed, claimed), NOTHING);
    assert.deepEqual({ jobs: await seeAll(store), recovery: (await store.recoveries.history({ limit: 0 })).totals }, before);
  });

  check("a lease that is judged twice in one call is reclaimed once", async ({ store }) => {
    const claimed = await running(store);
    assert.equal((await takeBack(store, "crashed", claimed, claimed)).entries, 1);
    assert.equal((await see(store, claimed.id)).crashes, 1);
  });

  check("a judgement of a lease that was renewed since changes nothing", async ({ store, clock }) => {
    const claimed = await running(store);
    pass(clock, LEASE);
    const [stale] = await store.recoveries.stale({ dead: [], skewed: false, limit: 1 });
    await store.renew([{ ...claimed, lease: LEASE }]);
    assert.deepEqual(await takeBack(store, "crashed", stale ?? assert.fail()), NOTHING);
    assert.deepEqual(await store.inspect([claimed]), ["held"]);
    assert.equal((await store.recoveries.history({ limit: 0 })).totals.entriesReclaimed, 0);
  });

  check("a judgement of a lease that passed to another holder changes nothing", async ({ store }) => {
    const old = await running(store);
    await settle(store, old, { kind: "released" });
    const now = await claimOne(store);
    assert.equal(now.expiresAt, old.expiresAt, "only the fence tells them apart");
    for (const verdict of ["crashed", "interrupted", "stalled", "cut"] as const) {
      assert.deepEqual(await takeBack(store, verdict, old), NOTHING);
    }
    assert.deepEqual(await store.inspect([now]), ["held"]);
    assert.equal((await see(store, now.id)).crashes, 0);
  });

  check("a judgement of a finished, cancelled or pruned job changes nothing", async ({ store }) => {
    const [a, b, c] = [await running(store), await running(store), await running(store)];
    await store.cancel(c.id);
    await store.prune({ state: "cancelled", limit: 9 });
    await settle(store, a, SUCCEEDED);
    await store.cancel(b.id);
    const before = await seeAll(store);
    assert.deepEqual(await takeBack(store, "crashed", a, b, c), NOTHING);
    assert.deepEqual(await seeAll(store), before);
  });

  check("an outdated judgement does not affect the others", async ({ store }) => {
    const [a, b, c] = [await running(store), await running(store), await running(store)];
    await settle(store, b, SUCCEEDED);
    assert.equal((await takeBack(store, "crashed", a, b, c)).entries, 2);
    assert.deepEqual(
      (await seeAll(store)).map(({ state, crashes }) => [state, crashes]),
      [
        ["pending", 1],
        ["succeeded", 0],
        ["pending", 1],
      ],
    );
  });

  check("a crash and a stall count as a crash, and an interruption does not", async ({ store }) => {
    for (const [verdict, crashes, attempt] of [
      ["crashed", 1, 1],
      ["interrupted", 0, 0],
      ["stalled", 1, 1],
    ] as const) {
      const claimed = await running(store, { name: verdict });
      await takeBack(store, verdict, claimed);
      const job = await see(store, claimed.id);
      assert.deepEqual([job.state, job.crashes, job.attempt], ["pending", crashes, attempt], verdict);
    }
  });

  check("a job that keeps crashing its workers is quarantined, with an error that says so", async ({ store, clock }) => {
    const id = await addOne(store, { policy: { crashes: 2 } });
    assert.deepEqual(await takeBack(store, "crashed", await claimOne(store)), {
      ...NOTHING,
      entries: 1,
      quarantined: 0,
      failed: 0,
    });
    assert.deepEqual(await takeBack(store, "crashed", await claimOne(store)), {
      ...NOTHING,
      entries: 1,
      quarantined: 1,
      failed: 0,
    });
    const job = await see(store, id);
    assert.deepEqual([job.state, job.crashes, job.error?.code, job.finishedAt], ["quarantined", 2, "CRASHED", clock.now()]);
    assert.deepEqual(await claim(store), []);
    assert.equal((await countJobs(store.queries)).quarantined, 1);
  });

  check("a job that must not be interrupted is failed by a reclaim, and counted", async ({ store }) => {
    const claimed = await running(store, { policy: { onInterrupt: "fail" } });
    assert.deepEqual(await takeBack(store, "crashed", claimed), { ...NOTHING, entries: 1, quarantined: 0, failed: 1 });
    assert.equal((await see(store, claimed.id)).state, "failed");
    assert.equal((await countJobs(store.queries)).failed, 1);
  });

  check("a cut lease ends a lease from now, and is still held", async ({ store, clock }) => {
    const claimed = await running(store);
    clock.set(clock.now() - 3_600_000);
    assert.deepEqual(await takeBack(store, "cut", claimed), { ...NOTHING, shortened: 1 });
    assert.deepEqual(await store.inspect([claimed]), ["held"]);
    pass(clock, LEASE - 1);
    assert.deepEqual(await store.recoveries.stale({ dead: [], skewed: true, limit: 1 }), []);
    pass(clock, 1);
    assert.equal((await store.recoveries.stale({ dead: [], skewed: false, limit: 1 }))[0]?.job, claimed.job);
    assert.deepEqual((await store.recoveries.history({ limit: 0 })).totals.log, [], "nothing was reclaimed");
  });

  check("a cut of a lease that was renewed since changes nothing", async ({ store, clock }) => {
    const claimed = await running(store);
    clock.set(clock.now() - 3_600_000);
    await store.renew([{ ...claimed, lease: 60_000 }]);
    assert.deepEqual(await takeBack(store, "cut", claimed), NOTHING);
    pass(clock, 59_999);
    assert.deepEqual(await store.recoveries.stale({ dead: [], skewed: true, limit: 1 }), []);
  });

  check("a reclaim names the ended leases and the queues with work", async ({ store }) => {
    const [a, b] = [await running(store, { name: "a" }), await running(store, { name: "b" })];
    const changes = await changesDuring(store, () =>
      store.recoveries.reclaim([judged(a, "crashed"), judged({ ...b, expiresAt: 1 }, "crashed")], "test"),
    );
    assert.deepEqual(
      changes.flatMap(({ ended }) => ended),
      [{ job: a.job, fence: a.fence }],
    );
    assert.ok(changes.some(({ ready }) => ready?.has("a")));
  });

  // ── on record ──

  check("without a reclaim the recovery log is empty", async ({ store }) => {
    assert.deepEqual(await reclaimTotals(store), { locksCleaned: 0, entriesReclaimed: 0, recoveredAt: 0, log: [] });
    assert.deepEqual(await store.recoveries.reclaim([], "nothing"), NOTHING);
    assert.deepEqual(await store.locks.clean(), { removed: [], shortened: [] });
    assert.deepEqual(await reclaimTotals(store), { locksCleaned: 0, entriesReclaimed: 0, recoveredAt: 0, log: [] });
  });

  check("the recovery log has totals, and entries with time and cause, newest first", async ({ store, clock }) => {
    const first = clock.now();
    const [a, b] = [await running(store), await running(store, { policy: { crashes: 1 } })];
    await store.recoveries.reclaim([judged(a, "crashed"), judged(b, "crashed")], "process 7 died");
    pass(clock, 1_000);
    await store.locks.acquire("l", "me", "t", 10);
    pass(clock, 10);
    assert.equal((await store.locks.clean()).removed.length, 1);
    const second = clock.now();
    pass(clock, 1_000);
    const c = await running(store, { name: "c", policy: { onInterrupt: "fail" } });
    await store.recoveries.reclaim([judged(c, "stalled")], "stalled");
    const { log, ...totals } = await reclaimTotals(store);
    assert.deepEqual(totals, { locksCleaned: 1, entriesReclaimed: 3, recoveredAt: clock.now() });
    assert.deepEqual(log, [
      { at: clock.now(), cause: "stalled", entries: 1, quarantined: 0, failed: 1, locks: 0 },
      { at: second, cause: log[1]?.cause, entries: 0, quarantined: 0, failed: 0, locks: 1 },
      { at: first, cause: "process 7 died", entries: 2, quarantined: 1, failed: 0, locks: 0 },
    ]);
  });

  check("the log shows the newest fifty entries, and the totals cover all", async ({ store, clock }) => {
    await add(store, { policy: { crashes: 1_000, delay: 0 } });
    for (let n = 0; n < 60; n++) {
      pass(clock, 1);
      await store.recoveries.reclaim([judged(await claimOne(store), "crashed")], `no. ${n}`);
    }
    const { log, entriesReclaimed } = (await store.recoveries.history({ limit: 0 })).totals;
    assert.equal(entriesReclaimed, 60);
    assert.deepEqual(
      log.map(({ cause }) => cause),
      Array.from({ length: 50 }, (_, n) => `no. ${59 - n}`),
    );
  });

  check.shared("the recovery log survives a reopening", async ({ store, reopen }) => {
    await store.recoveries.reclaim([judged(await running(store), "crashed")], "it died");
    const before = (await store.recoveries.history({ limit: 0 })).totals;
    assert.equal(before.log.length, 1);
    assert.deepEqual((await (await reopen()).recoveries.history({ limit: 0 })).totals, before);
  });

  check.shared("two processes that reclaim the same lease do it once", async ({ store, another }) => {
    const other = await another();
    const claimed = await running(store);
    const both = await Promise.all([takeBack(store, "crashed", claimed), takeBack(other, "crashed", claimed)]);
    assert.equal(both[0].entries + both[1].entries, 1);
    assert.equal((await see(store, claimed.id)).crashes, 1);
    assert.equal((await store.recoveries.history({ limit: 0 })).totals.entriesReclaimed, 1);
  });
}

async function reclaimTotals(store: Store): Promise<ReclaimTotals> {
  const { reports: _, ...totals } = (await store.recoveries.history({ limit: 0 })).totals;
  return totals;
}
