import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { join } from "node:path";
import { describe, test } from "node:test";
import { job, open } from "../../src/index.ts";
import { killedProducer } from "./killed.ts";
import { alter, alterElsewhere, place, silent } from "./place.ts";

const greet = job<{ name: string }>({ name: "greet", run: () => {} });
const TABLES = `
  create table customers (id integer primary key, name text);
  create table orders (id integer primary key, customer integer references customers (id));
  insert into customers values (1, 'anna');
  insert into orders values (10, 1);`;
// As a program with `foreign_keys` switched off can write.
const ORPHANS = "pragma foreign_keys = off; insert into orders values (11, 7), (12, 8);";
const FOUND = '2 rows of table "orders" refer to rows of "customers" that do not exist (rowid 11, 12).';

for (const driver of ["node:sqlite", "better-sqlite3"] as const) {
  describe(`foreign keys of your own tables (${driver})`, () => {
    test("foreign keys of users' tables that lead nowhere are found by hf.check(), and the database stays writable", async (t) => {
      const { path } = place(t);
      await using hf = await open(path, { driver, log: silent });
      alterElsewhere(path, TABLES);
      assert.deepEqual(await hf.check(), { ok: true, findings: [] });
      alterElsewhere(path, ORPHANS);
      assert.deepEqual(await hf.check(), { ok: false, findings: [FOUND] });
      await hf.enqueue(greet, { name: "me" });
    });
  });
}

test("foreign keys that lead nowhere are in the report after a crash", async (t) => {
  const { path } = place(t);
  killedProducer(path, 3);
  alter(path, TABLES + ORPHANS);
  await using hf = await open(path, { log: silent });
  const report = await hf.recovery.lastReport();
  assert.deepEqual(report?.errors, [FOUND]);
});

test("a foreign key whose parent table has no such unique column is found by name", async (t) => {
  const { path } = place(t);
  await using hf = await open(path, { log: silent });
  alterElsewhere(
    path,
    "pragma foreign_keys = off; create table a (x); create table b (y references a (x)); insert into b values (1);",
  );
  assert.deepEqual(await hf.check(), {
    ok: false,
    findings: ['The foreign keys cannot be checked: foreign key mismatch - "b" referencing "a".'],
  });
});

test("the report after a crash has 0 missing commits when the witness has seen no more", async (t) => {
  const { path } = place(t);
  killedProducer(path, 20);
  await using hf = await open(path, { log: silent });
  assert.equal((await hf.recovery.lastReport())?.commitsMissing, 0);
});

test("the report of a process beside the crashed one has 0 missing commits", async (t) => {
  const { path } = place(t);
  await using hf = await open(path, { log: silent });
  const child = join(import.meta.dirname, "children", "killed-producer.ts");
  assert.equal(spawnSync(process.execPath, [child, path, "5"]).signal, "SIGKILL");
  await hf.recovery.recoverStale();
  assert.equal((await hf.recovery.lastReport())?.commitsMissing, 0);
});
