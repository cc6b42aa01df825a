import assert from "node:assert/strict";
import { FINISHED_STATES } from "../../src/core/jobs/job.ts";
import {
  add,
  addOne,
  changesDuring,
  claim,
  claimIds,
  claimOne,
  ERROR,
  newJob,
  pass,
  running,
  see,
  seeAll,
  settle,
  SUCCEEDED,
  takeBack,
  saveCheckpoint,
} from "./parts.ts";
import type { Check } from "./suite.ts";
import { countJobs } from "../../src/store/queries.ts";

export function operateCases(check: Check): void {
  // ── cancel ──

  check("a cancelled pending job never runs", async ({ store, clock }) => {
    const id = await addOne(store);
    pass(clock, 5);
    assert.equal(await store.cancel(id), true);
    const job = await see(store, id);
    assert.deepEqual([job.state, job.finishedAt], ["cancelled", clock.now()]);
    assert.deepEqual(await claim(store), []);
  });

  check("a cancelled delayed job never runs", async ({ store, clock }) => {
    const id = await addOne(store, { delay: 1_000 });
    assert.equal(await store.cancel(id), true);
    pass(clock, 1_000);
    assert.deepEqual(await claim(store), []);
    assert.deepEqual(await store.outlook([{ lease: 1 }]), { ready: false, nextIn: null });
  });

  check("a cancelled running job has no lease, and its holder is notified", async ({ store, clock }) => {
    const claimed = await running(store);
    const changes = await changesDuring(store, () => store.cancel(claimed.id));
    assert.deepEqual(
      changes.flatMap(({ ended }) => ended),
      [{ job: claimed.job, fence: claimed.fence }],
    );
    assert.deepEqual(await store.inspect([claimed]), ["cancelled"]);
    pass(clock, 86_400_000);
    assert.deepEqual(await store.recoveries.stale({ dead: [], skewed: true, limit: 9 }), []);
    assert.deepEqual(await claim(store), []);
    assert.deepEqual((await store.queries.overview()).running, new Map());
  });

  check("no lease holder is notified when a pending job is cancelled", async ({ store }) => {
    const id = await addOne(store);
    const changes = await changesDuring(store, () => store.cancel(id));
    assert.deepEqual(
      changes.flatMap(({ ended }) => ended),
      [],
    );
  });

  check("a finished or unknown job cannot be cancelled", async ({ store }) => {
    const [a, b, c, d] = [await running(store), await running(store), await running(store), await running(store)];
    await settle(store, a, SUCCEEDED);
    await settle(store, b, { kind: "error", error: ERROR, retry: false });
    await settle(store, c, { kind: "unreadable", error: ERROR });
    await store.cancel(d.id);
    const before = await seeAll(store);
    for (const { id } of [a, b, c, d]) assert.equal(await store.cancel(id), false);
    assert.equal(await store.cancel("absent"), false);
    assert.deepEqual(await seeAll(store), before);
    assert.equal((await countJobs(store.queries)).cancelled, 1);
  });

  // ── retry ──

  for (const how of ["failed", "quarantined"] as const) {
    check(`a ${how} job that is retried starts with fresh counts`, async ({ store, clock }) => {
      const policy = { attempts: 2, crashes: 2 };
      const id = await addOne(store, { policy });
      const fail = async () => {
        const turn = how === "failed" ? { kind: "error" as const, error: ERROR, delay: 0 } : { kind: "crashed" as const };
        for (let n = 0; n < 2; n++) await settle(store, await claimOne(store), turn);
        assert.equal((await see(store, id)).state, how);
      };
      await fail();
      pass(clock, 1_000);
      const changes = await changesDuring(store, async () => assert.equal(await store.retry(id), true));
      assert.ok(changes.some(({ ready }) => ready?.has("work")));
      const job = await see(store, id);
      assert.deepEqual([job.state, job.crashes, job.finishedAt, job.runAt], ["pending", 0, undefined, clock.now()]);
      assert.deepEqual((await countJobs(store.queries))[how], 0);
      await fail();
      assert.deepEqual((await countJobs(store.queries))[how], 1);
    });
  }

  check("a retried job keeps its place", async ({ store }) => {
    const [first, second] = await add(store, {}, {});
    await settle(store, await claimOne(store), { kind: "unreadable", error: ERROR });
    await store.retry(first as string);
    assert.deepEqual(await claimIds(store), [first, second]);
  });

  check("a retried job may fail and be retried again, while a late write is still rejected", async ({ store }) => {
    const zombie = await running(store);
    await settle(store, zombie, { kind: "unreadable", error: ERROR });
    await store.retry(zombie.id);
    const again = await claimOne(store);
    assert.ok(again.fence > zombie.fence);
    assert.deepEqual(await store.settle([{ ...zombie, outcome: SUCCEEDED }]), ["lost"]);
    await settle(store, again, { kind: "unreadable", error: ERROR });
    assert.equal(await store.retry(zombie.id), true);
  });

  check("only a failed or quarantined job can be retried", async ({ store }) => {
    const [a, b, c] = [await running(store), await running(store), await running(store)];
    await settle(store, a, SUCCEEDED);
    await store.cancel(b.id);
    const pending = await addOne(store);
    const before = await seeAll(store);
    for (const id of [a.id, b.id, c.id, pending, "absent"]) assert.equal(await store.retry(id), false);
    assert.deepEqual(await seeAll(store), before);
  });

  check("a job whose key another job has cannot be retried until that one has finished", async ({ store }) => {
    const first = await running(store, { key: "k" });
    await settle(store, first, { kind: "unreadable", error: ERROR });
    const second = await addOne(store, { key: "k" });
    assert.equal(await store.retry(first.id), "key-taken");
    assert.equal((await see(store, first.id)).state, "quarantined");
    await store.cancel(second);
    assert.equal(await store.retry(first.id), true);
    assert.deepEqual(await store.enqueue([newJob({ key: "k" })]), [{ id: first.id, duplicate: true }]);
  });

  // ── prune ──

  check("a late write to a pruned newest job does not match the next job", async ({ store }) => {
    const zombie = await running(store);
    await store.cancel(zombie.id);
    assert.equal((await store.prune({ state: "cancelled", limit: 1 })).removed, 1);
    const next = await running(store);
    assert.notEqual(next.job, zombie.job);
    assert.ok(next.fence > zombie.fence);
    assert.deepEqual(await store.settle([{ job: zombie.job, fence: zombie.fence, outcome: SUCCEEDED }]), ["gone"]);
    assert.equal((await see(store, next.id)).state, "running");
  });

  check("prune removes finished jobs of that state and nothing else", async ({ store }) => {
    const make = async () => {
      const [a, b, c, d] = [await running(store), await running(store), await running(store), await running(store)];
      await settle(store, a, SUCCEEDED);
      await settle(store, b, { kind: "error", error: ERROR, retry: false });
      await settle(store, c, { kind: "unreadable", error: ERROR });
      await store.cancel(d.id);
    };
    await make();
    await running(store);
    await add(store, {}, { delay: 1_000 });
    let left = 7;
    for (const state of FINISHED_STATES) {
      assert.equal((await store.prune({ state, limit: 100 })).removed, 1, state);
      assert.equal((await store.prune({ state, limit: 100 })).removed, 0, state);
      assert.equal((await seeAll(store)).length, --left);
      assert.equal((await countJobs(store.queries))[state], 0);
    }
    assert.deepEqual(
      (await seeAll(store)).map(({ state }) => state),
      ["running", "pending", "pending"],
    );
  });

  check("prune removes the oldest first, up to its limit", async ({ store }) => {
    const ids = await add(store, {}, {}, {}, {});
    for (const lease of (await claim(store)).toReversed()) await settle(store, lease, SUCCEEDED);
    assert.equal((await store.prune({ state: "succeeded", limit: 3 })).removed, 3);
    assert.deepEqual(
      (await seeAll(store)).map(({ id }) => id),
      ids.slice(3),
    );
  });

  check("prune filters by queue, time and id together", async ({ store, clock }) => {
    const finish = async (id: string, queue: string) => {
      await add(store, { id, queue });
      await store.cancel(id);
    };
    await finish("1", "p");
    await finish("2", "q");
    pass(clock, 1_000);
    const then = clock.now();
    await finish("3", "q");
    await finish("4", "p");
    const left = async () => (await seeAll(store)).map(({ id }) => id);
    const state = "cancelled";
    assert.equal((await store.prune({ state, limit: 9, ids: [] })).removed, 0);
    assert.equal((await store.prune({ state, limit: 9, ids: ["absent"] })).removed, 0);
    assert.equal((await store.prune({ state, limit: 9, queue: "nowhere" })).removed, 0);
    assert.equal((await store.prune({ state: "failed", limit: 9, ids: ["1"] })).removed, 0);
    assert.equal((await store.prune({ state, limit: 9, queue: "p", ids: ["2"] })).removed, 0);
    assert.equal((await store.prune({ state, limit: 9, finishedBefore: then, queue: "q" })).removed, 1);
    assert.deepEqual(await left(), ["1", "3", "4"]);
    assert.equal((await store.prune({ state, limit: 9, finishedBefore: then })).removed, 1, "before, not at");
    assert.deepEqual(await left(), ["3", "4"]);
    assert.equal((await store.prune({ state, limit: 9, ids: ["4", "absent"] })).removed, 1);
    assert.deepEqual(await left(), ["3"]);
    assert.equal((await store.prune({ state, limit: 9, queue: "q" })).removed, 1);
    assert.deepEqual(await left(), []);
  });

  check("a pruned job is gone for every reader", async ({ store }) => {
    const claimed = await running(store, { input: JSON.stringify("p".repeat(5_000)) });
    const { job, fence, id } = claimed;
    await store.saveProgress([{ job, fence, fraction: 0.5, message: null }]);
    await saveCheckpoint(store, claimed, '"half"');
    await settle(store, claimed, { kind: "error", error: ERROR, retry: false });
    assert.equal((await store.prune({ state: "failed", ids: [id], limit: 1 })).removed, 1);
    assert.equal(await store.queries.get(id), null);
    assert.equal(await store.retry(id), false);
    assert.equal(await store.cancel(id), false);
    assert.equal(await store.loadCheckpoint(job), null);
    assert.deepEqual(await store.inspect([claimed]), ["gone"]);
    assert.deepEqual((await store.queries.list({ limit: 9 })).items, []);
  });

  check("a follow-up's id is forgotten with its job, and a chosen id is not", async ({ store }) => {
    await settle(store, await running(store), SUCCEEDED, [newJob({ followUpId: "made" }), newJob({ id: "chosen" })]);
    for (const id of ["made", "chosen"]) await store.cancel(id);
    assert.equal((await store.prune({ state: "cancelled", limit: 9 })).removed, 2);
    assert.deepEqual(await store.enqueue([newJob({ id: "made" }), newJob({ id: "chosen" })]), [
      { id: "made", duplicate: false },
      { id: "chosen", duplicate: true },
    ]);
  });

  check("a crashed worker's job can be cancelled and pruned while it waits", async ({ store }) => {
    const claimed = await running(store);
    await takeBack(store, "crashed", claimed);
    assert.equal(await store.cancel(claimed.id), true);
    assert.equal((await store.prune({ state: "cancelled", limit: 1 })).removed, 1);
    assert.deepEqual(await claim(store), []);
  });
}
