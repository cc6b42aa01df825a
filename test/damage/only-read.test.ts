import assert from "node:assert/strict";
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { DatabaseSync } from "node:sqlite";
import { describe, test, type TestContext } from "node:test";
import { items, job, open, pipeline } from "../../src/index.ts";
import { clearFindings } from "../../src/store/sqlite/maintenance/damage/findings.ts";
import { SqliteStore } from "../../src/store/sqlite/sqlite-store.ts";
import { testClock } from "../../src/testing/index.ts";
import { add, claim, newJob, running } from "../conformance/parts.ts";
import { Place } from "../cli/holdfast.ts";
import { alter, offsetOf, PAGE, place, rootOf, scribble, silent } from "./place.ts";

const DAMAGED = { code: "DAMAGED", hint: /holdfast restore/ };
const greet = job<{ name: string }>({ name: "greet", run: () => {} });

for (const driver of ["node:sqlite", "better-sqlite3"] as const) {
  describe(`a damaged database (${driver})`, () => {
    test("a damaged database can be read, counted and backed up, and every write is rejected", async (t) => {
      const { path, folder } = await damaged(t);
      await using hf = await open(path, { driver, log: silent, sinks: { out: { type: "file", path: join(folder, "events") } } });
      assert.equal((await hf.check()).ok, false);
      assert.equal((await hf.jobs.list()).items.length, 3);
      assert.equal((await hf.jobs.get("first"))?.id, "first");
      assert.equal((await hf.jobs.counts()).pending, 3);
      assert.equal((await hf.queues.list()).length, 1);
      await assert.rejects(hf.backup(join(folder, "backup.db")), { code: "DAMAGED" });
      assert.ok(existsSync(join(folder, "backup.db")), "as damaged, but there");
      const writes: Record<string, () => unknown> = {
        enqueue: () => hf.enqueue(greet, { name: "me" }),
        enqueueMany: () => hf.enqueueMany(greet, [{ name: "me" }]),
        transaction: () => hf.transaction(() => {}),
        cancel: () => hf.jobs.cancel("first"),
        retry: () => hf.jobs.retry("first"),
        pause: () => hf.queues.pause("greet"),
        claim: () => hf.claim("greet", { worker: "me" }),
        lock: () => hf.lock("one").acquire("me", "1m"),
        schedule: () => hf.schedule(greet, { cron: "* * * * *", input: { name: "me" } }),
      };
      for (const [what, write] of Object.entries(writes)) await assert.rejects(async () => write(), DAMAGED, what);
      assert.throws(() => hf.work([greet]), DAMAGED);
    });

    test("a damaged database is read-only for the next process that opens it, and nothing of it changes", async (t) => {
      const { path, folder } = await damaged(t);
      {
        await using finder = await open(path, { driver, log: silent });
        await finder.check();
      }
      const before = readFileSync(path);
      {
        await using next = await open(path, { driver, log: silent });
        assert.equal((await next.jobs.list()).items.length, 3);
        await assert.rejects(next.enqueue(greet, { name: "me" }), DAMAGED);
        assert.throws(() => next.work([greet]), DAMAGED);
        assert.match((await next.check()).findings[0] as string, /A check has found damage/);
      }
      assert.deepEqual(readFileSync(path), before);
      assert.deepEqual(readdirSync(folder).includes("work.db-findings"), true);
      clearFindings(path);
      await using mended = await open(path, { driver });
      await mended.enqueue(greet, { name: "me" });
    });

    test("damage found by a statement stops the writes of every process", async (t) => {
      const { path } = await damaged(t, "holdfast_schedules");
      const [one, other] = [await stores(path, t), await stores(path, t)];
      await add(one, {});
      await assert.rejects(one.schedules.list(), { code: "DAMAGED" });
      await assert.rejects(one.enqueue([newJob()]), DAMAGED);
      await one.damage.confirmed();
      other.damage.refusal("write", true);
      await assert.rejects(other.enqueue([newJob()]), DAMAGED);
      await assert.rejects(
        other.transact(() => {}),
        DAMAGED,
      );
      assert.deepEqual(
        (await other.damage.findings()).map(({ severity }) => severity),
        ["damage"],
      );
      await other.damage.reported((await other.damage.findings()).map(({ id }) => id));
      assert.equal((await other.damage.findings()).length, 1, "a report does not mend it");
    });

    test("damage found by a worker is reported, and the worker claims no more and can be stopped", async (t) => {
      const { path } = await damaged(t, "holdfast_lanes");
      const told = Promise.withResolvers<string>();
      const log = { ...silent, error: (message: string) => told.resolve(message) };
      await using hf = await open(path, { driver, log });
      const worker = hf.work([greet]);
      assert.match(await told.promise, /only read from now on/);
      await worker.stop();
      await assert.rejects(hf.enqueue(greet, { name: "me" }), DAMAGED);
    });

    for (const [what, from] of [
      ["whole page", 0],
      ["page's cells", 8],
    ] as const) {
      test(`a database with unreadable jobs (a ${what}) can be opened, checked and copied`, async (t) => {
        const { path, folder } = await damaged(t);
        scribble(path, offsetOf(rootOf(path, "holdfast_jobs")) + from, Buffer.alloc(PAGE - from, 0xab));
        const before = readFileSync(path);
        await using hf = await open(path, { driver, log: silent });
        assert.equal((await hf.check()).ok, false);
        await assert.rejects(hf.enqueue(greet, { name: "me" }), DAMAGED);
        await assert.rejects(hf.jobs.list(), { code: "DAMAGED" });
        await assert.rejects(hf.backup(join(folder, "backup.db")), { code: "DAMAGED" });
        // But for the first page, where SQLite counts changes.
        const copied = readFileSync(join(folder, "backup.db"));
        assert.ok(copied.subarray(PAGE).equals(before.subarray(PAGE)), "page by page, damage and all");
      });
    }

    test("a database with an unreadable schema is rejected and left unchanged", async (t) => {
      const { path } = await damaged(t);
      scribble(path, 100, Uint8Array.of(0xff));
      const before = readFileSync(path);
      await assert.rejects(open(path, { driver }), { code: "DAMAGED" });
      await assert.rejects(open(path, { driver }), { code: "DAMAGED" });
      assert.deepEqual(readFileSync(path), before);
    });

    test("a file that is no longer a database is rejected as damaged by every process", async (t) => {
      const { path } = await damaged(t);
      scribble(path, 0, Buffer.alloc(PAGE, 7));
      for (let time = 0; time < 3; time++) await assert.rejects(open(path, { driver }), { code: "DAMAGED" });
    });

    for (const table of ["holdfast_processes", "holdfast_audit_head", "holdfast_counter", "sqlite_sequence"]) {
      test(`a database with a lost page of ${table} is read-only for the first process that opens it`, async (t) => {
        const { path } = await damaged(t);
        scribble(path, offsetOf(rootOf(path, table)), Buffer.alloc(PAGE));
        await using hf = await open(path, { driver, log: silent });
        assert.equal((await hf.jobs.list()).items.length, 3);
        await assert.rejects(hf.enqueue(greet, { name: "me" }), DAMAGED);
      });
    }
  });
}

test("a number in a user's table that JavaScript cannot hold is the user's error, not damage", async (t) => {
  const { path, folder } = place(t);
  await using hf = await open(path);
  await hf.transaction(({ db }) => {
    db.exec("create table big (n integer)");
    db.exec("insert into big values (9007199254740993)");
  });
  const read = hf.transaction(({ db }) => (db as DatabaseSync).prepare("select n from big").get());
  await assert.rejects(read, { code: "ERR_OUT_OF_RANGE" });
  assert.equal(hf.engine.store.damage.damaged, null);
  assert.deepEqual(await hf.check(), { ok: true, findings: [] });
  await hf.backup(join(folder, "backup.db"));
});

test("damage that happened while no process was open is found after the next open", async (t) => {
  const { path } = await damaged(t);
  t.mock.timers.enable({ apis: ["setTimeout"] });
  const told = Promise.withResolvers<string>();
  await using hf = await open(path, { log: { ...silent, error: (message: string) => told.resolve(message) } });
  await hf.enqueue(greet, { name: "me" });
  t.mock.timers.tick(19_000);
  assert.equal(hf.engine.store.damage.damaged, null);
  t.mock.timers.tick(1_000);
  assert.match(await told.promise, /only read from now on/);
  await assert.rejects(hf.enqueue(greet, { name: "me" }), DAMAGED);
  t.mock.timers.reset();
});

test("a row quarantined for its damage is reported once, until it is in a report", async (t) => {
  const { path } = place(t);
  const store = await stores(path, t);
  await running(store);
  await add(store, {}, {});
  alter(path, "update holdfast_jobs set input = '[]' where key = 2");
  assert.equal((await claim(store)).length, 1);
  const found = await store.damage.findings();
  assert.deepEqual(
    found.map(({ severity, what }) => [severity, /^Job .* is damaged/.test(what)]),
    [["row", true]],
  );
  assert.equal(store.damage.damaged, null);
  await store.damage.reported(found.map(({ id }) => id));
  assert.deepEqual(await store.damage.findings(), []);
});

test("a file that was never a database is not called damaged, and nothing is left beside it", async (t) => {
  const { path, folder } = place(t);
  const text = "not a database, just a text of some length that a person has written into a file. ".repeat(60);
  writeFileSync(path, text);
  await assert.rejects(open(path), { code: "NOT_A_DATABASE" });
  assert.deepEqual(readdirSync(folder), ["work.db"]);
});

test("health exits with 5, status says why, and a command that writes says DAMAGED", async (t) => {
  const cli = await Place.make();
  t.after(() => cli.remove());
  await damage(cli.db);
  {
    await using finder = await open(cli.db, { log: silent });
    await finder.check();
  }
  assert.equal((await cli.run(["health"])).code, 5);
  assert.match((await cli.run(["status"])).stdout, /damaged, and is only read/);
  const cancelled = await cli.run(["jobs", "cancel", "first"]);
  assert.equal(cancelled.code, 5);
  assert.match(cancelled.stderr, /holdfast restore/);
});

test("status, lists, exports, artifacts and a backup of a damaged database work, and name what cannot be read", async (t) => {
  const cli = await Place.make();
  t.after(() => cli.remove());
  const large = pipeline("large")
    .source(items(() => ["a", "b"], { id: (name) => name }))
    .stage("grow", {}, ({ input }) => input.repeat(100_000));
  let build: string;
  {
    await using hf = await open(cli.db);
    await hf.enqueue(greet, { name: "me" }, { id: "first" });
    const started = await hf.builds.start(large);
    build = (await started.done()).id;
  }
  scribble(cli.db, offsetOf(rootOf(cli.db, "holdfast_locks")), Uint8Array.of(0xff));
  // The first to meet it.
  const seen = await cli.json<{ damaged: string | null; unreadable: string[]; counts: { pending: number } }>(["status"]);
  assert.ok(seen.damaged !== null);
  assert.deepEqual([seen.unreadable[0], seen.counts.pending], ["locks", 1]);
  assert.match((await cli.run(["status"])).stdout, /Not to be read any more: locks/);
  assert.equal((await cli.run(["health"])).code, 5);
  for (const args of [["jobs", "list"], ["jobs", "show", "first"], ["builds", "list"], ["builds", "show", build], ["audit"]]) {
    assert.equal((await cli.run(args)).code, 0, args.join(" "));
  }
  const out = join(cli.folder, "out");
  await cli.json(["builds", "export", build, out]);
  const exported = readdirSync(out, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
  assert.ok(exported.length >= 2, exported.map(({ name }) => name).join());
  const backup = join(cli.folder, "backup.db");
  const made = await cli.json<{ findings: string[]; artifacts: { hashes: string[]; missing: string[] } }>(
    ["backup", "--with-artifacts", backup],
    5,
  );
  assert.deepEqual([made.findings.length > 0, made.artifacts.hashes.length, made.artifacts.missing], [true, 2, []]);
  const [hash] = made.artifacts.hashes;
  const got = await cli.run(["artifacts", "get", hash as string]);
  assert.deepEqual([got.code, got.stdout.length > 100_000], [0, true]);
  assert.equal((await cli.run(["backup", "--verify", backup])).code, 5);
});

async function damaged(t: TestContext, table?: string) {
  const where = place(t);
  await damage(where.path, table);
  return where;
}

/** Three jobs, and a page that is none. */
async function damage(path: string, table = "holdfast_events"): Promise<void> {
  {
    await using hf = await open(path);
    for (const id of ["first", "second", "third"]) await hf.enqueue(greet, { name: id }, { id });
  }
  scribble(path, offsetOf(rootOf(path, table)), Uint8Array.of(0xff));
}

async function stores(path: string, t: TestContext): Promise<SqliteStore> {
  const options = { driver: "node:sqlite", clock: testClock(), random: Math.random, busyTimeout: 10 } as const;
  const store = await SqliteStore.open(path, options);
  t.after(() => store.close());
  return store;
}
