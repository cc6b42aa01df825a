import { valueHash } from "../../../core/context-hash.ts";
import type { JobKey } from "../../../core/ids.ts";
import { publicId } from "../../job-row.ts";
import type { Connection } from "../driver.ts";
import { type Checked, CHECKED_TABLES, eachPage, type Row } from "./checked-rows.ts";

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
function badRowsOf(db: Connection, checked: Checked): BadRow[] {
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

function nameOf({ table, key }: Checked, row: Row): string {
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
