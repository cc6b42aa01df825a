import assert from "node:assert/strict";
import type { Outcome } from "../../src/core/jobs/retry.ts";
import type { Claimed, Declaration, NewJob, Store } from "../../src/store/store.ts";
import {
  add,
  addOne,
  badJob,
  claim,
  claimIds,
  claimOne,
  changesDuring,
  declaring,
  ERROR,
  LEASE,
  limitRule,
  newJob,
  pass,
  register,
  settle,
  SUCCEEDED,
  takeBack,
  workOff,
} from "./parts.ts";
import type { Check } from "./suite.ts";
import { countJobs } from "../../src/store/queries.ts";

const ONE = declaring([limitRule({ concurrency: 1 })]);
const TWO = declaring([limitRule({ concurrency: 2 })]);

export function limitCases(check: Check): void {
  check("at most as many jobs of one key run as its limit allows, and other keys run beside it", async ({ store }) => {
    const a = await add(store, ...many(4, TWO, "a"));
    const b = await add(store, ...many(3, TWO, "b"));
    const first = await claim(store);
    assert.deepEqual(ids(first), [...a.slice(0, 2), ...b.slice(0, 2)]);
    assert.deepEqual(await claimIds(store), []);
    await settle(store, first[0] as Claimed, SUCCEEDED);
    assert.deepEqual(await claimIds(store), [a[2]]);
    await settle(store, first[3] as Claimed, SUCCEEDED);
    assert.deepEqual(await claimIds(store), [b[2]]);
    assert.deepEqual(await claimIds(store), []);
  });

  check("a limit without a key applies to all jobs of its name", async ({ store }) => {
    const declares = declaring([limitRule({ keyed: false, concurrency: 3 })]);
    const jobs = await add(store, ...many(5, declares, ""));
    const others = await add(store, { name: "other" }, { name: "other" });
    assert.deepEqual((await claimIds(store)).toSorted(), [...jobs.slice(0, 3), ...others].toSorted());
  });

  check(
    "a queue's limit applies to every name and version in it, also to definitions that only name the queue",
    async ({ store }) => {
      const queue = "shared";
      const declares = declaring([limitRule({ of: "queue", keyed: false, concurrency: 2 })], {
        queue,
        settings: { events: false, keep: {} },
      });
      const [limited] = await add(store, { queue, declares, limitKeys: [""] });
      const [other] = await add(store, { queue, name: "other" });
      await add(store, { queue, name: "other", version: 2 });
      const own = declaring([limitRule({ concurrency: 5 })], { queue, name: "own" });
      await add(store, { queue, name: "own", declares: own, limitKeys: ["k"] });
      assert.deepEqual(await claimIds(store), [limited, other]);
      assert.deepEqual(await claimIds(store), []);
    },
  );

  check("several limits apply at once: those of a job's keys and of its queue", async ({ store }) => {
    const declares = declaring([limitRule({ concurrency: 2 }), limitRule({ of: "queue", keyed: false, concurrency: 3 })], {
      settings: { events: false, keep: {} },
    });
    const jobs = (key: string) => Array.from({ length: 3 }, () => ({ declares, limitKeys: [key, ""] }));
    const a = await add(store, ...jobs("a"));
    const b = await add(store, ...jobs("b"));
    const first = await claim(store);
    assert.deepEqual(ids(first), [a[0], a[1], b[0]]);
    await settle(store, first[2] as Claimed, SUCCEEDED);
    assert.deepEqual(await claimIds(store), [b[1]], "a is full, the queue has room for one");
    await settle(store, first[0] as Claimed, SUCCEEDED);
    assert.deepEqual(await claimIds(store), [a[2]], "the older one first");
  });

  check("of two limits by key, jobs parked at the first do not block jobs at the second", async ({ store }) => {
    const declares = declaring([limitRule({ concurrency: 1 }), limitRule({ position: 1, concurrency: 2 })]);
    const job = (host: string, tenant: string) => ({ declares, limitKeys: [host, tenant] });
    await add(store, job("busy", "other"));
    await claimOne(store);
    const [one, two, three] = await add(store, job("busy", "mine"), job("busy", "mine"), job("idle", "mine"));
    const [held] = await claim(store);
    assert.equal(held?.id, three, `${one} and ${two} wait for their host, and hold no place of their tenant`);
  });

  check("of two limits by key, jobs parked at the second do not block jobs at the first", async ({ store }) => {
    const declares = declaring([limitRule({ concurrency: 2 }), limitRule({ position: 1, concurrency: 1 })]);
    const job = (tenant: string, host: string) => ({ declares, limitKeys: [tenant, host] });
    const ids = await add(store, ...Array.from({ length: 5 }, () => job("mine", "busy")), job("mine", "idle"));
    const [busy, idle, ...more] = await claim(store);
    assert.deepEqual([busy?.id, idle?.id, more.length], [ids[0], ids[5], 0]);
    await settle(store, idle as Claimed, SUCCEEDED);
    const [last] = await add(store, job("mine", "other"));
    assert.deepEqual(await claimIds(store), [last]);
    await settle(store, busy as Claimed, SUCCEEDED);
    assert.deepEqual(await claimIds(store), [ids[1]]);
  });

  check("more than a hundred jobs parked at the second limit block the first, and none is stuck", async ({ store }) => {
    const declares = declaring([limitRule({ concurrency: 2 }), limitRule({ position: 1, concurrency: 1 })]);
    const job = (host: string) => ({ declares, limitKeys: ["mine", host] });
    const crowd = await add(store, ...Array.from({ length: 150 }, () => job("busy")));
    const [idle] = await add(store, job("idle"));
    const ran: string[] = [];
    for (let held = await claim(store); held.length > 0; held = await claim(store)) {
      assert.ok(held.length <= 2, "the first holds");
      for (const one of held) {
        ran.push(one.id);
        await settle(store, one, SUCCEEDED);
      }
    }
    assert.deepEqual(
      ran.filter((id) => id !== idle),
      crowd,
      "in order",
    );
    assert.ok(ran.includes(idle as string) && ran.indexOf(idle as string) < 60, `after ${ran.indexOf(idle as string)}`);
  });

  check("jobs start by priority, then first in, first out, inside a key and across keys", async ({ store }) => {
    const low = await add(store, ...many(2, ONE, "a"), ...many(2, ONE, "b"));
    const high = await add(store, { ...limited(ONE, "a"), priority: 1 }, { ...limited(ONE, "b"), priority: 1 });
    assert.deepEqual(await workOff(store), [...high, ...low]);
  });

  check("a higher priority overtakes older jobs of its saturated key", async ({ store }) => {
    const held = await running(store, ONE);
    const [older] = await add(store, limited(ONE));
    const [high] = await add(store, { ...limited(ONE), priority: 5 });
    assert.deepEqual(await claimIds(store), []);
    await settle(store, held, SUCCEEDED);
    assert.deepEqual(await workOff(store), [high, older]);
  });

  check("a ready job does not overtake a higher priority that arrived meanwhile", async ({ store }) => {
    const [low] = await add(store, limited(ONE));
    await add(store, { ...limited(ONE), priority: 1 });
    const held = await claimOne(store);
    const [high] = await add(store, { ...limited(ONE), priority: 5 });
    await settle(store, held, SUCCEEDED);
    assert.deepEqual(await workOff(store), [high, low]);
  });

  check("new jobs never overtake waiting ones, whatever ends in between", async ({ store }) => {
    const all: string[] = [];
    const started: string[] = [];
    let held: Claimed[] = [];
    for (let i = 0; i < 12; i++) {
      all.push(...(await add(store, ...many(2, TWO, "a"))));
      const [first] = held;
      if (first !== undefined) await settle(store, first, SUCCEEDED);
      const more = await claim(store, { max: 1 + (i % 3) });
      started.push(...ids(more));
      held = [...held.slice(1), ...more];
      assert.ok(held.length <= 2);
    }
    assert.deepEqual(started, all.slice(0, started.length));
    assert.ok(started.length > 8);
  });

  check("a job that returns keeps its place before later ones", async ({ store, clock }) => {
    const [first, second, third] = (await add(store, ...many(3, ONE, "a"))) as [string, string, string];
    await settle(store, await claimOne(store), { kind: "error", error: ERROR, delay: 1_000 });
    pass(clock, 1_000);
    assert.deepEqual(await workOff(store), [first, second, third], "its delay is over, and it is the oldest");
  });

  for (const [what, outcome] of Object.entries(BACK)) {
    check(`a job that is ${what} frees its slot, once`, async ({ store, clock }) => {
      await add(store, ...many(8, ONE, "a"));
      for (let i = 0; i < 3; i++) {
        const held = await claimOne(store);
        assert.deepEqual(await claimIds(store), [], "the slot is taken");
        await settle(store, held, outcome);
        // A late settle must not give back a second one.
        assert.deepEqual(await store.settle([{ job: held.job, fence: held.fence, outcome: SUCCEEDED }]), ["lost"]);
        const next = await claim(store);
        assert.equal(next.length, 1, "and exactly one is free");
        await settle(store, next[0] as Claimed, { kind: "released" });
        pass(clock, 1);
      }
    });
  }

  for (const verdict of ["crashed", "interrupted", "stalled"] as const) {
    check(`a job reclaimed as ${verdict} frees its slot, once`, async ({ store }) => {
      const holder = await register(store);
      await add(store, ...many(5, TWO, "a"));
      const held = await claim(store, { holder });
      assert.equal(held.length, 2);
      await takeBack(store, verdict, ...held);
      await takeBack(store, verdict, ...held);
      // Of those that crashed, a claim takes one at a time.
      const again = [...(await claim(store)), ...(await claim(store))];
      assert.equal(again.length, 2, "two and no more");
      assert.deepEqual(await claimIds(store), []);
    });
  }

  check("cancelling frees the slot of a running, ready or parked job", async ({ store }) => {
    const jobs = await add(store, ...many(6, ONE, "a"));
    const [one, two, three, four, five, six] = jobs as [string, string, string, string, string, string];
    await claimOne(store);
    assert.ok(await store.cancel(three), "waiting");
    assert.ok(await store.cancel(one), "running");
    assert.equal(await store.cancel(one), false);
    assert.ok(await store.cancel(two), "ready");
    const held = await claim(store);
    assert.deepEqual(ids(held), [four]);
    assert.ok(await store.cancel(five));
    await settle(store, held[0] as Claimed, SUCCEEDED);
    assert.deepEqual(await workOff(store), [six]);
    assert.deepEqual(await countJobs(store.queries), { ...NONE, succeeded: 2, cancelled: 4 });
  });

  check("an operator's retry passes the limit", async ({ store }) => {
    const [failed, next] = (await add(store, ...many(2, ONE, "a"))) as [string, string];
    await settle(store, await claimOne(store), { kind: "error", error: ERROR, retry: false });
    const held = await claimOne(store);
    assert.equal(held.id, next);
    assert.equal(await store.retry(failed), true);
    assert.deepEqual(await claimIds(store), [], "the slot is taken");
    await settle(store, held, SUCCEEDED);
    assert.deepEqual(await claimIds(store), [failed]);
  });

  check("delayed jobs take no slot before they are due, and then wait in order", async ({ store, clock }) => {
    const delayed = await add(store, { ...limited(ONE), delay: 1_000 }, { ...limited(ONE), delay: 1_000 });
    const [now] = await add(store, limited(ONE));
    const held = await claimOne(store);
    assert.equal(held.id, now);
    pass(clock, 1_000);
    assert.deepEqual(await claimIds(store), []);
    await settle(store, held, SUCCEEDED);
    assert.deepEqual(await workOff(store), delayed);
  });

  check("a lane without a worker takes no slot from the others", async ({ store }) => {
    const queue = "shared";
    const declares = declaring([limitRule({ of: "queue", keyed: false, concurrency: 1 })], {
      queue,
      settings: { events: false, keep: {} },
    });
    const job = { queue, declares, limitKeys: [""] };
    await add(store, { ...job, name: "unworked" }, { ...job, name: "unworked" }, { ...job, version: 7 });
    const mine = await add(store, { ...job, name: "mine" }, { ...job, name: "mine" });
    assert.deepEqual(await workOff(store, { from: [{ name: "mine", version: 1, lease: LEASE }] }), mine);
  });

  check("a rate allows its starts in its period, evenly after that, and a release returns a start", async ({ store, clock }) => {
    const declares = declaring([limitRule({ rate: { starts: 2, per: 1_000 } })]);
    const jobs = await add(store, ...many(6, declares, "a"), limited(declares, "b"));
    assert.deepEqual(await claimIds(store), [jobs[0], jobs[1], jobs[6]]);
    assert.deepEqual(await claimIds(store), []);
    assert.deepEqual(await store.outlook([{ lease: LEASE }]), { ready: false, nextIn: 500 });
    pass(clock, 499);
    assert.deepEqual(await claimIds(store), []);
    pass(clock, 1);
    assert.equal((await store.outlook([{ lease: LEASE }])).ready, true);
    const [third] = await claim(store);
    assert.equal(third?.id, jobs[2]);
    assert.deepEqual(await claimIds(store), []);
    await settle(store, third as Claimed, { kind: "released" });
    assert.deepEqual(await claimIds(store), [jobs[2]], "it never began");
    pass(clock, 60_000);
    assert.deepEqual(await claimIds(store), [jobs[3], jobs[4]], "what was not used is not saved up");
  });

  check("a rate with fractional milliseconds between starts opens with the next one", async ({ store, clock }) => {
    const declares = declaring([limitRule({ rate: { starts: 5, per: 777 } })]);
    const jobs = await add(store, ...many(6, declares, "a"));
    assert.deepEqual(await claimIds(store), jobs.slice(0, 5));
    pass(clock, 155);
    assert.deepEqual(await claimIds(store), []);
    pass(clock, 1);
    assert.deepEqual(await claimIds(store), [jobs[5]]);
  });

  check("a clock that was set back delays no job for longer than the rate's period", async ({ store, clock }) => {
    const declares = declaring([limitRule({ rate: { starts: 1, per: 1_000 } })]);
    const jobs = await add(store, ...many(5, declares, "a"));
    assert.deepEqual(await claimIds(store), [jobs[0]]);
    pass(clock, -86_400_000);
    assert.deepEqual(await claimIds(store), []);
    pass(clock, 1_000);
    assert.deepEqual(await claimIds(store), [jobs[1]]);
    pass(clock, 999);
    assert.deepEqual(await claimIds(store), []);
    pass(clock, 1);
    assert.deepEqual(await claimIds(store), [jobs[2]]);
  });

  check("workers are notified when a freed slot leaves a job waiting for the rate's next token", async ({ store, clock }) => {
    const rate = { starts: 1, per: 1_000 };
    for (const limits of [[{ concurrency: 1, rate }], [{ concurrency: 1 }, { rate }]]) {
      const name = `limits ${limits.length}`;
      const rules = limits.map((limit, position) => limitRule({ position, ...limit }));
      const declares = declaring(rules, { queue: name, name });
      const jobs = await add(
        store,
        ...Array.from({ length: 2 }, () => ({ queue: name, name, declares, limitKeys: limits.map(() => "a") })),
      );
      const [first] = await claim(store);
      assert.equal(first?.id, jobs[0]);
      const changes = await changesDuring(store, () => settle(store, first as Claimed, SUCCEEDED));
      assert.ok(changes.some(({ ready }) => ready?.has(name)));
      assert.deepEqual(await store.outlook([{ lease: LEASE }]), { ready: false, nextIn: 1_000 });
      pass(clock, 1_000);
      const second = await claimOne(store);
      assert.equal(second.id, jobs[1]);
      await settle(store, second, SUCCEEDED);
      pass(clock, 1_000);
    }
  });

  check("a raised, lowered or removed limit applies to jobs that already wait", async ({ store }) => {
    const jobs = await add(store, ...many(12, ONE, "a"));
    const [first] = await claim(store);
    assert.equal(first?.id, jobs[0]);
    const [change] = await changesDuring(store, () => store.queues.declare([declaring([limitRule({ concurrency: 3 })])]));
    assert.ok(change?.ready?.has("work"), "workers are told");
    const more = await claim(store);
    assert.deepEqual(ids(more), jobs.slice(1, 3), "raised");
    await store.queues.declare([declaring([limitRule({ concurrency: 2 })])]);
    await settle(store, first as Claimed, SUCCEEDED);
    assert.deepEqual(await claimIds(store), [], "lowered: two run");
    await settle(store, more[0] as Claimed, SUCCEEDED);
    assert.deepEqual(await claimIds(store), [jobs[3]]);
    await store.queues.declare([declaring([])]);
    assert.deepEqual(await claimIds(store), jobs.slice(4), "removed");
  });

  check("a changed limit is applied to waiting jobs once", async ({ store }) => {
    await add(store, ...many(3, ONE, "a"));
    await claimOne(store);
    await store.queues.declare([declaring([limitRule({ concurrency: 2 })])]);
    await claimOne(store);
    assert.deepEqual(await claimIds(store), []);
    assert.deepEqual(await store.outlook([{ lease: LEASE }]), { ready: false, nextIn: null });
  });

  check.shared("the last declaration wins, whatever an older process does or rolls back", async ({ store, another }) => {
    const old = declaring([limitRule({ concurrency: 1 })]);
    await add(store, ...many(2, old, "a"));
    const newer = await another();
    await newer.queues.declare([declaring([limitRule({ concurrency: 3 })])]);
    await assert.rejects(store.enqueue([newJob(limited(old)), badJob()]));
    for (let i = 0; i < 3; i++) await store.enqueue([newJob(limited(old))]);
    assert.equal((await claim(newer)).length, 3);
    assert.deepEqual(await claimIds(store), []);
  });

  check.inProcess.shared(
    "the last declaration wins, whatever an older process does in transactions",
    async ({ store, another }) => {
      const old = declaring([limitRule({ concurrency: 1 })]);
      await add(store, ...many(3, old, "a"));
      const newer = await another();
      await newer.queues.declare([declaring([limitRule({ concurrency: 3 })])]);
      await store.transact((handle) => store.enqueueWithin(handle, [newJob(limited(old))]));
      await store.transact((handle) => store.enqueueWithin(handle, [newJob(limited(old))]));
      assert.equal((await claim(newer)).length, 3);
      assert.deepEqual(await claimIds(store), []);
    },
  );

  check.inProcess("a declaration rolled back with its transaction is made again", async ({ store }) => {
    await store.queues.declare([declaring([limitRule({ concurrency: 1 })])]);
    const two = declaring([limitRule({ concurrency: 2 })]);
    const undone = store.transact((handle) => {
      store.enqueueWithin(handle, [newJob(limited(two))]);
      throw new Error("no");
    });
    await assert.rejects(undone, /no/);
    await add(store, ...many(3, two, "a"));
    assert.equal((await claim(store)).length, 2);
  });

  check.inProcess("rolled back savepoints leave no trace in the counts", async ({ store }) => {
    const kept = await store.transact((handle) => {
      const db = handle as { exec(sql: string): void };
      db.exec("savepoint part");
      store.enqueueWithin(handle, many(3, ONE, "a").map(newJob));
      db.exec("rollback to part");
      db.exec("release part");
      return store.enqueueWithin(handle, many(3, ONE, "a").map(newJob)) as { id: string }[];
    });
    assert.deepEqual(
      await workOff(store),
      kept.map(({ id }) => id),
    );
  });

  check("a rolled back call leaves no trace in the counts of its commit", async ({ store }) => {
    const calls = [
      store.enqueue(many(2, ONE, "a").map(newJob)),
      store.enqueue([newJob(limited(ONE)), badJob(limited(ONE))]),
      store.enqueue(many(2, ONE, "a").map(newJob)),
    ];
    const [good, bad, also] = await Promise.allSettled(calls);
    assert.deepEqual([good?.status, bad?.status, also?.status], ["fulfilled", "rejected", "fulfilled"]);
    assert.equal((await workOff(store)).length, 4);
  });

  check("claims by hand, of a worker and of a source count together", async ({ store }) => {
    const holder = await register(store);
    const jobs = await add(store, ...many(4, TWO, "a"));
    assert.deepEqual(await claimIds(store, { max: 1 }), [jobs[0]]);
    assert.deepEqual(await claimIds(store, { holder, from: [{ name: "work", version: 1, lease: LEASE }] }), [jobs[1]]);
    assert.deepEqual(await claimIds(store, { from: [{ queue: "work", lease: LEASE }] }), []);
  });

  check.shared("two stores on the same data count together, turn by turn", async ({ store, another }) => {
    const other = await another();
    const jobs = await add(store, ...many(8, TWO, "a"));
    const started: string[] = [];
    let held: Claimed[] = [];
    for (let i = 0; started.length < jobs.length; i++) {
      const [here, there] = i % 2 === 0 ? [store, other] : [other, store];
      held.push(...(await claim(here)));
      started.push(...ids(held.slice(-2)).filter((id) => !started.includes(id)));
      assert.ok(held.length <= 2);
      assert.deepEqual(await claimIds(there), []);
      await settle(there, held[0] as Claimed, SUCCEEDED);
      held = held.slice(1);
    }
    assert.deepEqual(started, jobs);
  });

  check.shared("parked and running jobs stay so after a restart", async ({ store, reopen }) => {
    const jobs = await add(store, ...many(4, TWO, "a"));
    const [held] = await claim(store);
    const again = await reopen();
    assert.deepEqual(await claimIds(again), []);
    await settle(again, held as Claimed, SUCCEEDED);
    assert.deepEqual(await claimIds(again), [jobs[2]]);
  });

  check("jobs parked at a limit are pending in every query", async ({ store }) => {
    const jobs = await add(store, ...many(5, TWO, "a"));
    await claim(store);
    assert.deepEqual(await countJobs(store.queries), { ...NONE, running: 2, pending: 3 });
    assert.deepEqual(
      (await store.queries.list({ state: "pending", limit: 10 })).items.map(({ id }) => id),
      jobs.slice(2),
    );
    assert.equal((await store.queries.overview()).queues[0]?.counts.pending, 3);
    assert.deepEqual(
      (await store.queries.overview()).lanes.map(({ counts }) => counts.pending).filter((pending) => pending > 0),
      [3],
    );
  });

  check("with a concurrency beyond the ready window, order holds over keys and priorities", async ({ store }) => {
    const declares = declaring([limitRule({ concurrency: 1_000 })]);
    const first = await add(store, ...many(250, declares, "a"));
    const low = await add(store, { ...limited(declares, "b"), priority: -1 });
    const later = await add(store, limited(declares, "c"));
    assert.deepEqual(await claimIds(store, { max: 240 }), first.slice(0, 240));
    assert.deepEqual(await claimIds(store, { max: 240 }), [...first.slice(240), ...later, ...low]);
  });

  check("many jobs of one key do not block others, and the others cost no reading past them", async ({ store }) => {
    await add(store, ...many(2_000, ONE, "a"));
    const others = await add(store, limited(ONE, "b"), limited(ONE, "c"));
    assert.deepEqual((await claimIds(store, { max: 3 })).slice(1), others);
    assert.deepEqual(await store.outlook([{ lease: LEASE }]), { ready: false, nextIn: null });
  });

  check("a claim of one job passes all ready jobs that may not start", async ({ store }) => {
    await add(store, limited(ONE));
    for (let i = 0; i < 90; i++) await add(store, { ...limited(ONE), priority: 1 });
    const other = await addOne(store, { ...limited(ONE, "b"), priority: -1 });
    await claimOne(store);
    assert.deepEqual(await claimIds(store, { max: 1 }), [other]);
  });

  check("one claim finds a job of a free key behind twenty saturated keys with a hundred jobs each", async ({ store }) => {
    const keys = Array.from({ length: 20 }, (_, i) => `k${i}`);
    await add(store, ...keys.map((key) => limited(ONE, key)));
    assert.equal((await claim(store)).length, keys.length);
    await add(store, ...keys.flatMap((key) => many(100, ONE, key)));
    const free = await addOne(store, limited(ONE, "free"));
    assert.deepEqual(await claimIds(store, { max: 1 }), [free]);
  });

  check("one claim finds a job of a free key behind twenty keys with a hundred jobs that stood ready", async ({ store }) => {
    const keys = Array.from({ length: 20 }, (_, i) => `k${i}`);
    await add(store, ...Array.from({ length: 100 }, () => keys.map((key) => limited(ONE, key))).flat());
    const free = await addOne(store, limited(ONE, "free"));
    const held = await claim(store, { max: 20 });
    assert.equal(held.length, keys.length);
    assert.deepEqual(await claimIds(store, { max: 1 }), [free]);
    for (const one of held) await settle(store, one, SUCCEEDED);
    assert.equal((await claim(store, { max: 100 })).length, keys.length);
  });

  check("the highest priority starts first, although thousands of its key were added before", async ({ store }) => {
    await add(store, ...many(3_000, TWO, "a"));
    const urgent = await addOne(store, { ...limited(TWO), priority: 100 });
    assert.equal((await claimIds(store, { max: 2 }))[0], urgent);
  });

  check("a slot freed in one turn is claimed in the same turn", async ({ store }) => {
    const jobs = await add(store, ...many(3, ONE, "a"));
    const { job, fence } = await claimOne(store);
    const [fates, next] = await Promise.all([store.settle([{ job, fence, outcome: SUCCEEDED }]), claim(store)]);
    assert.deepEqual(fates, ["held"]);
    assert.deepEqual(ids(next), [jobs[1]]);
  });
}

const NONE = { waiting: 0, pending: 0, running: 0, succeeded: 0, failed: 0, cancelled: 0, quarantined: 0 };

const BACK: Record<string, Outcome> = {
  released: { kind: "released" },
  "to be retried at once": { kind: "error", error: ERROR, delay: 0 },
  "to be retried later": { kind: "error", error: ERROR, delay: 60_000 },
  "to come back later": { kind: "later", error: ERROR, delay: 60_000 },
  interrupted: { kind: "interrupted" },
};

function limited(declares: Declaration, key = "a"): Partial<NewJob> & { policy?: never } {
  return { declares, limitKeys: [key] } as Partial<NewJob> & { policy?: never };
}

function many(count: number, declares: Declaration, key: string): ReturnType<typeof limited>[] {
  return Array.from({ length: count }, () => limited(declares, key));
}

async function running(store: Store, declares: Declaration): Promise<Claimed> {
  await addOne(store, limited(declares));
  return claimOne(store);
}

function ids(claimed: readonly Claimed[]): string[] {
  return claimed.map(({ id }) => id);
}
