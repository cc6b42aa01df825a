import assert from "node:assert/strict";
import { cpSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { after, before, describe, test } from "node:test";
import { verifyAudit } from "../../src/engine/maintenance/check.ts";
import { checkDatabase, fillChecksums } from "../../src/store/sqlite/maintenance/damage/check.ts";
import { connect } from "../../src/store/sqlite/driver.ts";
import { SqliteStore } from "../../src/store/sqlite/sqlite-store.ts";
import { testClock } from "../../src/testing/index.ts";
import { specimens } from "./specimen.ts";
import { UNCOVERED } from "./uncovered.ts";

interface Column {
  table: string;
  name: string;
}

let folder = "";
let whole = "";
let columns: Column[] = [];

before(async () => {
  folder = mkdtempSync(join(tmpdir(), "holdfast-columns-"));
  whole = (await specimens(folder)).killed;
  const db = connect("node:sqlite", join(whole, "work.db"), { busyTimeout: 1_000 });
  db.exec(MORE);
  fillChecksums(db);
  db.exec("pragma wal_checkpoint(truncate)");
  db.close();
  assert.equal(await look(join(whole, "work.db")), null, "nothing is said of what is whole");
  columns = columnsOf(whole);
});

after(() => rmSync(folder, { recursive: true, force: true }));

describe("a column of any table", () => {
  test("a flipped bit in any column is found by a check, or the column is listed as not covered", async () => {
    const missed: string[] = [];
    const empty: string[] = [];
    for (const { table, name } of columns) {
      const found = await changed(table, name, "is not null");
      if (found === "empty") empty.push(`${table}.${name}`);
      // One bit makes a zero of nothing.
      const zeroed = await changed(table, name, "is null");
      if (found === "silent" || zeroed === "silent") missed.push(`${table}.${name}`);
    }
    const listed = Object.entries(UNCOVERED).flatMap(([table, names]) => names.map((name) => `${table}.${name}`));
    // Nor is anything listed that is covered by now.
    assert.deepEqual(missed.toSorted(), listed.toSorted());
    assert.deepEqual(empty, [], "something stands in each");
  });
});

/** What the specimen has no rows of, or none with all that they may have. */
const MORE = `
insert into holdfast_sinks values ('sink', 'webhook', 7, 1, 8, 9, 10, 11, 12, 'down', 13);
insert into holdfast_leads values ('leads', 1, 'token', 1, 2, 'host', 'program', 'hash', 3, 4);
insert into holdfast_tokens values ('hash', 1, 2, 3, 4, 5, 6);
insert into holdfast_recovery_log values (1, 2, 'crash', 3, 4, 5, 6);
insert into holdfast_recoveries values (1, 'failed', 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, '[]', 'me', 16);
insert into holdfast_report_totals values (1, 2, 3, 4, 5, 6, 7, 8, 9, 10);
insert into holdfast_recovery_processes values (1, 2, 'dead', 3, 'host', 'program', 4);
update holdfast_processes set works = '[]', stop = 1;
update holdfast_locks set job = 1, fence = 2, process = 3;
update holdfast_queues set keep = '{}', backfill = 0, attempts = 5;
update holdfast_limits set starts = 1, per = 2;
update holdfast_schedules set last_at = 1, last_job = 2;
update holdfast_builds set note = 'why', blocked = 'budget', budget_micros = 1, budget_tokens = 2 where key = 1;
insert into holdfast_work (job, build, kind, stage, segment, path) values (1, 1, 'stage', 'shout', 0, 'a');
update holdfast_work set estimate_micros = 1, charged_tokens = 2;
insert into holdfast_artifacts values (1, 'shout', 'a', 'name', 'hash', 5);
update holdfast_counters set due_at = 1;
update holdfast_jobs set limits = '[[1,"a"],[1,"b"]]', checksum = null where gate = 'limit';
update holdfast_parked set limits = (select limits from holdfast_jobs where key = job);
update holdfast_jobs set scheduled_for = 1, meta = '{"tags":["red"]}', checksum = null where key = 1;
update holdfast_ids set ended = 'failed', checksum = null where id = (select min(id) from holdfast_ids);
update holdfast_schedules set within = 5, checksum = null;
update holdfast_builds set max_failures = 5, checksum = null;
update holdfast_results set output_file = 'file', error = '{"name":"Error","message":"no"}', checksum = null;
update holdfast_targets set parent = 'p', fingerprint = 'f', value_file = 'file', grouping = 'g', member = 'm', failure = 1, checksum = null;
insert into holdfast_notes (job, checkpoint, fraction, message) values (2, '{}', 0.5, 'half');
insert into holdfast_logs (job, fence, n, at, level, message, data) values (1, 1, 1, 1, 'info', 'begun', '{}');
insert into holdfast_attempts (job, n, fence, attempt, outcome, started_at, ended_at, worker, host, pid, error)
  values (2, 1, 1, 1, 'failed', 5, 6, 'worker', 'host', 7, '{"name":"Error","message":"no"}');
`;

/** One row's value in it becomes another, as a bad disk would do it: no index and no trigger knows. */
async function changed(table: string, column: string, which: string): Promise<"found" | "silent" | "empty"> {
  const copy = join(folder, "copy");
  rmSync(copy, { recursive: true, force: true });
  cpSync(whole, copy, { recursive: true });
  const path = join(copy, "work.db");
  const db = new DatabaseSync(path, { defensive: false });
  const row = db.prepare(`select ${column} as value from ${table} where ${column} ${which} limit 1`).get();
  if (row === undefined) {
    db.close();
    return "empty";
  }
  const hidden = `tbl_name = '${table}' and type in ('index', 'trigger') and sql is not null`;
  db.exec("pragma writable_schema = on");
  const saved = db.prepare(`select rowid, type, name, tbl_name, rootpage, sql from sqlite_schema where ${hidden}`).all();
  db.exec(`delete from sqlite_schema where ${hidden}`);
  db.close();
  const bare = new DatabaseSync(path, { defensive: false });
  bare.exec("pragma ignore_check_constraints = on");
  const value = row["value"] === null ? 0 : flipped(row["value"] as string | number);
  const first = `select ${column} from ${table} where ${column} ${which} limit 1`;
  bare.prepare(`update ${table} set ${column} = ? where ${column} is (${first})`).run(value);
  bare.exec("pragma writable_schema = on");
  const put = bare.prepare("insert into sqlite_schema (rowid, type, name, tbl_name, rootpage, sql) values (?, ?, ?, ?, ?, ?)");
  for (const one of saved) put.run(...(Object.values(one) as (string | number)[]));
  bare.close();
  return (await look(path)) === null ? "silent" : "found";
}

/** One bit of a number, or of the character in the middle of a text; none that leads to a neighbour, which may be there. */
function flipped(value: string | number): string | number {
  if (typeof value === "number" && !Number.isInteger(value)) return value * (1 + 2 ** -52);
  if (typeof value === "number") return value + (Math.floor(value / BIT) % 2 === 0 ? BIT : -BIT);
  if (value === "") return "\u0001";
  const at = value.length >> 1;
  return value.slice(0, at) + String.fromCharCode(value.charCodeAt(at) ^ 8) + value.slice(at + 1);
}

const BIT = 2 ** 20;

/** The error that a caller gets who opens it and has it checked, or null. */
async function look(path: string): Promise<string | null> {
  let store: SqliteStore | null = null;
  try {
    store = await SqliteStore.open(path, {
      driver: "node:sqlite",
      clock: testClock(Date.now()),
      random: Math.random,
      busyTimeout: 10,
    });
    const [met] = await store.damage.findings();
    if (met !== undefined) return met.what;
    const { fault } = await verifyAudit(store);
    if (fault !== null) return fault.message;
    const db = connect("node:sqlite", path, { busyTimeout: 10, mustExist: true });
    try {
      return checkDatabase(db, "node:sqlite", "whole").findings[0] ?? null;
    } finally {
      db.close();
    }
  } catch (error) {
    return String(error);
  } finally {
    await store?.close();
  }
}

/** All of them, but those of which SQLite itself keeps a second copy, in the index of a unique constraint. */
function columnsOf(from: string): Column[] {
  const db = new DatabaseSync(join(from, "work.db"));
  try {
    return db
      .prepare(
        `select list.name as "table", info.name from pragma_table_list as list, pragma_table_info(list.name) as info
         where list.name like 'holdfast\\_%' escape '\\' and not exists (
           select 1 from pragma_index_list(list.name) as made, pragma_index_info(made.name) as of
           where made.origin = 'u' and of.name = info.name)`,
      )
      .all() as unknown as Column[];
  } finally {
    db.close();
  }
}
