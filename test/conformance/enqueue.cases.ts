import assert from "node:assert/strict";
import { generatedId, parseGeneratedId } from "../../src/core/text/ids.ts";
import { add, addOne, claim, claimIds, claimOne, newJob, pass, see, seeAll, settle, SUCCEEDED } from "./parts.ts";
import type { Check } from "./suite.ts";
import { countJobs } from "../../src/store/queries.ts";

export function enqueueCases(check: Check): void {
  check("an accepted job can be read back as it was given", async ({ store, clock }) => {
    const id = await addOne(store, { name: "resize", queue: "images", input: '{"url":"a"}', priority: 7, key: "a" });
    assert.deepEqual(await store.queries.get(id), {
      id,
      name: "resize",
      queue: "images",
      key: "a",
      state: "pending",
      input: { url: "a" },
      attempt: 0,
      crashes: 0,
      priority: 7,
      createdAt: clock.now(),
      runAt: clock.now(),
    });
  });

  check("a job without an input has none", async ({ store }) => {
    const id = await addOne(store, { input: null });
    assert.equal((await see(store, id)).input, undefined);
    assert.equal((await claimOne(store)).input, null);
  });

  check("an input of any text comes back unchanged", async ({ store }) => {
    const texts = ["", "é\u{1f600}\u2028", "'; drop table jobs; --", "\\u0000", "a\nb\tc", "%s :name ?1"].map((text) =>
      JSON.stringify(text),
    );
    await add(store, ...texts.map((input) => ({ input })));
    assert.deepEqual(
      (await claim(store)).map(({ input }) => input),
      texts,
    );
  });

  for (const length of [1_999, 2_000, 2_001, 300_000]) {
    check(`an input of ${length} characters comes back whole from get, list and claim`, async ({ store }) => {
      const text = "x".repeat(length - 2);
      const [first] = await add(store, { input: JSON.stringify(text) }, { input: '"small"' });
      assert.equal((await see(store, first as string)).input, text);
      assert.deepEqual(
        (await seeAll(store)).map(({ input }) => input),
        [text, "small"],
      );
      assert.deepEqual(
        (await claim(store)).map(({ input }) => input),
        [JSON.stringify(text), '"small"'],
      );
      assert.equal((await see(store, first as string)).input, text, "while it runs, too");
    });
  }

  check("an empty list adds no job", async ({ store }) => {
    assert.deepEqual(await store.enqueue([]), []);
    assert.deepEqual(await seeAll(store), []);
  });

  check("many jobs in one call are answered in order", async ({ store }) => {
    const ids = await add(store, ...Array.from({ length: 130 }, (_, n) => ({ input: String(n) })));
    assert.equal(new Set(ids).size, 130);
    const jobs = await seeAll(store);
    assert.deepEqual(
      jobs.map(({ id, input }) => [id, input]),
      ids.map((id, n) => [id, n]),
    );
  });

  check("generated ids sort by creation, within a call and from call to call", async ({ store, clock }) => {
    const ids = await add(store, ...Array.from({ length: 40 }, () => ({})));
    ids.push(await addOne(store));
    pass(clock, 1);
    ids.push(await addOne(store, { priority: 9 }));
    pass(clock, 86_400_000);
    ids.push(...(await add(store, {}, {})));
    assert.deepEqual([...ids].sort(), ids);
  });

  check("an unknown id finds no job", async ({ store }) => {
    const id = await addOne(store);
    const { createdAt, key } = parseGeneratedId(id) ?? assert.fail("a generated id");
    assert.equal(await store.queries.get("absent"), null);
    assert.equal(await store.queries.get(""), null);
    assert.equal(await store.queries.get(id.replace(/.$/, (last) => (last === "0" ? "2" : "0"))), null);
    assert.equal(await store.queries.get(`0${id.slice(1)}`), null, `not of ${createdAt} any more, though the key is ${key}`);
  });

  // ── chosen ids: one job ever ──

  check("a chosen id is one job: the second enqueue is a duplicate and changes nothing", async ({ store }) => {
    await add(store, { id: "invoice-1", input: "1" });
    assert.deepEqual(await store.enqueue([newJob({ id: "invoice-1", input: "2", priority: 9 })]), [
      { id: "invoice-1", duplicate: true },
    ]);
    const jobs = await seeAll(store);
    assert.deepEqual(
      jobs.map(({ id, input, priority }) => [id, input, priority]),
      [["invoice-1", 1, 0]],
    );
  });

  check("a chosen id is one job within one call", async ({ store }) => {
    assert.deepEqual(await store.enqueue([newJob({ id: "a" }), newJob({ id: "a" }), newJob({ id: "b" })]), [
      { id: "a", duplicate: false },
      { id: "a", duplicate: true },
      { id: "b", duplicate: false },
    ]);
    assert.equal((await seeAll(store)).length, 2);
  });

  check("a chosen id stays taken when its job is finished, and when it is pruned", async ({ store }) => {
    await add(store, { id: "once" });
    await settle(store, await claimOne(store), SUCCEEDED);
    assert.deepEqual(await store.enqueue([newJob({ id: "once" })]), [{ id: "once", duplicate: true }]);
    assert.equal((await store.prune({ state: "succeeded", limit: 10 })).removed, 1);
    assert.equal(await store.queries.get("once"), null);
    assert.deepEqual(await store.enqueue([newJob({ id: "once" })]), [{ id: "once", duplicate: true }]);
    assert.deepEqual(await seeAll(store), []);
  });

  check("a chosen id that belongs to another name is rejected, even when that job is pruned", async ({ store }) => {
    await add(store, { id: "x", name: "resize" });
    assert.deepEqual(await store.enqueue([newJob({ id: "x", name: "send" })]), [{ id: "x", taken: "resize" }]);
    await settle(store, await claimOne(store), SUCCEEDED);
    await store.prune({ state: "succeeded", limit: 10 });
    assert.deepEqual(await store.enqueue([newJob({ id: "x", name: "send" })]), [{ id: "x", taken: "resize" }]);
    assert.deepEqual(await seeAll(store), []);
  });

  check("a duplicate does not reject the new jobs beside it", async ({ store }) => {
    await add(store, { id: "old" }, { id: "other", name: "other" });
    const answers = await store.enqueue([
      newJob({ input: "1" }),
      newJob({ id: "old" }),
      newJob({ id: "other" }),
      newJob({ input: "2" }),
    ]);
    assert.deepEqual(answers.slice(1, 3), [
      { id: "old", duplicate: true },
      { id: "other", taken: "other" },
    ]);
    const inputs = (await Promise.all([answers[0], answers[3]].map((answer) => see(store, answer?.id ?? "")))).map(
      ({ input }) => input,
    );
    assert.deepEqual(inputs, [1, 2]);
    assert.equal((await seeAll(store)).length, 4);
  });

  check("a whole batch with another name's id is rejected, and nothing of it is added", async ({ store }) => {
    await add(store, { id: "theirs", name: "other" }, { id: "mine" });
    const refused = await store.enqueue([newJob({ id: "new" }), newJob(), newJob({ id: "theirs" })], { whole: true });
    assert.deepEqual(refused, [{ id: "theirs", taken: "other" }]);
    assert.equal((await seeAll(store)).length, 2);
    const added = await store.enqueue([newJob({ id: "new" }), newJob({ id: "mine" })], { whole: true });
    assert.deepEqual(added, [
      { id: "new", duplicate: false },
      { id: "mine", duplicate: true },
    ]);
  });

  check("a whole batch that gives one id to two names is rejected", async ({ store }) => {
    const batch = [newJob({ id: "x", name: "a" }), newJob({ id: "x", name: "b" })];
    assert.deepEqual(await store.enqueue(batch, { whole: true }), [{ id: "x", taken: "a" }]);
    assert.deepEqual(await seeAll(store), []);
  });

  check("a generated id given back as an id is a duplicate of its job", async ({ store }) => {
    const id = await addOne(store);
    assert.deepEqual(await store.enqueue([newJob({ id })]), [{ id, duplicate: true }]);
    assert.deepEqual(await store.enqueue([newJob({ id, name: "other" })]), [{ id, taken: "work" }]);
    assert.equal((await seeAll(store)).length, 1);
  });

  check("an id that looks generated but belongs to no job is an ordinary id", async ({ store }) => {
    const generated = await addOne(store);
    const { createdAt, key } = parseGeneratedId(generated) ?? assert.fail("a generated id");
    const otherTime = generatedId(createdAt - 1, key);
    await add(store, { id: otherTime, name: "other" });
    assert.equal((await see(store, otherTime)).name, "other");
    assert.equal((await see(store, generated)).name, "work");
    await add(store, { id: "chosen" });
    const { items } = await store.queries.list({ limit: 9 });
    const ofChosen = generatedId(createdAt, (key + items.length - 1) as typeof key);
    assert.equal(await store.queries.get(ofChosen), null, "a job has one id");
    await add(store, { id: ofChosen, name: "third" });
    assert.equal((await see(store, "chosen")).name, "work");
  });

  check("a chosen id may be any text", async ({ store }) => {
    const ids = ["0".repeat(17), "zzzzzzzzzzzzzzzzz", "a b", "a\nb", "é", "1", "x".repeat(500)];
    await add(store, ...ids.map((id) => ({ id })));
    for (const id of ids) assert.equal((await see(store, id)).id, id);
    assert.deepEqual(await claimIds(store), ids);
  });

  check.shared("a chosen id stays taken after a reopening, and for other processes", async ({ store, another, reopen }) => {
    await add(store, { id: "once" });
    const other = await another();
    assert.deepEqual(await other.enqueue([newJob({ id: "once" })]), [{ id: "once", duplicate: true }]);
    await settle(store, await claimOne(store), SUCCEEDED);
    await store.prune({ state: "succeeded", limit: 10 });
    const reopened = await reopen();
    assert.deepEqual(await reopened.enqueue([newJob({ id: "once" })]), [{ id: "once", duplicate: true }]);
    assert.deepEqual(await reopened.enqueue([newJob({ id: "once", name: "other" })]), [{ id: "once", taken: "work" }]);
  });

  check.shared("keys and ids of jobs are never reused, not even those of the newest after its pruning", async (ground) => {
    const { store, reopen } = ground;
    const old = await addOne(store);
    const zombie = await claimOne(store);
    await store.cancel(old);
    await store.prune({ state: "cancelled", limit: 1 });
    const reopened = await reopen();
    const id = await addOne(reopened);
    assert.notEqual(id, old);
    const claimed = await claimOne(reopened);
    assert.notEqual(claimed.job, zombie.job);
    assert.ok(claimed.fence > zombie.fence);
  });

  // ── keys: one unfinished job of a name ──

  check("a key is one unfinished job of its name", async ({ store }) => {
    const id = await addOne(store, { key: "k", input: "1" });
    assert.deepEqual(await store.enqueue([newJob({ key: "k", input: "2" })]), [{ id, duplicate: true }]);
    await claimOne(store);
    assert.deepEqual(await store.enqueue([newJob({ key: "k" })]), [{ id, duplicate: true }], "while it runs, too");
    assert.equal((await seeAll(store)).length, 1);
  });

  check("a key is one job within one call", async ({ store }) => {
    const answers = await store.enqueue([newJob({}), newJob({ key: "k" }), newJob({ key: "k" }), newJob({ key: "l" })]);
    assert.deepEqual(
      answers.map((answer) => "duplicate" in answer && answer.duplicate),
      [false, false, true, false],
    );
    assert.equal(answers[2]?.id, answers[1]?.id);
    assert.equal((await seeAll(store)).length, 3);
  });

  check("a key belongs to its name, across queues and versions", async ({ store }) => {
    const id = await addOne(store, { key: "k" });
    await add(store, { name: "other", key: "k" }, { key: "K" }, { key: "" });
    const again = await store.enqueue([newJob({ key: "k", queue: "elsewhere" }), newJob({ key: "k", version: 2 })]);
    assert.deepEqual(again, [
      { id, duplicate: true },
      { id, duplicate: true },
    ]);
  });

  check("the key of a delayed job is taken", async ({ store }) => {
    const id = await addOne(store, { key: "k", delay: 1_000 });
    assert.deepEqual(await store.enqueue([newJob({ key: "k" })]), [{ id, duplicate: true }]);
  });

  for (const how of ["succeeded", "failed", "cancelled", "quarantined"] as const) {
    check(`a key is free again when its job has ${how}`, async ({ store }) => {
      const first = await addOne(store, { key: "k" });
      const claimed = await claimOne(store);
      if (how === "cancelled") await store.cancel(first);
      else if (how === "succeeded") await settle(store, claimed, SUCCEEDED);
      else {
        const error = { name: "E", message: "" };
        await settle(store, claimed, how === "failed" ? { kind: "error", error, retry: false } : { kind: "unreadable", error });
      }
      assert.equal((await see(store, first)).state, how);
      const second = await addOne(store, { key: "k" });
      assert.notEqual(second, first);
      assert.equal((await see(store, second)).key, "k");
      assert.deepEqual(await store.enqueue([newJob({ key: "k" })]), [{ id: second, duplicate: true }]);
    });
  }

  check("for a job with both, the id is compared first, then the key", async ({ store }) => {
    await add(store, { id: "a", key: "k" });
    assert.deepEqual(await store.enqueue([newJob({ id: "a", key: "l" })]), [{ id: "a", duplicate: true }]);
    assert.deepEqual(await store.enqueue([newJob({ id: "b", key: "k" })]), [{ id: "a", duplicate: true }]);
    assert.equal(await store.queries.get("b"), null);
    await settle(store, await claimOne(store), SUCCEEDED);
    assert.deepEqual(await store.enqueue([newJob({ id: "b", key: "k" })]), [{ id: "b", duplicate: false }]);
  });

  check("a key may contain line breaks without colliding with another name's", async ({ store }) => {
    await add(store, { name: "a", key: "b\nc" }, { name: "b", key: "c" });
    assert.deepEqual(
      (await seeAll(store)).map(({ name, key }) => [name, key]),
      [
        ["a", "b\nc"],
        ["b", "c"],
      ],
    );
  });

  // ── delays ──

  check("a delay counts from the store's clock, and an instant is absolute", async ({ store, clock }) => {
    const [delayed, timed, past] = await add(store, { delay: 5_000 }, { runAt: clock.now() + 7_000 }, { runAt: 1 });
    assert.equal((await see(store, delayed as string)).runAt, clock.now() + 5_000);
    assert.equal((await see(store, timed as string)).runAt, clock.now() + 7_000);
    assert.equal((await see(store, past as string)).runAt, 1);
    assert.deepEqual(await claimIds(store), [past]);
  });

  check("a delayed job is shown as pending", async ({ store }) => {
    const id = await addOne(store, { delay: 5_000 });
    assert.equal((await see(store, id)).state, "pending");
    assert.equal((await countJobs(store.queries)).pending, 1);
  });

  check.shared("acknowledged jobs survive a reopening", async ({ store, reopen }) => {
    const large = JSON.stringify("y".repeat(5_000));
    await add(store, { id: "a", key: "k", input: large }, { id: "b", delay: 60_000, priority: -3, policy: { attempts: 9 } });
    const before = await seeAll(store);
    const reopened = await reopen();
    assert.deepEqual(await seeAll(reopened), before);
    const claimed = await claimOne(reopened);
    assert.equal(claimed.input, large);
  });
}
