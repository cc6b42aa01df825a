import assert from "node:assert/strict";
import type { ClaimSource, ClaimOutlook } from "../../src/store/store.ts";
import {
  add,
  addOne,
  claim,
  claimIds,
  claimOne,
  ERROR,
  LEASE,
  newJob,
  pass,
  POLICY,
  register,
  running,
  see,
  settle,
  SUCCEEDED,
  takeBack,
} from "./parts.ts";
import type { Check } from "./suite.ts";

export function claimCases(check: Check): void {
  check("a claim has everything a worker needs, and the job shows as running", async ({ store, clock }) => {
    const policy = { ...POLICY, attempts: 7, timeout: 5 };
    const id = await addOne(store, { name: "resize", queue: "images", version: 3, input: '{"a":[1]}', priority: 4, policy });
    pass(clock, 500);
    const claimed = await claimOne(store, { from: [{ lease: 12_000 }] });
    const { job, fence, ...rest } = claimed;
    assert.equal(typeof job, "number");
    assert.ok(fence > 0);
    const expected = {
      id,
      name: "resize",
      queue: "images",
      version: 3,
      input: '{"a":[1]}',
      attempt: 1,
      priority: 4,
      policy,
      lease: 12_000,
      expiresAt: clock.now() + 12_000,
    };
    assert.deepEqual(Object.fromEntries(Object.keys(expected).map((name) => [name, rest[name as keyof typeof rest]])), expected);
    const seen = await see(store, id);
    assert.deepEqual([seen.state, seen.attempt, seen.startedAt, seen.createdAt], ["running", 1, clock.now(), clock.now() - 500]);
  });

  check("an empty store has nothing to claim", async ({ store }) => {
    assert.deepEqual(await claim(store), []);
  });

  check("a claimed job is not claimed again", async ({ store }) => {
    await add(store, {});
    assert.equal((await claim(store)).length, 1);
    assert.deepEqual(await claim(store), []);
  });

  check("a claim takes at most as many jobs as it asks for", async ({ store }) => {
    const ids = await add(store, {}, {}, {}, {}, {});
    assert.deepEqual(await claimIds(store, { max: 0 }), []);
    assert.deepEqual(await claimIds(store, { max: 2 }), ids.slice(0, 2));
    assert.deepEqual(await claimIds(store, { max: 2 }), ids.slice(2, 4));
    assert.deepEqual(await claimIds(store, { max: 2 }), ids.slice(4));
  });

  check("fences rise with every claim", async ({ store }) => {
    let last = 0;
    await add(store, {});
    for (let n = 0; n < 5; n++) {
      const { job, fence } = await claimOne(store);
      assert.ok(fence > last);
      last = fence;
      await settle(store, { job, fence }, { kind: "released" });
    }
  });

  check("jobs that are claimed together have their own leases", async ({ store }) => {
    const ids = await add(store, {}, {});
    const [a, b] = await claim(store);
    assert.ok(a && b);
    await settle(store, a, SUCCEEDED);
    assert.deepEqual(await store.inspect([a, b]), ["lost", "held"]);
    assert.equal((await see(store, ids[1] as string)).state, "running");
  });

  // ── order ──

  check("a higher priority comes first, then first in, first out", async ({ store }) => {
    const [a, b, c, d, e] = await add(
      store,
      { priority: 0 },
      { priority: 5 },
      { priority: -5 },
      { priority: 5 },
      { priority: 0 },
    );
    assert.deepEqual(await claimIds(store, { max: 2 }), [b, d]);
    // A store may claim by another way once it knows its lanes.
    assert.deepEqual(await claimIds(store, { max: 2 }), [a, e]);
    assert.deepEqual(await claimIds(store), [c]);
  });

  check("the order holds across the names and versions of a queue", async ({ store }) => {
    const ids = await add(
      store,
      { name: "a", queue: "q", priority: 1 },
      { name: "b", queue: "q", priority: 2 },
      { name: "a", queue: "q", version: 2, priority: 3 },
      { name: "b", queue: "q", priority: 1 },
      { name: "a", queue: "q", priority: 1 },
    );
    const [a1, b2, a3, b1, last] = ids;
    assert.deepEqual(await claimIds(store, { max: 3 }), [a3, b2, a1]);
    assert.deepEqual(await claimIds(store), [b1, last]);
  });

  check("a released job keeps its place", async ({ store }) => {
    const [first, second, third] = await add(store, {}, {}, {});
    const claimed = await claimOne(store);
    assert.equal(claimed.id, first);
    await settle(store, claimed, { kind: "released" });
    assert.deepEqual(await claimIds(store), [first, second, third]);
  });

  check("a reclaimed job keeps its place", async ({ store }) => {
    const [first, second] = await add(store, {}, {});
    await takeBack(store, "crashed", await claimOne(store));
    assert.deepEqual(await claimIds(store), [first, second]);
  });

  check("a retried job keeps its place after its backoff", async ({ store, clock }) => {
    const [first, second] = await add(store, {}, {});
    await settle(store, await claimOne(store), { kind: "error", error: ERROR });
    pass(clock, POLICY.delay);
    const third = await addOne(store);
    assert.deepEqual(await claimIds(store), [first, second, third]);
  });

  check("a delayed job takes its place by creation, not by due time", async ({ store, clock }) => {
    const delayed = await addOne(store, { delay: 1_000 });
    const later = await addOne(store);
    pass(clock, 1_000);
    assert.deepEqual(await claimIds(store), [delayed, later]);
  });

  // ── time ──

  check("a delayed job is claimable at its instant, and not a millisecond before", async ({ store, clock }) => {
    const id = await addOne(store, { delay: 1_000 });
    pass(clock, 999);
    assert.deepEqual(await claim(store), []);
    pass(clock, 1);
    assert.deepEqual(await claimIds(store), [id]);
  });

  check("delayed jobs become due each at its own time", async ({ store, clock }) => {
    const [c, a, b] = await add(store, { delay: 3_000 }, { delay: 1_000 }, { delay: 2_000 });
    for (const id of [a, b, c]) {
      pass(clock, 1_000);
      assert.deepEqual(await claimIds(store), [id]);
    }
  });

  check("jobs far in the future block nothing", async ({ store, clock }) => {
    await add(store, ...Array.from({ length: 2_500 }, () => ({ delay: 86_400_000, priority: 9 })));
    const ready = await addOne(store);
    assert.deepEqual(await claimIds(store), [ready]);
    assert.deepEqual(await claim(store), []);
    pass(clock, 86_400_000);
    let claimed = 0;
    for (let turn = 0; turn < 10 && claimed < 2_500; turn++) claimed += (await claim(store, { max: 1_000 })).length;
    assert.equal(claimed, 2_500);
  });

  check("a job is not claimed before its backoff ends", async ({ store, clock }) => {
    await add(store, { policy: { delay: 5_000 } });
    await settle(store, await claimOne(store), { kind: "error", error: ERROR });
    pass(clock, 4_999);
    assert.deepEqual(await claim(store), []);
    pass(clock, 1);
    assert.equal((await claimOne(store)).attempt, 2);
  });

  // ── what is asked for ──

  check("a claim takes only the names, versions and queues that it asks for", async ({ store }) => {
    const [a1, a2, b1, far] = await add(
      store,
      { name: "a", queue: "q" },
      { name: "a", queue: "q", version: 2 },
      { name: "b", queue: "q" },
      { name: "a", queue: "far" },
    );
    assert.deepEqual(await claimIds(store, from({ name: "c" })), []);
    assert.deepEqual(await claimIds(store, from({ name: "a", version: 3 })), []);
    assert.deepEqual(await claimIds(store, from({ queue: "p" })), []);
    assert.deepEqual(await claimIds(store, from({ name: "b", queue: "far" })), []);
    assert.deepEqual(await claimIds(store, { from: [] }), []);
    assert.deepEqual(await claimIds(store, from({ name: "a", version: 2 })), [a2]);
    assert.deepEqual(await claimIds(store, from({ queue: "far" })), [far]);
    assert.deepEqual(await claimIds(store, from({ name: "a" })), [a1]);
    assert.deepEqual(await claimIds(store, from({ queue: "q" })), [b1]);
  });

  check("jobs without a worker never block others", async ({ store }) => {
    await add(store, ...Array.from({ length: 300 }, () => ({ name: "unknown", queue: "q", priority: 9 })));
    const id = await addOne(store, { name: "known", queue: "q" });
    assert.deepEqual(await claimIds(store, { from: [{ name: "known", version: 1, lease: LEASE }], max: 1 }), [id]);
  });

  check("each queue has its share, however many names another queue has", async ({ store }) => {
    for (const name of ["a1", "a2", "a3", "a4"]) await add(store, ...Array.from({ length: 3 }, () => ({ name, queue: "a" })));
    await add(store, ...Array.from({ length: 3 }, () => ({ queue: "b" })));
    const claimed = await claim(store, { max: 4 });
    assert.deepEqual(claimed.map(({ queue }) => queue).sort(), ["a", "a", "b", "b"]);
  });

  check("each source has its own lease", async ({ store, clock }) => {
    await add(store, { name: "a", queue: "q" }, { name: "b", queue: "q" });
    const claimed = await claim(store, {
      from: [
        { name: "a", lease: 1_000 },
        { name: "b", lease: 9_000 },
      ],
    });
    assert.deepEqual(
      claimed.map(({ name, lease, expiresAt }) => [name, lease, expiresAt - clock.now()]),
      [
        ["a", 1_000, 1_000],
        ["b", 9_000, 9_000],
      ],
    );
    pass(clock, 1_000);
    assert.deepEqual(
      (await store.recoveries.stale({ dead: [], skewed: false, limit: 10 })).map(({ job, lease }) => [job, lease]),
      [[claimed[0]?.job, 1_000]],
    );
  });

  check("a job that another process has just added can be claimed, whatever its name", async ({ store }) => {
    await claim(store);
    const id = await addOne(store, { name: "new", queue: "new" });
    assert.deepEqual(await claimIds(store), [id]);
  });

  check.shared("a name that another process added is claimed here", async ({ store, another }) => {
    await claim(store);
    const other = await another();
    const id = await addOne(other, { name: "brought", queue: "along", policy: { attempts: 11 } });
    const claimed = await claimOne(store);
    assert.deepEqual([claimed.id, claimed.name, claimed.policy.attempts], [id, "brought", 11]);
    assert.deepEqual(await claim(other), []);
  });

  // ── fair shares ──

  check("several queues get fair shares of one claim", async ({ store }) => {
    await add(store, ...Array.from({ length: 20 }, () => ({ queue: "long", priority: 9 })));
    await add(store, ...Array.from({ length: 5 }, () => ({ queue: "short" })));
    const queues = (await claim(store, { max: 8 })).map(({ queue }) => queue);
    assert.deepEqual([queues.filter((q) => q === "long").length, queues.filter((q) => q === "short").length], [4, 4]);
  });

  check("the unused share of a short queue goes to the others", async ({ store }) => {
    await add(store, ...Array.from({ length: 20 }, () => ({ queue: "long" })));
    await add(store, { queue: "short" });
    const queues = (await claim(store, { max: 8 })).map(({ queue }) => queue);
    assert.deepEqual([queues.filter((q) => q === "long").length, queues.filter((q) => q === "short").length], [7, 1]);
  });

  check("a worker with one slot serves every queue, settle by settle", async ({ store }) => {
    for (const queue of ["a", "b", "c"]) await add(store, ...Array.from({ length: 12 }, () => ({ queue })));
    const served: Record<string, number> = { a: 0, b: 0, c: 0 };
    for (let n = 0; n < 12; n++) {
      const claimed = await claimOne(store);
      served[claimed.queue] = (served[claimed.queue] ?? 0) + 1;
      await settle(store, claimed, SUCCEEDED);
    }
    assert.deepEqual(served, { a: 4, b: 4, c: 4 });
  });

  check("a worker with one slot serves every queue, whatever is committed in between", async ({ store }) => {
    for (const queue of ["a", "b"]) await add(store, ...Array.from({ length: 8 }, () => ({ queue })));
    for (const between of [0, 1, 2, 3]) {
      const served = new Set<string>();
      for (let n = 0; n < 4; n++) {
        served.add((await claimOne(store)).queue);
        for (let i = 0; i < between; i++) await add(store, { name: "noise", queue: "noise", delay: 60_000 });
      }
      assert.deepEqual([...served].sort(), ["a", "b"], `${between} commits between claims`);
    }
  });

  // ── per-source max ──

  check("a source gives at most its max, and the others fill up", async ({ store }) => {
    for (const name of ["few", "many"]) await add(store, ...Array.from({ length: 5 }, () => ({ name, queue: "q" })));
    const names = (
      await claim(store, {
        from: [
          { name: "few", max: 2, lease: LEASE },
          { name: "many", lease: LEASE },
        ],
      })
    ).map(({ name }) => name);
    assert.deepEqual([names.filter((n) => n === "few").length, names.filter((n) => n === "many").length], [2, 5]);
  });

  check("a source with max 0 gives none", async ({ store }) => {
    await add(store, { name: "a" }, { name: "b" });
    const from = [
      { name: "a", max: 0, lease: LEASE },
      { name: "b", lease: LEASE },
    ];
    assert.deepEqual(
      (await claim(store, { from })).map(({ name }) => name),
      ["b"],
    );
  });

  check("a source's max applies over its queues together", async ({ store }) => {
    await add(store, { queue: "p" }, { queue: "p" }, { queue: "q" }, { queue: "q" });
    assert.equal((await claim(store, { from: [{ name: "work", max: 3, lease: LEASE }] })).length, 3);
  });

  check("a source's max applies over its names and versions together, in order", async ({ store }) => {
    const ids = await add(
      store,
      { name: "a", queue: "q", priority: 1 },
      { name: "b", queue: "q", priority: 3 },
      { name: "b", queue: "q", version: 2, priority: 2 },
      { name: "a", queue: "q", priority: 1 },
    );
    assert.deepEqual(await claimIds(store, { from: [{ queue: "q", max: 2, lease: LEASE }] }), [ids[1], ids[2]]);
    assert.deepEqual(await claimIds(store, { from: [{ queue: "q", max: 1, lease: LEASE }] }), [ids[0]]);
  });

  check("every queue has its share although a common source has reached its max", async ({ store }) => {
    for (const queue of ["a", "b"]) await add(store, { name: "few", queue, priority: 5 }, { queue }, { queue });
    const from = [{ name: "few", max: 1, lease: LEASE }, { lease: LEASE }];
    const claimed = await claim(store, { from, max: 2 });
    assert.deepEqual(claimed.map(({ queue }) => queue).sort(), ["a", "b"]);
    assert.deepEqual(claimed.map(({ name }) => name).sort(), ["few", "work"]);
  });

  check("a queue has its share although a source of some of its names has reached its max", async ({ store }) => {
    const from = [{ name: "few", max: 1, lease: LEASE }, { lease: LEASE }];
    // Each queue is served first once.
    for (let n = 0; n < 2; n++) {
      const few = { name: "few", queue: "a", priority: 5 };
      await add(store, few, { ...few, version: 2 }, { queue: "a" }, ...Array.from({ length: 4 }, () => ({ queue: "b" })));
      const claimed = await claim(store, { from, max: 4 });
      assert.deepEqual(claimed.map(({ queue }) => queue).sort(), ["a", "a", "b", "b"]);
      for (const lease of [...claimed, ...(await claim(store))]) await settle(store, lease, SUCCEEDED);
    }
  });

  check("a source's max counts suspects, too", async ({ store }) => {
    const holder = await register(store);
    const suspect = await running(store);
    await takeBack(store, "crashed", suspect);
    const others = await add(store, {}, {}, {});
    const from = [{ name: "work", max: 2, lease: LEASE }];
    assert.deepEqual(await claimIds(store, { from, holder }), [suspect.id, others[0]]);
  });

  check("a source that has reached its max gives no suspect", async ({ store }) => {
    const suspect = await running(store);
    await takeBack(store, "crashed", suspect);
    const [first] = await add(store, { priority: 5 }, { priority: 4 });
    const holder = await register(store);
    const limited = [{ name: "work", max: 1, lease: LEASE }];
    assert.deepEqual(await claimIds(store, { from: limited, holder }), [first]);
  });

  // ── suspects ──

  check("a holder gets at most one suspect at a time", async ({ store }) => {
    const holder = await register(store);
    const ids = await add(store, {}, {}, {});
    await takeBack(store, "crashed", ...(await claim(store)));
    const innocent = await addOne(store);
    const claimed = await claim(store, { holder });
    assert.deepEqual(
      claimed.map(({ id }) => id),
      [ids[0], innocent],
    );
    assert.deepEqual(await claim(store, { holder }), []);
    const other = await register(store);
    assert.deepEqual(await claimIds(store, { holder: other }), [ids[1]], "another process may take the next");
    await settle(store, claimed[0] ?? assert.fail(), SUCCEEDED);
    assert.deepEqual(await claimIds(store, { holder }), [ids[2]], "and so may this one, when it is done with the first");
  });

  check("a holder gets one suspect out of many queues and names", async ({ store }) => {
    const holder = await register(store);
    await add(store, { name: "a" }, { name: "b" }, { name: "c", queue: "a" }, { name: "d", queue: "a" });
    await takeBack(store, "crashed", ...(await claim(store)));
    assert.equal((await claim(store, { holder })).length, 1);
    assert.equal((await claim(store, { holder })).length, 0);
  });

  check("two claims of one holder in one turn get one suspect between them", async ({ store }) => {
    const holder = await register(store);
    await add(store, {}, {});
    await takeBack(store, "crashed", ...(await claim(store)));
    const [a, b] = await Promise.all([claim(store, { holder }), claim(store, { holder })]);
    assert.deepEqual([a.length, b.length], [1, 0]);
  });

  check("a suspect comes by priority, like any other job", async ({ store }) => {
    const holder = await register(store);
    const low = await addOne(store, { priority: 1 });
    await takeBack(store, "crashed", await claimOne(store));
    const [high, lower] = await add(store, { priority: 2 }, { priority: 0 });
    assert.deepEqual(await claimIds(store, { holder, max: 2 }), [high, low]);
    assert.deepEqual(await claimIds(store, { holder }), [lower]);
  });

  check("of several suspects the one with the highest priority comes first, whatever its name", async ({ store }) => {
    const holder = await register(store);
    await add(
      store,
      { name: "a", queue: "q", priority: 1 },
      { name: "b", queue: "q", priority: 3 },
      { name: "c", queue: "q", priority: 2 },
    );
    await takeBack(store, "crashed", ...(await claim(store)));
    const names = (await claim(store, { holder })).map(({ name }) => name);
    assert.deepEqual(names, ["b"]);
  });

  check("a suspect comes in its order, whatever suspects wait in queues that are not served", async ({ store }) => {
    for (const queue of ["a", "b"]) await add(store, { queue, priority: queue === "a" ? 5 : 4 });
    await takeBack(store, "crashed", ...(await claim(store)));
    await add(store, { queue: "a", priority: -5 }, { queue: "b", priority: -5 });
    const holder = await register(store);
    // Each queue is served first once, by another process each time.
    const first = await claimOne(store, { holder });
    const second = await claimOne(store, { holder: await register(store) });
    assert.deepEqual([first.queue, second.queue].sort(), ["a", "b"]);
    assert.deepEqual([first.priority, second.priority].sort(), [4, 5]);
  });

  check("a suspect of one queue is claimed together with jobs of another", async ({ store }) => {
    const holder = await register(store);
    for (const [suspect, clean] of [
      ["a", "b"],
      ["d", "c"],
    ] as const) {
      await takeBack(store, "crashed", await running(store, { name: suspect }));
      await add(store, { name: clean });
      const claimed = await claim(store, { holder });
      assert.deepEqual(claimed.map(({ name }) => name).sort(), [suspect, clean].sort());
      for (const lease of claimed) await settle(store, lease, SUCCEEDED);
    }
  });

  check("every queue has its share, whatever suspects wait in the others", async ({ store }) => {
    for (const queue of ["a", "b"]) await add(store, { queue, priority: 5 });
    await takeBack(store, "crashed", ...(await claim(store)));
    for (const queue of ["a", "b"]) await add(store, { queue }, { queue });
    const claimed = await claim(store, { holder: await register(store), max: 2 });
    assert.deepEqual(claimed.map(({ queue }) => queue).sort(), ["a", "b"]);
    assert.deepEqual(claimed.map(({ priority }) => priority).sort(), [0, 5]);
  });

  check("locked queues take no share of a claim", async ({ store }) => {
    for (const queue of ["a", "b", "c"]) await add(store, ...Array.from({ length: 10 }, () => ({ queue })));
    await claim(store, { from: [{ queue: "b", lease: LEASE }], max: 1, exclusive: "token" });
    const claimed = await claim(store, { max: 12 });
    for (const queue of ["a", "c"]) assert.equal(claimed.filter((one) => one.queue === queue).length, 6, queue);
  });

  check("a suspect whose source has reached its max does not block another suspect", async ({ store }) => {
    const [, last] = await add(store, { name: "few", queue: "q" }, { name: "many", queue: "q", priority: -5 });
    await takeBack(store, "crashed", ...(await claim(store)));
    const [first] = await add(store, { name: "few", queue: "q", priority: 5 });
    const from = [
      { name: "few", max: 1, lease: LEASE },
      { name: "many", max: 5, lease: LEASE },
    ];
    assert.deepEqual(await claimIds(store, { holder: await register(store), from }), [first, last]);
  });

  check("a claim by hand gets one suspect, out of any number of queues", async ({ store }) => {
    await add(store, { queue: "a" }, { queue: "a" }, { queue: "b" }, { queue: "c" });
    await takeBack(store, "crashed", ...(await claim(store)));
    assert.equal((await claim(store)).length, 1);
  });

  check("an operator's retry clears suspicion", async ({ store }) => {
    const holder = await register(store);
    const ids = await add(store, { policy: { crashes: 1 } }, { policy: { crashes: 1 } });
    await takeBack(store, "crashed", ...(await claim(store)));
    for (const id of ids) assert.equal(await store.retry(id), true);
    assert.deepEqual(await claimIds(store, { holder }), ids);
  });

  // ── outlook ──

  check("the outlook says whether a job is ready, and when the next one is", async ({ store, clock }) => {
    const from = [{ lease: LEASE }];
    assert.deepEqual(await store.outlook(from), { ready: false, nextIn: null });
    await add(store, { delay: 5_000 }, { delay: 2_000 });
    assert.deepEqual(await store.outlook(from), { ready: false, nextIn: 2_000 });
    pass(clock, 2_500);
    assert.deepEqual(await store.outlook(from), { ready: true, nextIn: 0 }, "due, though no worker has claimed it yet");
    await claimOne(store);
    assert.deepEqual(await store.outlook(from), { ready: false, nextIn: 2_500 });
    await addOne(store);
    assert.equal((await store.outlook(from)).ready, true);
  });

  check("the outlook covers only the sources that are asked for", async ({ store, clock }) => {
    await add(store, { name: "mine", delay: 9_000 }, { name: "other", delay: 1_000 }, { name: "other" });
    const from = [{ name: "mine", version: 1, lease: LEASE }];
    assert.deepEqual(await store.outlook(from), { ready: false, nextIn: 9_000 });
    pass(clock, 1_000);
    assert.deepEqual(await store.outlook(from), { ready: false, nextIn: 8_000 });
    assert.deepEqual(await store.outlook([{ name: "absent", lease: LEASE }]), { ready: false, nextIn: null });
  });

  check("the outlook has the soonest instant over all names and queues", async ({ store }) => {
    await add(store, { name: "a", delay: 5_000 }, { name: "b", delay: 3_000 }, { name: "c", queue: "a", delay: 4_000 });
    assert.deepEqual(await store.outlook([{ lease: LEASE }]), { ready: false, nextIn: 3_000 });
  });

  check("the outlook is not ready for a suspect in its backoff", async ({ store }) => {
    await add(store, { policy: { delay: 4_000 } });
    for (let n = 0; n < 2; n++) await takeBack(store, "crashed", await claimOne(store));
    assert.deepEqual(await store.outlook([{ lease: LEASE }]), { ready: false, nextIn: 4_000 });
  });

  check("the outlook counts suspects, and no locked jobs", async ({ store }) => {
    const from = [{ lease: LEASE }];
    await takeBack(store, "crashed", await running(store));
    assert.equal((await store.outlook(from)).ready, true);
    await store.locks.acquire("work", "me", "token", 1_000);
    assert.equal((await store.outlook(from)).ready, false);
  });

  check("the outlook that a claim returns equals the outlook after it", async ({ store, clock }) => {
    const compare = async (max: number, ...names: string[]): Promise<void> => {
      const from = ["a", ...names].map((name) => ({ name, lease: LEASE }));
      let left: ClaimOutlook | undefined;
      await claim(store, { from, max, left: (outlook) => (left = outlook) });
      if (left !== undefined) assert.deepEqual(left, await store.outlook(from));
    };
    await compare(1);
    await add(store, { name: "a" }, { name: "a" }, { name: "a" }, { name: "a", delay: 2_000 }, { name: "b" });
    for (const max of [2, 2, 2, 2]) await compare(max);
    await add(store, { name: "a" }, { name: "b", queue: "b", delay: 1_900 }, { name: "b", queue: "b" });
    for (const max of [2, 2, 2]) await compare(max, "b");
    pass(clock, 500);
    await compare(1);
    pass(clock, 1_500);
    await compare(1);
    await compare(1);
    await takeBack(store, "crashed", await running(store, { name: "a" }));
    await compare(0);
    await compare(1);
  });

  check("a claim without a job writes nothing", async ({ store }) => {
    const id = await addOne(store, { id: "a", key: "k", priority: 2, input: '"x"' });
    const before = await see(store, id);
    await claimOne(store);
    const { state, attempt, startedAt, worker, leaseExpiresAt, ...rest } = await see(store, id);
    const { state: _, attempt: __, ...was } = before;
    assert.deepEqual(rest, was);
    assert.deepEqual([state, attempt, worker, leaseExpiresAt], ["running", 1, "tester", (startedAt as number) + LEASE]);
    assert.deepEqual(await store.enqueue([newJob({ id: "a" })]), [{ id: "a", duplicate: true }]);
  });

  check.shared("two processes never claim the same job", async ({ store, another }) => {
    const other = await another();
    const ids = await add(store, ...Array.from({ length: 60 }, () => ({})));
    const taken: string[] = [];
    while (taken.length < 60) {
      const [a, b] = await Promise.all([claimIds(store, { max: 7 }), claimIds(other, { max: 7 })]);
      assert.ok(a.length + b.length > 0);
      taken.push(...a, ...b);
    }
    assert.deepEqual(taken.sort(), ids);
  });
}

function from(source: object): { from: ClaimSource[] } {
  return { from: [{ ...source, lease: LEASE }] };
}
