import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { copyFileSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, truncateSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { after, before, describe, test, type TestContext } from "node:test";
import { type Holdfast, type Job, job, open } from "../../src/index.ts";
import { salvageWhole, type SalvageOptions } from "../../src/operator/restore.ts";
import { flip, offsetOf, PAGE, place, rootOf, scribble, silent, whereIs } from "./place.ts";

const greet = job<{ name: string }, string>({ name: "greet", run: ({ input }) => `hello ${input.name}` });
const JOBS = 300;
const AFTER = 40;

/** Many jobs, some of them done, tables of the user's own, and a backup before the last of the jobs. Made once. */
let made: { path: string; backup: string; jobs: Map<string, Job> };
const folder = mkdtempSync(join(tmpdir(), "holdfast-salvage-"));
after(() => rmSync(folder, { recursive: true, force: true }));
before(async () => {
  const [path, backup] = [join(folder, "work.db"), join(folder, "backup.db")];
  const hf = await open(path);
  await hf.transaction(({ db }) => {
    const numbers = "with recursive n (i) as (select 1 union all select i + 1 from n where i < 200)";
    db.exec("create table notes (id integer primary key, body text, price real, raw blob)");
    db.exec("create table tags (tag text primary key, n integer) without rowid");
    db.exec("create index notes_body on notes (body)");
    db.exec(`${numbers} insert into notes select i, 'note ' || i, i / 2.0, zeroblob(i) from n`);
    db.exec("insert into notes values (9007199254740993, 'beyond', 1.5, x'00ff')");
    db.exec(`${numbers} insert into tags select 'tag ' || i, i from n`);
  });
  const inputs = Array.from({ length: JOBS }, (_, i) => ({
    name: `operator number ${i} ${"x".repeat(i % 50 === 0 ? 9_000 : 60)}`,
  }));
  await hf.enqueueMany(greet, inputs, (_, i) => (i % 3 === 0 ? { id: `job-${i}` } : {}));
  for (let i = 0; i < 5; i++) await (await hf.claim(greet, { worker: "anna" }))?.succeed("done");
  await hf.backup(backup);
  await hf.enqueueMany(greet, inputs.slice(0, AFTER));
  const jobs = await all(hf);
  await hf.close();
  made = { path, backup, jobs };
});

function damaged(t: TestContext, damage: (path: string) => void): { path: string; before: Map<string, Job>; backup: string } {
  const { path } = place(t);
  copyFileSync(made.path, path);
  damage(path);
  return { path, before: made.jobs, backup: made.backup };
}

async function all(hf: Holdfast): Promise<Map<string, Job>> {
  const found = new Map<string, Job>();
  for (let after: string | undefined; ;) {
    const page = await hf.jobs.list({ limit: 1_000, after });
    for (const one of page.items) found.set(one.id, one);
    if (page.next === undefined) return found;
    after = page.next;
  }
}

async function salvaged(path: string, options: Partial<SalvageOptions> = {}) {
  const made = await salvageWhole({ path, driver: "node:sqlite", by: "a test", now: Date.now(), backup: null, ...options });
  return { ...made, lostJobs: made.report.tables.find(({ table }) => table === "holdfast_jobs")?.lost as string[] };
}

/** How many keys lie in the gaps that a salvage lists. */
function keysIn(lost: readonly string[], highest: number): number {
  return lost.reduce((sum, text) => {
    const [, after, before] = /^(?:after|between) (\d+)(?: and (\d+))?$/.exec(text) ?? [];
    return sum + (after === undefined ? 1 : Number(before ?? highest + 1) - Number(after) - 1);
  }, 0);
}

/** Opens as if nothing had been, and is whole; every job in it is as it was. */
async function whole(path: string, before: ReadonlyMap<string, Job>): Promise<Map<string, Job>> {
  await using hf = await open(path, { log: silent });
  assert.deepEqual(await hf.check(), { ok: true, findings: [] });
  const after = await all(hf);
  for (const [id, found] of after) assert.deepEqual(found.input, before.get(id)?.input, id);
  const { id } = await hf.enqueue(greet, { name: "you" });
  assert.ok(!before.has(id));
  hf.work([greet]);
  assert.equal((await hf.jobs.wait(id)).state, "succeeded");
  return after;
}

/** The leaves of a table's tree, from its inner page. */
function leavesOf(path: string, table: string): number[] {
  const bytes = readFileSync(path).subarray(offsetOf(rootOf(path, table)));
  const count = bytes.readUInt16BE(3);
  return Array.from({ length: count }, (_, i) => bytes.readUInt32BE(bytes.readUInt16BE(12 + 2 * i)));
}

function noise(seed: number): Buffer {
  return Buffer.from(Array.from({ length: PAGE }, (_, i) => (i * 2_654_435_761 + seed * 40_503) >>> 13));
}

/** Whole numbers as such, so that a real that is one shows. */
function readAll(db: DatabaseSync, table: string): unknown[] {
  const statement = db.prepare(`select * from ${table}`);
  statement.setReadBigInts(true);
  return statement.all();
}

describe("salvage", { concurrency: 2 }, () => {
  test("a salvage of a database with a damaged index loses nothing, and says so", async (t) => {
    const { path, before } = damaged(t, (file) =>
      scribble(file, offsetOf(rootOf(file, "holdfast_jobs_ready")), Buffer.alloc(PAGE)),
    );
    const { report, findings, kept } = await salvaged(path);
    assert.deepEqual(findings, []);
    assert.deepEqual(
      report.tables.filter(({ lost }) => lost.length > 0),
      [],
    );
    assert.ok(existsSync(kept) && existsSync(`${kept}.report.json`));
    const after = await whole(path, before);
    assert.deepEqual([...after.keys()].sort(), [...before.keys()].sort());
  });

  for (const [what, bytes] of [
    ["zeros", Buffer.alloc(PAGE)],
    ["noise", noise(7)],
  ] as const) {
    test(`a salvage of pages full of ${what} names their jobs, and takes them from the backup`, async (t) => {
      let leaf = 0;
      const { path, before, backup } = damaged(t, (file) => {
        leaf = leavesOf(file, "holdfast_jobs")[1] as number;
        scribble(file, offsetOf(leaf), bytes);
      });
      const copy = `${path}.copy`;
      copyFileSync(path, copy);
      const without = await salvaged(copy);
      assert.deepEqual(without.findings, []);
      assert.equal(without.lostJobs.length, 1);
      const lost = keysIn(without.lostJobs, before.size);
      const left = await whole(copy, before);
      assert.equal(left.size, before.size - lost);
      assert.deepEqual(
        without.report.jobs.lostIds,
        [...before.keys()].filter((id) => id.startsWith("job-") && !left.has(id)),
      );

      const filled = await salvaged(path, { backup });
      assert.deepEqual(filled.lostJobs, []);
      assert.equal(filled.report.jobs.restored.length, lost);
      assert.deepEqual([...(await whole(path, before)).keys()].sort(), [...before.keys()].sort());
    });
  }

  test("a salvage only reads the backup, and another reader of it blocks nothing", async (t) => {
    const { path, before, backup } = damaged(t, (file) =>
      scribble(file, offsetOf(leavesOf(file, "holdfast_jobs")[1] as number), Buffer.alloc(PAGE)),
    );
    using other = new DatabaseSync(":memory:");
    other.prepare("attach database ? as old").run(backup);
    other.exec("begin immediate");
    const { lostJobs, findings } = await salvaged(path, { backup });
    assert.deepEqual(findings, []);
    assert.deepEqual(lostJobs, []);
    assert.deepEqual([...(await whole(path, before)).keys()].sort(), [...before.keys()].sort());
  });

  test("a salvage leaves a backup with a WAL unchanged, to the byte", async (t) => {
    const { path, before } = damaged(t, (file) =>
      scribble(file, offsetOf(leavesOf(file, "holdfast_jobs")[1] as number), Buffer.alloc(PAGE)),
    );
    const backup = `${path}.left.db`;
    copyFileSync(made.path, backup);
    const bytes = readFileSync(backup);
    const withLog = 2;
    assert.equal(bytes[18], withLog);
    assert.deepEqual((await salvaged(path, { backup })).lostJobs, []);
    assert.ok(readFileSync(backup).equals(bytes));
    assert.deepEqual([...(await whole(path, before)).keys()].sort(), [...before.keys()].sort());
  });

  test("a salvage of a table without its root takes all of it from the backup, and names newer rows", async (t) => {
    const { path, before, backup } = damaged(t, (file) => {
      for (const table of ["holdfast_jobs", "notes"]) scribble(file, offsetOf(rootOf(file, table)), noise(3));
    });
    const { report, findings, lostJobs } = await salvaged(path, { backup });
    assert.deepEqual(findings, []);
    assert.deepEqual([report.jobs.saved, report.jobs.restored.length], [0, JOBS]);
    assert.deepEqual(lostJobs, [`after ${JOBS}`]);
    assert.deepEqual(report.tables.find(({ table }) => table === "notes")?.restored, 201);
    assert.equal((await whole(path, before)).size, JOBS);
  });

  test("a salvage reads rows between two damaged pages", async (t) => {
    const { path, before } = damaged(t, (file) => {
      for (const i of [1, 4]) scribble(file, offsetOf(leavesOf(file, "holdfast_jobs")[i] as number), noise(i));
    });
    const { lostJobs, findings } = await salvaged(path);
    assert.deepEqual(findings, []);
    assert.equal(lostJobs.length, 2, lostJobs.join());
    assert.equal((await whole(path, before)).size, before.size - keysIn(lostJobs, before.size));
  });

  test("a salvage without the first page takes everything from the backup, and without a backup changes nothing", async (t) => {
    const { path, before, backup } = damaged(t, (file) => scribble(file, 0, Buffer.alloc(PAGE)));
    const bytes = readFileSync(path);
    await assert.rejects(salvaged(path), { code: "NOTHING_TO_SALVAGE" });
    assert.ok(readFileSync(path).equals(bytes));
    const { report, findings } = await salvaged(path, { backup });
    assert.deepEqual(findings, []);
    assert.equal(report.jobs.restored.length, JOBS);
    assert.equal((await whole(path, before)).size, JOBS);
    const db = new DatabaseSync(path, { readOnly: true });
    assert.equal(db.prepare("select count(*) as n from notes").get()?.["n"], 201);
    assert.equal(db.prepare("select count(*) as n from tags where tag = 'tag ' || n").get()?.["n"], 200);
    assert.equal(db.prepare("select cast(id as text) as id from notes where body = 'beyond'").get()?.["id"], "9007199254740993");
    db.close();
  });

  test("a salvage of a truncated file takes the rest from the backup, and lists what neither has", async (t) => {
    const { path, before, backup } = damaged(t, (file) => truncateSync(file, Math.floor(statSync(file).size / 2 / PAGE) * PAGE));
    const { lostJobs, findings } = await salvaged(path, { backup });
    assert.deepEqual(findings, []);
    const after = await whole(path, before);
    assert.ok(after.size >= JOBS, `${after.size}`);
    const keys = keysIn(lostJobs, JOBS + AFTER);
    const missing = [...before.keys()].filter((id) => !after.has(id));
    assert.ok(missing.length <= keys && missing.length > 0 === keys > 0, `${missing.length} of ${keys}`);
  });

  test("a salvage does not copy a changed row as an intact one", async (t) => {
    const { path, before, backup } = damaged(t, (file) =>
      flip(file, (whereIs(file, "operator number 222 ")[0] as number) + 17, 1),
    );
    const copy = `${path}.copy`;
    copyFileSync(path, copy);
    const { report, lostJobs } = await salvaged(copy);
    assert.equal(report.jobs.damaged.length, 1);
    assert.equal(lostJobs.length, 1);
    assert.equal((await whole(copy, before)).size, before.size - 1);
    assert.deepEqual((await salvaged(path, { backup })).report.jobs.restored, report.jobs.damaged);
    assert.equal((await whole(path, before)).size, before.size);
  });

  test("a salvage keeps the damaged file with its WAL unchanged", async (t) => {
    let bytes = Buffer.alloc(0);
    const { path } = damaged(t, (file) => {
      scribble(file, offsetOf(rootOf(file, "holdfast_events")), noise(1));
      bytes = readFileSync(file);
    });
    const { kept, epoch } = await salvaged(path);
    assert.deepEqual(readFileSync(kept), bytes);
    assert.equal(epoch, 1);
    assert.deepEqual(
      readdirSync(join(path, "..")).filter((name) => name.endsWith("-restore")),
      [],
    );
  });

  test("a salvage reads a WAL up to a damaged frame, and counts the commits behind it", async (t) => {
    const { folder: where, path } = place(t);
    const live = join(where, "live.db");
    const hf = await open(live);
    for (let i = 0; i < 30; i++) await hf.enqueue(greet, { name: `operator number ${i}` }, { id: `job-${i}` });
    const before = await all(hf);
    // By another process: here it would cost the locks.
    for (const end of ["", "-wal"]) execFileSync("cp", [live + end, path + end]);
    await hf.close();
    const frame = PAGE + 24;
    const frames = Math.floor((statSync(`${path}-wal`).size - 32) / frame);
    flip(`${path}-wal`, 32 + Math.floor(frames * 0.8) * frame + 24 + 300, 3);
    const { report, findings, kept } = await salvaged(path);
    assert.deepEqual(findings, []);
    assert.ok(existsSync(`${kept}-wal`));
    const [, beyond] = /holds (\d+) commits behind a damaged part/.exec(report.notes.join()) as unknown as [string, string];
    const found = await whole(path, before);
    assert.ok(Number(beyond) > 0 && found.has("job-0") && !found.has("job-29"), report.notes.join());
  });

  test("a salvage leaves the journal on", async (t) => {
    const { folder: where, path } = place(t);
    const hf = await open(path, { journal: true });
    await hf.enqueueMany(
      greet,
      Array.from({ length: 100 }, (_, i) => ({ name: `operator number ${i}` })),
    );
    await hf.close();
    scribble(path, offsetOf(leavesOf(path, "holdfast_jobs")[0] as number), Buffer.alloc(PAGE));
    assert.deepEqual((await salvaged(path)).findings, []);
    await using again = await open(path);
    await again.backup(join(where, "another.db"));
    const { changes } = JSON.parse(readFileSync(join(where, "another.db.json"), "utf8")) as { changes: number | null };
    assert.ok(changes !== null, "there is a journal still");
  });

  for (const driver of ["node:sqlite", "better-sqlite3"] as const) {
    test(`a salvage copies users' tables unchanged, whatever they are (${driver})`, async (t) => {
      const { path } = place(t);
      await (await open(path)).close();
      const db = new DatabaseSync(path);
      db.exec(`
        pragma user_version = 7;
        create table loose (a, b text, c blob);
        insert into loose values (1, 'x', x'00'), (1.0, null, x''), ('1', 'ü€😀', zeroblob(9000)), (9223372036854775807, '', null);
        alter table loose add column d text default 'later';
        insert into loose values (-1, 'y', null, 'now');
        create table strictly (id integer primary key autoincrement, n real not null) strict;
        insert into strictly (n) values (1), (2.5), (1e300);
        delete from strictly where id = 3;
        create table made (w integer, h integer, area integer generated always as (w * h) stored, half integer as (w / 2));
        insert into made (w, h) values (2, 3), (4, 5);
        create table pairs (b text collate nocase, n integer, a text, primary key (a desc, b)) without rowid;
        insert into pairs values ('One', 1, 'x'), ('two', 2, 'x'), ('three', 3, 'y');
        create table texts (k text primary key, v text unique);
        insert into texts values ('k', 'v');
        create virtual table words using fts5 (body);
        insert into words values ('the quick brown fox'), ('jumps over');
        create view both as select a, d from loose;
        create table log (what text);
        create trigger told after insert on texts begin insert into log values ('told'); end;
        create unique index loose_b on loose (b) where b is not null;`);
      const before = dump(db);
      db.close();
      scribble(path, offsetOf(rootOf(path, "holdfast_events")), noise(5));
      const { report, findings } = await salvaged(path, { driver });
      assert.deepEqual([findings, report.notes], [[], []]);
      const after = new DatabaseSync(path);
      assert.deepEqual(dump(after), before);
      after.exec("insert into texts values ('l', 'w')");
      assert.equal(
        after.prepare("select count(*) as n from log").get()?.["n"],
        1,
        "its triggers act, and did not while it was made",
      );
      after.close();
    });
  }
});

/** All that is not Holdfast's. */
function dump(from: DatabaseSync) {
  return {
    schema: from
      .prepare(
        "select type, name, sql from sqlite_schema where name not like 'holdfast%' and name not like 'sqlite%' order by name",
      )
      .all(),
    rows: ["loose", "strictly", "made", "pairs", "texts", "log", "both", "words", "words_data"].map((name) =>
      readAll(from, name),
    ),
    counted: from.prepare("select seq from sqlite_sequence where name = 'strictly'").all(),
    found: from.prepare("select rowid, body from words where words match 'quick'").all(),
    marked: from.prepare("pragma user_version").all(),
  };
}
