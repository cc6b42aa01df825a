import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { job, open } from "../../src/index.ts";
import { until } from "./handles.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";

const WRITERS = "application_name = 'holdfast writes' and datname = current_database()";

describe("the thread that keeps leases on PostgreSQL", { skip: noServer, timeout: 30_000 }, () => {
  let server: PostgresServer;
  before(async () => void (server = await startServer()));
  after(() => server.close());

  test("the keeper thread connects when a lease is held for a while, and not for quick jobs", async () => {
    const url = await server.createDatabase();
    const writers = async () => (await server.query(`select pid from pg_stat_activity where ${WRITERS}`, url)).length;
    const hf = await open(url);
    try {
      const held = Promise.withResolvers<void>();
      const begun = Promise.withResolvers<void>();
      const quick = job<number>({ name: "quick", run: () => {} });
      const slow = job({
        name: "slow",
        run: async () => {
          begun.resolve();
          await held.promise;
        },
      });
      hf.work([quick, slow]);
      await hf.enqueueMany(quick, [1, 2, 3]);
      await until(async () => (await hf.jobs.counts()).succeeded === 3, "the quick ones are done");
      assert.equal(await writers(), 1);
      await hf.enqueue(slow, undefined);
      await begun.promise;
      await until(async () => (await writers()) === 2, "the keeper writes, too");
      held.resolve();
      await until(async () => (await hf.jobs.counts()).succeeded === 4, "the slow one is done");
    } finally {
      await hf.close();
    }
  });
});
