import assert from "node:assert/strict";
import type { JobState } from "../../src/core/jobs/job.ts";
import type { Outcome, Policy } from "../../src/core/jobs/retry.ts";
import type { Claimed, Settlement } from "../../src/store/store.ts";
import {
  add,
  addOne,
  badJob,
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

export function settleCases(check: Check): void {
  check("of two settlements of one lease in one call, the first wins", async ({ store }) => {
    await add(store, ...Array.from({ length: 6 }, () => ({})));
    const claimed = await claim(store, { max: 6 });
    const [first] = claimed as [Claimed];
    const later: Settlement = { job: first.job, fence: first.fence, outcome: { kind: "later", delay: 1, error: ERROR } };
    const successes = claimed.map(({ job, fence }) => ({ job, fence, outcome: SUCCEEDED }));
    assert.deepEqual(await store.settle([later, ...successes]), ["held", "lost", ...claimed.slice(1).map(() => "held")]);
    assert.equal((await see(store, first.id)).state, "pending");
  });

  check("of many successes in one call, only those with a lost lease are rejected", async ({ store }) => {
    const ids = await add(store, ...Array.from({ length: 20 }, () => ({})));
    const claimed = [...(await claim(store, { max: 10 })), ...(await claim(store, { max: 10 }))];
    await store.cancel(ids[3] as string);
    await takeBack(store, "stalled", claimed[15] as Claimed);
    const twice = claimed[7] as Claimed;
    const fates = await store.settle([...claimed, twice].map(({ job, fence }) => ({ job, fence, outcome: SUCCEEDED })));
    const expected = claimed.map(() => "held");
    expected[3] = "cancelled";
    expected[15] = "lost";
    assert.deepEqual(fates, [...expected, "lost"]);
    const counts = await countJobs(store.queries);
    assert.deepEqual([counts.succeeded, counts.cancelled, counts.pending], [18, 1, 1]);
  });

  check("a success is recorded with its output and its time", async ({ store, clock }) => {
    const claimed = await running(store);
    pass(clock, 700);
    await settle(store, claimed, { kind: "succeeded", output: '{"size":3}' });
    const job = await see(store, claimed.id);
    assert.deepEqual(
      [job.state, job.output, job.error, job.finishedAt, job.startedAt, job.attempt],
      ["succeeded", { size: 3 }, undefined, clock.now(), clock.now() - 700, 1],
    );
    assert.deepEqual(await claim(store), []);
  });

  check("a success may have no output", async ({ store }) => {
    const claimed = await running(store);
    await settle(store, claimed, SUCCEEDED);
    assert.equal("output" in (await see(store, claimed.id)), false);
  });

  check("a success after an error clears the error", async ({ store, clock }) => {
    const { id } = await running(store).then(async (first) => {
      await settle(store, first, { kind: "error", error: ERROR });
      return first;
    });
    assert.deepEqual((await see(store, id)).error, ERROR);
    pass(clock, 1_000);
    await settle(store, await claimOne(store), SUCCEEDED);
    assert.equal((await see(store, id)).error, undefined);
  });

  check("the last error stays on the job while later attempts are released or crash", async ({ store }) => {
    const first = await running(store);
    await settle(store, first, { kind: "error", error: ERROR, delay: 0 });
    for (const kind of ["released", "interrupted", "stalled", "crashed"] as const) {
      await settle(store, await claimOne(store), { kind });
      assert.deepEqual((await see(store, first.id)).error, ERROR, kind);
    }
  });

  check("a large input is still there when its job has finished", async ({ store }) => {
    const text = "z".repeat(9_000);
    const claimed = await running(store, { input: JSON.stringify(text) });
    await settle(store, claimed, SUCCEEDED);
    assert.equal((await see(store, claimed.id)).input, text);
  });

  check("a batch is settled in order, each by its own outcome", async ({ store }) => {
    const ids = await add(store, {}, {}, {});
    const leases = await claim(store);
    const outcomes: Outcome[] = [
      { kind: "succeeded", output: "1" },
      { kind: "error", error: ERROR, retry: false },
      { kind: "unreadable", error: ERROR },
    ];
    const fates = await store.settle(leases.map(({ job, fence }, i) => ({ job, fence, outcome: outcomes[i] as Outcome })));
    assert.deepEqual(fates, ["held", "held", "held"]);
    const states = (await Promise.all(ids.map((id) => see(store, id)))).map(({ state }) => state);
    assert.deepEqual(states, ["succeeded", "failed", "quarantined"]);
  });

  check("an empty list settles nothing", async ({ store }) => {
    assert.deepEqual(await store.settle([]), []);
  });

  // ── decisions ──

  check("errors are retried up to the job's attempts, and the last one fails it", async ({ store, clock }) => {
    const id = await addOne(store, { policy: { attempts: 3, delay: 1_000 } });
    for (const attempt of [1, 2]) {
      const claimed = await claimOne(store);
      assert.equal(claimed.attempt, attempt);
      await settle(store, claimed, { kind: "error", error: { ...ERROR, message: `no. ${attempt}` } });
      const job = await see(store, id);
      assert.deepEqual(
        [job.state, job.attempt, job.error?.message, job.runAt, job.finishedAt],
        ["pending", attempt, `no. ${attempt}`, clock.now() + 1_000, undefined],
      );
      pass(clock, 1_000);
    }
    await settle(store, await claimOne(store), {
      kind: "error",
      error: { name: "Last", message: "no. 3", code: "C", stack: "s" },
    });
    const job = await see(store, id);
    assert.deepEqual([job.state, job.attempt, job.finishedAt], ["failed", 3, clock.now()]);
    assert.deepEqual(job.error, { name: "Last", message: "no. 3", code: "C", stack: "s" });
    pass(clock, 86_400_000);
    assert.deepEqual(await claim(store), []);
  });

  check("a backoff grows with the errors, by the store's random numbers", async ({ store, clock }) => {
    const policy: Partial<Policy> = { attempts: 9, backoff: "exponential", delay: 1_000, maxDelay: 3_000 };
    const id = await addOne(store, { policy });
    for (const delay of [750, 1_500, 2_250, 2_250]) {
      await settle(store, await claimOne(store), { kind: "error", error: ERROR });
      assert.equal((await see(store, id)).runAt, clock.now() + delay);
      pass(clock, delay);
    }
  });

  check("an error may set the delay of its retry", async ({ store, clock }) => {
    const claimed = await running(store);
    await settle(store, claimed, { kind: "error", error: ERROR, delay: 90_000 });
    assert.equal((await see(store, claimed.id)).runAt, clock.now() + 90_000);
  });

  check("an error with no delay is claimable at once", async ({ store }) => {
    const claimed = await running(store);
    await settle(store, claimed, { kind: "error", error: ERROR, delay: 0 });
    assert.equal((await claimOne(store)).attempt, 2);
  });

  const AFTER_ONE: [string, Outcome, { state: JobState; attempt: number; runsAgain: boolean }][] = [
    [
      "an error that must not be retried fails at once",
      { kind: "error", error: ERROR, retry: false },
      { state: "failed", attempt: 1, runsAgain: false },
    ],
    [
      "an unreadable payload goes to quarantine",
      { kind: "unreadable", error: ERROR },
      { state: "quarantined", attempt: 1, runsAgain: false },
    ],
    [
      "a released job is pending, and no attempt is charged",
      { kind: "released" },
      { state: "pending", attempt: 0, runsAgain: true },
    ],
    [
      "an interrupted job is pending, and no attempt is charged",
      { kind: "interrupted" },
      { state: "pending", attempt: 0, runsAgain: true },
    ],
    ["a stalled job is pending", { kind: "stalled" }, { state: "pending", attempt: 1, runsAgain: true }],
    ["a job that took its worker down once is pending", { kind: "crashed" }, { state: "pending", attempt: 1, runsAgain: true }],
  ];
  for (const [promise, outcome, after] of AFTER_ONE) {
    check(promise, async ({ store }) => {
      const claimed = await running(store);
      await settle(store, claimed, outcome);
      const job = await see(store, claimed.id);
      assert.deepEqual([job.state, job.attempt], [after.state, after.attempt]);
      assert.deepEqual(await claimIds(store), after.runsAgain ? [claimed.id] : []);
    });
  }

  check("a job that asks to run later does, without counting an attempt", async ({ store, clock }) => {
    const id = await addOne(store, { policy: { attempts: 1 } });
    for (let n = 0; n < 4; n++) {
      const claimed = await claimOne(store);
      assert.equal(claimed.attempt, 1);
      await settle(store, claimed, { kind: "later", delay: 5_000, error: { name: "RetryAfterError", message: "busy" } });
      const job = await see(store, id);
      assert.deepEqual([job.state, job.attempt, job.runAt, job.error?.message], ["pending", 0, clock.now() + 5_000, "busy"]);
      pass(clock, 4_999);
      assert.deepEqual(await claim(store), []);
      pass(clock, 1);
    }
    await settle(store, await claimOne(store), { kind: "error", error: ERROR });
    assert.equal((await see(store, id)).state, "failed");
  });

  for (const kind of ["released", "interrupted"] as const) {
    check(`being ${kind} many times uses up neither attempts nor crashes`, async ({ store, clock }) => {
      const id = await addOne(store, { policy: { attempts: 2, crashes: 1 } });
      for (let n = 0; n < 6; n++) await settle(store, await claimOne(store), { kind });
      assert.equal((await see(store, id)).crashes, 0);
      await settle(store, await claimOne(store), { kind: "error", error: ERROR });
      assert.equal((await see(store, id)).state, "pending");
      pass(clock, 1_000);
      await settle(store, await claimOne(store), { kind: "error", error: ERROR });
      assert.equal((await see(store, id)).state, "failed");
    });
  }

  check("crashes are counted separately from errors, and end in quarantine", async ({ store, clock }) => {
    const id = await addOne(store, { policy: { attempts: 3, crashes: 3 } });
    const turn = async (outcome: Outcome) => {
      pass(clock, 60_000);
      await settle(store, await claimOne(store), outcome);
      const { state, crashes } = await see(store, id);
      return [state, crashes];
    };
    assert.deepEqual(await turn({ kind: "crashed" }), ["pending", 1]);
    assert.deepEqual(await turn({ kind: "error", error: ERROR }), ["pending", 1]);
    assert.deepEqual(await turn({ kind: "crashed" }), ["pending", 2]);
    assert.deepEqual(await turn({ kind: "error", error: ERROR }), ["pending", 2]);
    assert.deepEqual(await turn({ kind: "crashed" }), ["quarantined", 3]);
    assert.equal((await see(store, id)).error?.code, "CRASHED");
  });

  check("stalls of a live holder beyond the limit of crashes end in quarantine", async ({ store, clock }) => {
    const id = await addOne(store, { policy: { crashes: 2 } });
    const stall = async () => {
      pass(clock, 60_000);
      await settle(store, await claimOne(store), { kind: "stalled" });
      const { state, crashes } = await see(store, id);
      return [state, crashes];
    };
    assert.deepEqual(await stall(), ["pending", 1]);
    assert.deepEqual(await stall(), ["pending", 2]);
    assert.deepEqual(await stall(), ["quarantined", 3]);
    assert.equal((await see(store, id)).error?.code, "STALLED");
  });

  check("the first crash costs no time, the second a backoff", async ({ store, clock }) => {
    const id = await addOne(store, { policy: { delay: 4_000 } });
    await settle(store, await claimOne(store), { kind: "crashed" });
    await settle(store, await claimOne(store), { kind: "crashed" });
    assert.equal((await see(store, id)).runAt, clock.now() + 4_000);
    assert.deepEqual(await claim(store), []);
    pass(clock, 4_000);
    assert.deepEqual(await claimIds(store), [id]);
  });

  for (const kind of ["interrupted", "stalled", "crashed"] as const) {
    check(`a job that must not be interrupted fails when it was ${kind}`, async ({ store, clock }) => {
      const claimed = await running(store, { policy: { onInterrupt: "fail" } });
      await settle(store, claimed, { kind });
      const job = await see(store, claimed.id);
      assert.deepEqual([job.state, job.error?.code, job.finishedAt], ["failed", "INTERRUPTED", clock.now()]);
    });
  }

  check.shared("counts of errors and crashes survive a reopening", async ({ store, clock, reopen }) => {
    const id = await addOne(store, { policy: { attempts: 2, crashes: 2 } });
    await settle(store, await claimOne(store), { kind: "error", error: ERROR });
    pass(clock, 1_000);
    await settle(store, await claimOne(store), { kind: "crashed" });
    const reopened = await reopen();
    assert.equal((await see(reopened, id)).crashes, 1);
    const claimed = await claimOne(reopened);
    assert.equal(claimed.attempt, 3);
    await settle(reopened, claimed, { kind: "error", error: ERROR });
    assert.equal((await see(reopened, id)).state, "failed");
  });

  // ── fences ──

  const LOST: [
    string,
    Parameters<Check>[1] extends (ground: infer G) => unknown
      ? (ground: G, lease: Awaited<ReturnType<typeof running>>) => Promise<unknown>
      : never,
    "lost" | "cancelled" | "gone",
  ][] = [
    ["a success", ({ store }, lease) => settle(store, lease, SUCCEEDED), "lost"],
    ["a failure", ({ store }, lease) => settle(store, lease, { kind: "error", error: ERROR, retry: false }), "lost"],
    ["a release", ({ store }, lease) => settle(store, lease, { kind: "released" }), "lost"],
    ["a reclaim", ({ store }, lease) => takeBack(store, "crashed", lease), "lost"],
    [
      "a reclaim and another claim",
      async ({ store }, lease) => {
        await takeBack(store, "stalled", lease);
        assert.equal((await claimOne(store)).job, lease.job);
      },
      "lost",
    ],
    ["a cancel", ({ store }, lease) => store.cancel(lease.id), "cancelled"],
    [
      "a prune",
      async ({ store }, lease) => {
        await store.cancel(lease.id);
        assert.equal((await store.prune({ state: "cancelled", limit: 9 })).removed, 1);
      },
      "gone",
    ],
  ];
  for (const [what, act, fate] of LOST) {
    check(`after ${what}, every late write is rejected as ${fate} and changes nothing`, async (ground) => {
      const { store, clock } = ground;
      const lease = await running(store, { policy: { onInterrupt: "resume" } });
      await saveCheckpoint(store, lease, '"kept"');
      await act(ground, lease);
      pass(clock, 10);
      const before = {
        jobs: await seeAll(store),
        checkpoint: await store.loadCheckpoint(lease.job),
        counts: await countJobs(store.queries),
      };
      const outcomes: Outcome[] = [
        { kind: "succeeded", output: '"late"' },
        { kind: "error", error: ERROR },
        { kind: "error", error: ERROR, retry: false },
        { kind: "later", delay: 1, error: ERROR },
        { kind: "unreadable", error: ERROR },
        { kind: "released" },
        { kind: "interrupted" },
        { kind: "stalled" },
        { kind: "crashed" },
      ];
      const { job, fence } = lease;
      for (const outcome of outcomes) {
        const late = { job, fence, outcome, followUps: [newJob({ name: "never" }), newJob({ id: "never" })] };
        assert.deepEqual(await store.settle([late]), [fate], outcome.kind);
      }
      assert.deepEqual(await store.renew([{ job, fence, lease: 99_000 }]), [fate]);
      assert.deepEqual(await saveCheckpoint(store, lease, '"late"'), fate);
      assert.deepEqual(await store.saveProgress([{ job, fence, fraction: 0.9, message: "late" }]), [fate]);
      assert.deepEqual(await store.inspect([lease]), [fate]);
      const after = {
        jobs: await seeAll(store),
        checkpoint: await store.loadCheckpoint(lease.job),
        counts: await countJobs(store.queries),
      };
      assert.deepEqual(after, before);
      assert.equal(await store.queries.get("never"), null);
    });
  }

  check("a future fence, or one of another job, is rejected", async ({ store }) => {
    const [a, b] = [await running(store), await running(store)];
    for (const fence of [a.fence - 1, a.fence + 1, b.fence]) {
      const lease = { job: a.job, fence: fence as typeof a.fence };
      assert.deepEqual(await store.settle([{ ...lease, outcome: SUCCEEDED }]), ["lost"]);
      assert.deepEqual(await store.renew([{ ...lease, lease: 1 }]), ["lost"]);
    }
    assert.deepEqual(await store.inspect([a, b]), ["held", "held"]);
  });

  check("one lost lease in a batch does not affect the others", async ({ store }) => {
    const [a, b, c] = [await running(store), await running(store), await running(store)];
    await store.cancel(b.id);
    const fates = await store.settle([a, b, c].map(({ job, fence }) => ({ job, fence, outcome: SUCCEEDED })));
    assert.deepEqual(fates, ["held", "cancelled", "held"]);
    assert.deepEqual((await countJobs(store.queries)).succeeded, 2);
  });

  check("a lease that is settled twice in one batch is settled once", async ({ store }) => {
    const { job, fence, id } = await running(store);
    const fates = await store.settle([
      { job, fence, outcome: { kind: "succeeded", output: "1" } },
      { job, fence, outcome: { kind: "succeeded", output: "2" } },
    ]);
    assert.deepEqual(fates, ["held", "lost"]);
    assert.equal((await see(store, id)).output, 1);
    assert.equal((await countJobs(store.queries)).succeeded, 1);
  });

  check("an expired lease that was not reclaimed can be settled", async ({ store, clock }) => {
    const claimed = await running(store);
    pass(clock, 3_600_000);
    await settle(store, claimed, SUCCEEDED);
    assert.equal((await see(store, claimed.id)).state, "succeeded");
  });

  // ── follow-ups ──

  check("follow-ups exist when their parent is settled, in order, as they were given", async ({ store, clock }) => {
    const parent = await running(store);
    await settle(store, parent, SUCCEEDED, [
      newJob({ name: "next", followUpId: "made-before-1", input: '"a"' }),
      newJob({ name: "next", id: "chosen", priority: 3 }),
      newJob({ name: "next", key: "k", delay: 1_000 }),
    ]);
    const jobs = (await store.queries.list({ name: "next", limit: 10 })).items;
    assert.deepEqual(jobs.map(({ id, state, priority, runAt }) => [id, state, priority, runAt - clock.now()]).slice(0, 2), [
      ["made-before-1", "pending", 0, 0],
      ["chosen", "pending", 3, 0],
    ]);
    assert.deepEqual([jobs.length, jobs[2]?.key, jobs[2]?.runAt], [3, "k", clock.now() + 1_000]);
    assert.equal((await see(store, "made-before-1")).input, "a");
    assert.deepEqual(await claimIds(store), ["chosen", "made-before-1"]);
  });

  check("a follow-up that exists already does not reject its parent", async ({ store }) => {
    const other = await addOne(store, { name: "next", id: "there", key: "k", delay: 1 });
    const parent = await running(store);
    await settle(store, parent, SUCCEEDED, [newJob({ name: "next", id: "there" }), newJob({ name: "next", key: "k" })]);
    assert.equal((await see(store, parent.id)).state, "succeeded");
    assert.deepEqual(
      (await store.queries.list({ name: "next", limit: 9 })).items.map(({ id }) => id),
      [other],
    );
  });

  check("a success whose follow-up's id is another name's has failed, with none of its follow-ups", async ({ store }) => {
    await add(store, { id: "theirs", name: "other", delay: 1 });
    const parent = await running(store);
    await settle(store, parent, { kind: "succeeded", output: "1" }, [newJob({ id: "fine" }), newJob({ id: "theirs" })]);
    const job = await see(store, parent.id);
    assert.deepEqual([job.state, job.error?.code, job.output], ["failed", "ID_TAKEN", undefined]);
    assert.equal(await store.queries.get("fine"), null);
    assert.deepEqual(await countJobs(store.queries, { name: "work" }), {
      ...(await countJobs(store.queries, { name: "absent" })),
      failed: 1,
    });
  });

  check("a job may enqueue a follow-up with its own key", async ({ store }) => {
    const parent = await running(store, { key: "k" });
    await settle(store, parent, SUCCEEDED, [newJob({ key: "k" })]);
    const [again] = await claim(store);
    assert.ok(again && again.id !== parent.id);
  });

  for (const outcome of [SUCCEEDED, { kind: "error", error: ERROR, retry: false }] as const) {
    check(
      `a follow-up with the key of a job that ends later in the same call, as ${outcome.kind}, is its duplicate`,
      async ({ store }) => {
        await add(store, { name: "first" }, { key: "k" });
        const [first, second] = (await claim(store)).sort((a, b) => a.job - b.job);
        const ends = [
          { ...(first ?? assert.fail()), outcome: SUCCEEDED, followUps: [newJob({ key: "k" })] },
          { ...(second ?? assert.fail()), outcome },
        ];
        assert.deepEqual(await store.settle(ends), ["held", "held"]);
        assert.equal((await seeAll(store)).length, 2);
      },
    );
  }

  check("a failing attempt's follow-ups commit with it, too", async ({ store }) => {
    const parent = await running(store);
    await settle(store, parent, { kind: "error", error: ERROR, retry: false }, [newJob({ id: "clean-up" })]);
    assert.equal((await see(store, "clean-up")).state, "pending");
  });

  check("when a follow-up cannot be written, its parent stays as it was and can be settled again", async ({ store }) => {
    const parent = await running(store);
    await saveCheckpoint(store, parent, '"kept"');
    const before = await seeAll(store);
    const { job, fence } = parent;
    const followUps = [newJob({ id: "first" }), badJob(), newJob({ id: "third" })];
    await assert.rejects(store.settle([{ job, fence, outcome: SUCCEEDED, followUps }]));
    assert.deepEqual(await seeAll(store), before);
    assert.equal(await store.loadCheckpoint(job), '"kept"');
    assert.equal((await countJobs(store.queries)).succeeded, 0);
    assert.deepEqual(await store.inspect([parent]), ["held"]);
    await settle(store, parent, SUCCEEDED, [newJob({ id: "first" })]);
    assert.equal((await countJobs(store.queries)).succeeded, 1);
    assert.equal((await see(store, "first")).state, "pending");
  });

  // ── news ──

  check("a settle names the queues that may have a job", async ({ store }) => {
    const [a, b, c] = [
      await running(store, { name: "a" }),
      await running(store, { name: "b" }),
      await running(store, { name: "c" }),
    ];
    const changes = await changesDuring(store, () =>
      store.settle([
        { ...a, outcome: { kind: "released" } },
        { ...b, outcome: { kind: "error", error: ERROR } },
        { ...c, outcome: SUCCEEDED, followUps: [newJob({ name: "d" })] },
      ]),
    );
    assert.equal(changes.length, 1);
    assert.equal(changes[0]?.own, true);
    for (const queue of ["a", "b", "d"]) assert.ok(changes[0]?.ready?.has(queue), queue);
    assert.deepEqual(changes[0]?.ended, [], "their holder ended them");
  });
}
