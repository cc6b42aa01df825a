import assert from "node:assert/strict";
import { type ChildProcess, fork } from "node:child_process";
import { once } from "node:events";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { chmod, mkdtemp, rmdir } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { after, before, describe, test } from "node:test";
import { setTimeout as delay } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { noRestart, noServer, type PostgresServer, startServer } from "./server.ts";

/** Generous: it ends a test that hangs, and decides nothing else. */
const DEADLINE = 40_000;

describe("a server for tests", { skip: noServer }, () => {
  let server: PostgresServer;
  before(async () => void (server = await startServer()));
  after(() => server.close());

  test("a test server is a PostgreSQL that executes statements", async () => {
    const [row] = await server.query("select 1 as a; select current_setting('server_version_num')::int as version");
    assert.ok((row?.["version"] as number) >= 140_000, JSON.stringify(row));
  });

  test("a test server creates independent databases, and drops one while a client is connected", async () => {
    const [one, other] = [await server.createDatabase(), await server.createDatabase()];
    await server.query("create table t (a int)", one);
    await server.query("create table t (a text)", other);
    const asleep = server.query("select pg_sleep(60)", one).catch((error: Error) => error);
    await until(async () => (await server.query(sleepers)).length === 1, "a session sleeps in it");
    await server.dropDatabase(one);
    assert.ok((await asleep) instanceof Error);
    await assert.rejects(server.query("select 1", one), { code: "3D000" });
    assert.deepEqual([...(await server.query("select a from t", other))], []);
    await server.dropDatabase(other);
  });

  test("a test server orders text by language, not by bytes", { skip: noRestart }, async () => {
    const rows = await server.query("select a from (values ('a'), ('B')) as t (a) order by a");
    assert.deepEqual(
      rows.map(({ a }) => a),
      ["a", "B"],
    );
  });

  for (const mode of ["fast", "immediate"] as const) {
    test(`a test server stopped ${mode} is gone, and has its commits when it starts again`, { skip: noRestart }, async () => {
      const url = await server.createDatabase();
      await server.query("create table kept as select 1 as a", url);
      const { pid } = processOf(server.dataFolder);
      await server.stop(mode);
      assert.ok(isGone(pid));
      await assert.rejects(server.query("select 1", url), { code: "ECONNREFUSED" });
      await server.start();
      const [row] = await server.query("select a, pg_postmaster_start_time()::text as since from kept", url);
      assert.equal(row?.["a"], 1);
      await server.restart(mode);
      const [again] = await server.query("select a, pg_postmaster_start_time()::text as since from kept", url);
      assert.notEqual(again?.["since"], row?.["since"]);
    });
  }

  test("a test server that cannot start says why", { skip: noRestart }, async () => {
    await server.query("alter system set shared_preload_libraries = 'nothing_of_that_name'");
    await assert.rejects(server.restart(), /nothing_of_that_name/);
    await assert.rejects(startServer({ settings: { no_such_setting: "1" } }), /no_such_setting/);
  });
});

describe("a server of our own leaves no process and no folder behind", { skip: noRestart, concurrency: 2 }, () => {
  test("a closed test server leaves no process and no folder", async () => {
    const server = await startServer();
    const left = whatIsLeft(server.dataFolder);
    assert.deepEqual(left(), ["the server", "its folder"]);
    await server.close();
    assert.deepEqual(left(), []);
  });

  test("a stopped and closed test server leaves no process and no folder", async () => {
    const server = await startServer();
    const left = whatIsLeft(server.dataFolder);
    await server.stop("immediate");
    await server.close();
    assert.deepEqual(left(), []);
  });

  for (const signal of ["SIGKILL", "SIGINT", "SIGTERM"] as const) {
    test(`a test server whose owner ends by ${signal} leaves no process and no folder`, async () => {
      const { child, left } = await ownerThat("stays");
      assert.deepEqual(left(), ["the server", "its folder"]);
      child.kill(signal);
      await until(() => left().length === 0, "everything is cleared away");
    });
  }

  test("a test server whose owner is killed before it is ready leaves no process and no folder", async () => {
    const place = await mkdtemp(join(tmpdir(), "holdfast-place-"));
    await chmod(place, 0o755);
    const child = startOwner("stays", { TMPDIR: place });
    await until(() => readdirSync(place).length > 0, "a folder is made");
    child.kill("SIGKILL");
    await until(() => readdirSync(place).length === 0, "everything is cleared away");
    await rmdir(place);
  });

  test("a forgotten test server does not keep its owner alive, and leaves nothing", async () => {
    const { child, left } = await ownerThat("leaves");
    child.send("leave");
    assert.equal(child.exitCode ?? (await once(child, "exit"))[0], 0);
    await until(() => left().length === 0, "everything is cleared away");
  });
});

const sleepers = "select 1 from pg_stat_activity where wait_event = 'PgSleep'";

async function ownerThat(manner: "stays" | "leaves") {
  const child = startOwner(manner);
  const gone = once(child, "exit").then(([code]) => assert.fail(`the owner ended with ${code}`));
  const [{ dataFolder }] = (await Promise.race([once(child, "message"), gone])) as [{ dataFolder: string }];
  return { child, left: whatIsLeft(dataFolder) };
}

function startOwner(manner: string, more: NodeJS.ProcessEnv = {}): ChildProcess {
  const { NODE_TEST_CONTEXT: _, ...env } = process.env;
  const script = fileURLToPath(new URL("./children/owner.ts", import.meta.url));
  return fork(script, [manner], { execArgv: [], env: { ...env, ...more } });
}

function whatIsLeft(dataFolder: string): () => string[] {
  const { pid, folder } = processOf(dataFolder);
  return () => [...(isGone(pid) ? [] : ["the server"]), ...(existsSync(folder) ? ["its folder"] : [])];
}

function processOf(dataFolder: string): { pid: number; folder: string } {
  const [pid] = readFileSync(join(dataFolder, "postmaster.pid"), "utf8").split("\n");
  return { pid: Number(pid), folder: dirname(dataFolder) };
}

function isGone(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return false;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "ESRCH";
  }
}

async function until(holds: () => boolean | Promise<boolean>, what: string): Promise<void> {
  const deadline = performance.now() + DEADLINE;
  while (!(await holds())) {
    assert.ok(performance.now() < deadline, `not in time: ${what}`);
    await delay(5);
  }
}
