import assert from "node:assert/strict";
import type { Job } from "../../src/core/jobs/job.ts";
import type { Outcome } from "../../src/core/jobs/retry.ts";
import type { Claimed, Store } from "../../src/store/store.ts";
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
  limitRule,
  newJob,
  pass,
  running,
  see,
  seeAll,
  settle,
  SUCCEEDED,
  takeBack,
  workOff,
} from "./parts.ts";
import type { Check } from "./suite.ts";
import { countJobs } from "../../src/store/queries.ts";

export function dependencyCases(check: Check): void {
  check("a dependent job waits until its upstream has succeeded, and then is pending", async ({ store }) => {
    const upstream = await running(store);
    const id = await addOne(store, { after: [upstream.id] });
    assert.equal((await see(store, id)).state, "waiting");
    assert.deepEqual(await claimIds(store), []);
    assert.deepEqual(await countJobs(store.queries), { ...NONE, running: 1, waiting: 1 });
    const changes = await changesDuring(store, () => settle(store, upstream, SUCCEEDED));
    assert.ok(
      changes.some(({ ready }) => ready?.has("work")),
      "workers are told",
    );
    assert.equal((await see(store, id)).state, "pending");
    assert.deepEqual(await claimIds(store), [id]);
  });

  check("a job with several upstreams waits for the last of them", async ({ store }) => {
    const ups = await add(store, {}, {}, {});
    const id = await addOne(store, { after: ups, name: "down" });
    const held = await claim(store);
    for (const one of [held[2], held[0]] as Claimed[]) {
      await settle(store, one, SUCCEEDED);
      assert.equal((await see(store, id)).state, "waiting");
    }
    await settle(store, held[1] as Claimed, SUCCEEDED);
    assert.equal((await see(store, id)).state, "pending");
  });

  check("a job after succeeded upstreams is pending at once, and waits only for unfinished ones", async ({ store }) => {
    const [done, open] = (await add(store, {}, {})) as [string, string];
    await settle(store, await claimOne(store), SUCCEEDED);
    const [now, later] = (await add(store, { after: [done] }, { after: [done, open, done] })) as [string, string];
    assert.deepEqual([(await see(store, now)).state, (await see(store, later)).state], ["pending", "waiting"]);
    assert.deepEqual(await workOff(store), [open, now, later]);
  });

  check("an upstream that runs again releases no dependent", async ({ store }) => {
    const upstream = await running(store);
    const id = await addOne(store, { after: [upstream.id], name: "down" });
    await settle(store, upstream, { kind: "error", error: ERROR, delay: 0 });
    const again = await claimOne(store);
    await takeBack(store, "crashed", again);
    const third = await claimOne(store);
    await settle(store, third, { kind: "released" });
    assert.equal((await see(store, id)).state, "waiting");
    assert.deepEqual(await workOff(store), [upstream.id, id]);
  });

  for (const [how, { state, end, said }] of Object.entries(OTHERWISE)) {
    check(`an upstream that ${how} cancels its dependents and theirs, with the reason`, async ({ store, clock }) => {
      const upstream = await running(store, { id: "up", policy: { crashes: 1 } });
      const [child] = (await add(store, { after: ["up"], name: "child" })) as [string];
      const [grandchild] = (await add(store, { after: [child], name: "grandchild" })) as [string];
      const [other] = (await add(store, { name: "other" })) as [string];
      pass(clock, 5);
      await end(store, upstream);
      assert.equal((await see(store, "up")).state, state);
      for (const [id, because] of [
        [child, `Job up, which this job waited for, ${said}.`],
        [grandchild, `Job ${child}, which this job waited for, was cancelled.`],
      ] as const) {
        const { state: ended, error, finishedAt, attempt } = await see(store, id);
        assert.deepEqual({ ended, finishedAt, attempt }, { ended: "cancelled", finishedAt: clock.now(), attempt: 0 });
        assert.deepEqual(error, { name: "UpstreamError", code: "UPSTREAM_ENDED", message: because });
      }
      const late = await addOne(store, { after: [other, "up"], name: "late" });
      const born = await see(store, late);
      assert.deepEqual([born.state, born.finishedAt, born.error?.code], ["cancelled", clock.now(), "UPSTREAM_ENDED"]);
      assert.match(born.error?.message ?? "", /^Job up, which this job waited for/);
      assert.deepEqual(await workOff(store), [other], "no other job is touched");
      const counts = await countJobs(store.queries);
      assert.deepEqual(counts, { ...NONE, cancelled: 3, succeeded: 1, [state]: state === "cancelled" ? 4 : 1 });
    });
  }

  check("an operator's retry of the upstream does not bring back cancelled dependents", async ({ store }) => {
    const upstream = await running(store);
    const id = await addOne(store, { after: [upstream.id], name: "down" });
    await settle(store, upstream, { kind: "error", error: ERROR, retry: false });
    assert.equal(await store.retry(upstream.id), true);
    assert.deepEqual(await workOff(store), [upstream.id]);
    assert.equal((await see(store, id)).state, "cancelled");
    assert.equal(await store.retry(id), false);
  });

  check("an unknown upstream is rejected alone, and nothing is written for it", async ({ store }) => {
    const answers = await store.enqueue([newJob(), newJob({ after: ["absent"], id: "mine", key: "k" }), newJob()]);
    assert.deepEqual(answers[1], { id: "absent", missing: true });
    assert.equal((await seeAll(store)).length, 2);
    assert.equal(await store.queries.get("mine"), null);
    await add(store, { id: "mine", key: "k" });
  });

  check("an unknown upstream rejects the whole batch if all or none are added", async ({ store }) => {
    const jobs = [newJob({ id: "a" }), newJob({ after: ["a"] }), newJob({ after: ["a", "absent"] })];
    assert.deepEqual(await store.enqueue(jobs, { whole: true }), [{ id: "absent", missing: true }]);
    assert.deepEqual(await seeAll(store), []);
    // The upstream must exist first: the job itself, or a job further on in the call, does not exist yet.
    for (const wrong of [[newJob({ id: "b", after: ["b"] })], [newJob({ after: ["c"] }), newJob({ id: "c" })]]) {
      assert.ok("missing" in ((await store.enqueue(wrong, { whole: true }))[0] ?? {}));
      assert.deepEqual(await seeAll(store), []);
    }
    assert.equal((await store.enqueue(jobs.slice(0, 2), { whole: true })).length, 2);
    assert.deepEqual((await states(store)).join(), "pending,waiting");
  });

  check.inProcess(
    "in the caller's own transaction a job may depend on existing jobs and on jobs of the transaction",
    async ({ store }) => {
      const ids = await store.transact((handle) => {
        const [up] = store.enqueueWithin(handle, [newJob()]) as { id: string }[];
        const [down] = store.enqueueWithin(handle, [newJob({ after: [up?.id as string] })]) as { id: string }[];
        const refused = store.enqueueWithin(handle, [newJob({ after: ["absent"] })]);
        assert.deepEqual(refused, [{ id: "absent", missing: true }]);
        return [up?.id, down?.id];
      });
      assert.deepEqual(await workOff(store), ids);
    },
  );

  check("a pruned upstream is remembered by its chosen id, and by no generated one", async ({ store }) => {
    await add(store, { id: "good" });
    await settle(store, await claimOne(store), SUCCEEDED);
    await add(store, { id: "bad" });
    await settle(store, await claimOne(store), { kind: "error", error: ERROR, retry: false });
    const [generated] = (await add(store, {})) as [string];
    await settle(store, await claimOne(store), SUCCEEDED);
    for (const state of ["succeeded", "failed"] as const) await store.prune({ state, limit: 10 });
    assert.deepEqual(await seeAll(store), []);
    assert.deepEqual(await store.enqueue([newJob({ after: [generated] })]), [{ id: generated, missing: true }]);
    const [pending, cancelled] = (await add(store, { after: ["good"] }, { after: ["good", "bad"] })) as [string, string];
    assert.equal((await see(store, pending)).state, "pending");
    assert.match((await see(store, cancelled)).error?.message ?? "", /^Job bad, .* failed\.$/);
  });

  check("a diamond of dependencies runs from top to bottom, each job once", async ({ store }) => {
    await add(store, { id: "top" });
    await add(store, { id: "left", after: ["top"] }, { id: "right", after: ["top"] });
    await add(store, { id: "bottom", after: ["left", "right"] });
    assert.deepEqual(await workOff(store), ["top", "left", "right", "bottom"]);
  });

  check("a diamond whose top fails is cancelled, each job once", async ({ store }) => {
    await add(store, { id: "top" });
    await add(store, { id: "left", after: ["top"] }, { id: "right", after: ["top"] });
    await add(store, { id: "bottom", after: ["left", "right"] });
    await settle(store, await claimOne(store), { kind: "error", error: ERROR, retry: false });
    assert.deepEqual(await states(store), ["failed", "cancelled", "cancelled", "cancelled"]);
    assert.deepEqual(await countJobs(store.queries), { ...NONE, failed: 1, cancelled: 3 });
  });

  check("upstreams that succeed and fail in one batch leave no job waiting", async ({ store }) => {
    const [a, b, c] = (await add(store, {}, {}, {})) as [string, string, string];
    const [good, mixed] = await add(store, { name: "down", after: [a, c] }, { name: "down", after: [a, b, c] });
    const held = await claim(store);
    const outcomes: Outcome[] = [SUCCEEDED, { kind: "error", error: ERROR, retry: false }, SUCCEEDED];
    await store.settle(held.map(({ job, fence }, i) => ({ job, fence, outcome: outcomes[i] as Outcome })));
    assert.equal((await see(store, mixed as string)).state, "cancelled");
    assert.deepEqual(await workOff(store), [good]);
  });

  check("a delay counts from the enqueue, and is waited out after the upstream", async ({ store, clock }) => {
    const upstream = await running(store);
    const [short, long] = (await add(store, ...[1_000, 5_000].map((delay) => ({ after: [upstream.id], delay })))) as [
      string,
      string,
    ];
    pass(clock, 2_000);
    await settle(store, upstream, SUCCEEDED);
    assert.deepEqual(await claimIds(store), [short]);
    pass(clock, 3_000);
    assert.deepEqual(await claimIds(store), [long]);
  });

  check("a waiting job takes no slot of its limits until it is released", async ({ store }) => {
    const limited = { declares: declaring([limitRule({ concurrency: 1 })]), limitKeys: ["k"] };
    const upstream = await running(store, { name: "up" });
    const waiting = await addOne(store, { ...limited, after: [upstream.id] });
    const other = await addOne(store, limited);
    const held = await claimOne(store);
    assert.equal(held.id, other, "the slot is free as long as it waits");
    await settle(store, upstream, SUCCEEDED);
    assert.equal((await see(store, waiting)).state, "pending");
    assert.deepEqual(await claimIds(store), [], "now it is not");
    await settle(store, held, SUCCEEDED);
    assert.deepEqual(await claimIds(store), [waiting]);
  });

  check("a waiting job holds its key, and a cancelled one frees it", async ({ store }) => {
    const upstream = await running(store);
    const id = await addOne(store, { name: "down", key: "k", after: [upstream.id] });
    assert.deepEqual(await store.enqueue([newJob({ name: "down", key: "k" })]), [{ id, duplicate: true }]);
    await settle(store, upstream, { kind: "error", error: ERROR, retry: false });
    await addOne(store, { name: "down", key: "k" });
  });

  check("a waiting job can be cancelled with its dependents, and is not released later", async ({ store }) => {
    const upstream = await running(store);
    const [child] = (await add(store, { after: [upstream.id] })) as [string];
    const [grandchild] = (await add(store, { after: [child] })) as [string];
    assert.equal(await store.cancel(child), true);
    assert.deepEqual([(await see(store, child)).error, (await see(store, grandchild)).state], [undefined, "cancelled"]);
    await settle(store, upstream, SUCCEEDED);
    assert.deepEqual(await workOff(store), []);
    assert.equal((await see(store, child)).state, "cancelled");
  });

  check("ten thousand dependents of one job are all released, in order", async ({ store }) => {
    const upstream = await running(store, { name: "up" });
    const jobs = Array.from({ length: 10_000 }, (): JobLike => ({ after: [upstream.id] }));
    const ids = await add(store, ...jobs);
    await settle(store, upstream, SUCCEEDED);
    assert.deepEqual(await countJobs(store.queries), { ...NONE, succeeded: 1, pending: 10_000 });
    assert.deepEqual(await claimIds(store, { max: 3 }), ids.slice(0, 3));
  });

  check("a chain of a thousand is cancelled at once", async ({ store }) => {
    await add(store, { id: "0" });
    await add(store, ...Array.from({ length: 999 }, (_, i): JobLike => ({ id: String(i + 1), after: [String(i)] })));
    await store.cancel("0");
    assert.deepEqual(await countJobs(store.queries), { ...NONE, cancelled: 1_000 });
  });

  check("follow-ups run after each other, and after their parent", async ({ store }) => {
    const parent = await running(store, { name: "parent" });
    await settle(store, parent, SUCCEEDED, [
      newJob({ name: "one", followUpId: "f-1", after: [parent.id] }),
      newJob({ name: "two", followUpId: "f-2", after: ["f-1"] }),
      newJob({ name: "three", followUpId: "f-3", after: ["f-1", "f-2"] }),
    ]);
    assert.deepEqual(await workOff(store), ["f-1", "f-2", "f-3"]);
  });

  check("a dependent of a follow-up that exists under its key depends on the existing job", async ({ store }) => {
    const there = await addOne(store, { name: "one", key: "k", priority: -1 });
    const parent = await running(store, { name: "parent" });
    await settle(store, parent, SUCCEEDED, [
      newJob({ name: "one", followUpId: "f-1", key: "k" }),
      newJob({ name: "two", followUpId: "f-2", after: ["f-1"] }),
    ]);
    assert.equal(await store.queries.get("f-1"), null);
    assert.equal((await see(store, "f-2")).state, "waiting");
    assert.deepEqual(await workOff(store), [there, "f-2"]);
  });

  check("a follow-up after an unknown job fails the attempt, with all its follow-ups", async ({ store }) => {
    const parent = await running(store);
    await settle(store, parent, SUCCEEDED, [newJob({ followUpId: "f-1" }), newJob({ followUpId: "f-2", after: ["absent"] })]);
    const { state, error } = await see(store, parent.id);
    assert.deepEqual([state, error?.code], ["failed", "NO_SUCH_JOB"]);
    assert.match(error?.message ?? "", /absent/);
    assert.equal((await seeAll(store)).length, 1);
  });

  check.shared("dependents are released by another process's settle, and after a restart", async ({ store, another, reopen }) => {
    const upstream = await running(store);
    const id = await addOne(store, { after: [upstream.id] });
    await settle(await another(), upstream, SUCCEEDED);
    assert.equal((await see(store, id)).state, "pending");
    const second = await claimOne(store);
    const last = await addOne(store, { after: [id] });
    const again = await reopen();
    await settle(again, second, SUCCEEDED);
    assert.deepEqual(await claimIds(again), [last]);
  });
}

const NONE = { waiting: 0, pending: 0, running: 0, succeeded: 0, failed: 0, cancelled: 0, quarantined: 0 };

const OTHERWISE: Record<string, { state: Job["state"]; said: string; end: (store: Store, held: Claimed) => Promise<unknown> }> = {
  fails: {
    state: "failed",
    said: "failed",
    end: (store, held) => settle(store, held, { kind: "error", error: ERROR, retry: false }),
  },
  "is cancelled": { state: "cancelled", said: "was cancelled", end: (store, held) => store.cancel(held.id) },
  "is quarantined": {
    state: "quarantined",
    said: "was quarantined",
    end: (store, held) => takeBack(store, "crashed", held),
  },
};

async function states(store: Store): Promise<string[]> {
  return (await seeAll(store)).map(({ state }) => state);
}
