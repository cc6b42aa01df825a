import assert from "node:assert/strict";
import { copyFileSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { describe, test, type TestContext } from "node:test";
import { type Holdfast, job, open } from "../../src/index.ts";
import { salvageWhole } from "../../src/runtime/salvage.ts";
import { SCHEMA_VERSION } from "../../src/store/sqlite/migrate.ts";
import { Draft } from "../../src/store/sqlite/salvage/draft.ts";
import type { SalvagedTable } from "../../src/store/sqlite/salvage/report.ts";
import type { Shape } from "../../src/store/sqlite/salvage/shape.ts";
import { flip, offsetOf, PAGE, place, rootOf, scribble, silent, whereIs } from "./place.ts";

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
  test("a large input that was damaged is taken from the backup, and its job stays as it was since", async (t) => {
    const { path, backup, salvage } = await made(t, "create table own (a)", async (hf) => {
      await (await hf.claim("note", { worker: "anna" }))?.succeed("done");
    });
    flip(path, offsetOf(pagesOf(path, "x")[1] as number) + 99, 2);
    copyFileSync(path, `${path}.copy`);
    const { jobs, of } = await salvage(backup);
    assert.deepEqual([jobs.damaged, jobs.lost, jobs.restored, of("holdfast_inputs").restored], [[], [], [], 1]);
    {
      await using hf = await open(path, { log: silent });
      const found = await hf.jobs.get("large");
      assert.deepEqual([found?.state, found?.input], ["succeeded", { text: "x".repeat(20_000) }]);
    }
    copyFileSync(`${path}.copy`, path);
    const without = await salvage(null);
    assert.deepEqual([without.jobs.damaged, without.jobs.lostIds], [["large"], ["large"]]);
  });

  test("a text whose last page was wiped out is not saved with zeros at its end", async (t) => {
    const { path, backup, salvage } = await made(
      t,
      "create table letters (id integer primary key, body text); insert into letters values (1, 'short'), (2, replace(hex(zeroblob(5000)), '0', 'y'))",
    );
    scribble(path, offsetOf(pagesOf(path, "y").at(-1) as number), Buffer.alloc(PAGE));
    copyFileSync(path, `${path}.copy`);
    assert.deepEqual((await salvage(null)).of("letters").lost, [{ from: 2, to: 2 }]);
    copyFileSync(`${path}.copy`, path);
    const { lost, restored } = (await salvage(backup)).of("letters");
    assert.deepEqual([lost, restored], [[], 1]);
    assert.deepEqual(rows(path, "select id, length(replace(body, 'y', '')) from letters"), [
      [1, 5],
      [2, 0],
    ]);
  });

  test("rows of a page that counts more of them than it has are said to be doubtful", async (t) => {
    const { path, salvage } = await made(
      t,
      "create table list (id integer primary key, t text); insert into list values (1, 'one'), (2, 'two'), (3, 'gone'); delete from list where id = 3",
    );
    const at = offsetOf(rootOf(path, "list"));
    assert.deepEqual([...readFileSync(path).subarray(at + 3, at + 5)], [0, 2]);
    scribble(path, at + 3, Uint8Array.of(0, 3));
    const { saved, outdated } = (await salvage(null)).of("list");
    assert.equal(saved, outdated, "none of them is taken for granted");
  });

  test("a row that breaks a rule is listed by its key where it has no number, and taken from the backup", async (t) => {
    const { path, backup, salvage } = await made(
      t,
      "create table pairs (k text primary key, n integer check (n < 50)) without rowid; insert into pairs values ('one', 5), ('two', 6), ('three', 7)",
    );
    const at = (whereIs(path, "two").find((one) => one > offsetOf(rootOf(path, "pairs"))) as number) + 3;
    assert.equal(readFileSync(path)[at], 6);
    flip(path, at, 6);
    copyFileSync(path, `${path}.copy`);
    const without = (await salvage(null)).of("pairs");
    assert.deepEqual([without.refused, without.lost], [1, [{ after: ["two"], before: ["two"] }]]);
    copyFileSync(`${path}.copy`, path);
    const { lost, restored } = (await salvage(backup)).of("pairs");
    assert.deepEqual([lost, restored], [[], 1]);
    assert.deepEqual(rows(path, "select n from pairs where k = 'two'"), [[6]]);
  });

  test("of whom rows of an index are is not guessed where its definition is lost", async (t) => {
    const { path, salvage } = await made(t, "create table own (a)");
    for (const at of whereIs(path, "sqlite_autoindex_holdfast_lanes")) {
      scribble(path, offsetOf(Math.floor(at / PAGE) + 1), Buffer.alloc(PAGE));
    }
    await salvage(null);
    const ids = rows(path, "select id from holdfast_ids").flat();
    assert.deepEqual(
      ids.filter((id) => id !== "large"),
      [],
    );
  });
});

test("a disk that is full ends a salvage: no row is taken for one that was refused", (t) => {
  const { path } = place(t);
  using draft = new Draft({
    driver: "node:sqlite",
    path,
    now: 0,
    schema: SCHEMA_VERSION,
    pageSize: PAGE,
    encoding: "utf8",
    marks: { user: 0, application: 0 },
  });
  draft.begin();
  draft.db.exec(`pragma max_page_count = ${(draft.db.prepare("pragma page_count").row() as [number])[0] + 2}`);
  assert.throws(
    () => {
      for (let i = 0n; i < 100n; i++) {
        const values = [`id ${i} ${"x".repeat(900)}`, i, "note", 1n, null];
        assert.ok(draft.insert(draft.shape("holdfast_ids") as Shape, { rowid: null, values, outdated: false }));
      }
    },
    { errcode: 13 },
  );
});
