import assert from "node:assert/strict";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, afterEach, before, beforeEach, describe, test } from "node:test";
import { type Holdfast, job, type Job, open } from "../../src/index.ts";
import { testAllOnly } from "../selection.ts";
import { noServer, type PostgresServer, startServer } from "../postgres/server.ts";
import { parseExposition } from "../unit/exposition-parser.ts";
import { type JsonError, JOBS, Place } from "./holdfast.ts";

const gone = job({ name: "gone", crashes: 1, run: () => {} });

describe("each command, with --db postgres://…", { skip: noServer }, () => {
  let server: PostgresServer;
  let place: Place;
  let url: string;
  let hf: Holdfast;
  /** What is in the address and must never be shown. */
  let password: string;
  before(async () => {
    server = await startServer();
    place = await Place.make();
  });
  after(async () => {
    await place.remove();
    await server.close();
  });
  beforeEach(async () => {
    url = await server.createDatabase();
    password = new URL(url).password;
    hf = await open(url);
  });
  afterEach(() => hf.close());

  /** The exit code and everything that it said. */
  const run = async (args: readonly string[], code = 0): Promise<string> => {
    const ended = await place.run([...args, "--db", url]);
    assert.equal(ended.code, code, ended.stdout + ended.stderr);
    assertSecret(ended.stdout + ended.stderr);
    return ended.stdout;
  };
  const json = async <T>(args: readonly string[], code = 0): Promise<T> => JSON.parse(await run([...args, "--json"], code)) as T;
  const assertSecret = (text: string) => password === "" || assert.ok(!text.includes(password), "the password is not shown");

  test("doctor says what of the server's settings the promises rest on", testAllOnly, async () => {
    await run(["enqueue", "double", "21", "--module", JOBS]);
    // The server of these tests syncs nothing.
    const { found, versions } = await json<{ found: { area: string; message: string }[]; versions: { store: string } }>(
      ["doctor"],
      1,
    );
    assert.match(versions.store, /^PostgreSQL \d+/);
    const settings = found.filter(({ area }) => area === "settings").map(({ message }) => message);
    assert.ok(settings.includes("fsync is off, and should be on."), settings.join());
    assert.match(await run(["doctor"], 1), /\nsettings +.*fsync=off/);
  });

  test("metrics", async () => {
    await hf.enqueue(gone, { n: 1 });
    const families = parseExposition(await run(["metrics"]));
    assert.equal(families.get("holdfast_database_info")?.samples[0]?.labels["store"], "postgres");
    const pending = families.get("holdfast_jobs")?.samples.find(({ labels }) => labels["state"] === "pending");
    assert.deepEqual(pending, { labels: { queue: "gone", state: "pending" }, value: 1, suffix: "" });
    assert.equal(families.has("holdfast_wal_size_bytes"), false, "that is the server's");
  });

  test("enqueue, work, stop, status and health", async () => {
    const { id } = await json<{ id: string }>(["enqueue", "double", "21", "--module", JOBS]);
    assert.match(await run(["status"]), new RegExp(`^postgres://.*${new URL(url).pathname}  1 pending`));
    assert.match(await run(["health"], 1), /^not ok: /, "no worker runs");
    const worker = place.start(["work", JOBS, "--db", url]);
    await worker.said("Working on postgres://");
    assert.equal((await hf.jobs.wait(id)).output, 42);
    assert.match(await run(["health"]), /^ok: 0 pending, 0 running, 1 worker/);
    const { processes, database } = await json<{ processes: { pid: number; life: string }[]; database: { path: string } }>([
      "status",
    ]);
    assert.deepEqual(
      processes.filter(({ pid }) => pid === worker.child.pid).map(({ life }) => life),
      ["alive"],
    );
    assertSecret(database.path);
    assert.match(await run(["stop"]), /Stopped\./);
    const { code, stdout, stderr } = await worker.ended;
    assert.equal(code, 0, stderr);
    assertSecret(stdout + stderr);
  });

  test("claim, renew and settle", testAllOnly, async () => {
    const { id } = await hf.enqueue(gone, { n: 1 });
    const { claim } = await json<{ claim: string; job: Job }>(["claim", "gone", "--worker", "anna"]);
    await run(["renew", claim, "--lease", "1h"]);
    await run(["settle", claim, "--succeed", '{"ok":true}']);
    assert.deepEqual((await hf.jobs.get(id))?.output, { ok: true });
    await run(["claim", "gone", "--worker", "anna"], 1);
  });

  test("jobs list, show, retry and cancel", testAllOnly, async () => {
    const { id } = await hf.enqueue(gone, 1);
    assert.deepEqual(
      (await json<{ items: Job[] }>(["jobs", "list"])).items.map((one) => one.id),
      [id],
    );
    assert.match(await run(["jobs", "show", id]), /pending/);
    await run(["jobs", "cancel", id]);
    assert.equal((await hf.jobs.get(id))?.state, "cancelled");
    await run(["jobs", "retry", id], 1);
  });

  test("quarantine list, retry and purge; recover", async () => {
    const ids = (await hf.enqueueMany(gone, [1, 2])).map(({ id }) => id);
    for (const _ of ids) assert.ok(await hf.claim(gone, { worker: "anna", lease: 1 }));
    await run(["recover"]);
    const listed = await json<{ items: Job[] }>(["quarantine", "list"]);
    assert.deepEqual(
      listed.items.map(({ id }) => id),
      ids,
    );
    await run(["quarantine", "retry", ids[0] as string]);
    await run(["quarantine", "purge", "--all", "--yes"]);
    assert.deepEqual([(await hf.jobs.get(ids[0] as string))?.state, await hf.jobs.get(ids[1] as string)], ["pending", null]);
  });

  test("recover --last, without what a server has of its own", testAllOnly, async () => {
    const worker = place.start(["work", JOBS, "--db", url]);
    await worker.said("Working on postgres://");
    await hf.enqueue(job({ name: "hang", run: () => {} }), 1);
    await worker.said("hanging");
    worker.child.kill("SIGKILL");
    await worker.ended;
    await run(["recover"]);
    const last = await run(["recover", "--last"]);
    assert.match(last, /^Recovered\.\n(.*\n)* {2}jobs +1 of 1 reclaimed: 1 pending again, 0 quarantined\n/);
    assert.match(last, /\n {2}locks released +0\n {2}crashed +pid \d+ on .*, holdfast work /);
    assert.doesNotMatch(last, /write-ahead log|commits missing/);
  });

  test("queues list, pause and resume", testAllOnly, async () => {
    await hf.enqueue(gone, 1);
    await run(["queues", "pause", "gone"]);
    const [queue] = (await json<{ items: { name: string; paused: boolean }[] }>(["queues"])).items;
    assert.deepEqual([queue?.name, queue?.paused], ["gone", true]);
    await run(["queues", "resume", "gone"]);
    assert.equal((await hf.queues.list())[0]?.paused, false);
  });

  test("schedules list, pause, resume, trigger and remove", testAllOnly, async () => {
    await hf.schedule(gone, { cron: "0 3 * * *", input: null });
    assert.match(await run(["schedules"]), /gone/);
    await run(["schedules", "pause", "gone"]);
    await run(["schedules", "resume", "gone"]);
    await run(["schedules", "trigger", "gone"]);
    assert.equal((await hf.jobs.counts()).pending, 1);
    await run(["schedules", "remove", "gone"]);
    assert.deepEqual(await hf.schedules.list(), []);
  });

  test("events, events sinks and events forget", async () => {
    const told = job({ name: "told", queue: { name: "told", events: true }, run: () => {} });
    const end = hf.events.subscribe(() => {}, { name: "reader" });
    await hf.enqueue(told, 1);
    // Numbered by the first reader; it is there from its commit on.
    assert.match(await run(["events"]), /job\.enqueued/);
    assert.match(await run(["events", "sinks"]), /reader/);
    await end();
    await run(["events", "forget", "reader"]);
  });

  test("unlock", testAllOnly, async () => {
    assert.ok(await hf.lock("deploy").acquire("anna", 1));
    while (!(await hf.lock("deploy").isStale()));
    await run(["unlock", "deploy"]);
    assert.equal(await hf.lock("deploy").get(), null);
  });

  test("init and completion need no database", testAllOnly, async () => {
    await run(["init", "--config", join(place.folder, "made.config.ts")]);
    assert.match(await run(["completion", "bash"]), /--schema/);
  });

  test("--schema names another, and so does a config; what looks makes none", async () => {
    const { error } = await json<JsonError>(["status", "--schema", "other"], 2);
    assert.equal(error.code, "NO_DATABASE");
    await run(["enqueue", "gone", "1", "--schema", "other"]);
    assert.match(await run(["status", "--schema", "other"]), / \(other\) {2}1 pending/);
    assert.match(await run(["status"]), / {2}0 pending/);
    const config = join(place.folder, "schema.config.ts");
    await writeFile(config, `export default { schema: "other", driver: "node:sqlite", modules: [] };`);
    assert.match(await run(["status", "--config", config]), / \(other\) {2}1 pending/);
  });

  test("HOLDFAST_DB and a config's db may hold the address", testAllOnly, async () => {
    const { code, stdout } = await place.run(["status"], { env: { HOLDFAST_DB: url } });
    assert.deepEqual([code, stdout.startsWith("postgres://")], [0, true]);
    const config = join(place.folder, "db.config.ts");
    await writeFile(config, `export default { db: ${JSON.stringify(url)}, modules: [] };`);
    const configured = await place.run(["status", "--config", config], { env: { HOLDFAST_DB: "" } });
    assert.deepEqual([configured.code, configured.stdout.startsWith("postgres://")], [0, true], configured.stderr);
    assertSecret(stdout + configured.stdout);
  });

  test("what is wrong with the address is said, without the password", testAllOnly, async () => {
    const wrong = new URL(url);
    wrong.password = "gehe1m";
    wrong.pathname = "/nothing_here";
    const cases: [string, string, number][] = [
      // A server that asks for no password takes any.
      ...(password === "" ? [] : [[wrong.href, "ACCESS_DENIED", 2] as [string, string, number]]),
      [url.replace(/\/[^/]*$/, "/nothing_here"), "NO_DATABASE", 2],
      ["postgres://anna:gehe1m@127.0.0.1:1/shop", "SERVER_GONE", 1],
      ["postgres://anna:gehe/1m@127.0.0.1/shop", "ADDRESS_INVALID", 2],
    ];
    for (const [db, code, exit] of cases) {
      const ended = await place.run(["status", "--json", "--db", db]);
      assert.deepEqual(
        [ended.code, (JSON.parse(ended.stdout) as JsonError).error.code],
        [exit, code],
        ended.stdout + ended.stderr,
      );
      assert.doesNotMatch(ended.stdout + ended.stderr, /gehe1m/);
      assertSecret(ended.stdout + ended.stderr);
    }
  });
});
