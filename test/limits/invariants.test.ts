import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import postgres from "postgres";
import { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import { SqliteStore } from "../../src/store/sqlite/sqlite-store.ts";
import type { Enqueued } from "../../src/store/store.ts";
import { Schema } from "../conformance/postgres-store.ts";
import { noServer, type PostgresServer, startServer } from "../postgres/server.ts";
import { LimitRows, rowsOfFile, rowsOfSchema } from "./rows.ts";
import { type MakeGround, tryWorlds } from "./world.ts";

const COMMAND = "node --test test/limits/invariants.test.ts";

test("whatever happens to limited jobs, the counters match the jobs, order holds, and nothing is stuck", (t) =>
  tryWorlds(t, onFile, COMMAND));

describe("on PostgreSQL", { skip: noServer }, () => {
  let server: PostgresServer;
  before(async () => void (server = await startServer()));
  after(() => server.close());

  test("whatever happens to limited jobs on PostgreSQL, the counters match the jobs, order holds, and nothing is stuck", async (t) => {
    const schema = await Schema.make(server);
    await tryWorlds(t, onSchema(server, schema), COMMAND);
  });
});

const onFile: MakeGround = async (clock, random) => {
  const folder = await mkdtemp(join(tmpdir(), "holdfast-limits-"));
  const path = join(folder, "work.db");
  const open = () => SqliteStore.open(path, { driver: "node:sqlite", durability: "process", clock, random, busyTimeout: 20 });
  const stores: [SqliteStore, SqliteStore] = [await open(), await open()];
  const rows = new LimitRows(rowsOfFile(path));
  return {
    stores,
    rows,
    transact: (store, parts) =>
      store.transact((handle) => {
        const db = handle as { exec(sql: string): void };
        return parts.flatMap(({ jobs, undone }) => {
          db.exec("savepoint part");
          const answers = store.enqueueWithin(handle, jobs) as Enqueued[];
          if (undone) db.exec("rollback to part");
          db.exec("release part");
          return undone ? [] : answers;
        });
      }),
    async close() {
      await rows.close();
      for (const store of stores) await store.close();
      await rm(folder, { recursive: true });
    },
  };
};

const onSchema =
  (server: PostgresServer, schema: Schema): MakeGround =>
  async (clock, random) => {
    const open = () => PostgresStore.open(server.url(), { schema: schema.name, clock, injected: true, random });
    const stores: [PostgresStore, PostgresStore] = [await open(), await open()];
    const rows = new LimitRows(rowsOfSchema(server.url(), schema.name));
    const user = postgres(server.url(), { max: 1, onnotice: () => {} });
    return {
      stores,
      rows,
      transact: (store, parts) =>
        user.begin(async (tx) => {
          const kept: Enqueued[] = [];
          for (const { jobs, undone } of parts) {
            await tx.unsafe("savepoint part");
            const answers = await store.enqueueWithin(tx, jobs);
            if (undone) await tx.unsafe("rollback to part");
            else kept.push(...answers);
          }
          return kept;
        }),
      async close() {
        await rows.close();
        await user.end({ timeout: 5 });
        for (const store of stores) await store.close();
        await schema.empty();
      },
    };
  };
