import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { systemClock } from "../../src/engine/host.ts";
import { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import { ERROR, running, see, settle } from "../conformance/parts.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";

describe("a process that is stopped, or blocks its event loop, in the middle of a transaction", { skip: noServer }, () => {
  let server: PostgresServer;
  before(async () => void (server = await startServer()));
  after(() => server.close());

  test("is cut off, so that no other process waits for it for long, and repeats the transaction when it continues", async (t) => {
    let decisions: number | null = null;
    const random = () => {
      // Between two statements, with the job's row locked; and for longer than a server that is gone is waited for.
      if (decisions !== null && ++decisions === 1) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 11_000);
      return 0.5;
    };
    const store = await PostgresStore.open(server.url(), { clock: systemClock, injected: false, random });
    t.after(() => store.close());
    const held = await running(store);
    decisions = 0;
    await settle(store, held, { kind: "error", error: ERROR, retry: false });
    assert.ok(decisions > 1, "the first time was undone");
    assert.equal((await see(store, held.id)).state, "failed");
  });
});
