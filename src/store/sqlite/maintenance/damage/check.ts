import { valueHash } from "../../../../core/pipelines/context-hash.ts";
import type { JobKey } from "../../../../core/text/ids.ts";
import type { Checked, Thoroughness } from "../../../maintenance.ts";
import { ELSEWHERE, publicId } from "../../../job-row.ts";
import { CHECKED, type CheckedJob, type CheckedTable, jobChecksum, rowChecksum } from "../../checksum.ts";
import { connect, type Connection, type DriverName, type Value } from "../../driver.ts";
import { explain, faultOf } from "../../faults.ts";
import { migrate } from "../../migrate.ts";

/** How many findings of SQLite's own are told; a page that is torn makes thousands. */
const MOST = 20;
/** On a thread of its own it may wait for a process that is just opening the file. */
const PATIENCE = 5_000;

export interface CheckedPages extends Checked {
  /** Some of it is more than a row: pages, indexes, the schema. */
  structural: boolean;
  /** Every page, row and constraint was looked at. A quick check is not complete, nor one on a connection that may only read. */
  isComplete: boolean;
}

export interface CheckRequest {
  driver: DriverName;
  path: string;
  how: Thoroughness;
  /** It is known to be, so it is only read; default false. */
  damaged?: boolean;
}

/** In a thread: it blocks for as long as a disk takes. */
export function checkFile({ driver, path, how, damaged }: CheckRequest): CheckedPages {
  try {
    // On a connection that may only read, SQLite passes over every CHECK. One that may write would, as the last to leave,
    // copy the log of a damaged database back.
    const db = connect(driver, path, { busyTimeout: PATIENCE, ...(damaged ? { readOnly: true } : { mustExist: true }) });
    try {
      const checked = checkDatabase(db, driver, how);
      return damaged ? { ...checked, isComplete: false } : checked;
    } finally {
      db.close();
    }
  } catch (error) {
    const fault = faultOf(error);
    if (fault !== "CORRUPT" && fault !== "NOTADB") throw explain(error, path);
    return { findings: [(error as Error).message], structural: true, isComplete: false, references: [], artifacts: [] };
  }
}

/** On whatever is open: the live file for a quick look, a copy of it for all. */
export function checkDatabase(db: Connection, driver: DriverName, how: Thoroughness): CheckedPages {
  const pages = readable(() => pragma(db, how === "quick" ? "quick_check" : "integrity_check"));
  const others = { references: checkReferences(db), artifacts: artifactsOf(db) };
  if (how === "quick") return { findings: pages, structural: pages.length > 0, isComplete: false, ...others };
  const schema = readable(() => checkSchema(db, driver));
  const rows = readable(() => checkRows(db));
  const structural = pages.length + schema.length > 0;
  return { findings: [...pages, ...schema, ...rows], structural, isComplete: true, ...others };
}

function pragma(db: Connection, name: string): string[] {
  const lines = db.prepare(`pragma ${name}(${MOST})`).rows();
  // One answer may have many lines, the first of which only says which database it is about.
  const said = lines.flatMap(([line]) => String(line).split("\n"));
  return said.filter((line) => line !== "ok" && !line.startsWith("*** in database")).slice(0, MOST);
}

function readable(look: () => string[]): string[] {
  try {
    return look();
  } catch (error) {
    if (faultOf(error) !== "CORRUPT") throw error;
    return [(error as Error).message];
  }
}

/** An older schema, as it is before a migration, knows nothing of them. */
function artifactsOf(db: Connection): string[] {
  if (db.prepare("select 1 from pragma_table_info('holdfast_artifacts')").row() === undefined) return [];
  const referred = db.prepare(
    `select hash from holdfast_artifacts
     union select output_file from holdfast_results where output_file is not null
     union select value_file from holdfast_targets where value_file is not null`,
  );
  try {
    return referred.rows().map(([hash]) => hash as string);
  } catch (error) {
    // What the pages have to do with it was found with them.
    if (faultOf(error) !== "CORRUPT") throw error;
    return [];
  }
}

/** How many pairs of tables, and rows of each, are named. */
const MOST_TABLES = 20;
const MOST_ROWS = 5;

/**
 * Rows of the user's tables whose foreign keys lead nowhere; Holdfast's own tables have no foreign keys. SQLite enforces them
 * only on connections that switch them on. A schema without foreign keys costs one look at its tables.
 */
function checkReferences(db: Connection): string[] {
  try {
    const violated = db
      .prepare(`select "table", parent, count(*) from pragma_foreign_key_check group by 1, 2 limit ${MOST_TABLES}`)
      .rows() as [string, string, number][];
    const some = db.prepare(`select rowid from pragma_foreign_key_check(?) where parent = ? limit ${MOST_ROWS}`);
    return violated.map(([table, parent, count]) => {
      // A table without rowids has none to name.
      const rows = some.rows(table, parent).flatMap(([rowid]) => (rowid === null ? [] : [String(rowid)]));
      const named = rows.length === 0 ? "" : ` (rowid ${rows.join(", ")}${rows.length < count ? ", …" : ""})`;
      const said = count === 1 ? "1 row" : `${count} rows`;
      const [refer, what] = count === 1 ? ["refers", "a row"] : ["refer", "rows"];
      return `${said} of table "${table}" ${refer} to ${what} of "${parent}" that ${count === 1 ? "does" : "do"} not exist${named}.`;
    });
  } catch (error) {
    // A parent table without the unique column that a foreign key names, say. Damaged pages are found by the other checks.
    const fault = faultOf(error);
    if (fault === "CORRUPT") return [];
    if (fault !== "OTHER") throw error;
    return [`The foreign keys cannot be checked: ${(error as Error).message}.`];
  }
}

/** Tables, indexes and triggers whose text is another than this Holdfast has written. Others' own are no concern. */
function checkSchema(db: Connection, driver: DriverName): string[] {
  const there = textsOf(db);
  const found: string[] = [];
  for (const [name, text] of fresh(driver)) {
    if (!there.has(name)) found.push(`The schema has no ${name}.`);
    else if (there.get(name) !== text) found.push(`The schema's ${name} is another than it was made.`);
  }
  return found;
}

function fresh(driver: DriverName): Map<string, string | null> {
  const db = connect(driver, ":memory:", { busyTimeout: 0 });
  try {
    migrate(db, { path: ":memory:", now: 0, actor: null, whenNew: () => {} });
    return textsOf(db);
  } finally {
    db.close();
  }
}

function textsOf(db: Connection): Map<string, string | null> {
  const rows = db.prepare("select type || ' ' || name, sql from sqlite_schema where name like 'holdfast\\_%' escape '\\'").rows();
  return new Map(rows as [string, string | null][]);
}

/** How many of a kind are named; the others are counted. */
const NAMED = 5;

/** A row that is not what was written there. */
export interface BadRow {
  table: string;
  /** The values of its key. */
  key: (string | number)[];
  /** What people know it by. */
  name: string;
  kind: string;
}

/** Rows that are not what was written there, by what they hold. */
export function checkRows(db: Connection): string[] {
  const found = Map.groupBy(badRows(db), ({ kind }) => kind);
  return [...[...found].flatMap(([kind, rows]) => said(kind, rows)), ...strays(db)];
}

export function badRows(db: Connection): BadRow[] {
  return CHECKED_TABLES.flatMap((table) => badRowsOf(db, table));
}

function said(kind: string, found: readonly BadRow[]): string[] {
  const named = found
    .slice(0, NAMED)
    .map(({ name }) => name)
    .join(", ");
  const more = found.length > NAMED ? ` and ${found.length - NAMED} more` : "";
  return [`Not what was written: ${kind} ${named}${more}.`];
}

/** What stages have made and are given has a hash of its own, too. */
function badRowsOf(db: Connection, checked: CheckedRows): BadRow[] {
  const { table, kind, key, checksumOf, value } = checked;
  const found: BadRow[] = [];
  eachPage(db, checked, (rows) => {
    for (const row of rows) {
      if (row["checksum"] === checksumOf(row) && (value === undefined || isValue(row, value))) continue;
      found.push({ table, kind, key: key.map((name) => row[name] as string | number), name: nameOf(checked, row) });
    }
  });
  return found;
}

function isValue(row: Row, column: string): boolean {
  const [hash, text] = [row[`${column}_hash`], row[`${column}_text`]] as [string, string | null];
  return text === null || typeof hash !== "string" || !hash.startsWith("json:") || valueHash(text) === hash;
}

function nameOf({ table, key }: CheckedRows, row: Row): string {
  if (table !== "holdfast_jobs") return key.map((name) => row[name]).join("/");
  return publicId(row["id"] as string | null, row["created_at"] as number, row["key"] as JobKey);
}

/** Rows of two tables that belong together, and one of them is not there. */
function strays(db: Connection): string[] {
  const count = (sql: string) => (db.prepare(sql).row() as [number])[0];
  const found: string[] = [];
  const stray = (n: number, what: string) => {
    if (n > 0) found.push(`${n} ${what}.`);
  };
  stray(
    count(
      `select count(*) from holdfast_jobs as job where id is not null
         and not exists (select 1 from holdfast_ids where holdfast_ids.id = job.id and holdfast_ids.job = job.key)`,
    ),
    "jobs have an id that is not in the list of ids",
  );
  stray(
    count(
      `select count(*) from holdfast_ids as named join holdfast_jobs as job on job.key = named.job
       where job.id is not named.id`,
    ),
    "ids in the list lead to a job that has another",
  );
  stray(
    count("select count(*) from holdfast_jobs where lane not in (select id from holdfast_lanes)"),
    "jobs are in a lane that is not there",
  );
  stray(
    count("select count(*) from holdfast_jobs where policy not in (select id from holdfast_policies)"),
    "jobs have a policy that is not there",
  );
  stray(
    count("select count(*) from holdfast_notes where job not in (select key from holdfast_jobs)"),
    "checkpoints are of a job that is not there",
  );
  stray(
    count("select count(*) from holdfast_events where seq > (select seq from sqlite_sequence where name = 'holdfast_events')"),
    "events have a number that was never given out",
  );
  stray(count("select count(*) from holdfast_work where job not in (select key from holdfast_jobs)"), "work items have no job");
  stray(
    count(
      `select count(*) from holdfast_ids as named join holdfast_jobs as job on job.key = named.job
       join holdfast_lanes as lane on lane.id = job.lane where lane.name <> named.name`,
    ),
    "ids in the list say another name than their job has",
  );
  stray(
    count(
      `select count(*) from holdfast_expiring as listed left join holdfast_jobs as job on job.key = listed.job
       where job.key is null or job.lane <> listed.lane or job.state <> listed.state or job.finished_at <> listed.finished_at`,
    ),
    "jobs are listed to be forgotten otherwise than they ended",
  );
  stray(
    count(
      `select count(*) from holdfast_parked as listed left join holdfast_jobs as job on job.key = listed.job
       left join holdfast_counters as counter on counter.id = listed.counter
       where job.key is null or counter.id is null or job.gate is not 'limit' or job.priority <> listed.priority
         or counter.lane <> job.lane or not json_valid(job.limits)
         or listed.more <> iif(json_valid(job.limits), json_array_length(job.limits) > 1, 0)`,
    ),
    "jobs are listed before a limit otherwise than they stand there",
  );
  stray(
    count("select count(*) from holdfast_jobs where gate = 'limit' and key not in (select job from holdfast_parked)"),
    "jobs stand before a limit and are not in its list",
  );
  // Read in one statement, so in one instant.
  stray(
    count(
      `with counted as (
         select lane, state, count(*) as n from holdfast_jobs
         where state = 'succeeded' or state = 'failed' or state = 'cancelled' or state = 'quarantined' group by lane, state)
       select count(*) from (
         select lane, state, n from counted except select lane, state, n from holdfast_tally
         union all
         select * from (select lane, state, n from holdfast_tally where n <> 0 except select lane, state, n from counted))`,
    ),
    "counts of finished jobs are not those of the jobs",
  );
  return found;
}

/** So many rows are read at once, so that a check neither holds up writers nor pins the log for long. */
const STEP = 5_000;

type Row = Record<string, Value>;

/** A table whose rows carry a checksum. */
interface CheckedRows {
  table: string;
  /** What people call its rows. */
  kind: string;
  key: readonly string[];
  /** What the checksum is made of, the key and the checksum; with `from`. */
  select: string;
  checksumOf: (row: Row) => number | null;
  /** The first part of the names of a value's columns, which stands beside its hash. */
  value?: string;
}

export const CHECKED_TABLES: readonly CheckedRows[] = [
  {
    table: "holdfast_jobs",
    kind: "job",
    key: ["key"],
    select: `key, lane, priority, policy, created_at, id, slot, coalesce(body, input) as input, scheduled_for, limits, checksum
      from holdfast_jobs left join holdfast_inputs on job = key and input = '${ELSEWHERE}'`,
    checksumOf: (row) => jobChecksum(row as unknown as CheckedJob),
  },
  {
    ...checked("holdfast_notes", "checkpoint of job", ["job"]),
    checksumOf: (row) => (row["checkpoint"] === null ? null : rowChecksum("holdfast_notes", row as never)),
  },
  checked("holdfast_schedules", "schedule", ["key"]),
  checked("holdfast_events", "event", ["seq"]),
  checked("holdfast_ids", "id", ["id"]),
  checked("holdfast_builds", "build", ["key"]),
  { ...checked("holdfast_results", "result", ["key"]), value: "output" },
  { ...checked("holdfast_targets", "target", ["pipeline", "segment", "path"]), value: "value" },
];

function checked(table: CheckedTable, kind: string, key: readonly string[]): CheckedRows {
  const columns = new Set([...key, ...CHECKED[table], "checksum"]);
  const select = `${[...columns].join(", ")} from ${table}`;
  return { table, kind, key, select, checksumOf: (row) => rowChecksum(table, row as never) };
}

/** All rows of a table, in the order of its key. */
function eachPage(db: Connection, { table, key, select }: CheckedRows, call: (rows: Row[]) => void): void {
  const names = key.map((name) => `${table}.${name}`).join(", ");
  const order = `order by ${names} limit ${STEP}`;
  let rows = db.prepare(`select ${select} ${order}`).all<Row>();
  const next = db.prepare(`select ${select} where (${names}) > (${key.map((name) => `:${name}`).join(", ")}) ${order}`);
  for (let last: string | null = null; rows.length > 0;) {
    call(rows);
    const end = Object.fromEntries(key.map((name) => [name, (rows.at(-1) as Row)[name] as Value]));
    // Where pages are damaged, the order may be, too.
    if (JSON.stringify(end) === last) return;
    last = JSON.stringify(end);
    rows = next.all<Row>(end);
  }
}

/** Gives each row without a checksum the one that fits what is there. */
export function fillChecksums(db: Connection): void {
  for (const one of CHECKED_TABLES) {
    const set = db.prepare(`update ${one.table} set checksum = ? where ${one.key.map((name) => `${name} = ?`).join(" and ")}`);
    eachPage(db, one, (rows) => {
      for (const row of rows)
        if (row["checksum"] === null) set.run(one.checksumOf(row), ...one.key.map((name) => row[name] as Value));
    });
  }
}
