import assert from "node:assert/strict";
import type { CommitRows } from "../../src/core/jobs/job.ts";
import { CommitRowsFailed } from "../../src/store/jobs.ts";
import type { Claimed, Settlement } from "../../src/store/store.ts";
import { add, changesDuring, claim, claimOne, declaring, limitRule, newJob, running, see, SUCCEEDED, takeBack } from "./parts.ts";
import type { Check } from "./suite.ts";
import { countJobs } from "../../src/store/queries.ts";

function fail(): never {
  throw new Error("undone");
}

/** A success with callbacks. */
function success({ job, fence }: Claimed, ...commit: CommitRows[]): Settlement[] {
  return [{ job, fence, outcome: { kind: "succeeded", output: '"done"' }, commit }];
}

export function commitRowsCases(check: Check): void {
  check("rows commit with the success, callback after callback", async ({ store, userTable }) => {
    const table = await userTable();
    const claimed = await running(store);
    const calls: number[] = [];
    const adding =
      (n: number): CommitRows =>
      (tx) => {
        calls.push(n);
        return table.add(tx, n);
      };
    assert.deepEqual(await store.settle(success(claimed, adding(2), adding(1))), ["held"]);
    assert.deepEqual(
      [calls, await table.all()],
      [
        [2, 1],
        [1, 2],
      ],
    );
    const { state, output } = await see(store, claimed.id);
    assert.deepEqual([state, output], ["succeeded", "done"]);
    assert.equal((await countJobs(store.queries)).succeeded, 1);
  });

  check(
    "a callback that throws rolls back rows and success, and the attempt still holds its lease",
    async ({ store, userTable }) => {
      const table = await userTable();
      const claimed = await running(store, { name: "a" });
      const boom = { not: "even an error" };
      const followUps = [newJob({ name: "b", followUpId: "follow-up" })];
      const [settlement] = success(
        claimed,
        (tx) => table.add(tx, 1),
        () => {
          throw boom;
        },
      );
      const call = store.settle([{ ...(settlement as Settlement), followUps }]);
      await assert.rejects(call, (error) => error instanceof CommitRowsFailed && error.cause === boom);
      assert.deepEqual(await table.all(), []);
      assert.deepEqual(await store.inspect([claimed]), ["held"]);
      assert.deepEqual((await store.queries.list({ limit: 10 })).items.length, 1, "no follow-up");
      // What was learnt in the transaction is forgotten.
      assert.deepEqual(await store.settle([{ ...(settlement as Settlement), followUps, commit: undefined }]), ["held"]);
      assert.equal((await claim(store)).length, 1);
    },
  );

  check("the callbacks of a lost lease are not called", async ({ store, userTable }) => {
    const table = await userTable();
    const [cancelled, taken, settled] = [await running(store), await running(store), await running(store)];
    await store.cancel(cancelled.id);
    await takeBack(store, "stalled", taken);
    await store.settle([{ job: settled.job, fence: settled.fence, outcome: SUCCEEDED }]);
    let calls = 0;
    for (const [lease, fate] of [
      [cancelled, "cancelled"],
      [taken, "lost"],
      [settled, "lost"],
    ] as const) {
      const call: CommitRows = (tx) => {
        calls++;
        return table.add(tx, calls);
      };
      assert.deepEqual(await store.settle(success(lease, call)), [fate]);
    }
    assert.deepEqual([calls, await table.all()], [0, []]);
    // The next attempt has its own.
    const next = await claimOne(store);
    assert.equal(next.job, taken.job);
    assert.deepEqual(await store.settle(success(next, (tx) => table.add(tx, 7))), ["held"]);
    assert.deepEqual(await table.all(), [7]);
  });

  check("a success with a rejected follow-up is a failure, and commits no rows", async ({ store, userTable }) => {
    const table = await userTable();
    await add(store, { id: "taken", name: "other", delay: 1_000 });
    const claimed = await running(store, { name: "a" });
    const [settlement] = success(claimed, (tx) => table.add(tx, 1));
    const followUps = [newJob({ id: "taken", name: "b" })];
    assert.deepEqual(await store.settle([{ ...(settlement as Settlement), followUps }]), ["held"]);
    const { state, error } = await see(store, claimed.id);
    assert.deepEqual([state, error?.code], ["failed", "ID_TAKEN"]);
    assert.deepEqual(await table.all(), []);
  });

  check("follow-ups, slots and dependents of such a success are handled as usual", async ({ store, userTable }) => {
    const table = await userTable();
    const declares = declaring([limitRule({ concurrency: 1 })]);
    const limited = { declares, limitKeys: ["k"] };
    const [first] = await add(store, limited, limited);
    await add(store, { name: "dependent", after: [first as string] });
    const claimed = await claim(store);
    assert.deepEqual(
      claimed.map(({ id }) => id),
      [first],
    );
    const [settlement] = success(claimed[0] as Claimed, (tx) => table.add(tx, 1));
    const followUps = [newJob({ name: "new name", followUpId: "follow-up" })];
    const changes = await changesDuring(store, async () => {
      assert.deepEqual(await store.settle([{ ...(settlement as Settlement), followUps }]), ["held"]);
    });
    assert.ok(changes.some(({ ready }) => ready?.has("dependent") && ready.has("new name")));
    const names = (await claim(store)).map(({ name }) => name);
    assert.deepEqual(names.sort(), ["dependent", "new name", "work"]);
  });

  check("two attempts with callbacks and others beside them do not affect each other", async ({ store, userTable }) => {
    const table = await userTable();
    const [a, b, c, d] = [await running(store), await running(store), await running(store), await running(store)];
    const ends = await Promise.allSettled([
      store.settle(success(a, (tx) => table.add(tx, 1))),
      store.settle([{ job: b.job, fence: b.fence, outcome: SUCCEEDED }]),
      store.settle(
        success(c, (tx) => {
          const added = table.add(tx, 2);
          return added instanceof Promise ? added.then(fail) : fail();
        }),
      ),
      store.settle(success(d, (tx) => table.add(tx, 3))),
      add(store, { id: "new" }),
    ]);
    assert.deepEqual(
      ends.map(({ status }) => status),
      ["fulfilled", "fulfilled", "rejected", "fulfilled", "fulfilled"],
    );
    assert.deepEqual(await table.all(), [1, 3]);
    assert.deepEqual(await store.inspect([a, b, c, d]), ["lost", "lost", "held", "lost"]);
  });

  check("a settlement with callbacks is the only one of its call", async ({ store }) => {
    const [a, b] = [await running(store), await running(store)];
    const call = async () => store.settle([...success(a, () => {}), ...success(b)]);
    await assert.rejects(call(), /only one of its call/);
    assert.deepEqual(await store.inspect([a, b]), ["held", "held"]);
  });
}
