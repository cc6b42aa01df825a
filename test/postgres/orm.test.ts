import assert from "node:assert/strict";
import { after, before, beforeEach, describe, test, type TestContext } from "node:test";
import { drizzle as drizzleOnPg } from "drizzle-orm/node-postgres";
import { integer, type PgDatabase, type PgQueryResultHKT, pgTable } from "drizzle-orm/pg-core";
import { drizzle as drizzleOnPostgres } from "drizzle-orm/postgres-js";
import { MikroORM, type SqlEntityManager } from "@mikro-orm/postgresql";
import knex, { type Knex } from "knex";
import { CompiledQuery, Kysely, PostgresDialect } from "kysely";
import { Pool, type PoolClient } from "pg";
import postgres, { type TransactionSql } from "postgres";
import { Sequelize, type Transaction } from "sequelize";
import { DataSource, type EntityManager, type QueryRunner } from "typeorm";
import { z } from "zod";
import { type Holdfast, job, open } from "../../src/index.ts";
import { code, seeAll, unchecked } from "../runtime/parts.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";

const ship = job({ name: "ship", input: z.object({ order: z.number() }), run: ({ input }) => input.order });
const orders = pgTable("orders", { id: integer("id").primaryKey() });

interface Tables {
  orders: { id: number };
}

/** What an ORM does with a table of its own, and how a job gets into it. */
interface Orm {
  /** Inserts an order and its job in one transaction, then does what is asked for. */
  place(order: unknown, then?: () => void): Promise<{ id: string; duplicate: boolean }>;
  /** The same in a transaction within a transaction, in which what failed inside is caught. */
  nested(orders: { order: number; fails: boolean }[]): Promise<void>;
}

function sqlOf(order: unknown): string {
  return `insert into orders values (${Number(order)})`;
}

describe("a row and its job, on PostgreSQL", { skip: noServer }, () => {
  let server: PostgresServer;
  let url: string;
  let hf: Holdfast;
  before(async () => void (server = await startServer()));
  after(() => server.close());
  beforeEach(async () => {
    url = await server.createDatabase();
    await server.query("create table orders (id integer primary key)", url);
  });

  const ids = async () => (await server.query("select id from orders order by id", url)).map(({ id }) => id);
  const opened = async (t: TestContext) => {
    hf = await open(url);
    t.after(() => hf.close());
  };

  const poolOf = (t: TestContext) => {
    const pool = new Pool({ connectionString: url, max: 2 });
    t.after(() => pool.end());
    return pool;
  };
  const orms: Record<string, (t: TestContext) => Orm> = {
    "Drizzle on pg": (t) => withDrizzle(drizzleOnPg(poolOf(t))),
    "Drizzle on postgres": (t) => {
      const client = postgres(url, { max: 2 });
      t.after(() => client.end({ timeout: 1 }));
      return withDrizzle(drizzleOnPostgres(client));
    },
    Kysely: (t) => withKysely(new Kysely({ dialect: new PostgresDialect({ pool: poolOf(t) }) })),
    Knex: (t) => {
      const db = knex({ client: "pg", connection: url, pool: { min: 0, max: 2 } });
      t.after(() => db.destroy());
      return withKnex(db);
    },
    Sequelize: (t) => {
      const db = new Sequelize(url, { logging: false });
      t.after(() => db.close());
      return withSequelize(db);
    },
    TypeORM: (t) => {
      const source = new DataSource({ type: "postgres", url });
      t.after(() => source.destroy());
      return withTypeOrm(source);
    },
    MikroORM: (t) => {
      const orm = new MikroORM({ clientUrl: url, entities: [], discovery: { warnWhenNoEntities: false } });
      t.after(() => orm.close(true));
      return withMikroOrm(orm);
    },
  };
  for (const [name, make] of Object.entries(orms)) {
    test(`with ${name}, row and job commit together, and the job runs`, async (t) => {
      await opened(t);
      hf.work([ship]);
      assert.equal((await hf.jobs.wait(await make(t).place(7))).output, 7);
      assert.deepEqual(await ids(), [7]);
    });

    test(`with ${name}, a bad input or any thrown error rolls back the row`, async (t) => {
      await opened(t);
      const { place } = make(t);
      await assert.rejects(place("7"), code("INPUT_INVALID"));
      const changed = place(8, () => {
        throw new Error("changed my mind");
      });
      await assert.rejects(changed, /changed my mind/);
      assert.deepEqual([await ids(), await seeAll(hf)], [[], []]);
    });

    test(`with ${name}, a rolled back savepoint takes its job along, and only its own`, async (t) => {
      await opened(t);
      await make(t).nested([
        { order: 1, fails: true },
        { order: 2, fails: false },
      ]);
      assert.deepEqual(await ids(), [2]);
      assert.deepEqual(
        (await seeAll(hf)).map(({ input }) => input),
        [{ order: 2 }],
      );
    });
  }

  test("a rejection rejects the promise, and throws nothing synchronously", async (t) => {
    await opened(t);
    const client = poolOf(t);
    const refused = [
      hf.enqueue(ship, unchecked({ order: "7" }), { tx: client }),
      hf.enqueue(ship, { order: 7 }, { tx: client, ...unchecked<object>({ prio: 1 }) }),
      hf.enqueue(ship, { order: 7 }, { tx: unchecked<Pool>({}) }),
    ];
    for (const [i, name] of ["INPUT_INVALID", "OPTION_INVALID", "TX_INVALID"].entries()) {
      await assert.rejects(refused[i] as Promise<unknown>, code(name));
    }
  });

  /** On either driver: what the transaction runs on is a client of pg's, or a transaction of postgres's. */
  const putByDrizzle = async (tx: PgDatabase<PgQueryResultHKT>, order: unknown) => {
    await tx.insert(orders).values({ id: Number(order) });
    const { client } = tx._.session as unknown as { client: PoolClient | TransactionSql };
    return hf.enqueue(ship, unchecked({ order }), { tx: client });
  };

  function withDrizzle(db: PgDatabase<PgQueryResultHKT>): Orm {
    return {
      place: (order, then) => db.transaction((tx) => putByDrizzle(tx, order).finally(then)),
      nested: (all) =>
        db.transaction(async (tx) => {
          for (const { order, fails } of all) {
            const inner = tx.transaction(async (inner) => {
              await putByDrizzle(inner, order);
              if (fails) inner.rollback();
            });
            if (fails) await assert.rejects(inner, /Rollback/);
            else await inner;
          }
        }),
    };
  }

  const putByKysely = async (trx: Kysely<Tables>, order: unknown) => {
    await trx
      .insertInto("orders")
      .values({ id: Number(order) })
      .execute();
    return hf.enqueue(ship, unchecked({ order }), {
      tx: { query: (text, values) => trx.executeQuery(CompiledQuery.raw(text, values)) },
    });
  };

  function withKysely(db: Kysely<Tables>): Orm {
    return {
      place: (order, then) => db.transaction().execute((trx) => putByKysely(trx, order).finally(then)),
      nested: async (all) => {
        const trx = await db.startTransaction().execute();
        for (const { order, fails } of all) {
          const inner = await trx.savepoint("part").execute();
          await putByKysely(inner, order);
          await (fails ? inner.rollbackToSavepoint("part") : inner.releaseSavepoint("part")).execute();
        }
        await trx.commit().execute();
      },
    };
  }

  const putByKnex = async (trx: Knex.Transaction, order: unknown) => {
    await trx.raw(sqlOf(order));
    return hf.enqueue(ship, unchecked({ order }), { tx: await trx.client.acquireConnection() });
  };

  function withKnex(db: Knex): Orm {
    return {
      place: (order, then) => db.transaction((trx) => putByKnex(trx, order).finally(then)),
      nested: (all) =>
        db.transaction(async (trx) => {
          for (const { order, fails } of all) {
            const inner = await trx.transaction();
            await putByKnex(inner, order);
            await (fails ? inner.rollback() : inner.commit());
          }
        }),
    };
  }

  function withSequelize(db: Sequelize): Orm {
    const put = async (transaction: Transaction, order: unknown) => {
      await db.query(sqlOf(order), { transaction });
      const { connection } = transaction as unknown as { connection: PoolClient };
      return hf.enqueue(ship, unchecked({ order }), { tx: connection });
    };
    return {
      place: (order, then) => db.transaction((transaction) => put(transaction, order).finally(then)),
      nested: (all) =>
        db.transaction(async (transaction) => {
          for (const { order, fails } of all) {
            const inner = await db.transaction({ transaction });
            await put(inner, order);
            await (fails ? inner.rollback() : inner.commit());
          }
        }),
    };
  }

  const putByTypeOrm = async ({ queryRunner }: EntityManager, order: unknown) => {
    const runner = queryRunner as QueryRunner;
    await runner.query(sqlOf(order));
    return hf.enqueue(ship, unchecked({ order }), { tx: runner });
  };

  function withTypeOrm(source: DataSource): Orm {
    const ready = source.initialize();
    return {
      place: async (order, then) => {
        await ready;
        return source.transaction((manager) => putByTypeOrm(manager, order).finally(then));
      },
      nested: async (all) => {
        await ready;
        await source.transaction(async (manager) => {
          for (const { order, fails } of all) {
            const inner = manager.transaction(async (nested) => {
              await putByTypeOrm(nested, order);
              if (fails) throw new Error("undone");
            });
            await inner.catch((error: Error) => assert.ok(fails, error.message));
          }
        });
      },
    };
  }

  const putByMikroOrm = async (em: SqlEntityManager, order: unknown) => {
    await em.execute(sqlOf(order));
    const trx = em.getTransactionContext() as Kysely<unknown>;
    return hf.enqueue(ship, unchecked({ order }), {
      tx: { query: (text, values) => trx.executeQuery(CompiledQuery.raw(text, values)) },
    });
  };

  function withMikroOrm(orm: MikroORM): Orm {
    return {
      place: (order, then) => orm.em.fork().transactional((em) => putByMikroOrm(em, order).finally(then)),
      nested: (all) =>
        orm.em.fork().transactional(async (em) => {
          for (const { order, fails } of all) {
            const inner = em.transactional(async (nested) => {
              await putByMikroOrm(nested, order);
              if (fails) throw new Error("undone");
            });
            await inner.catch((error: Error) => assert.ok(fails, error.message));
          }
        }),
    };
  }
});
