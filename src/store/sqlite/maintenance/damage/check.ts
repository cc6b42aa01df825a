import { statfsSync } from "node:fs";
import { dirname } from "node:path";
import { valueHash } from "../../../../core/pipelines/work.ts";
import type { JobKey } from "../../../../core/text/ids.ts";
import { firstOf } from "../../../../core/text/text.ts";
import type { Checked, Thoroughness } from "../../../maintenance.ts";
import { ELSEWHERE, publicId } from "../../../job-row.ts";
import { CHECKED, type CheckedJob, jobChecksum, rowChecksum } from "../../checksum.ts";
import { column, connect, type Connection, copyPages, type DriverName, scalar, type Value } from "../../driver.ts";
import { createFile, explain, faultOf, fileSize, isBusy, isDamage, modeLike } from "../../faults.ts";
import { migrate } from "../../migrate.ts";

const MOST_FINDINGS = 20;
const BUSY_TIMEOUT_MS = 5_000;

export interface CheckedPages extends Checked {
  /** True: a finding concerns more than a row, such as pages, indexes or the schema. */
  structural: boolean;
  /** True: every page, row and constraint was checked. A quick check, or one on a read-only connection, is not complete. */
  isComplete: boolean;
}

export interface CheckRequest {
  driver: DriverName;
  path: string;
  how: Thoroughness;
  damaged?: boolean;
}

export function checkFile({ driver, path, how, damaged }: CheckRequest): CheckedPages {
  try {
    // A read-only connection skips every CHECK, but a writing one would, as the last to close, copy a damaged log.
    const access = damaged ? { readOnly: true } : { mustExist: true };
    using db = connect(driver, path, { busyTimeout: BUSY_TIMEOUT_MS, ...access });
    const checked = checkDatabase(db, driver, how);
    return damaged ? { ...checked, isComplete: false } : checked;
  } catch (error) {
    if (!isDamage(error)) throw explain(error, path);
    return { findings: [(error as Error).message], structural: true, isComplete: false, references: [], artifacts: [] };
  }
}

/** Checks a copy, so that no writer waits, and the log can be truncated meanwhile. `copy` is a path without a file. */
export async function checkCopy({ copy, ...request }: CheckRequest & { copy: string }): Promise<CheckedPages> {
  return checkFile(await copied(request, copy));
}

/** Copies raw pages, because a copy made row by row would have new indexes, and hide damaged ones. */
async function copied(request: CheckRequest, copy: string): Promise<CheckRequest> {
  const { driver, path, how } = request;
  if (!hasRoom(path, dirname(copy))) return request;
  try {
    createFile(copy, modeLike(path));
    await copyPages(driver, path, copy);
    return { driver, path: copy, how };
  } catch (error) {
    // Check the file where it is if it cannot be copied, or if the disk had no room after all.
    if (isBusy(error)) throw error;
    return request;
  }
}

/** Whether the disk has room for a copy. A full disk is worse than a log that grows while the check reads the database. */
function hasRoom(path: string, folder: string): boolean {
  const { bavail, bsize } = statfsSync(folder);
  return bavail * bsize > 2 * (fileSize(path) + fileSize(`${path}-wal`));
}

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
  const lines = db.prepare(`pragma ${name}(${MOST_FINDINGS})`).rows();
  // A row may have many lines, the first of which only names the database.
  const findings = lines.flatMap(([line]) => String(line).split("\n"));
  return findings.filter((line) => line !== "ok" && !line.startsWith("*** in database")).slice(0, MOST_FINDINGS);
}

function readable(check: () => string[]): string[] {
  try {
    return check();
  } catch (error) {
    if (faultOf(error) !== "CORRUPT") throw error;
    return [(error as Error).message];
  }
}

function artifactsOf(db: Connection): string[] {
  try {
    return column(
      db,
      `select hash from holdfast_artifacts
       union select output_file from holdfast_results where output_file is not null
       union select value_file from holdfast_targets where value_file is not null`,
    );
  } catch (error) {
    // The check of the pages reports the damage.
    if (faultOf(error) !== "CORRUPT") throw error;
    return [];
  }
}

const MOST_TABLES = 20;
const MOST_ROWS = 5;

/** Finds foreign keys of the user's tables that lead nowhere. SQLite enforces them only on connections that switch them on. */
function checkReferences(db: Connection): string[] {
  try {
    const violated = db
      .prepare(`select "table", parent, count(*) from pragma_foreign_key_check group by 1, 2 limit ${MOST_TABLES}`)
      .rows() as [string, string, number][];
    const some = db.prepare(`select rowid from pragma_foreign_key_check(?) where parent = ? limit ${MOST_ROWS}`);
    return violated.map(([table, parent, count]) => {
      const rows = some.rows(table, parent).flatMap(([rowid]) => (rowid === null ? [] : [String(rowid)]));
      const named = rows.length === 0 ? "" : ` (rowid ${rows.join(", ")}${rows.length < count ? ", …" : ""})`;
      const what =
        count === 1
          ? `1 row of table "${table}" refers to a row of "${parent}" that does not exist`
          : `${count} rows of table "${table}" refer to rows of "${parent}" that do not exist`;
      return `${what}${named}.`;
    });
  } catch (error) {
    // A parent table may lack the unique column that a foreign key names. The other checks report damaged pages.
    const fault = faultOf(error);
    if (fault === "CORRUPT") return [];
    if (fault !== "OTHER") throw error;
    return [`The foreign keys cannot be checked: ${(error as Error).message}.`];
  }
}

/** Compares Holdfast's tables, indexes and triggers with a fresh schema. The user's own are not checked. */
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
  using db = connect(driver, ":memory:", { busyTimeout: 0 });
  migrate(db, { path: ":memory:", now: 0, actor: null, whenNew: () => {} });
  return textsOf(db);
}

function textsOf(db: Connection): Map<string, string | null> {
  const rows = db.prepare("select type || ' ' || name, sql from sqlite_schema where name like 'holdfast\\_%' escape '\\'").rows();
  return new Map(rows as [string, string | null][]);
}

export interface BadRow {
  table: string;
  key: (string | number)[];
  name: string;
  kind: string;
}

export function checkRows(db: Connection): string[] {
  const damaged = [...Map.groupBy(badRows(db), ({ kind }) => kind)].map(
    ([kind, rows]) => `Not what was written: ${kind} ${firstOf(rows.map(({ name }) => name))}.`,
  );
  return [...damaged, ...strays(db)];
}

export function badRows(db: Connection): BadRow[] {
  return CHECKED_TABLES.flatMap((table) => badRowsOf(db, table));
}

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

const CONTRADICTIONS: readonly [what: string, count: string][] = [
  [
    "jobs have an id that is not in the list of ids",
    `select count(*) from holdfast_jobs as job where id is not null
       and not exists (select 1 from holdfast_ids where holdfast_ids.id = job.id and holdfast_ids.job = job.key)`,
  ],
  [
    "ids in the list lead to a job that has another",
    `select count(*) from holdfast_ids as named join holdfast_jobs as job on job.key = named.job where job.id is not named.id`,
  ],
  without("jobs are in a lane that is not there", "holdfast_jobs", "lane", "select id from holdfast_lanes"),
  without("jobs have a policy that is not there", "holdfast_jobs", "policy", "select id from holdfast_policies"),
  without("checkpoints are of a job that is not there", "holdfast_notes", "job", "select key from holdfast_jobs"),
  without("attempts are of a job that is not there", "holdfast_attempts", "job", "select key from holdfast_jobs"),
  without("work items have no job", "holdfast_work", "job", "select key from holdfast_jobs"),
  [
    "events have a number that was never given out",
    "select count(*) from holdfast_events where seq > (select seq from sqlite_sequence where name = 'holdfast_events')",
  ],
  [
    "ids in the list say another name than their job has",
    `select count(*) from holdfast_ids as named join holdfast_jobs as job on job.key = named.job
     join holdfast_lanes as lane on lane.id = job.lane where lane.name <> named.name`,
  ],
  [
    "jobs are listed to be forgotten otherwise than they ended",
    `select count(*) from holdfast_expiring as listed left join holdfast_jobs as job on job.key = listed.job
     where job.key is null or job.lane <> listed.lane or job.state <> listed.state or job.finished_at <> listed.finished_at`,
  ],
  [
    "jobs are listed before a limit otherwise than they stand there",
    `select count(*) from holdfast_parked as listed left join holdfast_jobs as job on job.key = listed.job
     left join holdfast_counters as counter on counter.id = listed.counter
     where job.key is null or counter.id is null or job.gate is not 'limit' or job.priority <> listed.priority
       or counter.lane <> job.lane or not json_valid(job.limits)
       or listed.limits is not iif(json_valid(job.limits) and json_array_length(job.limits) > 1, job.limits, null)`,
  ],
  [
    "jobs stand before a limit and are not in its list",
    "select count(*) from holdfast_jobs where gate = 'limit' and key not in (select job from holdfast_parked)",
  ],
  [
    "counts of finished jobs are not those of the jobs",
    // One statement for both directions reads one snapshot.
    `with counted as (
       select lane, state, count(*) as n from holdfast_jobs
       where state = 'succeeded' or state = 'failed' or state = 'cancelled' or state = 'quarantined' group by lane, state)
     select count(*) from (
       select lane, state, n from counted except select lane, state, n from holdfast_tally
       union all
       select * from (select lane, state, n from holdfast_tally where n <> 0 except select lane, state, n from counted))`,
  ],
];

function without(what: string, table: string, column: string, parents: string): [what: string, count: string] {
  return [what, `select count(*) from ${table} where ${column} not in (${parents})`];
}

function strays(db: Connection): string[] {
  return CONTRADICTIONS.flatMap(([what, sql]) => {
    const count = scalar<number>(db, sql);
    return count > 0 ? [`${count} ${what}.`] : [];
  });
}

/** Rows read at once, so that a check neither delays writers nor pins the log for long. */
const STEP_ROWS = 5_000;

type Row = Record<string, Value>;

interface CheckedRows {
  table: string;
  kind: string;
  key: readonly string[];
  select: string;
  checksumOf: (row: Row) => number | null;
  /** The prefix of the columns that hold a value and its hash. */
  value?: string;
}

export const CHECKED_TABLES: readonly CheckedRows[] = [
  {
    table: "holdfast_jobs",
    kind: "job",
    key: ["key"],
    select: `key, lane, priority, policy, created_at, id, slot, coalesce(body, input) as input, scheduled_for, limits, meta, checksum
      from holdfast_jobs left join holdfast_inputs on job = key and input = '${ELSEWHERE}'`,
    checksumOf: (row) => jobChecksum(row as unknown as CheckedJob),
  },
  checked("holdfast_notes", "checkpoint of job", ["job"]),
  checked("holdfast_attempts", "attempt of job", ["job", "n"]),
  checked("holdfast_schedules", "schedule", ["key"]),
  checked("holdfast_events", "event", ["seq"]),
  checked("holdfast_ids", "id", ["id"]),
  checked("holdfast_builds", "build", ["key"]),
  { ...checked("holdfast_results", "result", ["key"]), value: "output" },
  { ...checked("holdfast_targets", "target", ["pipeline", "segment", "path"]), value: "value" },
];

function checked(table: string, kind: string, key: readonly string[]): CheckedRows {
  const columns = new Set([...key, ...(CHECKED.get(table) ?? []), "checksum"]);
  const select = `${[...columns].join(", ")} from ${table}`;
  return { table, kind, key, select, checksumOf: (row) => rowChecksum(table, row) };
}

function eachPage(db: Connection, { table, key, select }: CheckedRows, call: (rows: Row[]) => void): void {
  const names = key.map((name) => `${table}.${name}`).join(", ");
  const order = `order by ${names} limit ${STEP_ROWS}`;
  let rows = db.prepare(`select ${select} ${order}`).all<Row>();
  const next = db.prepare(`select ${select} where (${names}) > (${key.map((name) => `:${name}`).join(", ")}) ${order}`);
  for (let last: string | null = null; rows.length > 0;) {
    call(rows);
    const end = Object.fromEntries(key.map((name) => [name, (rows.at(-1) as Row)[name] as Value]));
    // Stop if the last key repeats: on damaged pages the order may be wrong.
    if (JSON.stringify(end) === last) return;
    last = JSON.stringify(end);
    rows = next.all<Row>(end);
  }
}

export function fillChecksums(db: Connection): void {
  for (const one of CHECKED_TABLES) {
    const set = db.prepare(`update ${one.table} set checksum = ? where ${one.key.map((name) => `${name} = ?`).join(" and ")}`);
    eachPage(db, one, (rows) => {
      for (const row of rows)
        if (row["checksum"] === null) set.run(one.checksumOf(row), ...one.key.map((name) => row[name] as Value));
    });
  }
}
