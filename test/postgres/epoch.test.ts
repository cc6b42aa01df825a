import assert from "node:assert/strict";
import { after, before, beforeEach, describe, test, type TestContext } from "node:test";
import { Client } from "pg";
import type { Fence } from "../../src/core/text/ids.ts";
import type { Durability } from "../../src/store/store.ts";
import { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import { testClock } from "../../src/testing/index.ts";
import { add, addOne, claim, claimOne, declaring, LEASE, limitRule, newJob, see, SUCCEEDED } from "../conformance/parts.ts";
import { noRestart, noServer, type PostgresServer, startServer } from "./server.ts";
import { countJobs } from "../../src/store/queries.ts";
import { registeredProcesses } from "../../src/store/processes.ts";

const PROCESS = { pid: 1, host: "h", boot: "b", program: "p" };

/**
 * The database goes back to what it was: the server has crashed and lost what was not synced, a replica that lagged took
 * over, a backup was restored. Processes live on, with numbers in hand that the database does not know to be taken.
 */
describe("a database that has gone back", { skip: noServer }, () => {
  let server: PostgresServer;
  let url: string;
  // A commit that was not synced stays unwritten until another process syncs.
  before(async () => void (server = await startServer({ settings: { wal_writer_delay: "10s", checkpoint_timeout: "1h" } })));
  after(() => server.close());
  beforeEach(async () => void (url = await server.createDatabase()));

  const opened = async (t: TestContext, durability: Durability = "process") => {
    const store = await PostgresStore.open(url, { durability, clock: testClock(), injected: true, random: Math.random });
    t.after(() => store.close());
    return store;
  };

  test("a late settle from the lost time settles no other worker's job", { skip: noRestart }, async (t) => {
    const store = await opened(t);
    await add(store, {});
    const zombie = await claimOne(store);
    await server.restart("immediate");
    const other = await opened(t);
    assert.equal((await countJobs(other.queries)).running, 0, "it was lost");
    const id = await addOne(other, {});
    const claimed = await claimOne(other);
    assert.ok(claimed.fence > zombie.fence && claimed.job > zombie.job);
    assert.deepEqual(await store.settle([{ job: zombie.job, fence: zombie.fence, outcome: SUCCEEDED }]), ["gone"]);
    assert.equal((await see(other, id)).state, "running");
  });

  test(
    "caches of the lost time are dropped: jobs keep their names, and queues their settings",
    { skip: noRestart },
    async (t) => {
      const store = await opened(t);
      const limited = {
        name: "first",
        queue: "q",
        declares: declaring([limitRule({ keyed: false, concurrency: 1 })], { queue: "q", name: "first" }),
        limitKeys: [""],
      };
      await add(store, limited);
      await server.restart("immediate");
      const other = await opened(t);
      await add(other, { name: "second" });
      const ids = await add(store, limited, limited);
      assert.deepEqual(await Promise.all(ids.map(async (id) => (await see(other, id)).name)), ["first", "first"]);
      assert.equal((await claim(other, { from: [{ name: "first", lease: LEASE }] })).length, 1, "one at once");
    },
  );

  test("a process that is registered alone keeps its identity", { skip: noRestart }, async (t) => {
    const store = await opened(t);
    const first = await store.processes.register(PROCESS);
    await server.restart("immediate");
    const other = await opened(t);
    const second = await other.processes.register(PROCESS);
    assert.notEqual(first, second);
    await store.processes.probe();
    assert.deepEqual(
      (await registeredProcesses(other.processes)).map(({ id }) => id),
      [first, second],
    );
  });

  test("a deliverer of the lost time moves no position", async (t) => {
    const store = await opened(t, "power");
    await store.events.position({ name: "s", kind: "test" });
    const holder = await store.processes.register(PROCESS);
    const hold = await store.events.hold("s", { holder, ttl: 60_000, token: null });
    await server.query("truncate holdfast.awake", url);
    assert.equal(await store.events.deliver("s", hold?.token as Fence, { seq: 5, ttl: 60_000 }), false);
  });

  test("a rollback of the database is noticed once, by the first process, also by a user's own transaction", async (t) => {
    const [store, other] = [await opened(t, "power"), await opened(t, "power")];
    await addOne(store, {});
    const { job, fence } = await claimOne(store);
    await server.query("truncate holdfast.awake", url);
    const client = new Client(url);
    await client.connect();
    await client.query("begin");
    await store.enqueueWithin(client, [newJob()]);
    await client.query("commit");
    await client.end();
    const [next, last] = [await claimOne(other), (await addOne(other, {}), await claimOne(other))];
    assert.ok(next.fence > fence + 1e8 && last.fence < next.fence + 1_000, "moved on once");
    assert.ok(next.job > job + 1e7);
    assert.deepEqual(await store.settle([{ job, fence, outcome: SUCCEEDED }]), ["held"], "what was there before is still held");
  });
});
