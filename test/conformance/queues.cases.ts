import assert from "node:assert/strict";
import type { FinishedState } from "../../src/core/jobs/job.ts";
import type { QueueSettings } from "../../src/core/jobs/claiming.ts";
import type { Outcome } from "../../src/core/jobs/retry.ts";
import type { Store } from "../../src/store/store.ts";
import {
  add,
  addOne,
  changesDuring,
  claim,
  claimIds,
  claimOne,
  declaring,
  ERROR,
  type JobLike,
  LEASE,
  newJob,
  pass,
  running,
  see,
  seeAll,
  settle,
  SUCCEEDED,
  takeBack,
} from "./parts.ts";
import type { Check } from "./suite.ts";
import { countJobs } from "../../src/store/queries.ts";

const FAILED: Outcome = { kind: "error", error: ERROR, retry: false };

export function queueCases(check: Check): void {
  check("a paused queue gives no job to any worker until it is resumed", async ({ store }) => {
    const [one] = (await add(store, {})) as [string];
    const [other] = (await add(store, { name: "other" })) as [string];
    assert.equal(await store.queues.setPaused("work", true), true);
    assert.equal(await store.queues.setPaused("work", true), false, "it is so already");
    const two = await addOne(store);
    assert.deepEqual(await claimIds(store), [other]);
    for (const from of [{ queue: "work" }, { name: "work", version: 1 }, {}]) {
      assert.deepEqual(await claimIds(store, { from: [{ ...from, lease: LEASE }] }), []);
      assert.deepEqual(await store.outlook([{ ...from, lease: LEASE }]), { ready: false, nextIn: null });
    }
    assert.deepEqual((await store.queries.overview()).queues.map(({ name, paused }) => [name, paused]).toSorted(), [
      ["other", false],
      ["work", true],
    ]);
    assert.equal(await store.queues.setPaused("work", false), true);
    assert.equal(await store.queues.setPaused("work", false), false);
    assert.deepEqual(await claimIds(store), [one, two]);
  });

  check("a delayed job of a paused queue wakes no worker", async ({ store, clock }) => {
    await add(store, { delay: 100 });
    await store.queues.setPaused("work", true);
    assert.deepEqual(await store.outlook([{ lease: LEASE }]), { ready: false, nextIn: null });
    pass(clock, 100);
    assert.deepEqual(await claimIds(store), []);
    await store.queues.setPaused("work", false);
    assert.equal((await store.outlook([{ lease: LEASE }])).ready, true);
  });

  check("a running job of a paused queue continues and settles as usual, or returns and stays", async ({ store }) => {
    const jobs = await add(store, {}, {}, {});
    const held = await claim(store);
    await store.queues.setPaused("work", true);
    assert.deepEqual(await store.renew(held.map((lease) => ({ ...lease, lease: LEASE }))), ["held", "held", "held"]);
    await settle(store, held[0] as (typeof held)[0], SUCCEEDED);
    await settle(store, held[1] as (typeof held)[0], { kind: "released" });
    await takeBack(store, "crashed", held[2] as (typeof held)[0]);
    assert.deepEqual(await claimIds(store), []);
    await store.queues.setPaused("work", false);
    assert.deepEqual(new Set([...(await claimIds(store)), ...(await claimIds(store))]), new Set(jobs.slice(1)));
  });

  check("a resume wakes the workers that wait for that queue", async ({ store }) => {
    await add(store, {});
    await store.queues.setPaused("work", true);
    const [change] = await changesDuring(store, () => store.queues.setPaused("work", false));
    assert.deepEqual(change?.ready, new Set(["work"]));
  });

  check("a queue that was never used can be paused", async ({ store }) => {
    await store.queues.setPaused("later", true);
    await add(store, { name: "later" });
    assert.deepEqual(await claimIds(store), []);
  });

  check("pause, resume and pause in one turn are three changes, each with an event", async ({ store }) => {
    await add(store, {});
    await Promise.all([
      store.queues.setPaused("work", true),
      store.queues.setPaused("work", false),
      store.queues.setPaused("work", true),
    ]);
    assert.deepEqual(await claimIds(store), []);
    const events = await store.events.page({ after: 0, limit: 10 });
    assert.deepEqual(
      events.map(({ type, data }) => [type, data]),
      ["queue.paused", "queue.resumed", "queue.paused"].map((type) => [type, { queue: "work" }]),
    );
    assert.equal(new Set(events.map(({ dedupeKey }) => dedupeKey)).size, 3);
  });

  check.shared("a pause applies in other processes at once, and after a restart", async ({ store, another, reopen }) => {
    const other = await another();
    const id = await addOne(store);
    assert.deepEqual(await countJobs(other.queries, { queue: "work" }), await countJobs(store.queries, { queue: "work" }));
    await store.queues.setPaused("work", true);
    assert.deepEqual(await claimIds(other), []);
    assert.equal((await other.outlook([{ lease: LEASE }])).ready, false);
    const again = await reopen();
    assert.deepEqual(await claimIds(again), []);
    await again.queues.setPaused("work", false);
    assert.deepEqual(await claimIds(again), [id]);
  });

  check("a declaration of a queue does not change its pause", async ({ store }) => {
    await add(store, {});
    await store.queues.setPaused("work", true);
    await keep(store, { succeeded: { age: 1_000 } });
    assert.deepEqual(await claimIds(store), []);
  });

  // ── retention ──

  check("without `keep` nothing is removed", async ({ store, clock }) => {
    await ended(store, SUCCEEDED, 3);
    pass(clock, 10 * 365 * 86_400_000);
    assert.deepEqual(await store.prune({ expired: { minAge: 0 }, limit: 100 }), { removed: 0, more: false });
    assert.equal((await seeAll(store)).length, 3);
  });

  check("`keep` by age removes jobs that ended longer ago, by state", async ({ store, clock }) => {
    await keep(store, { succeeded: { age: 1_000 }, failed: { age: 5_000 } });
    const [good] = await ended(store, SUCCEEDED, 1);
    const [bad] = await ended(store, FAILED, 1);
    const [gone] = await add(store, {});
    await store.cancel(gone as string);
    pass(clock, 1_000);
    await expireAll(store);
    assert.equal((await seeAll(store)).length, 3, "not before");
    pass(clock, 1);
    await expireAll(store);
    assert.equal(await store.queries.get(good as string), null);
    assert.ok(await store.queries.get(bad as string));
    pass(clock, 5_000);
    await expireAll(store);
    assert.deepEqual(
      (await seeAll(store)).map(({ state }) => state),
      ["cancelled"],
      "which no process has declared",
    );
    assert.deepEqual((await countJobs(store.queries)).cancelled, 1);
    assert.deepEqual((await countJobs(store.queries)).succeeded, 0);
  });

  check("`keep` by count keeps the newest, over all names and versions of the queue", async ({ store, clock }) => {
    await keep(store, { succeeded: { count: 3 } });
    const all: string[] = [];
    for (const job of [{}, { name: "b", queue: "work" }, { version: 2 }, {}, { name: "b", queue: "work" }, {}]) {
      all.push(...(await ended(store, SUCCEEDED, 1, job)));
      pass(clock, 1);
    }
    await expireAll(store);
    assert.deepEqual(await listed(store), all.slice(3));
    assert.deepEqual(await store.prune({ expired: { minAge: 0 }, limit: 100 }), { removed: 0, more: false });
  });

  check("`keep` by count and age removes what either allows", async ({ store, clock }) => {
    await keep(store, { succeeded: { count: 2, age: 1_000 } });
    const old = await ended(store, SUCCEEDED, 4);
    await expireAll(store);
    assert.deepEqual(await listed(store), old.slice(2));
    pass(clock, 1_001);
    const fresh = await ended(store, SUCCEEDED, 1);
    await expireAll(store);
    assert.deepEqual(await listed(store), fresh);
  });

  check("`keep: 0` removes ended jobs with the next step", async ({ store }) => {
    await keep(store, { succeeded: { count: 0 } });
    await ended(store, SUCCEEDED, 3);
    await expireAll(store);
    assert.deepEqual(await listed(store), []);
  });

  check("`keep` does not affect other queues", async ({ store, clock }) => {
    await keep(store, { succeeded: { age: 0, count: 0 } });
    const [other] = await ended(store, SUCCEEDED, 1, { name: "other" });
    await ended(store, SUCCEEDED, 1);
    pass(clock, 1);
    await expireAll(store);
    assert.deepEqual(await listed(store), [other]);
  });

  check("a step removes at most its limit, and says whether there is more", async ({ store, clock }) => {
    await keep(store, { succeeded: { age: 10 } });
    await ended(store, SUCCEEDED, 25);
    pass(clock, 11);
    const steps = await expireAll(store, 10);
    assert.deepEqual(
      steps.filter((removed) => removed > 0),
      [10, 10, 5],
    );
    assert.deepEqual(await listed(store), []);
  });

  check("jobs that ended before `keep` was declared are removed, too, the oldest first", async ({ store, clock }) => {
    const first: string[] = [];
    for (let i = 0; i < 5; i++) {
      first.push(...(await ended(store, SUCCEEDED, 1)));
      await ended(store, SUCCEEDED, 1, { name: "other" });
      pass(clock, 10);
    }
    await keep(store, { succeeded: { count: 2 } });
    const [newest] = await ended(store, SUCCEEDED, 1);
    await expireAll(store);
    assert.deepEqual(
      (await listed(store)).filter((id) => [...first, newest].includes(id)),
      [first[4], newest],
    );
    assert.equal((await countJobs(store.queries, { queue: "other" })).succeeded, 5);
  });

  check("a history of thousands is scanned in steps, and a count removes the oldest of all", async ({ store, clock }) => {
    const late = await running(store, { name: "slow", queue: "work" });
    const held = [];
    await add(store, ...Array.from({ length: 5_000 }, (): JobLike => ({})));
    for (let i = 0; i < 5; i++) held.push(...(await claim(store, { max: 1_000 })));
    await store.settle(held.map(({ job, fence }) => ({ job, fence, outcome: SUCCEEDED })));
    pass(clock, 1_000);
    // The first that was made is the last that ended.
    await settle(store, late, SUCCEEDED);
    await keep(store, { succeeded: { count: 1 } });
    await expireAll(store, 250);
    assert.deepEqual(await listed(store), [late.id]);
  });

  check("a job that an operator retried is not removed, and counts again from its next end", async ({ store, clock }) => {
    await keep(store, { failed: { age: 1_000 }, succeeded: { age: 1_000 } });
    const [id] = (await ended(store, FAILED, 1)) as [string];
    await store.retry(id);
    pass(clock, 5_000);
    await expireAll(store);
    assert.equal((await see(store, id)).state, "pending");
    const held = await claimOne(store);
    await expireAll(store);
    assert.equal((await see(store, id)).state, "running");
    await settle(store, held, FAILED);
    pass(clock, 1_000);
    await expireAll(store);
    assert.equal((await see(store, id)).state, "failed");
    pass(clock, 1);
    await expireAll(store);
    assert.equal(await store.queries.get(id), null);
  });

  check("retried jobs do not keep others from being removed", async ({ store, clock }) => {
    await keep(store, { failed: { count: 1 } });
    const failed: string[] = [];
    for (let i = 0; i < 5; i++) {
      failed.push(...(await ended(store, FAILED, 1)));
      pass(clock, 1);
    }
    for (const id of failed.slice(0, 3)) await store.retry(id);
    await expireAll(store);
    assert.deepEqual(await listed(store, "failed"), failed.slice(4));
    assert.equal((await countJobs(store.queries)).pending, 3);
  });

  check("an unfinished job is never removed, however old", async ({ store, clock }) => {
    const none: QueueSettings["keep"] = {};
    for (const state of ["succeeded", "failed", "cancelled", "quarantined"] as const) none[state] = { age: 0, count: 0 };
    await keep(store, none);
    const held = await running(store);
    await add(store, {}, { delay: 60_000 }, { after: [held.id] });
    pass(clock, 365 * 86_400_000);
    await expireAll(store);
    assert.equal((await seeAll(store)).length, 4);
  });

  check("a chosen id stays taken, and its job's outcome is remembered", async ({ store, clock }) => {
    await keep(store, { succeeded: { age: 0 } });
    await ended(store, SUCCEEDED, 1, { id: "invoice-1" });
    pass(clock, 1);
    await expireAll(store);
    assert.equal(await store.queries.get("invoice-1"), null);
    assert.deepEqual(await store.enqueue([newJob({ id: "invoice-1" })]), [{ id: "invoice-1", duplicate: true }]);
    const after = await addOne(store, { after: ["invoice-1"] });
    assert.equal((await see(store, after)).state, "pending");
  });

  check("a longer `keep` applies from then on", async ({ store, clock }) => {
    await keep(store, { succeeded: { age: 1_000 } });
    await ended(store, SUCCEEDED, 2);
    await keep(store, { succeeded: { age: 10_000 } });
    pass(clock, 5_000);
    await expireAll(store);
    assert.equal((await listed(store)).length, 2);
    await keep(store, {});
    pass(clock, 50_000);
    assert.deepEqual(await store.prune({ expired: { minAge: 0 }, limit: 10 }), { removed: 0, more: false });
    await keep(store, { succeeded: { age: 10_000 } });
    await expireAll(store);
    assert.deepEqual(await listed(store), []);
  });

  check("a step with nothing to remove writes nothing", async ({ store }) => {
    await keep(store, { succeeded: { age: 1_000 } });
    await ended(store, SUCCEEDED, 1);
    await expireAll(store);
    assert.deepEqual(await changesDuring(store, () => store.prune({ expired: { minAge: 0 }, limit: 10 })), []);
  });

  check("removals by hand do not disturb `keep`", async ({ store, clock }) => {
    await keep(store, { succeeded: { age: 1_000, count: 4 } });
    await ended(store, SUCCEEDED, 6);
    await store.prune({ state: "succeeded", limit: 5 });
    const [newer] = await ended(store, SUCCEEDED, 1);
    await expireAll(store, 2);
    assert.equal((await listed(store)).length, 2);
    pass(clock, 1_001);
    await expireAll(store, 2);
    assert.equal(await store.queries.get(newer as string), null);
    assert.deepEqual(await listed(store), []);
  });

  check("two concurrent steps remove each job once", async ({ store, clock }) => {
    await keep(store, { succeeded: { age: 0 } });
    await ended(store, SUCCEEDED, 10);
    pass(clock, 1);
    await store.prune({ expired: { minAge: 0 }, limit: 1 });
    const steps = await Promise.all([
      store.prune({ expired: { minAge: 0 }, limit: 6 }),
      store.prune({ expired: { minAge: 0 }, limit: 6 }),
    ]);
    const left = (await countJobs(store.queries)).succeeded;
    assert.equal(steps.reduce((sum, { removed }) => sum + removed, 0) + left + 1, 10);
    assert.equal((await seeAll(store)).length, left);
  });
}

async function keep(store: Store, kept: QueueSettings["keep"]): Promise<void> {
  await store.queues.declare([declaring([], { settings: { events: false, keep: kept } })]);
}

/** Jobs that have ended so; their ids. */
async function ended(store: Store, outcome: Outcome, count: number, job: JobLike = {}): Promise<string[]> {
  const ids: string[] = [];
  for (let i = 0; i < count; i++) {
    const held = await running(store, { ...job, name: job.name ?? "work" });
    await settle(store, held, outcome);
    ids.push(held.id);
  }
  return ids;
}

/** Step by step until there is nothing more; how many each of them removed. */
async function expireAll(store: Store, limit = 100): Promise<number[]> {
  const steps: number[] = [];
  for (;;) {
    const { removed, more } = await store.prune({ expired: { minAge: 0 }, limit: limit });
    assert.ok(removed <= limit);
    steps.push(removed);
    if (!more) return steps;
    assert.ok(steps.length < 1_000, "it comes to an end");
  }
}

async function listed(store: Store, state: FinishedState = "succeeded"): Promise<string[]> {
  return (await store.queries.list({ state, limit: 10_000 })).items.map(({ id }) => id);
}
