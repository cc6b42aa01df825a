import assert from "node:assert/strict";
import { appendFileSync, copyFileSync, existsSync, readdirSync, readFileSync, rmSync, truncateSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { suite, test, type TestContext } from "node:test";
import { type Holdfast, items, job, open, pipeline } from "../../src/index.ts";
import { restoreWhole, type RestoredDatabase } from "../../src/operator/restore.ts";
import type { Manifest } from "../../src/store/backups.ts";
import { keepUp } from "../../src/store/sqlite/maintenance/changes/journal.ts";
import { replay } from "../../src/store/sqlite/maintenance/changes/replay.ts";
import { changesFolder, readSegment, segmentsIn } from "../../src/store/sqlite/maintenance/changes/segments.ts";
import { connect } from "../../src/store/sqlite/driver.ts";
import { code, folder } from "./parts.ts";

const note = job({ name: "note", queue: { name: "note", events: true }, run: () => {} });
const made = pipeline("made")
  .source(items(() => ["one", "two"], { id: (name) => name }))
  .stage("grow", {}, ({ input }) => `${input}!`);

const USERS = `
create table plain (a, b real);
create table keyed (k text primary key, v blob) without rowid;
create table owned (id integer primary key autoincrement, t text unique, "an odd ""name""" text);`;

/** All rows of all tables but the journal's own. */
function dump(path: string): Record<string, unknown[]> {
  const db = new DatabaseSync(path, { readOnly: true });
  try {
    const tables = db
      .prepare(
        "select name from sqlite_schema where type = 'table' and name not in ('holdfast_changes', 'holdfast_journal') order by name",
      )
      .all()
      .map(({ name }) => String(name));
    return Object.fromEntries(
      tables.map((name) => {
        const rows = db.prepare(`select * from "${name}"`).all();
        return [
          name,
          rows
            .filter(isOther)
            .map((row) => JSON.stringify(row, (_, value: unknown) => (value instanceof Uint8Array ? [...value] : value))),
        ];
      }),
    );
  } finally {
    db.close();
  }
}

/** Its own numbers go on by themselves. */
function isOther(row: Record<string, unknown>): boolean {
  return row["name"] !== "holdfast_changes";
}

/** What is there at an instant, which no other commit shares. */
async function snapshot(path: string): Promise<{ at: number; rows: ReturnType<typeof dump> }> {
  for (;;) {
    const rows = dump(path);
    const at = Date.now();
    while (Date.now() <= at) await new Promise((resume) => setImmediate(resume));
    try {
      assert.deepEqual(dump(path), rows);
      return { at, rows };
    } catch {
      // A process was at work between.
    }
  }
}

const OPERATIONS: ((hf: Holdfast) => Promise<unknown>)[] = [
  (hf) =>
    hf.enqueueMany(
      note,
      Array.from({ length: 50 }, (_, n) => ({ n, text: `it's ${"x".repeat(n * 40)}` })),
    ),
  (hf) =>
    hf.transaction(
      ({ db }) =>
        void db.exec(
          "insert into plain values (1, 0.1), ('two', 1e300), (null, -2.5); insert into keyed values ('a', x'00ff27'), ('b''b', null)",
        ),
    ),
  async (hf) => (await hf.claim("note", { worker: "w" }))?.succeed({ fine: "it's" }),
  async (hf) => (await hf.claim("note", { worker: "w" }))?.fail(new Error("no"), { retry: false }),
  (hf) =>
    hf.transaction(
      ({ db }) =>
        void db.exec(
          "insert into owned (t) values ('x'), ('y'); update keyed set k = 'c' where k = 'a'; update plain set rowid = rowid + 10 where a = 1",
        ),
    ),
  (hf) => hf.schedule(note, { cron: "0 0 1 1 *", input: {} }),
  async (hf) => (await hf.builds.start(made)).done(),
  (hf) =>
    hf.transaction(
      ({ db }) =>
        void db.exec(
          `insert or replace into owned (t, "an odd ""name""") values ('x', 'again'); delete from plain; delete from owned where t = 'y'`,
        ),
    ),
  async (hf) => hf.jobs.cancel((await hf.jobs.list({ state: "pending" })).items[0]?.id as string),
  (hf) => hf.queues.pause("note"),
];

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

suite("with a journal", () => {
  test("a backup leads to every later instant, row by row, users' own tables too", async (t) => {
    const { base, path, backup } = await ground(t);
    new DatabaseSync(path).exec(USERS);
    const shots: Awaited<ReturnType<typeof snapshot>>[] = [];
    {
      await using hf = await open(path, { journal: true });
      await hf.enqueue(note, 0);
      await hf.backup(backup);
      for (const operation of OPERATIONS) {
        await operation(hf);
        shots.push(await snapshot(path));
      }
    }
    const { databaseId, epoch, changes } = JSON.parse(readFileSync(`${backup}.json`, "utf8")) as Manifest;
    for (const [i, { at, rows }] of shots.entries()) {
      const copy = join(base, `copy-${i}.db`);
      copyFileSync(backup, copy);
      const db = connect("node:sqlite", copy, { busyTimeout: 0 });
      db.exec("begin");
      const { changes: n } = replay(
        db,
        { folder: changesFolder(path), databaseId, epoch, after: changes ?? 0, at, tail: [], newest: null, over: false },
        () => {},
      );
      db.exec("commit");
      db.close();
      assert.ok(n > 0);
      assert.deepEqual(dump(copy), rows, `after operation ${i}`);
    }
  });

  test("a restore to an instant uses the journal's files and what is still in the database", async (t) => {
    const { path, backup, restore } = await ground(t);
    const hf = await open(path, { journal: true });
    await hf.enqueue(note, 0);
    await hf.backup(backup);
    const { id } = await hf.enqueue(note, 1);
    const { at } = await snapshot(path);
    await hf.enqueue(note, 2);
    await hf.close();
    const { replayed, epoch } = await restore(at);
    assert.ok(replayed !== null && replayed.changes > 0 && (replayed.reached ?? 0) <= at);
    assert.equal(epoch, 1);
    await using again = await open(path);
    const found = (await again.jobs.list()).items.map((one) => one.id);
    assert.deepEqual([found.length, found.includes(id)], [2, true]);
    assert.equal((await again.check()).ok, true);
  });

  test("an instant before the backup, a backup without a journal, and a gap are rejected, and nothing changes", async (t) => {
    const { path, backup, restore } = await ground(t);
    {
      await using hf = await open(path);
      await hf.backup(backup);
    }
    await assert.rejects(restore(Date.now()), code("JOURNAL_NEEDED"));
    rmSync(backup);
    rmSync(`${backup}.json`);
    let at: number;
    {
      await using hf = await open(path, { journal: true });
      await hf.backup(backup);
      await hf.enqueue(note, 1);
      ({ at } = await snapshot(path));
    }
    {
      await using hf = await open(path);
      await hf.transaction(({ db }) => void db.exec("create table later (x)"));
    }
    await assert.rejects(restore(at - 3_600_000), code("JOURNAL_GAP"));
    await assert.rejects(restore(Date.now()), code("JOURNAL_GAP"));
    assert.ok(!existsSync(`${path}-restore`));
    await restore(at);
  });

  test("a torn last line is cut off, and a damaged earlier line is a gap", async (t) => {
    const { path, backup, restore } = await ground(t);
    {
      await using hf = await open(path, { journal: true });
      await hf.backup(backup);
      await hf.enqueue(note, 1);
    }
    const file = segmentsIn(changesFolder(path), databaseIdOf(path), 0)[0]?.path as string;
    assert.ok(readSegment(file).changes.length > 0);
    appendFileSync(file, "0000");
    assert.equal(readSegment(file).damaged, false, "a line without an end is none");
    {
      await using hf = await open(path);
      await hf.enqueue(note, 2);
      await hf.enqueue(note, 3);
    }
    assert.equal(readSegment(file).damaged, false);
    assert.equal(readdirSync(changesFolder(path)).filter((name) => name.endsWith(".changes")).length, 1);
    const all = readSegment(file);
    truncateSync(file, 400);
    appendFileSync(file, "\nrubbish\n");
    assert.ok(readSegment(file).damaged && all.changes.length > readSegment(file).changes.length);
    await assert.rejects(restore(Date.now()), code("JOURNAL_GAP"));
    rmSync(file);
    await assert.rejects(restore(Date.now()), code("JOURNAL_GAP"), "nor is a file that is gone passed over");
  });

  test("a journal that was switched off leads to that instant and no further", async (t) => {
    const { path, backup, restore } = await ground(t);
    let at: number;
    {
      await using hf = await open(path, { journal: true });
      await hf.backup(backup);
      await hf.enqueue(note, 1);
      ({ at } = await snapshot(path));
      await hf.enqueue(note, 2);
    }
    {
      await using hf = await open(path, { journal: false });
      await hf.enqueue(note, 3);
    }
    await assert.rejects(restore(Date.now()), code("JOURNAL_GAP"));
    await restore(at);
    await using hf = await open(path);
    assert.deepEqual(
      (await hf.jobs.list()).items.map(({ input }) => input),
      [1],
    );
  });

  test("switching the journal on or off writes an audit entry and an event; leaving it as it is writes neither", async (t) => {
    const { path } = await ground(t);
    for (const journal of [true, true, false, false, undefined, true, undefined]) {
      await (await open(path, { ...(journal === undefined ? {} : { journal }), program: "a plan", user: "anna" })).close();
    }
    await using hf = await open(path, { program: "a reader" });
    const entries = await hf.engine.store.audit.page({ after: 0, limit: 10, subject: "journal" });
    assert.deepEqual(
      entries.map(({ action, before, after }) => [action, before, after]),
      [
        ["journal.switched_off", { active: true }, { active: false }],
        ["journal.switched_on", { active: false }, { active: true }],
      ],
    );
    for (const { by } of entries) assert.match(by, /^a plan \(pid \d+ on .*, by anna\)$/);
    const told = await hf.engine.store.events.page({ after: 0, limit: 10, types: ["journal.*"] });
    assert.deepEqual(
      told.map(({ type, data }) => [type, data]),
      [
        ["journal.switched_off", { active: false }],
        ["journal.switched_on", { active: true }],
      ],
    );
    assert.equal((await hf.check()).ok, true);
  });

  test("a journal that is switched off because of an unseen change says so in the audit", async (t) => {
    const { path } = await ground(t);
    await (await open(path, { journal: true })).close();
    const db = connect("node:sqlite", path, { busyTimeout: 0 });
    db.exec("create virtual table words using fts5 (body)");
    assert.throws(() => keepUp(db, 7), code("JOURNAL_UNSUITABLE"));
    db.close();
    await using hf = await open(path);
    const entries = await hf.engine.store.audit.page({ after: 0, limit: 10, subject: "journal" });
    assert.deepEqual(
      entries.map(({ action, by, at, after }) => [action, by, at, after]),
      [["journal.switched_off", "journal", 7, { active: false, tables: ["words"] }]],
    );
  });

  test("a journal can be switched off, and needs a file", async (t) => {
    const { path } = await ground(t);
    await (await open(path, { journal: true })).close();
    await (await open(path, { journal: false })).close();
    const db = new DatabaseSync(path, { readOnly: true });
    assert.equal(
      db.prepare("select count(*) as n from sqlite_schema where type = 'trigger' and name like 'holdfast_change%'").get()?.["n"],
      0,
    );
    db.close();
    await using hf = await open(path);
    await hf.enqueue(note, 1);
    await assert.rejects(open(path, { journal: true }), code("JOURNAL_DIFFERS"));
    await assert.rejects(open(":memory:", { journal: true }), code("OPTION_INVALID"));
  });
});

function databaseIdOf(path: string): string {
  const db = new DatabaseSync(path, { readOnly: true });
  try {
    return String(db.prepare("select database_id as id from holdfast_database").get()?.["id"]);
  } finally {
    db.close();
  }
}
