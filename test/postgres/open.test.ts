import assert from "node:assert/strict";
import { after, before, beforeEach, describe, test, type TestContext } from "node:test";
import { setTimeout as passes } from "node:timers/promises";
import { job, type JobContext, open, type OpenOptions } from "../../src/index.ts";
import { systemClock } from "../../src/engine/host.ts";
import { schemaVersion } from "../../src/store/postgres/migrate.ts";
import { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import { testClock } from "../../src/testing/index.ts";
import { newJob } from "../conformance/parts.ts";
import { code, see, stage } from "../runtime/parts.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";
import { countJobs } from "../../src/store/queries.ts";

const echo = job<number, number>({ name: "echo", run: ({ input }) => input });

describe('open("postgres://…")', { skip: noServer }, () => {
  let server: PostgresServer;
  let url: string;
  before(async () => void (server = await startServer()));
  after(() => server.close());
  beforeEach(async () => void (url = await server.createDatabase()));

  const opened = async (t: TestContext, options: OpenOptions = {}) => {
    const hf = await open(url, options);
    t.after(() => hf.close());
    return hf;
  };

  const connections = async () =>
    (
      await server.query(
        "select pid from pg_stat_activity where datname = current_database() and application_name like 'holdfast%'",
        url,
      )
    ).length;

  test("open creates its own schema, and runs jobs", async (t) => {
    const hf = await opened(t);
    hf.work([echo]);
    const { state, output } = await hf.jobs.wait(await hf.enqueue(echo, 7));
    assert.deepEqual([state, output], ["succeeded", 7]);
    const schemas = await server.query("select nspname from pg_namespace where nspname !~ '^pg_|^information' order by 1", url);
    assert.deepEqual(
      schemas.map(({ nspname }) => nspname),
      ["holdfast", "public"],
    );
  });

  test("another schema is another queue", async (t) => {
    const [one, two] = [await opened(t), await opened(t, { schema: "other" })];
    await one.enqueue(echo, 1, { id: "x" });
    assert.equal(await two.jobs.get("x"), null);
    assert.deepEqual(await two.enqueue(echo, 1, { id: "x" }), { id: "x", duplicate: false });
  });

  test("of eight processes that open an empty database at once, one creates the tables, and all work on them", async (t) => {
    const options = { clock: systemClock, injected: false, random: Math.random };
    const opening = Array.from({ length: 8 }, () => PostgresStore.open(url, options));
    const stores = await Promise.all(opening);
    for (const store of stores) t.after(() => store.close());
    assert.equal(new Set(stores.map(({ databaseId }) => databaseId)).size, 1);
    await Promise.all(stores.map((store) => store.enqueue([newJob()])));
    assert.equal((await countJobs((stores[0] as PostgresStore).queries)).pending, 8);
    const made = await server.query("select version from holdfast.migrations order by version", url);
    assert.deepEqual(
      made.map(({ version }) => version),
      Array.from({ length: schemaVersion() }, (_, i) => i + 1),
    );
  });

  test("open without `create` creates nothing", async () => {
    await assert.rejects(open(url, { create: false }), code("NO_DATABASE"));
    assert.equal((await server.query("select 1 from pg_namespace where nspname = 'holdfast'", url)).length, 0);
  });

  test("HOLDFAST_DB may hold the address", async (t) => {
    process.env["HOLDFAST_DB"] = url;
    t.after(() => delete process.env["HOLDFAST_DB"]);
    await using hf = await open();
    const { id } = await hf.enqueue(echo, 1);
    assert.equal((await server.query("select key from holdfast.jobs", url)).length, 1);
    assert.equal((await see(hf, id)).state, "pending");
  });

  test("the same address is opened once in a process", async (t) => {
    const [one, two] = [await opened(t), await opened(t)];
    assert.equal(one.engine, two.engine);
    await one.close();
    await two.enqueue(echo, 1);
    await assert.rejects(open(url, { durability: "process" }), code("DURABILITY_DIFFERS"));
  });

  test("the server's clock counts, whatever the host's says, and a given clock wins", async (t) => {
    const hf = await opened(t);
    const [{ now }] = (await server.query("select holdfast.clock(null)::float8 as now", url)) as [{ now: number }];
    assert.ok(Math.abs((await see(hf, (await hf.enqueue(echo, 1)).id)).createdAt - now) < 60_000);
    await hf.close();
    const clock = testClock(86_400_000);
    const past = await opened(t, { clock });
    assert.equal((await see(past, (await past.enqueue(echo, 1)).id)).createdAt, 86_400_000);
  });

  test("`transaction` is for files, and the error says what to do instead", async (t) => {
    const hf = await opened(t);
    await assert.rejects(
      hf.transaction(() => null),
      code("TX_UNSUPPORTED"),
    );
  });

  test("a process that only enqueues has at most three connections, and one that works six", async (t) => {
    const hf = await opened(t);
    await hf.enqueue(echo, 1);
    assert.ok((await connections()) <= 3, `${await connections()} connections`);
    const slow = stage<JobContext<unknown>>();
    hf.work([echo, job({ name: "slow", run: slow.run })]);
    await hf.enqueueMany(echo, Array(100).fill(0));
    await hf.enqueue(job({ name: "slow", run: slow.run }), 1);
    await slow.called(1);
    await Promise.all([
      hf.engine.alertKeeper(),
      hf.jobs.list(),
      hf.jobs.counts(),
      hf.queues.list(),
      hf.jobs.list(),
      hf.jobs.counts(),
    ]);
    assert.ok((await connections()) <= 6, `${await connections()} connections`);
    slow.calls[0]?.end();
  });

  test("a closed process leaves no connection and no row", async () => {
    const hf = await open(url);
    hf.work([echo]);
    await hf.jobs.wait(await hf.enqueue(echo, 1));
    await hf.close();
    assert.equal((await server.query("select id from holdfast.processes", url)).length, 0);
    // The server takes a moment to notice.
    while ((await connections()) > 0) await passes(5);
  });

  test("an unreachable server is reported at once", async () => {
    await assert.rejects(open("postgres://postgres:geheim@127.0.0.1:1/postgres"), (error: Error) => {
      assert.doesNotMatch(`${error.message} ${error.stack}`, /geheim/);
      return code("SERVER_GONE")(error);
    });
  });
});
