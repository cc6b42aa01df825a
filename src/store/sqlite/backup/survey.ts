import type { BackupFacts } from "../../backups.ts";
import { stateOf } from "../changes/journal.ts";
import { checkDatabase } from "../damage/check.ts";
import { connect, type Connection, type DriverName } from "../driver.ts";
import { faultOf } from "../faults.ts";
import { schemaVersion, versionOf } from "../migrate.ts";
import { quoted, tablesOf } from "../tables.ts";

export interface Survey {
  facts: BackupFacts;
  hashes: string[];
}

/** Whoever else reads a backup that was left with a log has it for himself for a moment, as he comes and goes. */
const PATIENCE = 5_000;

/** Looks at a copy that nobody writes to: whether it is whole, and what is in it. Null: it is no database of Holdfast's. */
export function survey(driver: DriverName, path: string): Survey | null {
  // On a connection that may only read, SQLite passes over every CHECK. Nothing is written.
  const db = connect(driver, path, { busyTimeout: PATIENCE, mustExist: true });
  try {
    return versionOf(db) === 0 ? null : surveyOf(db, driver);
  } finally {
    db.close();
  }
}

function surveyOf(db: Connection, driver: DriverName): Survey {
  const schema = versionOf(db);
  const { findings, rows, artifacts } = check(db, driver, schema);
  const hasEpoch = columnsOf(db, "holdfast_database").has("epoch");
  const [databaseId, epoch] = db
    .prepare(`select database_id, ${hasEpoch ? "epoch" : "0"} from holdfast_database where id = 1`)
    .row() as [string, number];
  const [commits, counted] = db.prepare("select commits, jobs from holdfast_counter where id = 1").row() as [number, number];
  const jobs = readable(findings, counted, () => Math.max(counted, newestKey(db)));
  const has = (table: string) => columnsOf(db, table).size > 0;
  const counts = readable(findings, { jobs: {}, builds: {}, tables: {} }, () => ({
    jobs: byState(db, "holdfast_jobs"),
    builds: has("holdfast_builds") ? byState(db, "holdfast_builds") : {},
    tables: rowsOf(db),
  }));
  const changes = readable(findings, null, () => changesOf(db));
  const audit = readable(findings, { entries: 0, head: null }, () => auditOf(db));
  return { facts: { databaseId, epoch, schema, commits, jobs, counts, changes, audit, findings, rows }, hashes: artifacts };
}

/** What is wrong with more than a row, with rows, and which artifacts there have to be. */
function check(db: Connection, driver: DriverName, schema: number): { findings: string[]; rows: string[]; artifacts: string[] } {
  // What a schema of before has no checksums for cannot be compared to any.
  const { findings, structural, artifacts } = checkDatabase(db, driver, schema === schemaVersion() ? "whole" : "quick");
  return structural ? { findings, rows: [], artifacts } : { findings: [], rows: findings, artifacts };
}

/** Of a damaged copy, what cannot be read is left out, and said. */
function readable<T>(findings: string[], without: T, read: () => T): T {
  try {
    return read();
  } catch (error) {
    if (faultOf(error) !== "CORRUPT") throw error;
    findings.push(String((error as Error).message));
    return without;
  }
}

function newestKey(db: Connection): number {
  return (db.prepare("select coalesce(max(key), 0) from holdfast_jobs").row() as [number])[0];
}

function byState(db: Connection, table: string): Record<string, number> {
  return Object.fromEntries(db.prepare(`select state, count(*) from ${table} group by state order by state`).rows());
}

function rowsOf(db: Connection): Record<string, number> {
  const count = (table: string) => (db.prepare(`select count(*) from ${quoted(table)}`).row() as [number])[0];
  return Object.fromEntries(tablesOf(db).map((table) => [table, count(table)]));
}

/** Where the journal goes on. */
function changesOf(db: Connection): number | null {
  if (!stateOf(db)?.active) return null;
  const row = db.prepare("select seq from sqlite_sequence where name = 'holdfast_changes'").row() as [number] | undefined;
  return row?.[0] ?? 0;
}

/** The head of the chain, where entries are chained. */
function auditOf(db: Connection): BackupFacts["audit"] {
  const columns = columnsOf(db, "holdfast_audit");
  if (columns.size === 0) return { entries: 0, head: null };
  const head = columns.has("hash") ? "(select hash from holdfast_audit order by seq desc limit 1)" : "null";
  const [entries, hash] = db.prepare(`select count(*), ${head} from holdfast_audit`).row() as [number, string | null];
  return { entries, head: hash };
}

function columnsOf(db: Connection, table: string): Set<string> {
  return new Set(
    db
      .prepare("select name from pragma_table_info(?)")
      .rows(table)
      .map(([name]) => name as string),
  );
}
