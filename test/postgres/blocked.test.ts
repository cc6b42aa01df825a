import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import postgres from "postgres";
import { job, open } from "../../src/index.ts";
import { systemClock } from "../../src/engine/host.ts";
import { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import { ERROR, running, see, settle } from "../conformance/parts.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";

describe("a process that is stopped, or blocks its event loop, in the middle of a transaction", { skip: noServer }, () => {
  let server: PostgresServer;
  before(async () => void (server = await startServer()));
  after(() => server.close());

  test("a process that is stopped or blocked in a transaction is cut off, and repeats the transaction when it continues", async (t) => {
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

describe("a call that waits for a row of another transaction", { skip: noServer }, () => {
  let server: PostgresServer;
  before(async () => void (server = await startServer()));
  after(() => server.close());

  test("a call that waits for another transaction's row delays the others of its turn by two waits at most", async (t) => {
    const address = `${server.url()}${server.url().includes("?") ? "&" : "?"}lock_timeout=400`;
    const [hf, sql] = [await open(address, { log: false }), postgres(address, { max: 2, onnotice: () => {} })];
    t.after(() => Promise.all([hf.close(), sql.end()]));
    const a = job<number>({ name: "a", run: () => {} });
    const { promise: released, resolve: release } = Promise.withResolvers<void>();
    const { promise: isHeld, resolve: hold } = Promise.withResolvers<void>();
    const holding = sql.begin(async (tx) => {
      await hf.enqueue(a, 1, { id: "x", tx });
      hold();
      await released;
    });
    await isHeld;
    const waiting = hf.enqueue(a, 2, { id: "x" }).catch((error: unknown) => error);
    const others = Promise.all(Array.from({ length: 63 }, (_, i) => hf.enqueue(a, i)));
    // As long as a wait lasts, by the clock of the server, which is as busy as it is for the others.
    let waits = 0;
    const over = new AbortController();
    const counting = (async () => {
      for (; !over.signal.aborted; waits++) await sql`select pg_sleep(0.4)`;
    })();
    await others;
    over.abort();
    release();
    await Promise.all([holding, waiting, counting]);
    assert.ok(waits <= 4, `${waits} waits`);
  });
});
