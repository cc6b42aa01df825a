import assert from "node:assert/strict";
import { after, afterEach, before, beforeEach, test } from "node:test";
import { setTimeout as passes } from "node:timers/promises";
import { Client, Pool, TypeOverrides } from "pg";
import postgres from "postgres";
import { HoldfastError } from "../../src/core/text/errors.ts";
import { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import type { Enqueued } from "../../src/store/store.ts";
import { testClock, type TestClock } from "../../src/testing/index.ts";
import {
  add,
  badJob,
  claim,
  claimIds,
  claimOne,
  declaring,
  limitRule,
  newJob,
  see,
  seeAll,
  settle,
  SUCCEEDED,
} from "../conformance/parts.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";

const skip = noServer;
let server: PostgresServer;
let store: PostgresStore;
let other: PostgresStore;
let sql: postgres.Sql;
let client: Client;
let clock: TestClock;

before(async () => {
  if (skip) return;
  server = await startServer();
});

after(async () => {
  if (!skip) await server.close();
});

let schemas = 0;

beforeEach(async () => {
  if (skip) return;
  const url = server.url();
  clock = testClock();
  const options = { schema: `store_${++schemas}`, clock, injected: true, random: () => 0.5 };
  store = await PostgresStore.open(url, options);
  other = await PostgresStore.open(url, options);
  sql = postgres(url, { max: 2, onnotice: () => {} });
  client = new Client(url);
  await client.connect();
  await client.query("create table if not exists orders (id int primary key)");
  await client.query("truncate orders");
});

afterEach(async () => {
  if (skip) return;
  await Promise.all([store.close(), other.close(), sql.end({ timeout: 1 }), client.end()]);
});

/** For a lock. Not asked over the connection of an open transaction: that one sees what it saw at its first look. */
const somebodyWaits = async () => {
  while (
    (await sql`select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()`).length === 0
  );
};

const orders = async () => (await client.query("select count(*)::int as n from orders")).rows[0].n as number;

test("with pg, a job is added with the user's row, and is claimable after the user's commit", { skip }, async () => {
  await client.query("begin");
  await client.query("insert into orders values (1)");
  const [answer] = (await store.enqueueWithin(client, [newJob({ input: '"paid"' })])) as [Enqueued];
  assert.deepEqual(await claimIds(store), []);
  await client.query("commit");
  const claimed = await claimOne(store);
  assert.deepEqual([claimed.id, claimed.input], [answer.id, '"paid"']);
  assert.equal(await orders(), 1);
});

test("with postgres, a job is added within its own transaction", { skip }, async () => {
  const answers = await sql.begin(async (tx) => {
    await tx`insert into orders values (1)`;
    return store.enqueueWithin(tx, [newJob({ id: "a" }), newJob({ priority: 5 })]);
  });
  assert.deepEqual(await claimIds(store), [(answers as Enqueued[])[1]?.id, "a"]);
});

test("a rollback removes the job, and frees its id and key", { skip }, async () => {
  await client.query("begin");
  await client.query("insert into orders values (1)");
  await store.enqueueWithin(client, [newJob({ id: "a", key: "k", name: "new name" })]);
  await client.query("rollback");
  assert.deepEqual([await seeAll(store), await orders()], [[], 0]);
  await add(store, { id: "a", key: "k", name: "other name" });
});

test("a rollback to the user's savepoint removes the job", { skip }, async () => {
  await client.query("begin");
  await client.query("savepoint mine");
  await store.enqueueWithin(client, [newJob({ id: "a" })]);
  await client.query("rollback to savepoint mine");
  await store.enqueueWithin(client, [newJob({ id: "a" }), newJob({ id: "b" })]);
  await client.query("commit");
  assert.deepEqual((await claimIds(store)).sort(), ["a", "b"]);
});

test("a rejected enqueue leaves nothing, and the user's transaction continues", { skip }, async () => {
  await add(store, { id: "taken", name: "other" });
  await client.query("begin");
  assert.deepEqual(await store.enqueueWithin(client, [newJob({ id: "x" }), newJob({ id: "taken" })]), [
    { id: "taken", taken: "other" },
  ]);
  await assert.rejects(async () => store.enqueueWithin(client, [newJob({ id: "y" }), badJob()]), /bad/);
  await assert.rejects(async () => store.enqueueWithin(client, [newJob({ id: "z", priority: Number.NaN })]));
  await store.enqueueWithin(client, [newJob({ id: "good" })]);
  await client.query("insert into orders values (1)");
  await client.query("commit");
  assert.deepEqual((await seeAll(store)).map(({ id }) => id).sort(), ["good", "taken"]);
  assert.equal(await orders(), 1);
});

test("duplicates are known within the transaction, also those of the transaction", { skip }, async () => {
  await add(store, { id: "a" }, { id: "holder", key: "k" });
  await client.query("begin");
  const first = await store.enqueueWithin(client, [newJob({ id: "a" }), newJob({ key: "k" }), newJob({ id: "b", key: "l" })]);
  const second = await store.enqueueWithin(client, [newJob({ id: "b" }), newJob({ key: "l" })]);
  await client.query("commit");
  assert.deepEqual(first, [
    { id: "a", duplicate: true },
    { id: "holder", duplicate: true },
    { id: "b", duplicate: false },
  ]);
  assert.deepEqual(second, [
    { id: "b", duplicate: true },
    { id: "b", duplicate: true },
  ]);
});

test("of two transactions that enqueue one id, the second waits for the first, and gets a duplicate", { skip }, async () => {
  await client.query("begin");
  await store.enqueueWithin(client, [newJob({ id: "a" })]);
  const late = other.enqueue([newJob({ id: "a" })]);
  await somebodyWaits();
  await client.query("commit");
  assert.deepEqual(await late, [{ id: "a", duplicate: true }]);
});

test(
  "with postgres, whose transactions fail with each failed statement, a transaction that had to look again continues",
  { skip },
  async () => {
    await client.query("begin");
    await store.enqueueWithin(client, [newJob({ id: "a" })]);
    const late = sql.begin(async (tx) => {
      await tx`insert into orders values (1)`;
      return store.enqueueWithin(tx, [newJob({ id: "a" })]);
    });
    await somebodyWaits();
    await client.query("commit");
    assert.deepEqual(await late, [{ id: "a", duplicate: true }]);
    assert.equal(await orders(), 1);
  },
);

test("with pg, the second of two transactions with one id continues, too", { skip }, async () => {
  const second = new Client(server.url());
  await second.connect();
  await client.query("begin");
  await second.query("begin");
  await store.enqueueWithin(client, [newJob({ id: "a" })]);
  const late = other.enqueueWithin(second, [newJob({ id: "a" })]);
  const waits = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()";
  while ((await server.query(waits)).length === 0) await passes(5);
  await client.query("commit");
  assert.deepEqual(await late, [{ id: "a", duplicate: true }]);
  await second.query("commit");
  await second.end();
});

test("an open transaction delays neither claims nor new names nor definitions of others", { skip }, async () => {
  const limited = declaring([limitRule({ keyed: false, concurrency: 1 })]);
  await add(store, { declares: limited, limitKeys: [""], id: "first" });
  await client.query("begin");
  await store.enqueueWithin(client, [
    newJob({ id: "mine", declares: limited, limitKeys: [""] }),
    newJob({ name: "new", id: "n" }),
  ]);
  const claimed = await claimOne(other);
  assert.equal(claimed.id, "first");
  await settle(other, claimed, SUCCEEDED);
  await add(other, { name: "new" }, { name: "newer", queue: "newer" });
  await other.queues.declare([declaring([limitRule({ keyed: false, concurrency: 2 })])]);
  await other.queues.setPaused("newer", true);
  await client.query("commit");
  assert.equal(
    (await claim(other, { from: [{ name: "work", lease: 1_000 }] })).length,
    1,
    "what was limited is admitted by the claim",
  );
});

test("a job with limits that is due at once runs, even if the clock is set back before a claim", { skip }, async () => {
  const declares = declaring([limitRule({ keyed: false, concurrency: 1 })]);
  await client.query("begin");
  await store.enqueueWithin(client, [
    newJob({ id: "now", declares, limitKeys: [""] }),
    newJob({ id: "later", declares, limitKeys: [""], delay: 1_000 }),
  ]);
  await client.query("commit");
  clock.set(clock.now() - 3_600_000);
  const from = [{ lease: 1_000 }];
  assert.equal((await store.outlook(from)).ready, true);
  assert.equal((await store.queries.overview()).queues[0]?.oldestAt, (await see(store, "now")).createdAt);
  assert.deepEqual(await claimIds(store, { from }), ["now"]);
});

for (const [what, given] of [
  ["a key", { key: "same" }],
  ["an id", { id: "same" }],
] as const) {
  test(
    `an enqueue of ${what} that an open transaction has waits for it, and no other enqueue in its queue does`,
    { skip },
    async () => {
      const declares = declaring([limitRule({ keyed: false, concurrency: 5 })]);
      const limited = { declares, limitKeys: [""] };
      await add(store, { ...limited, id: "first" });
      await client.query("begin");
      await store.enqueueWithin(client, [newJob({ ...limited, ...given })]);
      let settled = false;
      // Along with a claim, which needs the lock of the queue: both are calls of one turn.
      const waiting = Promise.all([claimIds(store, { max: 1 }), store.enqueue([newJob({ ...limited, ...given })])]).finally(
        () => (settled = true),
      );
      await somebodyWaits();
      for (let n = 0; n < 5; n++) {
        await add(other, { ...limited, id: `other-${n}` });
        const claimed = await claimOne(other);
        await settle(other, claimed, SUCCEEDED);
      }
      assert.equal(settled, false, "it waits for what becomes of the other's");
      await client.query("rollback");
      const [ids, [answer]] = await waiting;
      assert.deepEqual({ ...answer, id: null }, { id: null, duplicate: false });
      const rest = await claimIds(other);
      assert.ok([...ids, ...rest].includes(answer?.id as string), "it is let in by the next claim");
    },
  );
}

test("a job whose upstream ends meanwhile does not wait for ever", { skip }, async () => {
  await add(store, { id: "up" });
  const up = await claimOne(store);
  await client.query("begin");
  await store.enqueueWithin(client, [newJob({ id: "down", after: ["up"] })]);
  const settling = store.settle([{ ...up, outcome: SUCCEEDED }]);
  await client.query("commit");
  assert.deepEqual(await settling, ["held"]);
  assert.deepEqual(await claimIds(store), ["down"]);
});

test("a lower durability of the user's session is raised for the transaction that adds a job", { skip }, async () => {
  await client.query("set synchronous_commit = off");
  await client.query("begin");
  await store.enqueueWithin(client, [newJob()]);
  assert.equal((await client.query("show synchronous_commit")).rows[0].synchronous_commit, "on");
  await client.query("commit");
  assert.equal((await client.query("show synchronous_commit")).rows[0].synchronous_commit, "off");
});

const refusedWith = (code: string) => (error: unknown) =>
  error instanceof HoldfastError && error.code === code && error.hint !== "";

test("a transaction with a failed statement is rejected as such", { skip }, async () => {
  await client.query("begin");
  await assert.rejects(client.query("select 1 / 0"));
  await assert.rejects(async () => store.enqueueWithin(client, [newJob()]), refusedWith("TX_ABORTED"));
  await client.query("rollback");
  assert.deepEqual(await seeAll(store), []);
});

test("a value that is not an open transaction on this database is rejected, and nothing is written", { skip }, async () => {
  const elsewhere = await server.createDatabase();
  const stranger = new Client(elsewhere);
  await stranger.connect();
  await stranger.query("begin");
  const pool = new Pool({ connectionString: server.url(), max: 2 });
  await assert.rejects(async () => store.enqueueWithin(client, [newJob()]), refusedWith("TX_NOT_OPEN"));
  await assert.rejects(async () => store.enqueueWithin(sql, [newJob()]), refusedWith("TX_NOT_OPEN"));
  await assert.rejects(async () => store.enqueueWithin(pool, [newJob()]), refusedWith("TX_NOT_OPEN"));
  await assert.rejects(async () => store.enqueueWithin(stranger, [newJob()]), refusedWith("TX_OTHER_DATABASE"));
  for (const nothing of [null, undefined, 5, {}, "begin"])
    await assert.rejects(async () => store.enqueueWithin(nothing, [newJob()]), refusedWith("TX_INVALID"));
  await stranger.end();
  await pool.end();
  await server.dropDatabase(elsewhere);
  assert.deepEqual(await seeAll(store), []);
});

test("a read-only transaction is rejected with an error that says so, and continues", { skip }, async () => {
  await client.query("begin read only");
  await assert.rejects(async () => store.enqueueWithin(client, [newJob()]), refusedWith("TX_READ_ONLY"));
  assert.equal((await client.query("select 1 as one")).rows[0].one, 1);
  await client.query("commit");
  await assert.rejects(
    sql.begin("read only", (tx) => store.enqueueWithin(tx, [newJob()])),
    refusedWith("TX_READ_ONLY"),
  );
  assert.deepEqual(await seeAll(store), []);
});

test("settings of the user's session have no effect, and are unchanged afterwards", { skip }, async () => {
  const show = async () => {
    const { rows } = await client.query(
      "select current_setting('array_nulls') as nulls, current_setting('extra_float_digits') as digits",
    );
    return [rows[0].nulls, rows[0].digits];
  };
  await client.query("set array_nulls = off; set extra_float_digits = -5; set datestyle = 'German'");
  await client.query("begin");
  const [first] = await store.enqueueWithin(client, [newJob({ input: null }), newJob({ id: "x", key: "k", runAt: clock.now() })]);
  assert.deepEqual(await show(), ["off", "-5"]);
  await client.query("savepoint mine");
  await assert.rejects(async () => store.enqueueWithin(client, [badJob()]));
  assert.deepEqual(await show(), ["off", "-5"]);
  await client.query("commit");
  assert.deepEqual(await show(), ["off", "-5"]);
  assert.equal((await see(store, (first as Enqueued).id)).input, undefined);
  assert.equal((await claim(store)).length, 2);
});

test("a serialization conflict of a user's transaction has its own code: the user runs it again", { skip }, async () => {
  const schema = `store_${schemas}`;
  await client.query(`
    create function ${schema}.conflict() returns trigger language plpgsql as
      $$ begin raise 'could not serialize access' using errcode = '40001'; end $$;
    create trigger conflict before insert on ${schema}.jobs for each row execute function ${schema}.conflict()`);
  await client.query("begin isolation level serializable");
  await assert.rejects(
    async () => store.enqueueWithin(client, [newJob()]),
    (error) => (error as { code?: string }).code === "40001",
  );
  await client.query("rollback");
});

test("ids and instants are right, whatever the user's driver makes of numbers", { skip }, async () => {
  const parsers = new TypeOverrides();
  parsers.setTypeParser(20, (text) => BigInt(text));
  const odd = new Client({ connectionString: server.url(), types: parsers });
  await odd.connect();
  await odd.query("begin");
  const [answer] = (await store.enqueueWithin(odd, [newJob({ delay: 5_000 })])) as [Enqueued];
  await odd.query("commit");
  await odd.end();
  const job = await see(store, answer.id);
  assert.equal(job.runAt - job.createdAt, 5_000);
});

const ROW_SHAPES = {
  "rows as arrays": (text: string, values: unknown[]) => client.query({ text, values, rowMode: "array" }),
  "the rows themselves": async (text: string, values: unknown[]) => (await client.query(text, values)).rows,
  "the rows themselves, as arrays": async (text: string, values: unknown[]) =>
    (await client.query({ text, values, rowMode: "array" })).rows,
};
for (const [shape, query] of Object.entries(ROW_SHAPES)) {
  test(`a \`query\` that returns ${shape} is accepted`, { skip }, async () => {
    await client.query("begin");
    const answers = (await store.enqueueWithin({ query }, [newJob({ id: "a" }), newJob({ id: "a" })])) as Enqueued[];
    await client.query("commit");
    assert.deepEqual(answers, [
      { id: "a", duplicate: false },
      { id: "a", duplicate: true },
    ]);
    assert.deepEqual(await claimIds(store), ["a"]);
  });
}

test("a `query` that returns anything else is rejected with TX_INVALID, and nothing is written", { skip }, async () => {
  for (const answer of [undefined, null, 5, {}, { rows: "none" }, [], [{}], [5], { rows: [{ rows: 5 }] }]) {
    const tx = { query: async () => answer };
    await assert.rejects(async () => store.enqueueWithin(tx, [newJob()]), refusedWith("TX_INVALID"), JSON.stringify(answer));
  }
  assert.deepEqual(await seeAll(store), []);
});
