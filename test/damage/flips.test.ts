import assert from "node:assert/strict";
import { cpSync, mkdtempSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { after, before, test } from "node:test";
import { verifyAudit } from "../../src/engine/maintenance/check.ts";
import { checkDatabase } from "../../src/store/sqlite/maintenance/damage/check.ts";
import { connect } from "../../src/store/sqlite/driver.ts";
import { SqliteStore } from "../../src/store/sqlite/sqlite-store.ts";
import { testClock } from "../../src/testing/index.ts";
import { randomFrom, SEEDS } from "../seeds.ts";
import { LONG } from "../selection.ts";
import { flip } from "./place.ts";
import { specimens } from "./specimen.ts";
import { isUncovered } from "./uncovered.ts";

const FLIPS = LONG ? 1_000 : 20;

type Dump = Record<string, Record<string, unknown>[]>;

let folder = "";
let from: { closed: string; killed: string };
const whole: Record<string, Dump> = {};

before(async () => {
  folder = mkdtempSync(join(tmpdir(), "holdfast-flips-"));
  from = await specimens(folder);
  for (const state of ["closed", "killed"] as const) {
    const path = copyOf(state);
    const reported = await look(path);
    assert.equal(reported, null, "nothing is said of what is whole");
    whole[state] = dump(path);
  }
});

after(() => rmSync(folder, { recursive: true, force: true }));

for (const seed of SEEDS)
  test(`each of ${FLIPS} flipped bits is harmless, or reported, or in a column that is not covered (HOLDFAST_SEED=${seed})`, async (t) => {
    const random = randomFrom(seed);
    const tally = { harmless: 0, reported: 0, uncovered: 0 };
    const silent: string[] = [];
    for (let i = 0; i < FLIPS; i++) {
      const [state, end] = PLACES[Math.floor(random() * PLACES.length)] as (typeof PLACES)[number];
      const path = copyOf(state);
      const at = Math.floor(random() * statSync(path + end).size);
      const bit = Math.floor(random() * 8);
      flip(path + end, at, bit);
      const reported = await look(path);
      if (reported !== null) {
        tally.reported++;
        continue;
      }
      const differing = differences(whole[state] as Dump, dump(path));
      const beyond = differing.filter(([table, column]) => !isUncovered(table, column));
      if (differing.length === 0) tally.harmless++;
      else tally.uncovered++;
      if (beyond.length > 0)
        silent.push(`${state}${end} byte ${at} bit ${bit}: ${beyond.map((one) => one.join(".")).join(", ")}`);
    }
    t.diagnostic(`${tally.harmless} harmless, ${tally.reported} reported, ${tally.uncovered} in what is not covered`);
    assert.deepEqual(silent, []);
  });

const PLACES = [
  ["closed", ""],
  ["closed", ""],
  ["killed", ""],
  ["killed", "-wal"],
] as const;

function copyOf(state: "closed" | "killed"): string {
  const to = join(folder, "copy");
  rmSync(to, { recursive: true, force: true });
  cpSync(from[state], to, { recursive: true });
  return join(to, "work.db");
}

/** Everything that a caller does who opens the database and reads it. Returns the error that it gets, or null. */
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
    for (let after: string | undefined; ;) {
      const { items, next } = await store.queries.list({ limit: 100, ...(after === undefined ? {} : { after }) });
      for (const { error, id } of items) if (error?.code === "DAMAGED") return `job ${id}`;
      if (next === undefined) break;
      after = next;
    }
    await store.events.page({ after: 0, limit: 10_000 });
    await store.queries.overview();
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

/** Everything that is in it. To SQLite a blob in the schema is as good as a text. */
function dump(path: string): Dump {
  const db = new DatabaseSync(path);
  try {
    const tables = db
      .prepare(
        "select cast(name as text) as name from sqlite_schema where cast(type as text) = 'table' and cast(name as text) like 'holdfast\\_%' escape '\\'",
      )
      .all();
    return Object.fromEntries(
      tables.map(({ name }) => [
        name as string,
        db.prepare(`select * from ${name as string}`).all() as Record<string, unknown>[],
      ]),
    );
  } finally {
    db.close();
  }
}

function differences(was: Dump, is: Dump): [table: string, column: string][] {
  const found = new Map<string, [string, string]>();
  for (const table of new Set([...Object.keys(was), ...Object.keys(is)])) {
    const [before, after] = [was[table] ?? [], is[table] ?? []];
    if (before.length !== after.length) found.set(table, [table, "(rows)"]);
    for (const [i, row] of before.entries())
      for (const column of Object.keys(row))
        if (row[column] !== after[i]?.[column]) found.set(`${table}.${column}`, [table, column]);
  }
  return [...found.values()];
}
