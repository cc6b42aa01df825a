import assert from "node:assert/strict";
import type { Fence, JobKey } from "../../src/core/text/ids.ts";
import { add, claim, claimOne, LEASE, pass, running, settle, SUCCEEDED, takeBack, saveCheckpoint } from "./parts.ts";
import type { Check } from "./suite.ts";

const STALE = { dead: [], skewed: false, limit: 100 };

export function leaseCases(check: Check): void {
  check("a lease ends at its instant, not a millisecond before", async ({ store, clock }) => {
    const claimed = await running(store);
    pass(clock, LEASE - 1);
    assert.deepEqual(await store.recoveries.stale(STALE), []);
    pass(clock, 1);
    assert.deepEqual(await store.recoveries.stale(STALE), [
      { job: claimed.job, fence: claimed.fence, holder: null, expiresAt: claimed.expiresAt, lease: LEASE, left: 0 },
    ]);
  });

  check("a renewed lease counts from now, not from its old end", async ({ store, clock }) => {
    const { job, fence } = await running(store);
    pass(clock, 20_000);
    assert.deepEqual(await store.renew([{ job, fence, lease: LEASE }]), ["held"]);
    pass(clock, LEASE - 1);
    assert.deepEqual(await store.recoveries.stale(STALE), []);
    pass(clock, 1);
    assert.equal((await store.recoveries.stale(STALE)).length, 1);
  });

  check("a renewal may change the lease's length", async ({ store, clock }) => {
    const { job, fence } = await running(store);
    await store.renew([{ job, fence, lease: 1_000 }]);
    pass(clock, 1_000);
    assert.deepEqual(
      (await store.recoveries.stale(STALE)).map(({ lease, expiresAt }) => [lease, expiresAt]),
      [[1_000, clock.now()]],
    );
  });

  check("renew returns the state of each lease, and renews only held ones", async ({ store, clock }) => {
    await add(store, {}, {}, {}, {}, {});
    const leases = await claim(store);
    const [held, settled, reclaimed, cancelled, pruned] = leases;
    assert.ok(held && settled && reclaimed && cancelled && pruned);
    await store.cancel(pruned.id);
    await store.prune({ state: "cancelled", limit: 9 });
    await settle(store, settled, SUCCEEDED);
    await takeBack(store, "crashed", reclaimed);
    await store.cancel(cancelled.id);
    const again = await claimOne(store);
    assert.equal(again.job, reclaimed.job);
    pass(clock, 10_000);
    const fates = ["held", "lost", "lost", "cancelled", "gone"];
    assert.deepEqual(await store.inspect(leases), fates);
    assert.deepEqual(await store.renew(leases.map(({ job, fence }) => ({ job, fence, lease: LEASE }))), fates);
    pass(clock, 20_000);
    assert.deepEqual(
      (await store.recoveries.stale(STALE)).map(({ job, fence }) => [job, fence]),
      [[again.job, again.fence]],
      "the new holder's lease is as it was",
    );
  });

  check("an expired lease that was not reclaimed can be renewed", async ({ store, clock }) => {
    const { job, fence } = await running(store);
    pass(clock, 10 * LEASE);
    assert.deepEqual(await store.renew([{ job, fence, lease: LEASE }]), ["held"]);
    assert.deepEqual(await store.recoveries.stale(STALE), []);
  });

  check("a lease on a job that never existed is gone", async ({ store }) => {
    const lease = { job: 999 as JobKey, fence: 1 as Fence };
    assert.deepEqual(await store.inspect([lease]), ["gone"]);
    assert.deepEqual(await store.renew([{ ...lease, lease: 1 }]), ["gone"]);
    assert.deepEqual(await store.settle([{ ...lease, outcome: SUCCEEDED }]), ["gone"]);
    assert.equal(await saveCheckpoint(store, lease, "1"), "gone");
    assert.equal(await store.loadCheckpoint(lease.job), null);
  });

  check("a pending job has no lease holder", async ({ store }) => {
    const claimed = await running(store);
    await settle(store, claimed, { kind: "released" });
    assert.deepEqual(await store.inspect([claimed, { job: claimed.job, fence: 0 as Fence }]), ["lost", "lost"]);
  });

  check("inspect changes nothing", async ({ store, clock }) => {
    const claimed = await running(store);
    pass(clock, LEASE);
    const before = await store.recoveries.stale(STALE);
    assert.deepEqual(await store.inspect([claimed, claimed]), ["held", "held"]);
    assert.deepEqual(await store.recoveries.stale(STALE), before);
    assert.deepEqual(await store.inspect([]), []);
    assert.deepEqual(await store.renew([]), []);
  });

  check.shared("a lease is held across processes and reopenings, and so is its loss", async ({ store, another, reopen }) => {
    const [a, b] = [await running(store), await running(store)];
    const other = await another();
    assert.deepEqual(await other.inspect([a, b]), ["held", "held"]);
    await takeBack(other, "crashed", b);
    assert.deepEqual(await store.inspect([a, b]), ["held", "lost"]);
    assert.deepEqual(await (await reopen()).inspect([a, b]), ["held", "lost"]);
  });
}
