import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { systemClock } from "../../src/engine/host.ts";
import { parseAddress } from "../../src/store/postgres/connection/address.ts";
import { loadDriver } from "../../src/store/postgres/connection/driver.ts";
import { codeOf } from "../../src/store/postgres/connection/faults.ts";
import { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import { Receipts } from "../../src/store/postgres/transactions/transaction.ts";
import { REFUSED } from "../../src/store/postgres/connection/session-settings.ts";
import { Session } from "../../src/store/postgres/connection/session.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";

const S = '"holdfast"';
/** A write, so there is something to leave a receipt for. */
const WRITE = `insert into ${S}.policies (body) values (gen_random_uuid()::text)`;
const ANY = { epoch: 0, lanes: null, settings: null };

const fresh = () => new Receipts(S, { isGone: (known) => `${known} <> 0` }, "power");

describe("a transaction whose answer is lost", { skip: noServer }, () => {
  let server: PostgresServer;
  let lost: Session;
  let asking: Session;
  before(async () => {
    server = await startServer();
    const store = await PostgresStore.open(server.url(), { clock: systemClock, injected: false, random: Math.random });
    await store.close();
    const to = { driver: await loadDriver(), address: parseAddress(server.url()), silence: 10_000 };
    [lost, asking] = [await Session.open(to, { name: "lost" }), await Session.open(to, { name: "asks" })];
  });
  after(async () => {
    await lost.end();
    await asking.end();
    await server.close();
  });
  const end = (receipts: Receipts, batch: number) => {
    const [text, ...values] = receipts.end(batch, ANY);
    return lost.rows(text, values);
  };

  test("a transaction whose answer is lost was committed exactly if its receipt exists", async () => {
    const receipts = fresh();
    const first = receipts.next();
    await lost.command("begin");
    await lost.command(WRITE);
    await end(receipts, first);
    await lost.command("commit");
    assert.deepEqual(await receipts.ask(asking, first), { committed: true, made: null, madeAt: null, keys: null });
    assert.deepEqual(await receipts.ask(asking, receipts.next()), { committed: false, made: null, madeAt: null, keys: null });
    assert.deepEqual(
      await receipts.ask(asking, first),
      { committed: true, made: null, madeAt: null, keys: null },
      "however often it is asked",
    );
  });

  test("a transaction whose caller was answered that it failed is not committed later", async () => {
    for (const isFirst of [true, false]) {
      const receipts = fresh();
      if (!isFirst) {
        await lost.command("begin");
        await lost.command(WRITE);
        await end(receipts, receipts.next());
        await lost.command("commit");
      }
      const batch = receipts.next();
      await lost.command("begin");
      await lost.command(WRITE);
      assert.equal((await receipts.ask(asking, batch))?.committed, false);
      await assert.rejects(end(receipts, batch), (error) => codeOf(error) === REFUSED.closed);
      await lost.command("rollback");
    }
  });

  test("a transaction is undecided while the server executes its commit", async () => {
    const receipts = fresh();
    const batch = receipts.next();
    await lost.command("begin");
    await lost.command(WRITE);
    await end(receipts, batch);
    assert.equal(await receipts.ask(asking, batch), null);
    await lost.command("commit");
    assert.deepEqual(await receipts.ask(asking, batch), { committed: true, made: null, madeAt: null, keys: null });
  });
});
