import assert from "node:assert/strict";
import {
  add,
  addOne,
  changesDuring,
  claim,
  claimIds,
  claimOne,
  ERROR,
  LEASE,
  lockOf,
  pass,
  settle,
  SUCCEEDED,
  takeBack,
  breakLock,
} from "./parts.ts";
import type { Check } from "./suite.ts";

export function lockCases(check: Check): void {
  check("a lock has one holder", async ({ store, clock }) => {
    assert.equal(await store.locks.acquire("l", "agent-1", "token-1", 5_000), true);
    assert.equal(await store.locks.acquire("l", "agent-2", "token-2", 5_000), false);
    assert.equal(await store.locks.acquire("l", "agent-1", "token-1", 5_000), false, "not even by who has it");
    assert.deepEqual(await lockOf(store, "l"), {
      name: "l",
      holder: "agent-1",
      acquiredAt: clock.now(),
      expiresAt: clock.now() + 5_000,
      stale: false,
    });
    assert.equal(await store.locks.acquire("m", "agent-2", "token-2", 5_000), true, "another lock is another");
  });

  check("of two concurrent acquires, one succeeds", async ({ store }) => {
    const got = await Promise.all(["a", "b", "c"].map((who) => store.locks.acquire("l", who, who, 1_000)));
    assert.equal(got.filter(Boolean).length, 1);
    assert.equal((await lockOf(store, "l"))?.holder, ["a", "b", "c"][got.indexOf(true)]);
  });

  check("a lock that was never acquired does not exist", async ({ store }) => {
    assert.equal(await lockOf(store, "l"), null);
    assert.deepEqual(await store.locks.list(), []);
    assert.equal(await store.locks.renew("l", "t", 1_000), false);
    assert.equal(await store.locks.renew("l", "t", null), false);
    assert.equal(await breakLock(store, "l"), false);
  });

  check(
    "a lock expires at its instant, not a millisecond before, and shows as stale until it is acquired again",
    async (ground) => {
      const { store, clock } = ground;
      await store.locks.acquire("l", "a", "a", 5_000);
      const { acquiredAt } = (await lockOf(store, "l")) ?? assert.fail();
      pass(clock, 4_999);
      assert.equal(await store.locks.acquire("l", "b", "b", 5_000), false);
      assert.equal((await lockOf(store, "l"))?.stale, false);
      pass(clock, 1);
      assert.deepEqual(await lockOf(store, "l"), { name: "l", holder: "a", acquiredAt, expiresAt: clock.now(), stale: true });
      assert.equal(await store.locks.acquire("l", "b", "b", 7_000), true);
      assert.deepEqual(await lockOf(store, "l"), {
        name: "l",
        holder: "b",
        acquiredAt: clock.now(),
        expiresAt: clock.now() + 7_000,
        stale: false,
      });
    },
  );

  check("a holder may acquire its own expired lock again", async ({ store, clock }) => {
    await store.locks.acquire("l", "a", "first", 1_000);
    pass(clock, 1_000);
    assert.equal(await store.locks.acquire("l", "a", "second", 1_000), true);
    assert.equal(await store.locks.renew("l", "first", null), false, "the old token is worth nothing");
    assert.equal(await store.locks.renew("l", "first", 1_000), false);
    assert.equal(await store.locks.renew("l", "second", null), true);
  });

  check("an extension counts from now, and needs the token", async ({ store, clock }) => {
    await store.locks.acquire("l", "a", "token", 5_000);
    pass(clock, 4_000);
    assert.equal(await store.locks.renew("l", "other", 60_000), false);
    assert.equal(await store.locks.renew("m", "token", 60_000), false);
    assert.equal((await lockOf(store, "l"))?.expiresAt, clock.now() + 1_000);
    assert.equal(await store.locks.renew("l", "token", 5_000), true);
    assert.equal((await lockOf(store, "l"))?.expiresAt, clock.now() + 5_000);
    assert.equal(await store.locks.renew("l", "token", 100), true, "it may be shortened");
    pass(clock, 100);
    assert.equal((await lockOf(store, "l"))?.stale, true);
  });

  check("an expired lock can be neither extended nor released", async ({ store, clock }) => {
    await store.locks.acquire("l", "a", "t", 1_000);
    pass(clock, 1_000);
    assert.equal(await store.locks.renew("l", "t", 1_000), false);
    assert.equal(await store.locks.renew("l", "t", null), false);
    assert.equal((await lockOf(store, "l"))?.stale, true);
  });

  check("a release needs the token, and frees the lock at once", async ({ store }) => {
    await store.locks.acquire("l", "a", "t", 1_000);
    assert.equal(await store.locks.renew("l", "a", null), false);
    assert.equal(await store.locks.renew("m", "t", null), false);
    assert.equal((await lockOf(store, "l"))?.stale, false);
    assert.equal(await store.locks.renew("l", "t", null), true);
    assert.equal(await store.locks.renew("l", "t", null), false);
    assert.equal(await lockOf(store, "l"), null);
    assert.equal(await store.locks.acquire("l", "b", "u", 1_000), true);
  });

  check("an operator breaks a lock, whichever process holds it", async ({ store }) => {
    await store.locks.acquire("l", "a", "t", 1_000);
    await store.locks.acquire("m", "a", "t", 1_000);
    assert.equal(await breakLock(store, "l"), true);
    assert.equal(await lockOf(store, "l"), null);
    assert.equal(await store.locks.renew("l", "t", 1_000), false);
    assert.equal((await lockOf(store, "m"))?.holder, "a");
  });

  check("all locks are listed by name, expired ones too", async ({ store, clock }) => {
    await store.locks.acquire("b", "2", "t", 9_000);
    await store.locks.acquire("a", "1", "t", 1_000);
    pass(clock, 1_000);
    assert.deepEqual(
      (await store.locks.list()).map(({ name, holder, stale }) => [name, holder, stale]),
      [
        ["a", "1", true],
        ["b", "2", false],
      ],
    );
  });

  check(
    "stale locks are those that cleaning would remove after reclaiming, and listing removes none",
    async ({ store, clock }) => {
      await store.locks.acquire("old", "a", "t", 1_000);
      await store.locks.acquire("new", "a", "t", 60_000);
      await addOne(store, { queue: "claimed" });
      const from = [{ queue: "claimed", lease: LEASE }];
      const claimed = await claimOne(store, { from, exclusive: "exclusive" });
      pass(clock, 1_000);
      assert.deepEqual((await store.recoveries.preview({ dead: [], alive: [] }, [])).staleLocks, ["old"]);
      assert.deepEqual(
        (await store.recoveries.preview({ dead: [], alive: [] }, [{ ...claimed, verdict: "crashed" }])).staleLocks,
        ["claimed", "old"],
      );
      assert.equal((await store.locks.list()).length, 3);
      await takeBack(store, "stalled", claimed);
      assert.deepEqual((await store.recoveries.preview({ dead: [], alive: [] }, [])).staleLocks, ["claimed", "old"]);
      assert.deepEqual((await store.locks.clean()).removed.toSorted(), ["claimed", "old"]);
      assert.deepEqual((await store.recoveries.preview({ dead: [], alive: [] }, [])).staleLocks, []);
    },
  );

  check("cleaning removes expired locks and nothing else", async ({ store, clock }) => {
    await store.locks.acquire("old", "a", "t", 1_000);
    await store.locks.acquire("older", "a", "t", 500);
    await store.locks.acquire("new", "a", "t", 1_001);
    pass(clock, 1_000);
    assert.deepEqual((await store.locks.clean()).removed.toSorted(), ["old", "older"]);
    assert.deepEqual(await store.locks.clean(), { removed: [], shortened: [] });
    assert.deepEqual(
      (await store.locks.list()).map(({ name }) => name),
      ["new"],
    );
    assert.equal((await store.recoveries.history({ limit: 0 })).totals.locksCleaned, 2);
  });

  check("a clock that was set back extends no lock beyond its duration, once it is cleaned", async (ground) => {
    const { store, clock } = ground;
    await store.locks.acquire("l", "a", "t", 1_000);
    clock.set(clock.now() - 3_600_000);
    assert.deepEqual((await store.recoveries.preview({ dead: [], alive: [] }, [])).overlongLocks, ["l"]);
    assert.deepEqual(await store.locks.clean(), { removed: [], shortened: ["l"] });
    assert.deepEqual((await store.recoveries.preview({ dead: [], alive: [] }, [])).overlongLocks, []);
    assert.equal((await lockOf(store, "l"))?.expiresAt, clock.now() + 1_000);
    pass(clock, 1_000);
    assert.equal(await store.locks.acquire("l", "b", "u", 1_000), true);
  });

  check.shared("a lock holds across processes and reopenings", async ({ store, another, reopen, clock }) => {
    await store.locks.acquire("l", "a", "t", 5_000);
    const other = await another();
    assert.equal(await other.locks.acquire("l", "b", "u", 5_000), false);
    const reopened = await reopen();
    assert.equal(await reopened.locks.acquire("l", "b", "u", 5_000), false);
    assert.equal(await reopened.locks.renew("l", "t", 6_000), true);
    pass(clock, 6_000);
    assert.equal(await reopened.locks.acquire("l", "b", "u", 5_000), true);
  });

  // ── a lock on a queue ──

  check("while a queue's lock is held no worker claims from it, and other queues continue", async ({ store, clock }) => {
    const [locked, free] = await add(store, { queue: "q" }, { queue: "free" });
    await store.locks.acquire("q", "a", "t", 5_000);
    assert.deepEqual(await claimIds(store), [free]);
    assert.deepEqual(await claim(store, { exclusive: "t" }), [], "not even exclusively");
    pass(clock, 4_999);
    assert.deepEqual(await claim(store), []);
    pass(clock, 1);
    assert.deepEqual(await claimIds(store), [locked]);
  });

  check("a queue whose lock was released can be claimed from, and is reported as ready", async ({ store }) => {
    const id = await addOne(store, { queue: "q" });
    await store.locks.acquire("q", "a", "t", 5_000);
    const changes = await changesDuring(store, () => store.locks.renew("q", "t", null));
    assert.ok(changes.some(({ ready }) => ready?.has("q")));
    assert.deepEqual(await claimIds(store), [id]);
  });

  check("a queue whose lock was broken, or cleaned after its expiry, is reported as ready", async ({ store, clock }) => {
    await store.locks.acquire("q", "a", "t", 5_000);
    const broken = await changesDuring(store, () => breakLock(store, "q"));
    assert.ok(broken.some(({ ready }) => ready?.has("q")));
    await store.locks.acquire("q", "a", "t", 5_000);
    pass(clock, 5_000);
    const cleaned = await changesDuring(store, () => store.locks.clean());
    assert.ok(cleaned.some(({ ready }) => ready?.has("q")));
  });

  // ── exclusive claims ──

  check(
    "an exclusive claim acquires its queue's lock, and no other worker claims there until it is settled",
    async ({ store, clock }) => {
      const [first, second] = await add(store, { queue: "q" }, { queue: "q" });
      const other = await addOne(store, { queue: "other" });
      const from = [{ queue: "q", lease: LEASE }];
      const claimed = await claimOne(store, { from, worker: "agent-1", exclusive: "token" });
      assert.equal(claimed.id, first);
      assert.deepEqual(await lockOf(store, "q"), {
        name: "q",
        holder: "agent-1",
        acquiredAt: clock.now(),
        expiresAt: claimed.expiresAt,
        stale: false,
      });
      assert.deepEqual(await claim(store, { from }), []);
      assert.deepEqual(await claim(store, { from, exclusive: "token" }), []);
      assert.equal(await store.locks.acquire("q", "agent-2", "u", 1_000), false);
      assert.deepEqual(await claimIds(store), [other]);
      await settle(store, claimed, SUCCEEDED);
      assert.equal(await lockOf(store, "q"), null);
      assert.deepEqual(await store.locks.list(), []);
      assert.equal((await claimOne(store, { from, exclusive: "again" })).id, second);
    },
  );

  check("an exclusive claim without a job acquires no lock", async ({ store }) => {
    await add(store, { queue: "q", delay: 1_000 });
    assert.deepEqual(await claim(store, { from: [{ queue: "q", lease: LEASE }], max: 1, exclusive: "t" }), []);
    assert.equal(await lockOf(store, "q"), null);
    assert.equal(await store.locks.acquire("q", "a", "t", 1_000), true);
  });

  check("an exclusive claim's lock lasts as long as its lease", async ({ store, clock }) => {
    await add(store, { queue: "q" }, { queue: "q" });
    const claimed = await claimOne(store, { exclusive: "t" });
    pass(clock, 10 * LEASE);
    assert.deepEqual(await store.locks.clean(), { removed: [], shortened: [] });
    assert.deepEqual(await claim(store), [], "expired, but no process has reclaimed it");
    assert.equal(await store.locks.acquire("q", "b", "u", 1_000), false);
    await store.renew([{ ...claimed, lease: LEASE }]);
    assert.equal((await lockOf(store, "q"))?.expiresAt, clock.now() + LEASE);
  });

  check("an exclusive claim's lock ends with its settle, never by its token", async ({ store }) => {
    await add(store, { queue: "q" });
    const claimed = await claimOne(store, { exclusive: "t" });
    assert.equal(await store.locks.renew("q", "t", 1), false);
    assert.equal(await store.locks.renew("q", "t", null), false);
    assert.deepEqual(await store.inspect([claimed]), ["held"]);
    assert.equal((await lockOf(store, "q"))?.stale, false);
  });

  const ENDS: Record<
    string,
    (store: Parameters<typeof settle>[0], claimed: Awaited<ReturnType<typeof claimOne>>) => Promise<unknown>
  > = {
    "was settled": (store, claimed) => settle(store, claimed, SUCCEEDED),
    failed: (store, claimed) => settle(store, claimed, { kind: "error", error: ERROR, retry: false }),
    "was released": (store, claimed) => settle(store, claimed, { kind: "released" }),
    "was reclaimed": (store, claimed) => takeBack(store, "crashed", claimed),
    "was cancelled": (store, claimed) => store.cancel(claimed.id),
    "was cancelled and pruned": async (store, claimed) => {
      await store.cancel(claimed.id);
      await store.prune({ state: "cancelled", limit: 1 });
    },
  };
  for (const [how, end] of Object.entries(ENDS)) {
    check(`the lock of an exclusive claim that ${how} is free, and its queue is reported as ready`, async ({ store }) => {
      await add(store, { queue: "q" }, { queue: "q", priority: -1 });
      const claimed = await claimOne(store, { exclusive: "t" });
      const changes = await changesDuring(store, () => end(store, claimed));
      assert.ok(
        changes.some(({ ready }) => ready?.has("q")),
        "there is another job that could not be claimed before",
      );
      assert.equal(await lockOf(store, "q"), null);
      assert.notDeepEqual(await claim(store), []);
      assert.equal(await store.locks.acquire("q", "b", "u", 1_000), true);
      assert.equal((await lockOf(store, "q"))?.holder, "b");
    });
  }

  check("an old exclusive claim's lock does not return with the job's next claim", async ({ store }) => {
    await add(store, { queue: "q" }, { queue: "q" });
    await takeBack(store, "stalled", await claimOne(store, { exclusive: "old" }));
    await claimOne(store);
    assert.equal(await lockOf(store, "q"), null);
    assert.equal((await claim(store)).length, 1, "the second job is not kept back");
  });

  check("an exclusive claim takes over an expired lock", async ({ store, clock }) => {
    await add(store, { queue: "q" });
    await store.locks.acquire("q", "a", "t", 1_000);
    pass(clock, 1_000);
    const claimed = await claimOne(store, { worker: "b", exclusive: "u" });
    assert.equal((await lockOf(store, "q"))?.holder, "b");
    pass(clock, 1_000);
    assert.deepEqual(await store.locks.clean(), { removed: [], shortened: [] });
    assert.deepEqual(await store.inspect([claimed]), ["held"]);
    assert.equal(await store.locks.renew("q", "t", 1_000), false);
  });

  check("of two exclusive claims in one turn, one gets the queue", async ({ store }) => {
    await add(store, { queue: "q" }, { queue: "q" });
    const got = await Promise.all(["a", "b"].map((exclusive) => claim(store, { max: 1, exclusive, worker: exclusive })));
    assert.deepEqual(got.map(({ length }) => length).sort(), [0, 1]);
  });

  check.shared("an exclusive claim holds across processes and reopenings", async ({ store, another, reopen }) => {
    await add(store, { queue: "q" }, { queue: "q" });
    const claimed = await claimOne(store, { exclusive: "t" });
    const other = await another();
    assert.deepEqual(await claim(other), []);
    const reopened = await reopen();
    assert.deepEqual(await claim(reopened), []);
    await settle(reopened, claimed, SUCCEEDED);
    assert.equal((await claim(reopened)).length, 1);
  });
}
