import assert from "node:assert/strict";
import fs, { existsSync, readdirSync, rmSync } from "node:fs";
import { syncBuiltinESMExports } from "node:module";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { suite, test, type TestContext } from "node:test";
import { items, job, open, pipeline } from "../../src/index.ts";
import { restoreWhole, type RestoredDatabase } from "../../src/operator/restore.ts";
import { Drain } from "../../src/store/sqlite/maintenance/changes/journal.ts";
import { changesFolder, readSegment, segmentsIn } from "../../src/store/sqlite/maintenance/changes/segments.ts";
import { connect } from "../../src/store/sqlite/driver.ts";
import { code, folder } from "./parts.ts";

const note = job({ name: "note", run: () => {} });
const silent = { debug: () => {}, info: () => {}, warn: () => {}, error: () => {} };

interface Ground {
  base: string;
  path: string;
  backup: string;
  restore: (at: number) => Promise<RestoredDatabase>;
}

async function ground(t: TestContext): Promise<Ground> {
  const base = await folder(t);
  const [path, backup] = [join(base, "work.db"), join(base, "backup.db")];
  const restore = (at: number) =>
    restoreWhole({ path, backup, driver: "node:sqlite", by: "a test", now: Date.now(), force: false, at });
  return { base, path, backup, restore };
}

/** By a program of the user's own, which does not ask whether one row belongs to another. */
function alter(path: string, sql: string): void {
  const db = new DatabaseSync(path, { timeout: 5_000, enableForeignKeyConstraints: false });
  db.exec(sql);
  db.close();
}

/** Every value of the user's tables, as its bytes and its kind. */
function theirs(path: string): Record<string, unknown[]> {
  const db = new DatabaseSync(path, { readOnly: true });
  const isTheirs = "type = 'table' and name not like 'holdfast%' and name not like 'sqlite%'";
  const tables = db.prepare(`select name from sqlite_schema where ${isTheirs} order by name`).all();
  const found = tables.map(({ name }) => {
    const columns = db.prepare("select name from pragma_table_xinfo(?)").all(String(name));
    const exact = columns.map(({ name: one }) => `typeof("${String(one)}") || ' ' || quote(cast("${String(one)}" as blob))`);
    return [name, db.prepare(`select ${exact.join(", ")} from "${String(name)}"`).all()];
  });
  db.close();
  return Object.fromEntries(found) as Record<string, unknown[]>;
}

async function later(): Promise<void> {
  const at = Date.now();
  while (Date.now() <= at) await new Promise((resume) => setImmediate(resume));
}

/** Up to when the journal leads, as the refusal says. */
async function wholeUpTo(refused: Promise<unknown>): Promise<number> {
  const { code: given, message } = (await refused.catch((error: unknown) => error)) as Error & { code: string };
  assert.equal(given, "JOURNAL_GAP");
  return Date.parse(/whole up to (\S+)\. /.exec(message)?.[1] ?? message);
}

/** What is done after the backup is there again, to the byte, when the journal was followed to its end. */
async function comesBack(t: TestContext, tables: string, ...operations: string[]): Promise<void> {
  const { path, backup, restore } = await ground(t);
  alter(path, tables);
  {
    await using hf = await open(path, { journal: true });
    await hf.enqueue(note, 0);
    await hf.backup(backup);
    for (const operation of operations) alter(path, operation);
  }
  const before = theirs(path);
  await later();
  await restore(Date.now());
  assert.deepEqual(theirs(path), before);
}

suite("a journal brings back", { concurrency: 2 }, () => {
  test("a journal restores texts with NUL characters and texts with invalid encoding", (t) =>
    comesBack(
      t,
      "create table plain (a text); create table keyed (k text primary key, n) without rowid",
      "insert into plain values ('a' || char(0) || 'b'), (cast(x'ff41' as text)), ('žluťoučký 🐎'), (cast(x'00' as text))",
      "insert into keyed values ('a' || char(0) || 'b', 1), ('a', 2), ('ä', 3)",
      "update keyed set n = 4 where k = 'a' || char(0) || 'b'; delete from keyed where k = 'ä'",
    ));

  test("a journal restores rows that were replaced on conflict", (t) =>
    comesBack(
      t,
      "create table t (a integer primary key, u unique)",
      "insert into t values (1, 'x'), (2, 'y'), (3, 'z')",
      "update or replace t set u = 'x' where a = 2",
      "update or replace t set a = 2 where a = 3; insert or replace into t values (9, 'z')",
    ));

  test("a journal restores rows with foreign keys as they were, whatever rules would do now", (t) =>
    comesBack(
      t,
      `create table parent (id integer primary key, v);
       create table child (id integer primary key, parent references parent on delete cascade)`,
      "insert into parent values (1, 5); insert into child values (1, 1), (2, 77)",
      "insert or replace into parent values (1, 6)",
    ));

  test("a journal restores the effects of the user's own triggers", (t) =>
    comesBack(
      t,
      `create table t (a integer primary key, b);
       create trigger once after insert on t begin update t set b = 'changed' where a = new.a; end;
       create trigger gone after update on t when new.b = 'go' begin delete from t where a = new.a; end`,
      "insert into t values (1, 'x'), (2, 'y')",
      "update t set b = 'go' where a = 2",
    ));
});

suite("a journal", () => {
  test("a journal of a very wide table has every column", (t) => {
    const columns = Array.from({ length: 260 }, (_, i) => `c${i}`);
    return comesBack(
      t,
      `create table wide (${columns.join(", ")})`,
      `insert into wide values (${columns.map((_, i) => (i % 3 === 0 ? "null" : i % 3 === 1 ? String(i) : `'text ${i}'`)).join(", ")})`,
      "update wide set c0 = 'first', c150 = null, c259 = x'00'",
    );
  });

  test("a database without a journal has no triggers and no journal table", async (t) => {
    const { path } = await ground(t);
    await using hf = await open(path);
    hf.work([note]);
    await hf.jobs.wait((await hf.enqueue(note, 1)).id);
    const db = new DatabaseSync(path, { readOnly: true });
    const found = db
      .prepare("select name from sqlite_schema where name like 'holdfast_change%' or name = 'holdfast_journal'")
      .all();
    db.close();
    assert.deepEqual([found, existsSync(changesFolder(path))], [[], false]);
  });
});

suite("what no journal has seen is not passed over", { concurrency: 2 }, () => {
  for (const [what, unseen] of [
    ["a table that was made", "create table more (x); insert into more values (1)"],
    ["a table that was made anew", "drop table t; create table t (a integer primary key, b); insert into t values (5, 'new')"],
    ["a table that is gone", "drop table t"],
    ["a column that was added", "alter table t add column c default 7; update t set c = 8"],
    ["a table with another name", "alter table t rename to u; insert into u values (8, 'x')"],
    [
      "a trigger that is run before the journal's",
      "create trigger own after insert on t begin update t set b = 'own' where a = new.a; end; insert into t values (7, 'mine')",
    ],
  ] as const) {
    test(`${what}: the journal leads up to it, and a newer backup continues from there`, async (t) => {
      const { path, backup, restore } = await ground(t);
      alter(path, "create table t (a integer primary key, b)");
      {
        await using hf = await open(path, { journal: true });
        await hf.enqueue(note, 0);
        await hf.backup(backup);
        await hf.enqueue(note, 1);
      }
      const before = theirs(path);
      alter(path, unseen);
      // No process has had it open since: the database itself shows it.
      await assert.rejects(restore(Date.now()), code("JOURNAL_GAP"));
      const since = join(path, "..", "since.db");
      {
        await using hf = await open(path);
        await hf.enqueue(note, 2);
        await hf.backup(since);
        await hf.transaction(({ db }) => void db.exec("create table if not exists t (a, b)"));
      }
      await restore(await wholeUpTo(restore(Date.now())));
      assert.deepEqual(theirs(path), before);
    });
  }

  test("a table created while a process works is journalled from then on, without a declaration", async (t) => {
    const { path, backup, restore } = await ground(t);
    const hf = await open(path, { journal: true, log: silent });
    await hf.enqueue(note, 0);
    alter(path, "create table more (x)");
    const has = connect("node:sqlite", path, { busyTimeout: 0, readOnly: true });
    const trigger = has.prepare("select 1 from sqlite_schema where name = 'holdfast_change_put_more'");
    while (trigger.row() === undefined) {
      await hf.enqueue(note, 1);
      await later();
    }
    has.close();
    await hf.backup(backup);
    alter(path, "insert into more values ('seen')");
    await hf.close();
    const before = theirs(path);
    await later();
    await restore(Date.now());
    assert.deepEqual(theirs(path), before);
    assert.equal(before["more"]?.length, 1);
  });
});

test("after a restore, an older backup leads to no instant after the restore", async (t) => {
  const { path, backup, restore } = await ground(t);
  const add = async (id: string) => {
    await using hf = await open(path, { journal: true });
    await hf.enqueue(note, 0, { id });
  };
  const ids = async () => {
    await using hf = await open(path);
    return (await hf.jobs.list()).items.map(({ id }) => id);
  };
  {
    await using hf = await open(path, { journal: true });
    await hf.backup(backup);
    await hf.enqueue(note, 0, { id: "good" });
  }
  const at = Date.now();
  await later();
  await add("mistake");
  const end = Date.now();
  await later();
  await restore(at);
  await add("since");
  await later();
  await assert.rejects(restore(Date.now()), (error: Error) => /was restored or salvaged after that/.test(error.message));
  assert.deepEqual(await ids(), ["good", "since"], "nothing was changed");
  // But to all that it was before, one can go back.
  const whole = await wholeUpTo(restore(Date.now()));
  assert.ok(whole <= end);
  await restore(whole);
  assert.deepEqual(await ids(), ["good", "mistake"]);
});

test("a restore to an instant reports the jobs and missing artifacts of that instant", async (t) => {
  const { path, backup, restore } = await ground(t);
  const large = pipeline("large")
    .source(items(() => ["a", "b"], { id: (name) => name }))
    .stage("grow", {}, ({ input }) => input.repeat(100_000));
  {
    await using hf = await open(path, { journal: true });
    await hf.backup(backup);
    await hf.enqueue(note, 1);
    await (await hf.builds.start(large)).done();
  }
  rmSync(`${path}-artifacts`, { recursive: true });
  await later();
  const { artifacts, counts, facts } = await restore(Date.now());
  assert.equal(artifacts.missing.length, 2);
  assert.deepEqual([facts.counts.jobs["pending"], counts.jobs["pending"], counts.builds["SUCCESS"]], [undefined, 1, 1]);
});

test("a new database at an old path continues beside the old journal", async (t) => {
  const { path } = await ground(t);
  for (const round of [1, 2]) {
    await using hf = await open(path, { journal: true, log: silent });
    await hf.enqueue(note, round);
    await hf.close();
    for (const end of ["", "-wal", "-shm", "-witness", "-alive"]) rmSync(path + end, { recursive: true, force: true });
  }
  assert.equal(readdirSync(changesFolder(path)).filter((name) => name.endsWith(".changes")).length, 2);
});

/** Half of what is to be written fits, and then nothing more. */
function fill(t: TestContext): { free: () => void } {
  const write = fs.writeSync as (fd: number, bytes: Buffer, at: number, length?: number) => number;
  const full = (fd: number, bytes: Buffer, at: number) => {
    if (at > 0 || bytes.length < 2) throw Object.assign(new Error("ENOSPC: no space left on device, write"), { code: "ENOSPC" });
    return write(fd, bytes, 0, bytes.length >> 1);
  };
  writeBy(full);
  t.after(() => writeBy(write));
  return { free: () => writeBy(write) };
}

function writeBy(writeSync: unknown): void {
  Object.assign(fs, { writeSync });
  syncBuiltinESMExports();
}

suite("a journal's disk that is full", () => {
  for (const begun of [true, false]) {
    const what = begun ? "in the middle of a file" : "when a file is begun";
    test(`${what} loses nothing: entries stay in the database and are written when there is room`, async (t) => {
      const { path, backup, restore } = await ground(t);
      {
        await using hf = await open(path, { journal: true });
        await hf.backup(backup);
        await hf.enqueue(note, 1);
      }
      const db = connect("node:sqlite", path, { busyTimeout: 1_000, mustExist: true });
      const [databaseId] = db.prepare("select database_id from holdfast_database").row() as [string];
      const drain = () => new Drain(db, { path, driver: "node:sqlite", databaseId, epoch: begun ? 0 : 1, now: Date.now });
      const left = () => (db.prepare("select count(*) from holdfast_changes").row() as [number])[0];
      for (const id of ["two", "three"]) {
        db.exec(`insert into holdfast_changes (kind, name, key) values ('gone', 'holdfast_locks', '''${id}''')`);
      }
      const [first, again] = [drain(), drain()];
      const { free } = fill(t);
      assert.throws(
        () => first.run(),
        (error: Error & { code: string }) => error.code === "DISK_FULL" && /-changes/.test(error.message),
      );
      assert.equal(left(), 2);
      first.close();
      free();
      again.run();
      assert.equal(left(), 0);
      again.close();
      db.close();
      const [segment] = segmentsIn(changesFolder(path), databaseId, begun ? 0 : 1).slice(-1);
      const { changes, damaged } = readSegment(segment?.path as string);
      assert.equal(damaged, false);
      const keys = changes.filter(({ name }) => name === "holdfast_locks").map(({ key }) => key);
      assert.deepEqual(keys, ["'two'", "'three'"]);
      if (begun) assert.ok(((await restore(Date.now())).replayed?.changes ?? 0) > 2);
    });
  }
});
