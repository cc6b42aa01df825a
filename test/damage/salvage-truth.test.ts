import assert from "node:assert/strict";
import { copyFileSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { describe, test, type TestContext } from "node:test";
import { type Holdfast, job, open } from "../../src/index.ts";
import { salvageWhole } from "../../src/operator/restore.ts";
import { connect } from "../../src/store/sqlite/driver.ts";
import { type TableShape, tableShapes } from "../../src/store/sqlite/maintenance/changes/replay.ts";
import { type SalvagedTable, TableCopy } from "../../src/store/sqlite/maintenance/salvage/table-copy.ts";
import { alter, flip, offsetOf, PAGE, place, rootOf, silent, whereIs } from "./place.ts";

const note = job<{ text: string }>({ name: "note", run: () => {} });

/** A database with tables of a user's own, and a backup of it. */
async function made(t: TestContext, sql: string, since: (hf: Holdfast) => Promise<unknown> = async () => {}) {
  const { path, folder } = place(t);
  const backup = join(folder, "backup.db");
  {
    await using hf = await open(path, { log: silent });
    await hf.transaction(({ db }) => void db.exec(sql));
    await hf.enqueue(note, { text: "x".repeat(20_000) }, { id: "large" });
    await hf.backup(backup);
    await since(hf);
  }
  const salvage = async (from: string | null) => {
    const { report, findings } = await salvageWhole({ path, driver: "node:sqlite", by: "a test", now: Date.now(), backup: from });
    assert.deepEqual(findings, []);
    return { ...report, of: (name: string) => report.tables.find(({ table }) => table === name) as SalvagedTable };
  };
  return { path, backup, salvage };
}

/** The pages that hold nothing but this letter: the rest of a long text. */
function pagesOf(path: string, letter: string): number[] {
  const bytes = readFileSync(path);
  const pages = Array.from({ length: bytes.length / PAGE }, (_, i) => i + 1);
  return pages.filter((page) => bytes.subarray(offsetOf(page) + 4, offsetOf(page) + 600).equals(Buffer.alloc(596, letter)));
}

function rows(path: string, sql: string): unknown[] {
  const db = new DatabaseSync(path, { readOnly: true });
  const found = db
    .prepare(sql)
    .all()
    .map((row) => Object.values(row));
  db.close();
  return found;
}

describe("what a salvage says is so", { concurrency: 2 }, () => {
  test("a damaged large input is taken from the backup, and its job keeps its newer state", async (t) => {
    const { path, backup, salvage } = await made(t, "create table own (a)", async (hf) => {
      await (await hf.claim("note", { worker: "anna" }))?.succeed("done");
    });
    flip(path, offsetOf(pagesOf(path, "x")[1] as number) + 99, 2);
    copyFileSync(path, `${path}.copy`);
    const { jobs, of } = await salvage(backup);
    assert.deepEqual([jobs.damaged, of("holdfast_jobs").lost, jobs.restored, of("holdfast_inputs").restored], [[], [], [], 1]);
    {
      await using hf = await open(path, { log: silent });
      const found = await hf.jobs.get("large");
      assert.deepEqual([found?.state, found?.input], ["succeeded", { text: "x".repeat(20_000) }]);
    }
    copyFileSync(`${path}.copy`, path);
    const without = await salvage(null);
    assert.deepEqual([without.jobs.damaged, without.jobs.lostIds], [["large"], ["large"]]);
  });

  test("a row that violates a rule is listed by its key, and taken from the backup", async (t) => {
    const { path, backup, salvage } = await made(
      t,
      "create table pairs (k text primary key, n integer check (n < 50)) without rowid; insert into pairs values ('one', 5), ('two', 6), ('three', 7)",
    );
    const at = (whereIs(path, "two").find((one) => one > offsetOf(rootOf(path, "pairs"))) as number) + 3;
    assert.equal(readFileSync(path)[at], 6);
    flip(path, at, 6);
    copyFileSync(path, `${path}.copy`);
    const without = (await salvage(null)).of("pairs");
    assert.deepEqual(without.lost, ["'two'"]);
    copyFileSync(`${path}.copy`, path);
    const { lost, restored } = (await salvage(backup)).of("pairs");
    assert.deepEqual([lost, restored], [[], 1]);
    assert.deepEqual(rows(path, "select n from pairs where k = 'two'"), [[6]]);
  });
});

test("a full disk ends a salvage, and no row counts as rejected for it", (t) => {
  const { path, folder } = place(t);
  const damaged = join(folder, "damaged.db");
  alter(damaged, "create table notes (id integer primary key, body text)");
  alter(
    damaged,
    "with recursive n (i) as (select 1 union all select i + 1 from n where i < 99) insert into notes select i, hex(zeroblob(900)) from n",
  );
  const db = connect("node:sqlite", path, { busyTimeout: 0 });
  t.after(() => db.close());
  db.exec("create table notes (id integer primary key, body text); pragma max_page_count = 4");
  db.prepare("attach database ? as damaged").run(damaged);
  const copy = new TableCopy(db, tableShapes(db)[0] as TableShape);
  assert.throws(() => copy.run(), { errcode: 13 });
});
