import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { systemClock } from "../../src/engine/host.ts";
import { openPostgres } from "../../src/store/postgres/connection/open.ts";
import { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import { testClock } from "../../src/testing/index.ts";
import { add, claim, claimOne, declaring, ERROR, limitRule, see, settle, SUCCEEDED } from "../conformance/parts.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";
import { countJobs } from "../../src/store/queries.ts";

const skip = noServer;
let server: PostgresServer;
before(async () => void (server = skip ? (undefined as never) : await startServer()));
after(async () => {
  if (!skip) await server.close();
});

/** What a database may be set to, and what would change the answers if the store relied on it. */
const ODD = {
  array_nulls: "off",
  extra_float_digits: "-10",
  DateStyle: "'German, DMY'",
  IntervalStyle: "sql_standard",
  TimeZone: "'Asia/Kathmandu'",
  standard_conforming_strings: "off",
  escape_string_warning: "off",
  backslash_quote: "on",
  bytea_output: "escape",
  transform_null_equals: "on",
  default_transaction_isolation: "serializable",
};

test("settings of a database change no value on the way in or out", { skip, timeout: 30_000 }, async (t) => {
  const [plain, odd] = [await server.createDatabase(), await server.createDatabase()];
  for (const [name, value] of Object.entries(ODD))
    await server.query(`alter database ${new URL(odd).pathname.slice(1)} set ${name} = ${value}`);
  const [show] = await server.query("show array_nulls", odd);
  assert.equal(show?.["array_nulls"], "off", "or this test shows nothing");
  const seen = await Promise.all([plain, odd].map((url) => everything(url, (close) => t.after(close))));
  assert.deepEqual(seen[1], seen[0]);
});

for (const durability of ["power", "process"] as const) {
  test(
    `connections with durability ${durability} keep it whatever a database is set to, also after a reconnect`,
    { skip, timeout: 30_000 },
    async () => {
      const url = await server.createDatabase();
      const other = durability === "power" ? "off" : "on";
      for (const setting of [
        `synchronous_commit = ${other}`,
        "default_transaction_isolation = serializable",
        "idle_in_transaction_session_timeout = 0",
      ])
        await server.query(`alter database ${new URL(url).pathname.slice(1)} set ${setting}`);
      const [show] = await server.query("show synchronous_commit", url);
      assert.equal(show?.["synchronous_commit"], other, "or this test shows nothing");
      const options = { clock: systemClock, injected: false, random: Math.random, patience: 1_000, durability };
      const { writer, second, reader } = await openPostgres(url, options);
      for (const one of [writer, writer, second, second]) {
        const session = await one.session();
        const rows = await session.rows(`
          select current_setting('synchronous_commit'), current_setting('transaction_isolation'),
            current_setting('idle_in_transaction_session_timeout')`);
        assert.deepEqual([...rows], [[durability === "power" ? "on" : "off", "read committed", "5s"]]);
        session.lose();
      }
      await Promise.all([writer.close(), second.close(), reader.close()]);
    },
  );
}

test("no connection uses parallel workers, whatever a database is set to", { skip }, async () => {
  const url = await server.createDatabase();
  await server.query(`alter database ${new URL(url).pathname.slice(1)} set max_parallel_workers_per_gather = 8`);
  const setting = "select current_setting('max_parallel_workers_per_gather') as n";
  assert.equal((await server.query(setting, url))[0]?.["n"], "8", "or this test shows nothing");
  const options = { clock: systemClock, injected: false, random: Math.random, patience: 1_000 };
  const { writer, second, reader } = await openPostgres(url, options);
  for (const one of [writer, second]) assert.deepEqual([...(await (await one.session()).rows(setting))], [["0"]]);
  assert.deepEqual([...(await reader.rows(setting))], [["0"]]);
  await Promise.all([writer.close(), second.close(), reader.close()]);
});

/** A bit of all that is written and read, without what differs from database to database. */
async function everything(url: string, atEnd: (close: () => Promise<void>) => void): Promise<unknown> {
  const clock = testClock();
  const store = await PostgresStore.open(url, { clock, injected: true, random: () => 0.3 });
  atEnd(() => store.close());
  const rule = limitRule({ rate: { starts: 7, per: 1_000 } });
  const seen: unknown[] = [];
  const [nothing, texts] = await add(
    store,
    { input: null },
    { input: JSON.stringify("\\ ' \" NULL \u{1f600}"), id: "NULL", key: "\\x" },
  );
  const [first] = await add(store, { name: "after", after: [nothing as string] });
  const declares = declaring([rule], { queue: "limited", name: "limited" });
  await store.queues.declare([declares]);
  await add(store, ...Array.from({ length: 20 }, () => ({ name: "limited", declares, limitKeys: [""] })));
  const claimed = await claim(store, { from: [{ name: "work", lease: 30_000 }] });
  seen.push(claimed.map(({ input, attempt }) => [input, attempt]));
  const [one, two] = claimed;
  assert.ok(one && two);
  await store.saveProgress([
    { job: one.job, fence: one.fence, fraction: 1 / 3, message: null },
    { job: two.job, fence: two.fence, fraction: 0.1, message: "NULL" },
  ]);
  seen.push((await see(store, one.id)).progress, (await see(store, two.id)).progress);
  await settle(store, two, { kind: "error", error: { ...ERROR, message: "\\n NULL" } });
  await settle(store, one, SUCCEEDED);
  for (let i = 0; i < 4; i++) {
    seen.push((await claim(store, { from: [{ name: "limited", lease: 30_000 }] })).length);
    clock.set(clock.now() + 333);
  }
  seen.push((await claimOne(store, { from: [{ name: "after", lease: 30_000 }] })).attempt);
  for (const id of [nothing, texts, first]) {
    const { id: _, ...job } = await see(store, id as string);
    seen.push(job);
  }
  seen.push(await server.query("set extra_float_digits = 1; select bucket::text from holdfast.counters order by 1", url));
  seen.push(await countJobs(store.queries));
  return seen;
}
