import assert from "node:assert/strict";
import { describe, test, type TestContext } from "node:test";
import Database from "better-sqlite3";
import { drizzle } from "drizzle-orm/better-sqlite3";
import { integer, sqliteTable } from "drizzle-orm/sqlite-core";
import { Kysely, SqliteDialect } from "kysely";
import { z } from "zod";
import { job } from "../../src/index.ts";
import { shop } from "./handles.ts";
import { code, seeAll, unchecked } from "./parts.ts";

const ship = job({ name: "ship", input: z.object({ order: z.number() }), run: ({ input }) => input.order });
const orders = sqliteTable("orders", { id: integer("id").primaryKey() });

describe("with Drizzle on better-sqlite3", () => {
  test("a row and its job commit together in a Drizzle transaction", async (t) => {
    const { hf, db, ids } = await withDrizzle(t);
    hf.work([ship]);
    const answer = db.transaction(
      (tx) => {
        tx.insert(orders).values({ id: 7 }).run();
        return hf.enqueue(ship, { order: 7 }, { tx: db.$client });
      },
      { behavior: "immediate" },
    );
    assert.equal((await hf.jobs.wait(answer)).output, 7);
    assert.deepEqual(ids(), [7]);
  });

  test("a bad input rolls back the row", async (t) => {
    const { hf, db, ids } = await withDrizzle(t);
    const bad = () =>
      db.transaction((tx) => {
        tx.insert(orders).values({ id: 7 }).run();
        hf.enqueue(ship, unchecked({ order: "7" }), { tx: db.$client });
      });
    assert.throws(bad, code("INPUT_INVALID"));
    assert.deepEqual([ids(), await seeAll(hf)], [[], []]);
  });

  test("a rollback also removes the job, and a nested rollback only its own", async (t) => {
    const { hf, db, ids } = await withDrizzle(t);
    const undone = () =>
      db.transaction((tx) => {
        tx.insert(orders).values({ id: 1 }).run();
        hf.enqueue(ship, { order: 1 }, { tx: db.$client });
        tx.rollback();
      });
    assert.throws(undone, /Rollback/);
    db.transaction((tx) => {
      const nested = (id: number, fails: boolean) =>
        tx.transaction((inner) => {
          inner.insert(orders).values({ id }).run();
          hf.enqueue(ship, { order: id }, { tx: db.$client });
          if (fails) inner.rollback();
        });
      assert.throws(() => nested(2, true), /Rollback/);
      nested(3, false);
    });
    assert.deepEqual(ids(), [3]);
    assert.deepEqual(
      (await seeAll(hf)).map(({ input }) => input),
      [{ order: 3 }],
    );
  });

  test("Drizzle works inside hf.transaction on the given handle, with transactions of its own", async (t) => {
    const { hf, ids } = await withDrizzle(t);
    await hf.transaction((tx) => {
      const db = drizzle(tx.db as Database.Database);
      db.insert(orders).values({ id: 1 }).run();
      db.transaction((inner) => {
        inner.insert(orders).values({ id: 2 }).run();
        hf.enqueue(ship, { order: 2 }, { tx });
      });
    });
    assert.deepEqual([ids(), (await seeAll(hf)).length], [[1, 2], 1]);
  });

  test("a query that was not run is rejected as a promise, and does not run later", async (t) => {
    const { hf, ids } = await withDrizzle(t);
    const forgotten = hf.transaction(
      unchecked((tx: { db: Database.Database }) => drizzle(tx.db).insert(orders).values({ id: 1 })),
    );
    await assert.rejects(forgotten, code("TX_ASYNC"));
    await hf.enqueue(ship, { order: 2 });
    assert.deepEqual(ids(), []);
  });
});

describe("with Kysely on better-sqlite3", () => {
  test("a row and its job commit together in an asynchronous Kysely transaction", async (t) => {
    const { hf, db, client, ids } = await withKysely(t);
    hf.work([ship]);
    const answer = await db.transaction().execute(async (trx) => {
      await trx.insertInto("orders").values({ id: 7 }).execute();
      const enqueued = hf.enqueue(ship, { order: 7 }, { tx: client });
      // Others wait meanwhile, and no caller blocks.
      const meanwhile = hf.enqueue(ship, { order: 8 });
      await trx.insertInto("orders").values({ id: 8 }).execute();
      return { enqueued, meanwhile };
    });
    assert.equal((await hf.jobs.wait(answer.enqueued)).output, 7);
    assert.equal((await hf.jobs.wait(await answer.meanwhile)).output, 8);
    assert.deepEqual(ids(), [7, 8]);
  });

  test("a bad input or any thrown error rolls back the row", async (t) => {
    const { hf, db, client, ids } = await withKysely(t);
    const bad = db.transaction().execute(async (trx) => {
      await trx.insertInto("orders").values({ id: 7 }).execute();
      hf.enqueue(ship, unchecked({ order: "7" }), { tx: client });
    });
    await assert.rejects(bad, code("INPUT_INVALID"));
    const later = db.transaction().execute(async (trx) => {
      hf.enqueue(ship, { order: 7 }, { tx: client });
      await trx.insertInto("orders").values({ id: 7 }).execute();
      throw new Error("changed my mind");
    });
    await assert.rejects(later, /changed my mind/);
    assert.deepEqual([ids(), await seeAll(hf)], [[], []]);
  });

  test("the handle is rejected outside of Kysely's transactions", async (t) => {
    const { hf, client } = await withKysely(t);
    assert.throws(() => hf.enqueue(ship, { order: 7 }, { tx: client }), code("TX_NOT_OPEN"));
  });
});

async function withDrizzle(t: TestContext) {
  const { client, ...others } = await withClient(t);
  return { ...others, db: drizzle(client) };
}

async function withKysely(t: TestContext) {
  const { client, ...others } = await withClient(t);
  const db = new Kysely<{ orders: { id: number } }>({ dialect: new SqliteDialect({ database: client }) });
  return { ...others, db, client };
}

async function withClient(t: TestContext) {
  const { hf, handle, orders: ids } = await shop(t, "better-sqlite3");
  const client = unchecked<Database.Database>(handle());
  // Workers write, too.
  client.pragma("busy_timeout = 5000");
  return { hf, ids, client };
}
