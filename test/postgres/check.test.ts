import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import type { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import { add } from "../conformance/parts.ts";
import { openHandles } from "./handles.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";

describe("a check of a database on a server", { skip: noServer }, () => {
  let server: PostgresServer;
  before(async () => void (server = await startServer()));
  after(() => server.close());

  for (const [what, by] of Object.entries({
    "a state that there is not": "state = 'pendign'",
    "a gate that there is not": "gate = 'tiem'",
    "a gate before a job that is not pending": "state = 'succeeded', gate = 'time'",
  })) {
    test(`a check finds ${what} that was written by hand`, async () => {
      const { stores, query, close } = await openHandles(server, 1);
      const [store] = stores as [PostgresStore];
      try {
        await add(store, {}, {});
        assert.deepEqual((await store.damage.check("whole")).findings, []);
        await query(`update jobs set ${by} where key = 1`);
        assert.deepEqual((await store.damage.check("whole")).findings, ["In a state that there is not: 1 jobs."]);
      } finally {
        await close();
      }
    });
  }
});
