import assert from "node:assert/strict";
import { after, before, describe, test, type TestContext } from "node:test";
import type { CommitRows } from "../../src/core/jobs/job.ts";
import { HoldfastError } from "../../src/core/text/errors.ts";
import { systemClock } from "../../src/engine/host.ts";
import { CommitRowsFailed } from "../../src/store/jobs.ts";
import { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import type { Claimed, Settlement } from "../../src/store/store.ts";
import { running, SUCCEEDED, takeBack } from "../conformance/parts.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";

const add: CommitRows = async (tx) => void (await tx.query("insert into orders (id) values (1)"));
const success = ({ job, fence }: Claimed, ...commit: CommitRows[]): Settlement[] => [{ job, fence, outcome: SUCCEEDED, commit }];
const isTimeout = (error: unknown) =>
  error instanceof CommitRowsFailed && error.cause instanceof HoldfastError && error.cause.code === "TX_TIMEOUT";

const sleep: CommitRows = async (tx) => void (await tx.query("select pg_sleep(3600)"));

describe("callbacks of `commit` on PostgreSQL", { skip: noServer }, () => {
  let server: PostgresServer;
  before(async () => void (server = await startServer()));
  after(() => server.close());

  const stand = async (t: TestContext, options: { commitLimit?: number } = {}) => {
    const url = await server.createDatabase();
    await server.query("create table orders (id integer primary key)", url);
    const store = await PostgresStore.open(url, { clock: systemClock, injected: false, random: Math.random, ...options });
    t.after(() => store.close());
    const orders = async () => (await server.query("select id from orders order by id", url)).map(({ id }) => Number(id));
    return { store, orders, url };
  };
  test("a callback that never ends is rolled back at its timeout, and nothing stays locked", async (t) => {
    const { store, orders, url } = await stand(t, { commitLimit: 200 });
    const claimed = await running(store);
    await assert.rejects(store.settle(success(claimed, add, () => new Promise<void>(() => {}))), isTimeout);
    assert.deepEqual([await orders(), await store.inspect([claimed])], [[], ["held"]]);
    const idle = await server.query("select 1 from pg_stat_activity where state like 'idle in transaction%'", url);
    assert.deepEqual([...idle], []);
    assert.deepEqual(await store.settle(success(claimed, add)), ["held"]);
    assert.deepEqual(await orders(), [1]);
  });

  test("a statement that takes too long is cancelled by the server", async (t) => {
    const { store, orders } = await stand(t, { commitLimit: 200 });
    const claimed = await running(store);
    await assert.rejects(store.settle(success(claimed, add, sleep)), CommitRowsFailed);
    assert.deepEqual(await orders(), []);
    assert.deepEqual(await store.settle(success(claimed, add)), ["held"]);
  });

  for (const [how, fate] of [
    ["cancelled", "cancelled"],
    ["reclaimed", "lost"],
  ] as const) {
    test(`rows of an attempt whose job is ${how} while the callback runs are not committed`, async (t) => {
      const { store, orders } = await stand(t);
      const claimed = await running(store);
      const meanwhile: CommitRows = async () => {
        if (how === "cancelled") assert.equal(await store.cancel(claimed.id), true);
        else await takeBack(store, "stalled", claimed);
      };
      assert.deepEqual(await store.settle(success(claimed, add, meanwhile)), [fate]);
      assert.deepEqual(await orders(), []);
    });
  }

  test("the lease can be renewed, and other jobs claimed, while the callback runs", async (t) => {
    const { store, orders } = await stand(t);
    const claimed = await running(store);
    const meanwhile: CommitRows = async () => {
      assert.deepEqual(await store.renew([{ job: claimed.job, fence: claimed.fence, lease: 60_000 }]), ["held"]);
      await running(store, { name: "other" });
    };
    assert.deepEqual(await store.settle(success(claimed, add, meanwhile)), ["held"]);
    assert.deepEqual(await orders(), [1]);
  });

  test("close waits for a running callback", async (t) => {
    const { store, orders } = await stand(t);
    const claimed = await running(store);
    const begun = Promise.withResolvers<void>();
    const gate = Promise.withResolvers<void>();
    const settled = store.settle(
      success(claimed, add, async () => {
        begun.resolve();
        await gate.promise;
      }),
    );
    await begun.promise;
    const closed = store.close();
    gate.resolve();
    assert.deepEqual(await settled, ["held"]);
    await closed;
    assert.deepEqual(await orders(), [1]);
  });
});
