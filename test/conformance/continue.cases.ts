import assert from "node:assert/strict";
import type { Step } from "../../src/core/pipelines/work.ts";
import type { ProcessId } from "../../src/core/text/ids.ts";
import type { Claimed, Continued, Settlement, Store } from "../../src/store/store.ts";
import { type Flow, resultOf } from "../../src/store/work.ts";
import { countJobs } from "../../src/store/queries.ts";
import { BUDGET, isQueuePaused } from "./build-parts.ts";
import { claim, claimOne, declaring, ERROR, LEASE, limitRule, pass, register, see, SUCCEEDED, takeBack } from "./parts.ts";
import type { Check } from "./suite.ts";
import { again, counts, ended, item, parsing, result, seeTarget, settleItem, site, type Site, toEnd } from "./work-parts.ts";

export function continueCases(check: Check): void {
  check("a success claims the next stage's job for the process that asks for it", async ({ store, clock }) => {
    const at = await site(store, { budget: BUDGET });
    const holder = await register(store);
    const [{ claimed, ...known } = missing()] = await continued(store, at, holder, "a");
    const made = await resultOf(store.work, at.build.id, "parse", "a");
    assert.deepEqual(known, { result: made?.key, budget: BUDGET });
    const job = await see(store, claimed.id);
    assert.deepEqual(
      [job.state, job.name, job.attempt, job.priority, job.startedAt, job.leaseExpiresAt, job.pid],
      ["running", "pipeline/docs/index", 1, 2, clock.now(), clock.now() + LEASE, 1],
    );
    assert.deepEqual(
      [claimed.name, claimed.queue, claimed.attempt, claimed.lease, claimed.expiresAt, claimed.createdAt],
      [job.name, job.queue, 1, LEASE, clock.now() + LEASE, job.createdAt],
    );
    assert.deepEqual(await counts(store, at.build), [1, 0, { parse: [1, 0, 0, 0, 0], index: [0, 0, 0, 0, 1] }]);
    assert.equal((await store.work.works([claimed.job]))[0]?.target?.rev, 2);
    assert.deepEqual(await store.renew([claimed]), ["held"]);
    await settleItem(store, claimed, ended({ target: again(await seeTarget(store, "a"), toEnd("a")) }));
    assert.equal((await see(store, claimed.id)).state, "succeeded");
  });

  check("targets that continue in one call get different jobs and one fence", async ({ store }) => {
    const at = await site(store);
    const all = await continued(store, at, await register(store), "a", "b", "c");
    const claims = all.map((one) => (one ?? missing()).claimed);
    assert.equal(new Set(claims.map(({ job }) => job)).size, 3);
    assert.equal(new Set(claims.map(({ fence }) => fence)).size, 1);
    const targets = (await store.work.works(claims.map(({ job }) => job))).map((view) => view?.target?.path);
    assert.deepEqual(targets, ["a", "b", "c"]);
  });

  check("a job that was claimed with a success is reclaimed like any other", async ({ store, clock }) => {
    const at = await site(store);
    const holder = await register(store);
    const [{ claimed } = missing()] = await continued(store, at, holder, "a");
    pass(clock, LEASE);
    await takeBack(store, "crashed", { ...claimed, holder });
    const { job, fence } = claimed;
    assert.deepEqual(await store.settle([{ job, fence, outcome: SUCCEEDED, work: ended() }]), ["lost"]);
    assert.deepEqual([(await see(store, claimed.id)).state, (await see(store, claimed.id)).crashes], ["pending", 1]);
  });

  check("a success whose lease is lost claims nothing", async ({ store, clock }) => {
    const at = await site(store);
    const holder = await register(store);
    const leases = await parsing(store, at, ["a"]);
    const [settlement = missing()] = await askToContinue(store, at, holder, leases, ["a"]);
    pass(clock, LEASE);
    await takeBack(store, "crashed", ...leases);
    assert.deepEqual(await store.settle([settlement]), ["lost"]);
    assert.equal(settlement.continued, undefined);
    assert.deepEqual(await counts(store, at.build), [1, 0, { parse: [0, 0, 0, 0, 1], index: [0, 0, 0, 0, 0] }]);
  });

  check("a paused queue keeps the next stage's job", async ({ store }) => {
    const at = await site(store);
    const holder = await register(store);
    const waiting = await settlements(store, at, holder, ["a"]);
    await store.queues.setPaused(at.build.queue, true);
    assert.deepEqual(await settleAll(store, waiting), [undefined]);
    assert.deepEqual(await claim(store, { from: [{ queue: at.build.queue, lease: LEASE }] }), []);
    await store.queues.setPaused(at.build.queue, false);
    assert.equal((await claimOne(store)).name, "pipeline/docs/index");
  });

  for (const [priority, stage] of [
    [2, "parse"],
    [3, "index"],
  ] as const)
    check(`a ready job of priority ${priority} comes before the next stage's job of priority 2`, async ({ store }) => {
      const at = await site(store);
      const waiting = await settlements(store, at, await register(store), ["a"]);
      await store.enqueue([{ ...item({ build: at.build, stage, path: "b" }), priority }]);
      assert.deepEqual(await settleAll(store, waiting), [undefined]);
      const order = (await claim(store)).map(({ name, priority: of }) => [name, of]);
      assert.deepEqual(order, [
        [`pipeline/docs/${stage}`, priority],
        ["pipeline/docs/index", 2],
      ]);
    });

  check("neither a ready job of a lower priority nor a delayed one keeps the next stage's job", async ({ store }) => {
    const at = await site(store);
    const waiting = await settlements(store, at, await register(store), ["a"]);
    await store.enqueue([
      { ...item({ build: at.build, path: "b" }), priority: 1 },
      { ...item({ build: at.build, path: "c" }), priority: 3, delay: 1_000 },
    ]);
    assert.equal((await settleAll(store, waiting)).length, 1);
  });

  check("a job that crashed before comes before the next stage's job", async ({ store, clock }) => {
    const at = await site(store);
    const holder = await register(store);
    const [crashed] = await parsing(store, at, ["b"]);
    const waiting = await settlements(store, at, holder, ["a"]);
    pass(clock, LEASE);
    await takeBack(store, "crashed", crashed ?? missing());
    assert.deepEqual(await settleAll(store, waiting), [undefined]);
  });

  check("no next stage's job is claimed with a failure, after which the build may pause", async ({ store }) => {
    const at = await site(store, { maxFailures: 0 });
    const leases = await parsing(store, at, ["a", "b"], { attempts: 1 });
    const [first = missing(), second = missing()] = await askToContinue(store, at, await register(store), leases, ["a", "b"]);
    const failed = { ...second, outcome: { kind: "error", error: ERROR } } as const;
    assert.deepEqual(await settleAll(store, [failed, first]), [undefined, undefined]);
    assert.equal(await isQueuePaused(store, at.build), true);
    assert.equal((await countJobs(store.queries, { name: "pipeline/docs/index" })).running, 0);
  });

  check("a limit keeps the next stage's job", async ({ store }) => {
    const at = await site(store);
    const queue = at.build.queue;
    await store.queues.declare([declaring([limitRule({ of: "queue", keyed: false, concurrency: 1 })], { queue, name: "any" })]);
    assert.deepEqual(await settleAll(store, await settlements(store, at, await register(store), ["a"])), [undefined]);
  });

  check("a delayed next stage is not claimed", async ({ store }) => {
    const at = await site(store);
    const [settlement = missing()] = await settlements(store, at, await register(store), ["a"]);
    const flow = settlement.work?.target?.flow as Extract<Flow, { to: "work" }>;
    flow.job.delay = 1_000;
    assert.deepEqual(await settleAll(store, [settlement]), [undefined]);
    assert.deepEqual(await claim(store, { from: [{ queue: at.build.queue, lease: LEASE }] }), []);
  });

  check("a queue that is locked for a claim by hand keeps the next stage's job", async ({ store }) => {
    const at = await site(store);
    const waiting = await settlements(store, at, await register(store), ["a"]);
    await store.locks.acquire(at.build.queue, "operator", "token", LEASE);
    assert.deepEqual(await settleAll(store, waiting), [undefined]);
  });
}

/** Ends the stage "parse" of new targets. Each asks for the job of the stage "index". */
async function continued(store: Store, at: Site, holder: ProcessId, ...paths: string[]): Promise<(Continued | undefined)[]> {
  return settleAll(store, await settlements(store, at, holder, paths));
}

async function settlements(store: Store, at: Site, holder: ProcessId, paths: string[]): Promise<Settlement[]> {
  return askToContinue(store, at, holder, await parsing(store, at, paths), paths);
}

function askToContinue(store: Store, at: Site, holder: ProcessId, leases: Claimed[], paths: string[]): Promise<Settlement[]> {
  const completed: Step[] = [{ stage: "parse", result: null, output: result().output.hash }];
  return Promise.all(
    leases.map(async ({ job, fence }, i): Promise<Settlement> => {
      const path = paths[i] as string;
      const next = { ...item({ build: at.build, stage: "index", path }), priority: 2, claim: { holder, lease: LEASE } };
      const row = again(await seeTarget(store, path), { to: "work", completed, job: next });
      return { job, fence, outcome: SUCCEEDED, work: ended({ result: result({ hash: `context of ${path}` }), target: row }) };
    }),
  );
}

async function settleAll(store: Store, all: Settlement[]): Promise<(Continued | undefined)[]> {
  assert.deepEqual(new Set(await store.settle(all)), new Set(["held"]));
  return all.map((settlement) => settlement.continued);
}

function missing(): never {
  throw new Error("nothing was claimed");
}
