import assert from "node:assert/strict";
import type { Outcome } from "../../src/core/jobs/retry.ts";
import type { Claimed, Store } from "../../src/store/store.ts";
import {
  claim,
  claimOne,
  declaring,
  ERROR,
  type JobLike,
  limitRule,
  newJob,
  pass,
  see,
  seeAll,
  settle,
  SUCCEEDED,
  takeBack,
  saveCheckpoint,
} from "./parts.ts";
import { Random } from "../simulation/random.ts";
import type { Check } from "./suite.ts";

/** Enqueues a job that replaces the one with the key "k". */
async function replace(store: Store, n: number, job: JobLike = {}) {
  const [answer] = await store.enqueue([newJob({ key: "k", replaces: true, input: JSON.stringify({ n }), ...job })]);
  assert.ok(answer !== undefined && "duplicate" in answer);
  return answer;
}

async function inputs(store: Store): Promise<unknown[]> {
  return (await seeAll(store)).map(({ state, key, input }) => [state, key, (input as { n: number }).n]);
}

/** What is claimed until nothing is left. */
async function workedOff(store: Store): Promise<unknown[]> {
  const ran: unknown[] = [];
  for (let claimed = await claim(store); claimed.length > 0; claimed = await claim(store)) {
    for (const one of claimed) {
      ran.push((JSON.parse(one.input as string) as { n: number }).n);
      await settle(store, one, SUCCEEDED);
    }
  }
  return ran;
}

export function replaceCases(check: Check): void {
  check("a replacing job is added if no unfinished job has its key", async ({ store }) => {
    assert.equal((await replace(store, 1)).duplicate, false);
    await settle(store, await claimOne(store), SUCCEEDED);
    assert.equal((await replace(store, 2)).duplicate, false);
    assert.deepEqual(await inputs(store), [
      ["succeeded", "k", 1],
      ["pending", "k", 2],
    ]);
  });

  check("a pending job gets the new input, delay, priority, tags and version, and keeps its id", async ({ store, clock }) => {
    const first = await replace(store, 1, { delay: 1_000, tags: ["old"] });
    pass(clock, 900);
    const large = { n: 2, filler: "x".repeat(5_000) };
    const again = await replace(store, 2, { delay: 1_000, priority: 5, tags: ["new"], version: 2, input: JSON.stringify(large) });
    assert.deepEqual(again, { id: first.id, duplicate: true });
    const job = await see(store, first.id);
    assert.deepEqual([job.input, job.priority, job.tags, job.runAt], [large, 5, ["new"], clock.now() + 1_000]);
    pass(clock, 900);
    assert.deepEqual(await claim(store), [], "debounced: its delay began again");
    await replace(store, 3);
    const claimed = await claimOne(store);
    assert.deepEqual([claimed.id, claimed.input, claimed.version], [first.id, '{"n":3}', 1]);
  });

  check("a key finds the job that has it, and the one that waits to replace it", async ({ store }) => {
    const { id } = await replace(store, 1);
    await claimOne(store);
    const behind = await replace(store, 2);
    const { items } = await store.queries.list({ key: "k", limit: 10 });
    assert.deepEqual(
      items.map((job) => job.id),
      [id, behind.id],
    );
  });

  check("a replaced job has no errors, checkpoint or backoff of the old input", async ({ store }) => {
    const { id } = await replace(store, 1);
    const claimed = await claimOne(store);
    await saveCheckpoint(store, claimed, '"page 7"');
    await settle(store, claimed, { kind: "error", error: ERROR, delay: 60_000 });
    await replace(store, 2);
    const again = await claimOne(store);
    assert.equal(again.id, id);
    assert.equal(await store.loadCheckpoint(again.job), null);
    assert.equal((await see(store, id)).error, undefined);
  });

  check("jobs of one call replace each other in order", async ({ store }) => {
    const jobs = [1, 2, 3].map((n) => newJob({ key: "k", replaces: true, input: JSON.stringify({ n }) }));
    const answers = await store.enqueue([...jobs, newJob({ input: '{"n":9}' })]);
    assert.deepEqual(
      answers.map((answer) => "duplicate" in answer && answer.duplicate),
      [false, true, true, false],
    );
    assert.deepEqual(await inputs(store), [
      ["pending", "k", 3],
      ["pending", undefined, 9],
    ]);
  });

  check("while the job runs, the newest input waits behind it, under one id", async ({ store }) => {
    const { id } = await replace(store, 1);
    const running = await claimOne(store);
    const next = await replace(store, 2);
    assert.equal(next.duplicate, false);
    assert.deepEqual(await replace(store, 3), { id: next.id, duplicate: true });
    assert.deepEqual(await inputs(store), [
      ["running", "k", 1],
      ["waiting", "k", 3],
    ]);
    const [kept] = await store.enqueue([newJob({ key: "k" })]);
    assert.deepEqual(kept, { id, duplicate: true }, "a job that does not replace is a duplicate of the running one");
    assert.deepEqual(await claim(store), []);
    await settle(store, running, SUCCEEDED);
    assert.deepEqual(await inputs(store), [
      ["succeeded", "k", 1],
      ["pending", "k", 3],
    ]);
    assert.deepEqual(await replace(store, 4), { id: next.id, duplicate: true }, "it has the key now");
    assert.deepEqual(await workedOff(store), [4]);
    assert.equal((await replace(store, 5)).duplicate, false, "and the key is free again");
  });

  const ends: Record<string, { state: string; end: (store: Store, claimed: Claimed) => Promise<unknown> }> = {
    "fails for good": { state: "failed", end: (store, one) => settle(store, one, { kind: "error", error: ERROR, retry: false }) },
    "fails and would be tried again": {
      state: "cancelled",
      end: (store, one) => settle(store, one, { kind: "error", error: ERROR }),
    },
    "is put off": { state: "cancelled", end: (store, one) => settle(store, one, { kind: "later", delay: 60_000, error: ERROR }) },
    "is released": { state: "cancelled", end: (store, one) => settle(store, one, { kind: "released" }) },
    "cannot be read": { state: "quarantined", end: (store, one) => settle(store, one, { kind: "unreadable", error: ERROR }) },
    "is cancelled": { state: "cancelled", end: (store, one) => store.cancel(one.id) },
    crashes: { state: "cancelled", end: (store, one) => takeBack(store, "crashed", one) },
    "is interrupted": { state: "cancelled", end: (store, one) => takeBack(store, "interrupted", one) },
    stalls: { state: "cancelled", end: (store, one) => takeBack(store, "stalled", one) },
  };
  for (const [how, { state, end }] of Object.entries(ends)) {
    check(`the newest input is the next pending job when the running one ${how}`, async ({ store }) => {
      await replace(store, 1);
      const claimed = await claimOne(store);
      const { id } = await replace(store, 2);
      await end(store, claimed);
      assert.deepEqual(await inputs(store), [
        [state, "k", 1],
        ["pending", "k", 2],
      ]);
      const next = await claimOne(store);
      assert.deepEqual([next.id, next.attempt], [id, 1]);
      await settle(store, next, SUCCEEDED);
      const { items } = await store.queries.list({ key: "k", limit: 9 });
      assert.deepEqual(
        items.map((job) => job.state),
        [state, "succeeded"],
      );
    });
  }

  check("a job that crashed its worker too often is quarantined, and the newest input runs", async ({ store }) => {
    await replace(store, 1, { policy: { crashes: 1 } });
    const claimed = await claimOne(store);
    await replace(store, 2);
    await takeBack(store, "crashed", claimed);
    assert.deepEqual(await inputs(store), [
      ["quarantined", "k", 1],
      ["pending", "k", 2],
    ]);
  });

  check("the waiting input keeps its delay when the running job ends", async ({ store, clock }) => {
    await replace(store, 1);
    const claimed = await claimOne(store);
    await replace(store, 2, { delay: 5_000 });
    pass(clock, 2_000);
    await settle(store, claimed, SUCCEEDED);
    assert.deepEqual(await claim(store), []);
    pass(clock, 3_000);
    assert.deepEqual(await workedOff(store), [2]);
  });

  check("the waiting input can be cancelled by its id, and another takes its place", async ({ store }) => {
    await replace(store, 1);
    const claimed = await claimOne(store);
    const { id } = await replace(store, 2);
    assert.equal(await store.cancel(id), true);
    const other = await replace(store, 3);
    assert.notEqual(other.id, id);
    await settle(store, claimed, SUCCEEDED);
    assert.deepEqual(await workedOff(store), [3]);
  });

  check("several settlements of one call each release the input behind them", async ({ store }) => {
    for (const key of ["a", "b", "c"]) await replace(store, 1, { key });
    const claimed = await claim(store);
    for (const key of ["a", "c"]) await replace(store, 2, { key });
    const outcomes: Outcome[] = [SUCCEEDED, SUCCEEDED, { kind: "released" }];
    await store.settle(claimed.map(({ job, fence }, i) => ({ job, fence, outcome: outcomes[i] as Outcome })));
    assert.deepEqual(await inputs(store), [
      ["succeeded", "a", 1],
      ["succeeded", "b", 1],
      ["cancelled", "c", 1],
      ["pending", "a", 2],
      ["pending", "c", 2],
    ]);
  });

  check("a follow-up replaces a pending job, in the commit of its success", async ({ store }) => {
    const { id } = await replace(store, 1, { delay: 60_000 });
    await store.enqueue([newJob({ name: "parent" })]);
    const parent = await claimOne(store);
    await settle(store, parent, SUCCEEDED, [newJob({ key: "k", replaces: true, followUpId: "next", input: '{"n":2}' })]);
    assert.deepEqual((await see(store, id)).input, { n: 2 });
    assert.deepEqual(await workedOff(store), [2]);
  });

  check("a follow-up of a running job replaces its own input", async ({ store }) => {
    await replace(store, 1);
    const claimed = await claimOne(store);
    await settle(store, claimed, SUCCEEDED, [newJob({ key: "k", replaces: true, followUpId: "next", input: '{"n":2}' })]);
    assert.deepEqual(await workedOff(store), [2]);
  });

  check("a dependent job is replaced, and still waits", async ({ store }) => {
    await store.enqueue([newJob({ id: "first", input: '{"n":0}' })]);
    await store.enqueue([newJob({ key: "k", after: ["first"], input: '{"n":1}' })]);
    assert.equal((await replace(store, 2)).duplicate, true);
    const claimed = await claimOne(store);
    assert.deepEqual([claimed.id, await claim(store)], ["first", []]);
    await settle(store, claimed, SUCCEEDED);
    assert.deepEqual(await workedOff(store), [2]);
  });

  check("a replaced job counts for the limit of its new key, and not for the old one", async ({ store }) => {
    const declares = declaring([limitRule({ concurrency: 1 })]);
    const limited = { declares, limitKeys: ["red"] };
    await store.enqueue([newJob({ ...limited, input: '{"n":0}' })]);
    const first = await claimOne(store);
    await replace(store, 1, limited);
    assert.deepEqual(await claim(store), [], "red is used up");
    await replace(store, 2, { declares, limitKeys: ["blue"] });
    const second = await claimOne(store);
    assert.equal(second.input, '{"n":2}');
    await replace(store, 3, { declares, limitKeys: ["blue"] });
    await settle(store, first, SUCCEEDED);
    assert.deepEqual(await claim(store), []);
    await settle(store, second, SUCCEEDED);
    assert.deepEqual(await workedOff(store), [3]);
    await store.enqueue([newJob({ ...limited, input: '{"n":4}' })]);
    assert.deepEqual(await workedOff(store), [4], "red is free again");
  });

  check.shared("a replacing call and a claim at the same instant leave the newest input to run", async ({ store, another }) => {
    const other = await another();
    for (let round = 0; round < 10; round++) {
      const key = `k${round}`;
      await replace(store, 1, { key });
      const [claimed] = await Promise.all([claim(other), replace(store, 2, { key })]);
      const ran = claimed.map(({ input }) => (JSON.parse(input as string) as { n: number }).n);
      for (const one of claimed) await settle(other, one, SUCCEEDED);
      ran.push(...((await workedOff(store)) as number[]));
      assert.equal(ran.at(-1), 2, `round ${round}: ${ran.join(", ")}`);
    }
  });

  for (const seed of [1, 2, 3, 4]) {
    check(`whatever happens to running jobs, the newest input of each key runs last (seed ${seed})`, async ({ store, clock }) => {
      const random = new Random(seed);
      const keys = ["a", "b", "c"];
      const newest = new Map<string, number>();
      const started = new Map<string, number>();
      let running: Claimed[] = [];
      const begin = async (max: number) => {
        const claimed = await claim(store, { max });
        for (const { input } of claimed) {
          const { key, n } = JSON.parse(input as string) as { key: string; n: number };
          started.set(key, n);
        }
        running.push(...claimed);
      };
      const steps: (() => Promise<unknown>)[] = [
        async () => {
          const key = random.pick(keys);
          const n = (newest.get(key) ?? 0) + 1;
          newest.set(key, n);
          await replace(store, n, { key, delay: random.pick([0, 0, 500]), input: JSON.stringify({ key, n }) });
        },
        () => begin(random.pick([1, 3])),
        async () => {
          const [one] = running.splice(random.int(0, Math.max(0, running.length - 1)), 1);
          if (one !== undefined) await random.pick(Object.values(ends)).end(store, one);
        },
        async () => {
          const [one] = running.splice(0, 1);
          if (one !== undefined) await settle(store, one, SUCCEEDED);
        },
        async () => pass(clock, 400),
      ];
      for (let i = 0; i < 80; i++) {
        await random.pick(steps)();
        const open = (await seeAll(store)).filter(
          ({ state }) => state === "pending" || state === "running" || state === "waiting",
        );
        for (const key of keys) {
          const states = open.filter((job) => job.key === key).map(({ state }) => state);
          assert.ok(["", "pending", "running", "running,waiting"].includes(states.join(",")), `${key}: ${states.join(",")}`);
        }
      }
      for (let i = 0; i < 10; i++) {
        for (const one of running.splice(0)) await settle(store, one, SUCCEEDED);
        pass(clock, 120_000);
        await begin(100);
      }
      running = [];
      assert.deepEqual(new Map([...started].sort()), new Map([...newest].sort()));
    });
  }
}
