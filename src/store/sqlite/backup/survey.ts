import type { BackupFacts } from "../../backups.ts";
import { connect, type Connection, type DriverName } from "../driver.ts";
import { faultOf } from "../faults.ts";
import { versionOf } from "../migrate.ts";

export interface Survey {
  facts: BackupFacts;
  hashes: string[];
  /** When a database without a manifest was last written to is not known. */
  durability: string;
}

/** How many findings are told of; a page that is torn makes thousands. */
const FINDINGS = 20;

/** Looks at a copy that nobody else has open: whether it is whole, and what is in it. Null: it is no database of Holdfast's. */
export function survey(driver: DriverName, path: string): Survey | null {
  const db = connect(driver, path, { busyTimeout: 0, readOnly: true });
  try {
    return versionOf(db) === 0 ? null : surveyOf(db);
  } finally {
    db.close();
  }
}

function surveyOf(db: Connection): Survey {
  const findings = integrity(db);
  const hasEpoch = columnsOf(db, "holdfast_database").has("epoch");
  const [databaseId, durability, epoch] = db
    .prepare(`select database_id, durability, ${hasEpoch ? "epoch" : "0"} from holdfast_database where id = 1`)
    .row() as [string, string, number];
  const [commits, jobs] = db
    .prepare("select commits, max(jobs, coalesce((select max(key) from holdfast_jobs), 0)) from holdfast_counter where id = 1")
    .row() as [number, number];
  const has = (table: string) => columnsOf(db, table).size > 0;
  const schema = versionOf(db);
  const counts = readable(findings, { jobs: {}, builds: {}, tables: {} }, () => ({
    jobs: byState(db, "holdfast_jobs"),
    builds: has("holdfast_builds") ? byState(db, "holdfast_builds") : {},
    tables: rowsOf(db),
  }));
  const audit = readable(findings, { entries: 0, head: null }, () => auditOf(db));
  const hashes = readable(findings, [], () =>
    has("holdfast_artifacts")
      ? db
          .prepare("select distinct hash from holdfast_artifacts order by hash")
          .rows()
          .map(([hash]) => hash as string)
      : [],
  );
  return { facts: { databaseId, epoch, schema, commits, jobs, counts, audit, findings }, hashes, durability };
}

function integrity(db: Connection): string[] {
  try {
    const found = db.prepare(`pragma integrity_check(${FINDINGS})`).rows();
    return found.map(([line]) => String(line)).filter((line) => line !== "ok");
  } catch (error) {
    if (faultOf(error) !== "CORRUPT") throw error;
    return [String((error as Error).message)];
  }
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

function byState(db: Connection, table: string): Record<string, number> {
  return Object.fromEntries(db.prepare(`select state, count(*) from ${table} group by state order by state`).rows());
}

/** Not those of SQLite itself, nor what only looks like a table. */
function rowsOf(db: Connection): Record<string, number> {
  const tables = db
    .prepare(
      "select name from sqlite_schema where type = 'table' and rootpage > 0 and name not like 'sqlite\\_%' escape '\\' order by name",
    )
    .rows()
    .map(([name]) => name as string);
  return Object.fromEntries(
    tables.map((name) => [name, (db.prepare(`select count(*) from "${name.replaceAll('"', '""')}"`).row() as [number])[0]]),
  );
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
