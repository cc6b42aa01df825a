import assert from "node:assert/strict";
import { FINISHED_STATES, type Job, JOB_STATES, type JobState } from "../../src/core/jobs/job.ts";
import type { Outcome } from "../../src/core/jobs/retry.ts";
import type { Claimed, Store } from "../../src/store/store.ts";
import {
  add,
  addOne,
  claim,
  claimOne,
  declaring,
  ERROR,
  LEASE,
  limitRule,
  newJob,
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
import { countJobs } from "../../src/store/queries.ts";
import { registeredProcesses } from "../../src/store/processes.ts";

function held({ worker, host, pid, leaseExpiresAt }: Job) {
  return { worker, host, pid, leaseExpiresAt };
}

export function queryCases(check: Check): void {
  check("a running job shows its holder and the lease's end, and another job shows neither", async ({ store, clock }) => {
    const holder = await store.processes.register({ pid: 4_711, host: "anna", boot: "boot", program: "test" });
    const unheld = { worker: undefined, host: undefined, pid: undefined, leaseExpiresAt: undefined };
    const [byWorker, byName, byHand] = (await add(store, {}, {}, {})) as [string, string, string];
    assert.deepEqual(held(await see(store, byWorker)), unheld);
    const first = await claimOne(store, { holder, worker: "" });
    await claimOne(store, { holder, worker: "otto" });
    await claimOne(store, { worker: "review 1" });
    const leaseExpiresAt = clock.now() + LEASE;
    const expected = [
      { worker: "anna:4711", host: "anna", pid: 4_711, leaseExpiresAt },
      { worker: "otto", host: "anna", pid: 4_711, leaseExpiresAt },
      { worker: "review 1", host: undefined, pid: undefined, leaseExpiresAt },
    ];
    for (const [i, id] of [byWorker, byName, byHand].entries()) assert.deepEqual(held(await see(store, id)), expected[i]);
    for (const filter of [{}, { state: "running" }] as const)
      assert.deepEqual((await store.queries.list({ limit: 10, ...filter })).items.map(held), expected);
    pass(clock, 1_000);
    await store.renew([{ job: first.job, fence: first.fence, lease: 60_000 }]);
    assert.equal((await see(store, byWorker)).leaseExpiresAt, clock.now() + 60_000);
    await settle(store, first, SUCCEEDED);
    const job = await see(store, byWorker);
    assert.deepEqual([held(job), "worker" in job], [unheld, false]);
  });

  // ── lists ──

  check("a list is in creation order, whatever the priorities, delays and states", async ({ store }) => {
    const ids = await add(store, { priority: 1 }, { priority: 9 }, { delay: 5_000 }, { id: "zzz" }, { id: "aaa" });
    await settle(store, await claimOne(store), SUCCEEDED);
    await store.cancel("aaa");
    assert.deepEqual(
      (await store.queries.list({ limit: 10 })).items.map(({ id }) => id),
      ids,
    );
  });

  check("pages have neither gaps nor repetitions, and the last has no next", async ({ store }) => {
    const ids = await add(store, ...Array.from({ length: 7 }, () => ({})));
    const pages: string[][] = [];
    let after: string | undefined;
    do {
      const page = await store.queries.list({ limit: 3, ...(after !== undefined && { after }) });
      pages.push(page.items.map(({ id }) => id));
      after = page.next;
    } while (after !== undefined);
    assert.deepEqual(pages, [ids.slice(0, 3), ids.slice(3, 6), ids.slice(6)]);
  });

  check("a page that is exactly full is the last one", async ({ store }) => {
    await add(store, {}, {}, {});
    const page = await store.queries.list({ limit: 3 });
    assert.equal(page.items.length, 3);
    assert.equal("next" in page, false);
  });

  check("a page continues where the last one ended although jobs were added, moved and removed", async ({ store }) => {
    const ids = await add(store, { id: "1" }, { id: "2" }, { id: "3" }, { id: "4" });
    const page = await store.queries.list({ limit: 2 });
    await store.cancel(ids[1] as string);
    await store.prune({ state: "cancelled", limit: 9 });
    await add(store, { id: "5", priority: 9 });
    assert.deepEqual(
      (await store.queries.list({ limit: 9, after: page.next as string })).items.map(({ id }) => id),
      ["3", "4", "5"],
    );
  });

  check("a filter matches all its parts, and pages through the matches", async ({ store }) => {
    await add(
      store,
      { id: "1", name: "a", queue: "p" },
      { id: "2", name: "a", queue: "q" },
      { id: "3", name: "b", queue: "q" },
      { id: "4", name: "a", queue: "q" },
      { id: "5", name: "a", queue: "q", version: 2 },
    );
    await store.cancel("4");
    const ids = async (filter: object) => (await store.queries.list({ limit: 9, ...filter })).items.map(({ id }) => id);
    assert.deepEqual(await ids({ name: "a" }), ["1", "2", "4", "5"]);
    assert.deepEqual(await ids({ queue: "q" }), ["2", "3", "4", "5"]);
    assert.deepEqual(await ids({ queue: "q", name: "a" }), ["2", "4", "5"]);
    assert.deepEqual(await ids({ queue: "q", name: "a", state: "pending" }), ["2", "5"]);
    assert.deepEqual(await ids({ state: "cancelled" }), ["4"]);
    assert.deepEqual(await ids({ queue: "nowhere" }), []);
    assert.deepEqual(await ids({ name: "b", queue: "p" }), []);
    const page = await store.queries.list({ limit: 2, name: "a" });
    assert.deepEqual(await ids({ name: "a", after: page.next as string }), ["4", "5"]);
  });

  check("each state has its list", async ({ store }) => {
    const ids = await oneOfEach(store);
    for (const [state, id] of Object.entries(ids)) {
      const { items } = await store.queries.list({ state: state as JobState, limit: 10 });
      assert.deepEqual(
        items.map((job) => [job.id, job.state]),
        [[id, state]],
      );
    }
    assert.deepEqual((await store.queries.list({ state: "waiting", limit: 10 })).items, []);
  });

  check("pending jobs are listed in creation order, whatever holds them back, page by page", async ({ store }) => {
    const declares = declaring([limitRule({ concurrency: 1 })]);
    const limited = { declares, limitKeys: ["k"] };
    const suspect = await running(store, { name: "other", policy: { crashes: 9 } });
    const ids = [suspect.id];
    for (let n = 0; n < 3; n++) {
      ids.push(...(await add(store, { priority: n }, limited, { delay: 5_000, priority: 9 - n }, { ...limited, priority: 7 })));
    }
    await takeBack(store, "crashed", suspect);
    const pages = async (filter: object) => {
      const found: Job[] = [];
      for (let after: string | undefined; ;) {
        const page = await store.queries.list({ state: "pending", limit: 2, ...filter, ...(after !== undefined && { after }) });
        found.push(...page.items);
        if (page.next === undefined) return found.map(({ id }) => id);
        after = page.next;
      }
    };
    assert.deepEqual(await pages({}), ids);
    assert.deepEqual(await pages({ queue: "work" }), ids.slice(1));
    assert.deepEqual(await pages({ name: "other" }), ids.slice(0, 1));
    assert.equal((await countJobs(store.queries)).pending, ids.length);
  });

  check("a list shows each job as get does", async ({ store }) => {
    await oneOfEach(store);
    const { items } = await store.queries.list({ limit: 100 });
    for (const job of items) assert.deepEqual(await store.queries.get(job.id), job);
    assert.ok(items.length > 0);
  });

  check("a query changes nothing and notifies no listener", async ({ store }) => {
    await oneOfEach(store);
    const told: unknown[] = [];
    store.onChange((change) => told.push(change), { ownOnly: true });
    const before = await everything(store);
    assert.deepEqual(await everything(store), before);
    assert.deepEqual(told, []);
  });

  check("the store's clock is the time that it writes", async ({ store, clock }) => {
    pass(clock, 1_234);
    assert.equal(store.clock.now(), clock.now());
    assert.equal((await store.queries.get(await addOne(store)))?.createdAt, store.clock.now());
  });

  // ── counts ──

  check("an empty store counts zero of every state", async ({ store }) => {
    assert.deepEqual(await countJobs(store.queries), none());
    assert.deepEqual((await store.queries.overview()).queues, []);
  });

  check("jobs are counted by queue and by name", async ({ store }) => {
    await add(
      store,
      { name: "a", queue: "p" },
      { name: "a", queue: "q" },
      { name: "b", queue: "q" },
      { name: "b", queue: "q", delay: 9 },
    );
    const claimed = await claimOne(store, { from: [{ name: "a", queue: "q", lease: LEASE }] });
    await settle(store, claimed, SUCCEEDED);
    assert.deepEqual(await countJobs(store.queries, { queue: "p" }), { ...none(), pending: 1 });
    assert.deepEqual(await countJobs(store.queries, { queue: "q" }), { ...none(), pending: 2, succeeded: 1 });
    assert.deepEqual(await countJobs(store.queries, { name: "a" }), { ...none(), pending: 1, succeeded: 1 });
    assert.deepEqual(await countJobs(store.queries, { name: "b", queue: "q" }), { ...none(), pending: 2 });
    assert.deepEqual(await countJobs(store.queries, { name: "b", queue: "p" }), none());
    assert.deepEqual(await countJobs(store.queries, { name: "absent" }), none());
  });

  check("counts equal the lists after every kind of move", async ({ store, clock }) => {
    const dice = seeded(20_260_101);
    const holder = await register(store);
    const held: Claimed[] = [];
    const pick = <T>(from: readonly T[]) => from[Math.floor(dice() * from.length)] as T;
    const moves: (() => Promise<unknown>)[] = [
      () => store.enqueue(Array.from({ length: 1 + Math.floor(dice() * 4) }, () => randomJob(dice))),
      async () => held.push(...(await claim(store, { max: 3, holder: pick([holder, null]) }))),
      async () => {
        const lease = held.splice(Math.floor(dice() * held.length), 1)[0];
        if (lease !== undefined) await store.settle([{ ...lease, outcome: pick(OUTCOMES), followUps: [randomJob(dice)] }]);
      },
      async () => {
        const lease = held.splice(Math.floor(dice() * held.length), 1)[0];
        if (lease !== undefined) await takeBack(store, pick(["crashed", "stalled", "interrupted"]), lease);
      },
      async () => store.cancel(pick(await seeAll(store))?.id ?? ""),
      async () =>
        store.retry(pick((await seeAll(store)).filter(({ state }) => state === "failed" || state === "quarantined"))?.id ?? ""),
      () => store.prune({ state: pick(FINISHED_STATES), limit: 2 }),
      () => store.settle(held.slice(0, 2).map(({ job }) => ({ job, fence: 0 as Claimed["fence"], outcome: SUCCEEDED }))),
      async () => pass(clock, 700),
    ];
    const seen = new Set<JobState>();
    for (let n = 0; n < 250; n++) {
      await pick(moves)();
      const jobs = await seeAll(store);
      for (const { state } of jobs) seen.add(state);
      assert.deepEqual(await countJobs(store.queries), tally(jobs), `after move ${n}`);
      const queues = (await store.queries.overview()).queues;
      for (const queue of queues) {
        const here = jobs.filter((job) => job.queue === queue.name);
        assert.deepEqual(queue.counts, tally(here));
        assert.deepEqual(await countJobs(store.queries, { queue: queue.name }), queue.counts);
      }
    }
    assert.deepEqual(
      [...seen].sort(),
      [...JOB_STATES].filter((state) => state !== "waiting").sort(),
      "the walk has been everywhere",
    );
  });

  check.shared("counts survive a reopening", async ({ store, reopen }) => {
    await oneOfEach(store);
    const before = [await countJobs(store.queries), (await store.queries.overview()).queues];
    const reopened = await reopen();
    assert.deepEqual([await countJobs(reopened.queries), (await reopened.queries.overview()).queues], before);
  });

  check.shared("one process sees the changes of another", async ({ store, another }) => {
    const other = await another();
    assert.deepEqual(await countJobs(other.queries), none());
    const id = await addOne(store, { name: "new", queue: "new" });
    assert.equal((await other.queries.get(id))?.name, "new");
    assert.deepEqual(await countJobs(other.queries, { queue: "new" }), { ...none(), pending: 1 });
    assert.deepEqual(
      (await other.queries.overview()).queues.map(({ name }) => name),
      ["new"],
    );
    await settle(store, await claimOne(store), SUCCEEDED);
    assert.deepEqual(await countJobs(other.queries, { name: "new" }), { ...none(), succeeded: 1 });
  });

  // ── queues ──

  check("queues are listed by name, with their counts", async ({ store }) => {
    await add(store, { name: "a", queue: "q" }, { name: "b", queue: "q" }, { name: "a", queue: "p" });
    assert.deepEqual(
      (await store.queries.overview()).queues.map(({ name, counts }) => [name, counts]),
      [
        ["p", { ...none(), pending: 1 }],
        ["q", { ...none(), pending: 2 }],
      ],
    );
  });

  check("the number of ended jobs never falls, whatever is retried or removed", async ({ store }) => {
    const ended = async () => (await store.queries.overview()).queues.map((queue) => queue.ended);
    const first = await running(store);
    assert.deepEqual(await ended(), [0]);
    await settle(store, first, SUCCEEDED);
    const second = await running(store);
    await settle(store, second, { kind: "error", error: ERROR, retry: false });
    assert.deepEqual(await ended(), [2]);
    assert.equal(await store.retry(second.id), true);
    assert.equal((await store.prune({ state: "succeeded", limit: 10 })).removed, 1);
    assert.deepEqual(await ended(), [2]);
    assert.equal(await store.cancel(second.id), true);
    assert.deepEqual(await ended(), [3]);
  });

  check("a queue's oldest job is the oldest that could run now", async ({ store, clock }) => {
    const oldest = async () => (await store.queries.overview()).queues.find(({ name }) => name === "q")?.oldestAt;
    await add(store, { queue: "q", delay: 3_600_000 });
    assert.equal(await oldest(), undefined, "it cannot run yet");
    pass(clock, 1_000);
    const first = clock.now();
    await add(store, { queue: "q" });
    pass(clock, 1_000);
    const second = clock.now();
    await add(store, { name: "other", queue: "q", priority: 9 });
    assert.equal(await oldest(), first);
    const claimed = await claimOne(store, { from: [{ name: "work", lease: LEASE }] });
    assert.equal(await oldest(), second, "a running one does not wait");
    await takeBack(store, "crashed", claimed);
    assert.equal(await oldest(), first, "a reclaimed one does");
    await claim(store);
    assert.equal(await oldest(), undefined);
    pass(clock, 3_600_000);
    assert.equal(await oldest(), first - 1_000, "the delayed one is due, though no worker has claimed it");
  });

  check("the oldest job is found among many of every kind", async ({ store, clock }) => {
    const made: Record<string, number> = {};
    for (const kind of ["due", "crashed", "ready"]) {
      for (let n = 0; n < 3; n++) {
        pass(clock, 1_000);
        made[kind] ??= clock.now();
        if (kind === "due") await add(store, { name: kind, queue: "q", delay: 20_000 });
        else if (kind === "ready") await add(store, { name: kind, queue: "q" });
        else
          await takeBack(
            store,
            "crashed",
            await running(store, { name: "crashed", queue: "q", policy: { crashes: 9 }, priority: n }),
          );
      }
    }
    const oldest = async () => (await store.queries.overview()).queues[0]?.oldestAt;
    assert.equal(await oldest(), made["crashed"]);
    pass(clock, 20_000);
    assert.equal(await oldest(), made["due"]);
    assert.equal((await claim(store, { from: [{ name: "due", lease: LEASE }] })).length, 3);
    assert.equal(await oldest(), made["crashed"]);
    for (let n = 0; n < 3; n++) await claim(store, { from: [{ name: "crashed", lease: LEASE }] });
    assert.equal(await oldest(), made["ready"]);
  });
}

const OUTCOMES: Outcome[] = [
  SUCCEEDED,
  { kind: "error", error: ERROR },
  { kind: "error", error: ERROR, retry: false },
  { kind: "later", delay: 300, error: ERROR },
  { kind: "unreadable", error: ERROR },
  { kind: "released" },
  { kind: "interrupted" },
  { kind: "crashed" },
];

function randomJob(dice: () => number) {
  const n = Math.floor(dice() * 12);
  return newJob({
    name: n % 2 ? "odd" : "even",
    queue: n % 3 ? "q" : "p",
    version: 1 + (n % 2),
    delay: n === 5 ? 1_000 : 0,
    priority: n,
    ...(n === 7 && { key: "k" }),
    policy: { crashes: 2, attempts: 2, onInterrupt: n === 8 ? "fail" : "retry" },
  });
}

/** A job in each state that can be reached, by state. */
async function oneOfEach(store: Store): Promise<Record<Exclude<JobState, "waiting">, string>> {
  const succeeded = await running(store, { input: JSON.stringify("s".repeat(3_000)) });
  await store.saveProgress([{ ...succeeded, fraction: 1, message: "done" }]);
  await settle(store, succeeded, { kind: "succeeded", output: "[1]" });
  const failed = await running(store, { key: "f" });
  await settle(store, failed, { kind: "error", error: ERROR, retry: false });
  const quarantined = await running(store, { id: "quarantined" });
  await settle(store, quarantined, { kind: "unreadable", error: ERROR });
  const cancelled = await running(store);
  await store.cancel(cancelled.id);
  const now = await running(store);
  const pending = await addOne(store, { delay: 1_000 });
  return {
    succeeded: succeeded.id,
    failed: failed.id,
    quarantined: quarantined.id,
    cancelled: cancelled.id,
    running: now.id,
    pending,
  };
}

async function everything(store: Store): Promise<unknown[]> {
  return [
    await seeAll(store),
    await countJobs(store.queries),
    (await store.queries.overview()).queues,
    await store.outlook([{ lease: 1 }]),
    (await store.recoveries.history({ limit: 0 })).totals,
    await store.locks.list(),
    await registeredProcesses(store.processes),
    (await store.queries.overview()).running,
  ];
}

function tally(jobs: Job[]): Record<JobState, number> {
  const counts = none();
  for (const { state } of jobs) counts[state]++;
  return counts;
}

function none(): Record<JobState, number> {
  return { waiting: 0, pending: 0, running: 0, succeeded: 0, failed: 0, cancelled: 0, quarantined: 0 };
}

/** The same dice each time (mulberry32). */
function seeded(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}
