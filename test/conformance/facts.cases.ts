import assert from "node:assert/strict";
import { explain, type JobFacts } from "../../src/core/jobs/explain.ts";
import type { Store } from "../../src/store/store.ts";
import { bytes, made, PAUSED, STOPPED } from "./build-parts.ts";
import { add, addOne, claim, claimOne, declaring, ERROR, limitRule, pass, running, settle, SUCCEEDED } from "./parts.ts";
import type { Check } from "./suite.ts";
import { item, site } from "./work-parts.ts";

export function factCases(check: Check): void {
  check("an unknown job and a queue without pending jobs have no facts", async ({ store }) => {
    assert.equal(await store.queries.facts({ id: "absent" }), null);
    assert.equal(await store.queries.facts({ queue: "work" }), null);
    await running(store);
    assert.equal(await store.queries.facts({ queue: "work" }), null);
  });

  check("a ready job counts the jobs before it, over all names of the queue", async ({ store }) => {
    const [first, , urgent, other] = (await add(store, {}, {}, { priority: 5 }, { name: "other", queue: "work" })) as string[];
    await add(store, { name: "elsewhere" }, { delay: 5_000, priority: 9 });
    const ahead = async (id: string | undefined) => (await factsOf(store, id as string)).ahead;
    assert.deepEqual([await ahead(first), await ahead(urgent), await ahead(other)], [1, 0, 3]);
    // A job that crashed its worker is claimed in its turn, too.
    await settle(store, await claimOne(store), { kind: "crashed" });
    assert.equal(await ahead(other), 3);
    assert.equal(await reasonOf(store, first as string), "behind");
    assert.equal(await reasonOf(store, first as string, []), "no-worker");
  });

  check("a delayed job is delayed, and a failed one waits for its next attempt", async ({ store, clock }) => {
    const delayed = await addOne(store, { delay: 10_000 });
    const failed = await running(store);
    await settle(store, failed, { kind: "error", error: ERROR, delay: 5_000 });
    assert.deepEqual([await reasonOf(store, delayed), await reasonOf(store, failed.id)], ["delayed", "backoff"]);
    pass(clock, 5_000);
    // Due now, whether or not a claim has noticed.
    assert.equal(await reasonOf(store, failed.id), "behind");
  });

  check("a waiting job names its unfinished upstreams", async ({ store }) => {
    const [first, second] = (await add(store, {}, { id: "second" })) as [string, string];
    const last = await addOne(store, { after: [first, second] });
    assert.deepEqual((await factsOf(store, last)).upstream, [first, second]);
    await settle(store, await claimOne(store), SUCCEEDED);
    assert.deepEqual((await factsOf(store, last)).upstream, [second]);
    assert.equal(await reasonOf(store, last), "waiting-for-job");
    await settle(store, await claimOne(store), SUCCEEDED);
    assert.equal(await reasonOf(store, last), "behind");
  });

  check("a paused queue and a lock hold its jobs", async ({ store, clock }) => {
    const id = await addOne(store);
    await store.queues.setPaused("work", true);
    assert.equal(await reasonOf(store, id), "queue-paused");
    await store.queues.setPaused("work", false);
    await store.locks.acquire("work", "anna", "token", 5_000);
    const { lock } = await factsOf(store, id);
    assert.deepEqual(lock, { holder: "anna", expiresAt: clock.now() + 5_000 });
    assert.equal(await reasonOf(store, id), "locked");
    pass(clock, 5_000);
    assert.equal(await reasonOf(store, id), "behind");
  });

  check("an exclusive claim locks the queue until it ends", async ({ store }) => {
    const [, second] = (await add(store, {}, {})) as [string, string];
    const first = await claimOne(store, { exclusive: "token", worker: "anna" });
    assert.deepEqual((await factsOf(store, second)).lock, { holder: "anna", expiresAt: null });
    await settle(store, first, SUCCEEDED);
    assert.equal(await reasonOf(store, second), "behind");
  });

  check("a job at a limit has the key, its usage, and the time of the next free slot", async ({ store, clock }) => {
    const declares = declaring([limitRule({ rate: { starts: 2, per: 60_000 } }), limitRule({ position: 1, concurrency: 5 })]);
    const limited = (key: string) => ({ declares, limitKeys: [key, key] });
    const ids = await add(store, limited("acme"), limited("acme"), limited("acme"), limited("other"));
    await claim(store, { max: 2 });
    const { reason, limit, until } = explain(await factsOf(store, ids[2] as string), [1]);
    assert.deepEqual([reason, limit, until], ["limit", { key: "acme", used: 2, max: 2 }, clock.now() + 30_000]);
    assert.equal(await reasonOf(store, ids[3] as string), "behind");
    pass(clock, 30_000);
    const started = await claim(store);
    assert.ok(
      started.some(({ id }) => id === ids[2]),
      "the slot was free when it said",
    );
  });

  check("a concurrency counts the jobs of all names that share the limit", async ({ store }) => {
    const rule = limitRule({ of: "queue", keyed: false, concurrency: 2 });
    const settings = { events: false, keep: {} };
    const of = (name: string) => ({ name, queue: "work", declares: declaring([rule], { name, settings }), limitKeys: [""] });
    const ids = await add(store, of("work"), of("other"), of("work"));
    await claim(store);
    const { reason, limit } = explain(await factsOf(store, ids[2] as string), [1]);
    assert.deepEqual([reason, limit], ["limit", { key: "", used: 2, max: 2 }]);
  });

  check("the oldest pending job of a queue is found, whatever it waits for", async ({ store }) => {
    const declares = declaring([limitRule({ concurrency: 1 })]);
    const [first, parked] = (await add(store, { declares, limitKeys: ["a"] }, { declares, limitKeys: ["a"] })) as [
      string,
      string,
    ];
    await add(store, { delay: 9_000 });
    const oldest = async () => (await store.queries.facts({ queue: "work" }))?.job.id;
    assert.equal(await oldest(), first);
    await claimOne(store);
    assert.equal(await oldest(), parked);
    await store.cancel(parked);
    const delayed = await store.queries.facts({ queue: "work" });
    assert.equal(delayed === null ? null : explain(delayed, [1]).reason, "delayed");
  });

  check("a delayed job is the oldest of a queue only while no job is due", async ({ store, clock }) => {
    const [delayed, due] = (await add(store, { delay: 9_000 }, {})) as [string, string];
    const oldest = async () => (await store.queries.facts({ queue: "work" }))?.job.id;
    assert.equal(await oldest(), due);
    pass(clock, 9_000);
    assert.equal(await oldest(), delayed, "its delay is over, though no worker has claimed it");
    await claimOne(store);
    await claimOne(store);
    assert.equal(await oldest(), undefined);
    const [later] = await add(store, { delay: 9_000 });
    assert.equal(await oldest(), later);
  });

  check("a finished or running job has its state", async ({ store }) => {
    const claimed = await running(store);
    assert.equal(await reasonOf(store, claimed.id), "running");
    await settle(store, claimed, SUCCEEDED);
    assert.equal(await reasonOf(store, claimed.id), "finished");
  });

  check("a work item names its build, and waits while the build is paused or interrupted", async ({ store }) => {
    for (const [pipeline, move, state] of [
      ["docs", PAUSED, "BUDGET_PAUSE"],
      ["news", STOPPED, "CRASHED"],
    ] as const) {
      const { build, lock } = await site(store, { pipeline, token: pipeline });
      const [enqueued] = await store.enqueue([item({ build })]);
      assert.ok(enqueued !== undefined && "id" in enqueued);
      const { id } = enqueued;
      assert.deepEqual((await factsOf(store, id)).build, { id: build.id, pipeline, state: "ACTIVE", approved: false });
      assert.equal(await reasonOf(store, id), "behind");
      made(await store.builds.move(build.id, move, lock, ...(move === PAUSED ? [{ bytes: bytes(1) }] : [])));
      assert.deepEqual((await factsOf(store, id)).build, { id: build.id, pipeline, state, approved: false });
      assert.equal(await reasonOf(store, id), "build-paused");
    }
  });
}

async function factsOf(store: Store, id: string): Promise<JobFacts> {
  const facts = await store.queries.facts({ id });
  assert.ok(facts, `job ${id} is there`);
  return facts;
}

async function reasonOf(store: Store, id: string, worked: readonly number[] = [1]): Promise<string> {
  return explain(await factsOf(store, id), worked).reason;
}
