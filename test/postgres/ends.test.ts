import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { after, before, describe, test } from "node:test";
import type { HoldfastError } from "../../src/core/text/errors.ts";
import { systemClock } from "../../src/engine/host.ts";
import { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import { PartlySettled } from "../../src/store/partly-settled.ts";
import type { Claimed, Settlement } from "../../src/store/store.ts";
import { claim, newJob, see, SUCCEEDED } from "../conformance/parts.ts";
import { Proxy } from "./proxy.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";

/** So many that they are worth a connection of their own. */
const MANY = 200;
const WRITER = "holdfast writes";
const WRITERS = "application_name = 'holdfast writes' and datname = current_database()";

const ending = ({ job, fence }: Claimed): Settlement => ({ job, fence, outcome: SUCCEEDED });

describe("the ends of a backlog, over a connection of their own", { skip: noServer }, () => {
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

  test("are all there, and so is what follows from them", async () => {
    const jobs = await backlog("many");
    assert.equal(jobs.length, MANY);
    assert.equal(await writers(), 1);
    const behind = await store.enqueue([newJob({ name: "behind", after: [(jobs[7] as Claimed).id] })]);
    const stale = { ...ending(jobs[3] as Claimed), fence: 1 as never };
    const fates = await store.settle([...jobs.map(ending), ending(jobs[0] as Claimed), stale]);
    assert.deepEqual(
      fates.slice(0, MANY),
      jobs.map(() => "held"),
    );
    assert.deepEqual(fates.slice(MANY).includes("held"), false, "a second time it is refused");
    assert.equal(await writers(), 2);
    assert.equal((await store.look.counts({ name: "many" })).succeeded, MANY);
    assert.equal((await see(store, behind[0]?.id as string)).state, "pending");
  });

  test("are counted apart from what ends over the first, so that neither waits for the other", async () => {
    const [first, ...others] = await backlog("counted");
    await store.settle([ending(first as Claimed)]);
    await store.settle(others.map(ending));
    const rows = await server.query(
      "select n::int from holdfast.tally join holdfast.lanes on lanes.id = lane where name = 'counted' order by n",
    );
    assert.deepEqual(
      rows.map(({ n }) => n),
      [1, MANY - 1],
    );
  });

  test("are written again when that connection is lost, once", async () => {
    const jobs = await backlog("lost");
    await server.query(`select pg_terminate_backend(pid) from pg_stat_activity where ${WRITERS}`);
    const fates = await store.settle(jobs.map(ending));
    assert.deepEqual(new Set(fates), new Set(["held"]));
    assert.equal((await store.look.counts({ name: "lost" })).succeeded, MANY);
  });

  test("go over the first where there is no other to be had, also while it is closed", { timeout: 60_000 }, async (t) => {
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
    await Promise.all(Array.from({ length: 4 }, () => few.look.counts({})));
    const other = await PostgresStore.open(url, options);
    t.after(() => other.close());
    const ends = async (name: string): Promise<Settlement[]> => {
      await other.enqueue(Array.from({ length: MANY }, () => newJob({ name })));
      return (await claim(other, { from: [{ queue: name, lease: 60_000 }], max: MANY })).map(ending);
    };
    const since = performance.now();
    const [once, again] = [await ends("once"), await ends("again")];
    assert.deepEqual(new Set(await few.settle(once)), new Set(["held"]));
    assert.ok(performance.now() - since < options.patience, "nobody is waited for");
    await few.close();
    const late = await PostgresStore.open(own, options);
    t.after(() => late.close());
    await Promise.all(Array.from({ length: 4 }, () => late.look.counts({})));
    const settled = late.settle(again);
    await late.close();
    assert.deepEqual(new Set(await settled), new Set(["held"]));
    assert.equal((await other.look.counts({})).succeeded, 2 * MANY);
  });

  test("say which of them are written when the server is gone before the others are", async (t) => {
    const proxy = await Proxy.before(server.url());
    t.after(() => proxy.close());
    const options = { clock: systemClock, injected: false, random: Math.random, patience: 200 };
    const impatient = await PostgresStore.open(proxy.url(server.url()), options);
    t.after(() => impatient.close());
    const jobs = await backlog("halved");
    const awaited = jobs[7] as Claimed;
    await store.enqueue([newJob({ name: "behind", after: [awaited.id] })]);
    await impatient.settle([ending(jobs[0] as Claimed)]);
    const rest = jobs.slice(1);
    // The first that begins is of those that go the longer way: the others are one statement.
    const cut = proxy.cut({ of: WRITER, at: "begin isolation level read committed", when: "before" });
    const settled = impatient.settle(rest.map(ending));
    const failed = settled.catch((error: unknown) => error);
    await Promise.race([cut.happened, failed]);
    await proxy.down();
    const error = await failed;
    assert.ok(error instanceof PartlySettled, String(error));
    assert.deepEqual(
      error.fates,
      rest.map((one) => (one === awaited ? null : "held")),
    );
    assert.equal((error.cause as HoldfastError).code, "SERVER_GONE");
    const { succeeded, running } = await store.look.counts({ name: "halved" });
    assert.deepEqual([succeeded, running], [MANY - 1, 1]);
    await proxy.up();
    assert.deepEqual(await impatient.settle([ending(awaited)]), ["held"], "the other one can still be");
  });
});
