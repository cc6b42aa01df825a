import assert from "node:assert/strict";
import type { Change } from "../../src/store/store.ts";
import {
  add,
  addOne,
  badJob,
  changesDuring,
  claim,
  claimIds,
  claimOne,
  lockOf,
  newJob,
  running,
  see,
  seeAll,
  settle,
  SUCCEEDED,
} from "./parts.ts";
import type { Check } from "./suite.ts";
import { countJobs } from "../../src/store/queries.ts";

export function groupCases(check: Check): void {
  check("a claim made when jobs arrive is part of their commit, and takes them", async ({ store }) => {
    const claims: Promise<unknown[]>[] = [];
    const stop = store.onChange(() => {}, { ownOnly: true, onIncoming: () => claims.push(claim(store)) });
    const changes = await changesDuring(store, () => addOne(store));
    stop();
    assert.equal((await claims[0])?.length, 1);
    assert.equal(changes.length, 1, "one commit");
    await addOne(store);
    assert.equal(claims.length, 1, "a listener that has stopped is not called again");
  });

  check("calls of one turn share one commit", async ({ store }) => {
    const changes = await changesDuring(store, () =>
      Promise.all(Array.from({ length: 50 }, (_, n) => addOne(store, { queue: `q${n % 3}` }))),
    );
    assert.equal(changes.length, 1);
    assert.deepEqual([...(changes[0]?.ready ?? [])].sort(), ["q0", "q1", "q2"]);
    assert.equal((await seeAll(store)).length, 50);
  });

  check("calls of two turns are two commits", async ({ store }) => {
    const changes = await changesDuring(store, async () => {
      await addOne(store);
      await addOne(store);
    });
    assert.equal(changes.length, 2);
  });

  check("calls of one turn are executed in order", async ({ store }) => {
    const [[first], claimed, [second], cancelled, again] = await Promise.all([
      add(store, { id: "a", key: "k" }),
      claim(store),
      store.enqueue([newJob({ key: "k" })]),
      store.cancel("a"),
      store.enqueue([newJob({ id: "b", key: "k" })]),
    ]);
    assert.equal(first, "a");
    assert.deepEqual(
      claimed.map(({ id }) => id),
      ["a"],
    );
    assert.deepEqual(second, { id: "a", duplicate: true });
    assert.equal(cancelled, true);
    assert.deepEqual(again, [{ id: "b", duplicate: false }]);
    assert.deepEqual(await store.inspect(claimed), ["cancelled"]);
  });

  check("ids follow the order of the calls", async ({ store }) => {
    const ids = await Promise.all(Array.from({ length: 20 }, () => addOne(store)));
    assert.deepEqual([...ids].sort(), ids);
    assert.deepEqual(await claimIds(store), ids);
  });

  check("a worker's turn (settle, enqueue, claim) is one commit", async ({ store }) => {
    const claimed = await running(store);
    const changes = await changesDuring(store, async () => {
      const [fates, , next] = await Promise.all([
        store.settle([{ ...claimed, outcome: SUCCEEDED, followUps: [newJob({ id: "followed" })] }]),
        add(store, { id: "added" }),
        claim(store),
      ]);
      assert.deepEqual(fates, ["held"]);
      assert.deepEqual(
        next.map(({ id }) => id),
        ["followed", "added"],
      );
    });
    assert.equal(changes.length, 1);
  });

  for (const where of ["first", "in the middle", "last"] as const) {
    check(`a bad call ${where} among others fails alone`, async ({ store }) => {
      const claimed = await running(store);
      const good = (id: string) => () => store.enqueue([newJob({ id, name: `name of ${id}` })]);
      const calls: (() => Promise<unknown>)[] = [
        good("a"),
        () => store.settle([{ ...claimed, outcome: SUCCEEDED }]),
        good("b"),
        good("c"),
        () => store.locks.acquire("l", "me", "t", 1_000),
      ];
      const at = { first: 0, "in the middle": 2, last: calls.length }[where];
      calls.splice(at, 0, () =>
        store.enqueue([newJob({ id: "half" }), badJob({ name: "a new name" }), newJob({ id: "other half" })]),
      );
      const results = await Promise.allSettled(calls.map((call) => call()));
      assert.deepEqual(
        results.map(({ status }) => status),
        calls.map((_, i) => (i === at ? "rejected" : "fulfilled")),
      );
      assert.deepEqual(
        (await seeAll(store)).map(({ id }) => id),
        [claimed.id, "a", "b", "c"],
      );
      assert.equal((await see(store, claimed.id)).state, "succeeded");
      assert.equal((await countJobs(store.queries)).succeeded, 1);
      assert.equal((await lockOf(store, "l"))?.holder, "me");
      assert.deepEqual((await claim(store)).map(({ name }) => name).sort(), ["name of a", "name of b", "name of c"]);
      assert.deepEqual(await store.enqueue([newJob({ id: "half" })]), [{ id: "half", duplicate: false }]);
    });
  }

  check("a bad call alone changes nothing, and the store continues", async ({ store }) => {
    await assert.rejects(store.enqueue([newJob({ id: "x" }), badJob()]));
    await assert.rejects(store.enqueue([newJob({ id: "x", priority: Number.NaN })]));
    assert.deepEqual(await seeAll(store), []);
    assert.deepEqual((await store.queries.overview()).queues, []);
    assert.deepEqual(await store.enqueue([newJob({ id: "x" })]), [{ id: "x", duplicate: false }]);
    assert.deepEqual(await claimIds(store), ["x"]);
  });

  check("a claim after a bad call of its turn gets the jobs enqueued before it", async ({ store }) => {
    const [, bad, claimed] = await Promise.allSettled([addOne(store, { id: "a" }), store.enqueue([badJob()]), claim(store)]);
    assert.equal(bad.status, "rejected");
    assert.ok(claimed.status === "fulfilled");
    assert.deepEqual(
      claimed.value.map(({ id, name, policy }) => [id, name, policy.attempts]),
      [["a", "work", 3]],
    );
  });

  check("a bad settlement changes no counts", async ({ store }) => {
    const [a, b] = [await running(store), await running(store)];
    const results = await Promise.allSettled([
      store.settle([{ ...a, outcome: SUCCEEDED, followUps: [badJob()] }]),
      store.settle([{ ...b, outcome: SUCCEEDED }]),
    ]);
    assert.deepEqual(
      results.map(({ status }) => status),
      ["rejected", "fulfilled"],
    );
    assert.deepEqual(await store.inspect([a, b]), ["held", "lost"]);
    assert.equal((await countJobs(store.queries)).succeeded, 1);
    assert.equal((await countJobs(store.queries)).running, 1);
  });

  // ── news ──

  check("every listener is notified of a change before its caller continues", async ({ store }) => {
    const told: string[] = [];
    store.onChange(({ own }) => own && told.push("a"));
    store.onChange(() => told.push("b"), { ownOnly: true });
    await addOne(store);
    assert.deepEqual(told.sort(), ["a", "b"]);
  });

  check("a removed listener is not notified", async ({ store }) => {
    const told: Change[] = [];
    const stop = store.onChange((change) => told.push(change), { ownOnly: true });
    await addOne(store);
    stop();
    await addOne(store);
    assert.equal(told.length, 1);
  });

  check("a call that changed nothing notifies no listener", async ({ store }) => {
    await add(store, { id: "a", delay: 60_000 });
    const changes = await changesDuring(store, async () => {
      assert.deepEqual(await claim(store), []);
      await store.enqueue([newJob({ id: "a" })]);
      await store.cancel("absent");
      await store.locks.renew("l", "t", null);
      await store.locks.clean();
    });
    assert.deepEqual(changes, []);
  });

  check("an enqueue names the queues that may have a job", async ({ store }) => {
    const [change] = await changesDuring(store, () => add(store, { queue: "a" }, { queue: "b" }));
    assert.deepEqual([change?.own, [...(change?.ready ?? [])].sort(), change?.ended], [true, ["a", "b"], []]);
  });

  // ── the end ──

  check("close waits for calls in flight, and may be called twice", async ({ store }) => {
    const late = addOne(store);
    await Promise.all([store.close(), store.close()]);
    assert.ok(await late);
  });

  check("a closed store rejects calls", async ({ store }) => {
    await store.close();
    await assert.rejects(addOne(store));
    await assert.rejects(store.queries.get("a"));
  });

  check.shared("a call acknowledged right before close is there at the next start", async ({ store, reopen }) => {
    const id = await addOne(store);
    const claimed = await claimOne(store);
    const settled = settle(store, claimed, { kind: "succeeded", output: "1" });
    const reopened = await reopen();
    await settled;
    assert.equal((await see(reopened, id)).output, 1);
  });
}
