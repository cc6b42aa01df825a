import { valueHash } from "../../../core/context-hash.ts";
import type { JobKey } from "../../../core/ids.ts";
import { type JobRow, publicId } from "../../job-row.ts";
import type { Connection } from "../driver.ts";
import { isDamaged, SUMMED, type SummedRow } from "../look.ts";
import { isSame, rowSum } from "../row-sum.ts";
import { SCHEDULE, scheduleSum, type SummedSchedule } from "../schedules.ts";

/** So many rows are read at once: whoever writes meanwhile is not held up, and the log not pinned for long. */
const STEP = 5_000;
/** How many of a kind are named; the others are counted. */
const NAMED = 5;

/** A row that is not what was written there. */
export interface BadRow {
  table: string;
  /** The values of its key. */
  key: (string | number)[];
  /** What people know it by. */
  name: string;
}

/** Rows that are not what was written there, by what they hold. */
export function checkRows(db: Connection): string[] {
  const found = Map.groupBy(badRows(db), ({ table }) => table);
  return [...KINDS.flatMap(([table, kind]) => said(kind, found.get(table) ?? [])), ...strays(db)];
}

const KINDS = [
  ["holdfast_jobs", "job"],
  ["holdfast_notes", "checkpoint of job"],
  ["holdfast_schedules", "schedule"],
  ["holdfast_events", "event"],
  ["holdfast_results", "result"],
  ["holdfast_targets", "target"],
] as const;

export function badRows(db: Connection): BadRow[] {
  return [...jobs(db), ...notes(db), ...schedules(db), ...events(db), ...results(db), ...targets(db)];
}

function said(kind: string, found: readonly BadRow[]): string[] {
  if (found.length === 0) return [];
  const named = found
    .slice(0, NAMED)
    .map(({ name }) => name)
    .join(", ");
  const more = found.length > NAMED ? ` and ${found.length - NAMED} more` : "";
  return [`Not what was written: ${kind} ${named}${more}.`];
}

function jobs(db: Connection): BadRow[] {
  const next = db.prepare(`select ${SUMMED} where job.key > :after order by job.key limit ${STEP}`);
  const found: BadRow[] = [];
  for (let after = 0; ;) {
    const rows = next.all<SummedRow & JobRow>({ after });
    for (const row of rows) {
      if (isDamaged(row)) found.push({ table: "holdfast_jobs", key: [row.key], name: publicId(row.id, row.created_at, row.key) });
    }
    const last = rows.at(-1);
    if (last === undefined || last.key <= after) return found;
    after = last.key;
  }
}

function notes(db: Connection): BadRow[] {
  const rows = db.prepare("select job, checkpoint, sum from holdfast_notes where checkpoint is not null").rows();
  return (rows as [JobKey, string, number | null][])
    .filter(([job, checkpoint, sum]) => !isSame(sum, rowSum(job, checkpoint)))
    .map(([job]) => ({ table: "holdfast_notes", key: [job], name: String(job) }));
}

function schedules(db: Connection): BadRow[] {
  const rows = db.prepare(`select ${SCHEDULE} from holdfast_schedules`).all<SummedSchedule>();
  return rows
    .filter((row) => !isSame(row.sum, scheduleSum(row)))
    .map(({ key }) => ({ table: "holdfast_schedules", key: [key], name: key }));
}

function events(db: Connection): BadRow[] {
  const next = db.prepare(
    `select seq, type, at, transition, job, build, data, sum from holdfast_events where seq > ? order by seq limit ${STEP}`,
  );
  const found: BadRow[] = [];
  for (let after = 0; ;) {
    const rows = next.rows(after) as [number, ...(string | number | null)[]][];
    for (const [seq, ...rest] of rows) {
      const sum = rest.pop() as number | null;
      if (!isSame(sum, rowSum(...rest))) found.push({ table: "holdfast_events", key: [seq], name: String(seq) });
    }
    const last = rows.at(-1)?.[0];
    if (last === undefined || last <= after) return found;
    after = last;
  }
}

/** What stages have made and are given has a hash already. */
function results(db: Connection): BadRow[] {
  return values(db, "holdfast_results", ["key"], "output").map((key) => ({
    table: "holdfast_results",
    key,
    name: String(key[0]),
  }));
}

function targets(db: Connection): BadRow[] {
  return values(db, "holdfast_targets", ["pipeline", "segment", "path"], "value").map((key) => ({
    table: "holdfast_targets",
    key,
    name: key.join("/"),
  }));
}

function values(db: Connection, table: string, key: string[], column: string): (string | number)[][] {
  const rows = db
    .prepare(
      `select ${column}_hash, ${column}_text, ${key.join(", ")} from ${table}
       where ${column}_text is not null and substr(${column}_hash, 1, 5) = 'json:'`,
    )
    .rows() as [string, string, ...(string | number)[]][];
  return rows.filter(([hash, text]) => valueHash(text) !== hash).map(([, , ...values]) => values);
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
