import assert from "node:assert/strict";
import { HoldfastError } from "../../src/core/text/errors.ts";
import type { Enqueued, Store } from "../../src/store/store.ts";
import { add, addOne, badJob, changesDuring, claim, claimIds, type JobLike, newJob, see, seeAll } from "./parts.ts";
import type { Check } from "./suite.ts";

/** Enqueues within a transaction of a store that answers at once. */
function within(store: Store, tx: unknown, ...jobs: JobLike[]): Enqueued[] {
  const answers = store.enqueueWithin(tx, jobs.map(newJob));
  assert.ok(Array.isArray(answers), "it answers at once");
  return answers;
}

export function transactCases({ inProcess: check }: Check): void {
  check("jobs enqueued in a transaction exist when it has resolved with its value", async ({ store }) => {
    const answers = await store.transact((tx) => within(store, tx, { id: "a" }, { priority: 5, input: '"x"' }));
    assert.deepEqual(answers[0], { id: "a", duplicate: false });
    assert.deepEqual(await claimIds(store), [answers[1]?.id, "a"]);
    assert.equal((await see(store, (answers[1] as Enqueued).id)).input, "x");
  });

  check("a transaction that throws changes nothing and rejects with its error", async ({ store }) => {
    await addOne(store, { name: "known" });
    const thrown = { not: "even an error" };
    const call = store.transact((tx) => {
      within(store, tx, { id: "a", key: "k", name: "a new name" }, { name: "known" });
      throw thrown;
    });
    await assert.rejects(call, (error) => error === thrown);
    assert.equal((await seeAll(store)).length, 1);
    // What was learnt inside it is forgotten: names that were never committed are made anew.
    assert.deepEqual(await store.enqueue([newJob({ id: "a", key: "k", name: "another new name" })]), [
      { id: "a", duplicate: false },
    ]);
    await add(store, { name: "a new name" });
    const names = (await claim(store)).map(({ name }) => name);
    assert.deepEqual(names.sort(), ["a new name", "another new name", "known"]);
  });

  check("an enqueue within a transaction is all or none, and the transaction may continue after it", async ({ store }) => {
    await add(store, { id: "taken", name: "other" });
    await store.transact((tx) => {
      assert.deepEqual(within(store, tx, { id: "x" }, { id: "taken" }), [{ id: "taken", taken: "other" }]);
      assert.throws(() => store.enqueueWithin(tx, [newJob({ id: "y", name: "y" }), badJob({ name: "z" })]), /bad/);
      within(store, tx, { id: "good", name: "z" });
    });
    assert.deepEqual(
      (await seeAll(store)).map(({ id }) => id),
      ["taken", "good"],
    );
    await add(store, { id: "x" }, { id: "y", name: "y" });
  });

  check("duplicates are known within a transaction, also those of the transaction", async ({ store }) => {
    await add(store, { id: "a" }, { key: "k" });
    const answers = await store.transact((tx) => [
      ...within(store, tx, { id: "a" }, { key: "k" }, { id: "b", key: "l" }),
      ...within(store, tx, { id: "b" }, { key: "l" }),
    ]);
    assert.deepEqual(
      answers.map((answer) => "duplicate" in answer && answer.duplicate),
      [true, true, false, true, true],
    );
    assert.equal((await seeAll(store)).length, 3);
  });

  check("a transaction is called once, in the order of the calls, in a commit of its own", async ({ store }) => {
    const seen: string[][] = [];
    const look = (tx: unknown, ...jobs: JobLike[]) => within(store, tx, ...jobs).map(({ id }) => id);
    const verdicts = await Promise.allSettled([
      add(store, { id: "first" }),
      store.transact((tx) => {
        seen.push(look(tx, { id: "first" }, { id: "second" }));
        throw new Error("undone");
      }),
      store.enqueue([badJob({ id: "bad" })]),
      store.transact((tx) => void seen.push(look(tx, { id: "third" }))),
      claim(store),
    ]);
    assert.deepEqual(
      verdicts.map(({ status }) => status),
      ["fulfilled", "rejected", "rejected", "fulfilled", "fulfilled"],
    );
    assert.deepEqual(seen, [["first", "second"], ["third"]], "each was called once");
    assert.deepEqual(
      (await seeAll(store)).map(({ id, state }) => [id, state]),
      [
        ["first", "running"],
        ["third", "running"],
      ],
    );
  });

  check("a transaction requested inside another runs after it", async ({ store }) => {
    let inner: Promise<unknown> | undefined;
    await store.transact((tx) => {
      inner = store.transact((next) => within(store, next, { id: "inner" }));
      within(store, tx, { id: "outer" });
    });
    await inner;
    assert.deepEqual(await claimIds(store), ["outer", "inner"]);
  });

  check("a waiting worker is notified of the jobs of a transaction after its commit", async ({ store }) => {
    const changes = await changesDuring(store, () =>
      store.transact((tx) => void within(store, tx, { queue: "a" }, { queue: "b" })),
    );
    assert.deepEqual(
      changes.map(({ own, ready }) => [own, [...(ready ?? [])].sort()]),
      [[true, ["a", "b"]]],
    );
    const none = await changesDuring(store, () =>
      store
        .transact((tx) => {
          within(store, tx, {});
          throw new Error("undone");
        })
        .catch(() => {}),
    );
    assert.deepEqual(none, []);
  });

  for (const end of ["commit", "commit; begin"])
    check(`a callback that runs "${end}" is rejected with TX_ENDED, and its jobs are announced`, async ({ store }) => {
      for (const fails of [false, true]) {
        const changes = await changesDuring(store, async () => {
          const ended = store.transact((tx) => {
            within(store, tx, { name: `ready ${fails}` });
            (tx as { exec(sql: string): void }).exec(end);
            if (fails) throw new Error("own");
          });
          await assert.rejects(ended, fails ? /own/ : { code: "TX_ENDED" });
        });
        assert.deepEqual(
          changes.map(({ ready }) => ready?.has(`ready ${fails}`)),
          [true],
        );
      }
      assert.equal((await claim(store)).length, 2);
    });

  check("an ended or foreign transaction accepts nothing", async ({ store }) => {
    let kept: unknown;
    await store.transact((tx) => void (kept = tx));
    for (const [tx, code] of [
      [kept, "TX_OVER"],
      [{ db: kept }, "TX_OVER"],
      [null, "TX_INVALID"],
      ["tx", "TX_INVALID"],
      [{}, "TX_INVALID"],
      [{ db: 7 }, "TX_INVALID"],
    ]) {
      assert.throws(
        () => store.enqueueWithin(tx, [newJob()]),
        (error) => error instanceof HoldfastError && error.code === code && error.hint !== "",
      );
    }
    assert.deepEqual(await seeAll(store), []);
  });

  check.shared(
    "another process sees the jobs of a transaction, also with names that are new to it",
    async ({ store, another }) => {
      const other = await another();
      await add(other, { name: "known" });
      await store.transact((tx) => within(store, tx, { id: "a", name: "new" }));
      assert.deepEqual(await claimIds(other, { from: [{ name: "new", lease: 1_000 }] }), ["a"]);
    },
  );

  check.shared("close waits for a transaction in flight", async ({ store, reopen }) => {
    const late = store.transact((tx) => within(store, tx, { id: "late" }));
    const reopened = await reopen();
    assert.deepEqual(await late, [{ id: "late", duplicate: false }]);
    assert.deepEqual(await claimIds(reopened), ["late"]);
  });
}
