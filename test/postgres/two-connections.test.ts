import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { after, before, describe, test } from "node:test";
import postgres from "postgres";
import type { HoldfastError } from "../../src/core/text/errors.ts";
import { systemClock } from "../../src/engine/host.ts";
import { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import type { Claimed, Settlement } from "../../src/store/store.ts";
import { claim, ERROR, newJob, see, SUCCEEDED } from "../conformance/parts.ts";
import { Proxy } from "./proxy.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";
import { countJobs } from "../../src/store/queries.ts";

/** Enough settlements for the second connection. */
const MANY = 200;
const WRITER = "holdfast writes";
const clockOfServer = "floor(extract(epoch from clock_timestamp()) * 1000)";
const WRITERS = "application_name = 'holdfast writes' and datname = current_database()";

const settlementOf = ({ job, fence }: Claimed): Settlement => ({ job, fence, outcome: SUCCEEDED });

describe("claims and settlements over two connections", { skip: noServer }, () => {
  let server: PostgresServer;
  let store: PostgresStore;
  before(async () => {
    server = await startServer();
    store = await PostgresStore.open(server.url(), { clock: systemClock, injected: false, random: Math.random });
  });
  after(async () => {
    await store.close();
    await server.close();
  });

  async function backlog(name: string): Promise<Claimed[]> {
    await store.enqueue(Array.from({ length: MANY }, () => newJob({ name })));
    return claim(store, { from: [{ queue: name, lease: 60_000 }], max: MANY });
  }

  const writers = async () => (await server.query(`select pid from pg_stat_activity where ${WRITERS}`)).length;

  /** The first connection settles until the second is open. */
  async function openSecond(name: string): Promise<void> {
    while ((await writers()) < 2) await store.settle((await backlog(name)).map(settlementOf));
  }

  test("a backlog's settlements are all written, with their effects", async () => {
    assert.equal(await writers(), 1);
    await openSecond("warm-up");
    const jobs = await backlog("many");
    assert.equal(jobs.length, MANY);
    const behind = await store.enqueue([newJob({ name: "behind", after: [(jobs[7] as Claimed).id] })]);
    const stale = { ...settlementOf(jobs[3] as Claimed), fence: 1 as never };
    const fates = await store.settle([...jobs.map(settlementOf), settlementOf(jobs[0] as Claimed), stale]);
    assert.deepEqual(
      fates.slice(0, MANY),
      jobs.map(() => "held"),
    );
    assert.deepEqual(fates.slice(MANY).includes("held"), false, "a second settle of a job is refused");
    assert.equal((await countJobs(store.queries, { name: "many" })).succeeded, MANY);
    assert.equal((await see(store, behind[0]?.id as string)).state, "pending");
  });

  test("a backlog's settlements are counted in a row of their own, so that neither connection waits", async () => {
    await openSecond("warm-up");
    const [first, ...others] = await backlog("counted");
    await store.settle([settlementOf(first as Claimed)]);
    await store.settle(others.map(settlementOf));
    const rows = await server.query(
      "select n::int from holdfast.tally join holdfast.lanes on lanes.id = lane where name = 'counted' order by n",
    );
    assert.deepEqual(
      rows.map(({ n }) => n),
      [1, MANY - 1],
    );
  });

  test("a claim does not wait for a settlement of several steps, whose job is locked", async (t) => {
    await openSecond("warm-up");
    const [failing] = await backlog("failing");
    assert.ok(failing);
    // The queue is known then, as it is to a worker.
    await backlog("others");
    await store.enqueue([newJob({ name: "others" })]);
    const other = postgres(server.url(), { max: 1, fetch_types: false });
    t.after(() => other.end());
    await other.unsafe(`begin; select 1 from holdfast.jobs where key = ${failing.job} for update`).simple();
    const settled = store.settle([{ ...settlementOf(failing), outcome: { kind: "error", error: ERROR, retry: false } }]);
    const claimed = await claim(store, { from: [{ queue: "others", lease: 60_000 }], max: 1 });
    assert.equal(claimed.length, 1);
    assert.equal((await see(store, failing.id)).state, "running");
    await other.unsafe("rollback");
    assert.deepEqual(await settled, ["held"]);
    assert.equal((await see(store, failing.id)).state, "failed");
  });

  test("a claim that needs several steps waits for such a settlement, on the connection that settles", async (t) => {
    await openSecond("warm-up");
    const [failing] = await backlog("failing");
    assert.ok(failing);
    // A delayed job that is due: no single statement claims it.
    await store.enqueue([newJob({ name: "due", delay: 1 })]);
    const other = postgres(server.url(), { max: 1, fetch_types: false });
    t.after(() => other.end());
    await other.unsafe(`begin; select 1 from holdfast.jobs where key = ${failing.job} for update`).simple();
    const order: string[] = [];
    const settled = store
      .settle([{ ...settlementOf(failing), outcome: { kind: "error", error: ERROR, retry: false } }])
      .then(() => order.push("settled"));
    while (
      (await server.query(`select 1 where ${clockOfServer} <= (select run_at from holdfast.jobs where gate = 'time')`)).length > 0
    );
    const claimed = claim(store, { from: [{ queue: "due", lease: 60_000 }], max: 1 }).then(({ length }) =>
      order.push(`${length}`),
    );
    await other.unsafe("rollback");
    await Promise.all([settled, claimed]);
    assert.deepEqual(order, ["settled", "1"]);
  });

  test("a backlog's settlements are written once when that connection is lost", async () => {
    await openSecond("warm-up");
    const jobs = await backlog("lost");
    await server.query(`select pg_terminate_backend(pid) from pg_stat_activity where ${WRITERS}`);
    const fates = await store.settle(jobs.map(settlementOf));
    assert.deepEqual(new Set(fates), new Set(["held"]));
    assert.equal((await countJobs(store.queries, { name: "lost" })).succeeded, MANY);
  });

  test(
    "a backlog's settlements use the first connection if the role may have no more, also during close",
    { timeout: 60_000 },
    async (t) => {
      const url = await server.createDatabase();
      const role = `few_${randomBytes(4).toString("hex")}`;
      const database = new URL(url).pathname.slice(1);
      await server.query(
        `create role ${role} login password 'few' connection limit 3; grant create on database ${database} to ${role}`,
      );
      t.after(async () => {
        await server.dropDatabase(url);
        await server.query(`drop role ${role}`);
      });
      const own = Object.assign(new URL(url), { username: role, password: "few" }).href;
      const options = { clock: systemClock, injected: false, random: Math.random, patience: 20_000 };
      const few = await PostgresStore.open(own, options);
      t.after(() => few.close());
      // All that it may have: it reads over two of them.
      await Promise.all(Array.from({ length: 4 }, () => countJobs(few.queries)));
      const other = await PostgresStore.open(url, options);
      t.after(() => other.close());
      const ends = async (name: string): Promise<Settlement[]> => {
        await other.enqueue(Array.from({ length: MANY }, () => newJob({ name })));
        return (await claim(other, { from: [{ queue: name, lease: 60_000 }], max: MANY })).map(settlementOf);
      };
      const since = performance.now();
      const [once, again] = [await ends("once"), await ends("again")];
      assert.deepEqual(new Set(await few.settle(once)), new Set(["held"]));
      assert.ok(performance.now() - since < options.patience, "no other transaction is waited for");
      await few.close();
      const late = await PostgresStore.open(own, options);
      t.after(() => late.close());
      await Promise.all(Array.from({ length: 4 }, () => countJobs(late.queries)));
      const settled = late.settle(again);
      await late.close();
      assert.deepEqual(new Set(await settled), new Set(["held"]));
      assert.equal((await countJobs(other.queries)).succeeded, 2 * MANY);
    },
  );

  test("none of a backlog's settlements is written when the server crashes before all are", async (t) => {
    const proxy = await Proxy.before(server.url());
    t.after(() => proxy.close());
    const options = { clock: systemClock, injected: false, random: Math.random, patience: 200 };
    const impatient = await PostgresStore.open(proxy.url(server.url()), options);
    t.after(() => impatient.close());
    while ((await writers()) < 4) await impatient.settle((await backlog("warm-up")).map(settlementOf));
    const jobs = await backlog("halved");
    const awaited = jobs[7] as Claimed;
    await store.enqueue([newJob({ name: "behind", after: [awaited.id] })]);
    // No single statement settles a job that another one waits for, so a transaction begins.
    const cut = proxy.cut({ of: WRITER, at: "begin isolation level read committed", when: "before" });
    const settled = impatient.settle(jobs.map(settlementOf));
    const failed = settled.catch((error: unknown) => error);
    await Promise.race([cut.happened, failed]);
    await proxy.down();
    const error = (await failed) as HoldfastError;
    assert.equal(error.code, "SERVER_GONE");
    const { succeeded, running } = await countJobs(store.queries, { name: "halved" });
    assert.deepEqual([succeeded, running], [0, MANY]);
    await proxy.up();
    assert.deepEqual(new Set(await impatient.settle(jobs.map(settlementOf))), new Set(["held"]), "they can be settled again");
  });
});
