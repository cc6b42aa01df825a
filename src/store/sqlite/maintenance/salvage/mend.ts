import { randomUUID } from "node:crypto";
import { NO_ENTRY } from "../../../../core/recovery/audit.ts";
import type { Policy } from "../../../../core/jobs/retry.ts";
import type { Connection } from "../../driver.ts";
import { fillChecksums } from "../damage/check.ts";

/** Where a job's own is lost. */
const POLICY: Policy = {
  attempts: 3,
  backoff: "exponential",
  delay: 1_000,
  maxDelay: 3_600_000,
  crashes: 3,
  onInterrupt: "retry",
  timeout: 3_600_000,
};

export interface Mended {
  /** Jobs that cannot be run, since it is not known what they are: their names are lost. They are not in the new database. */
  nameless: number[];
  /** Jobs that wait for others which are lost; they are in quarantine. */
  bereft: number[];
  /** Builds that had not ended. Their finished work is reused by the next one. */
  abandoned: string[];
  /** Other words for people. */
  notes: string[];
}

interface Circumstances {
  now: number;
  /** As it stands beside the database; null: it is not known. */
  databaseId: string | null;
  /** What jobs wait for is not all there. */
  waitsLost: boolean;
}

/**
 * Makes rows of several tables agree again where some of them are lost, or older than the others. Nothing is made up: what
 * can be worked out from the rest is, and what cannot is put aside for an operator.
 */
export function mend(db: Connection, { now, databaseId, waitsLost }: Circumstances): Mended {
  const run = (sql: string) => db.prepare(sql).run();
  const notes: string[] = [];
  single(db, now, databaseId, notes);
  const nameless = keys(db, "select key from holdfast_jobs where lane not in (select id from holdfast_lanes)");
  run("delete from holdfast_jobs where lane not in (select id from holdfast_lanes)");
  givePolicies(db, notes);
  run(
    "insert or ignore into holdfast_ids (id, job, name, chosen) select job.id, job.key, lane.name, 1 from holdfast_jobs as job join holdfast_lanes as lane on lane.id = job.lane where job.id is not null",
  );
  // One id leads to one job; a row that is older than the list knows less.
  run(
    "delete from holdfast_jobs where id is not null and key <> (select job from holdfast_ids where holdfast_ids.id = holdfast_jobs.id)",
  );
  run(
    "delete from holdfast_ids where exists (select 1 from holdfast_jobs as job where job.key = holdfast_ids.job and job.id is not holdfast_ids.id)",
  );
  for (const [table, column] of [
    ["holdfast_inputs", "job"],
    ["holdfast_notes", "job"],
    ["holdfast_waits", "job"],
  ] as const) {
    const gone = run(`delete from ${table} where ${column} not in (select key from holdfast_jobs)`);
    if (gone > 0) notes.push(`${gone} rows of ${table} were of jobs that are not there, and went with them.`);
  }
  const abandoned = abandonBuilds(db, now);
  resetLimits(db, now);
  const bereft = freeWaiting(db, now, waitsLost);
  run("delete from holdfast_expiring");
  run("update holdfast_queues set backfill = 0 where keep is not null");
  recount(db);
  closeAudit(db);
  fillChecksums(db);
  return { nameless, bereft, abandoned, notes };
}

/** Rows that there is one of. */
function single(db: Connection, now: number, databaseId: string | null, notes: string[]): void {
  if (db.prepare("select 1 from holdfast_database where id = 1").row() === undefined) {
    db.prepare("insert into holdfast_database (id, database_id, durability, created_at, epoch) values (1, ?, 'power', ?, 0)").run(
      databaseId ?? randomUUID(),
      now,
    );
    const id = databaseId === null ? "Which database it was is lost: it has a new id" : "Its first row is lost: it has its id";
    notes.push(`${id}, and durability "power".`);
  }
  db.exec("insert or ignore into holdfast_counter (id, commits, jobs, lanes, settings, writer) values (1, 0, 0, 0, 0, 0)");
  // The counter is beyond all that was given out, as far as rows tell.
  db.exec(`update holdfast_counter set lanes = (select count(*) from holdfast_lanes), settings = settings + 1,
    commits = max(commits, coalesce((select max(fence) from holdfast_jobs), 0)),
    jobs = max(jobs, coalesce((select max(job) from holdfast_ids), 0))`);
  db.exec("insert or ignore into holdfast_recovery_totals (id, entries, locks, recovered_at) values (1, 0, 0, 0)");
}

function givePolicies(db: Connection, notes: string[]): void {
  const missing = keys(db, "select distinct policy from holdfast_jobs where policy not in (select id from holdfast_policies)");
  for (const [i, id] of missing.entries()) {
    // No two have the same text.
    db.prepare("insert into holdfast_policies (id, body) values (?, ?)").run(id, JSON.stringify(POLICY) + " ".repeat(i + 1));
  }
  if (missing.length > 0) notes.push("How often some jobs are tried again is lost: they have the defaults (3 attempts, 1 h).");
}

/** Their targets and work items may be from different times; what they have finished is reused by context. */
function abandonBuilds(db: Connection, now: number): string[] {
  const open = "state not in ('SUCCESS', 'FAILED', 'ABANDONED')";
  const builds = db
    .prepare(`select id from holdfast_builds where ${open}`)
    .rows()
    .map(([id]) => id as string);
  db.prepare(
    `update holdfast_jobs set state = 'cancelled', gate = null, holder = null, worker = null, lease = null, expires_at = null, finished_at = ?
     where state in ('waiting', 'pending', 'running') and key in (select job from holdfast_work)`,
  ).run(now);
  db.exec("delete from holdfast_work");
  db.exec("delete from holdfast_leads");
  db.exec("update holdfast_build_stages set open = 0");
  db.prepare(
    `update holdfast_builds set state = 'ABANDONED', reason = 'abandoned', note = 'salvaged', seq = seq + 1, open = 0,
       reserved_micros = 0, reserved_tokens = 0, blocked = null, finished_at = ? where ${open}`,
  ).run(now);
  return builds;
}

/** Counters are made anew by the jobs themselves: each passes its limits again, when it is claimed next. */
function resetLimits(db: Connection, now: number): void {
  db.exec("delete from holdfast_counters");
  db.exec("delete from holdfast_parked");
  db.prepare(
    `update holdfast_jobs set state = 'pending', gate = 'time', run_at = min(run_at, ?), holder = null, worker = null,
       lease = null, expires_at = null
     where limits is not null and (state = 'running' or (state = 'pending' and gate is not 'time'))`,
  ).run(now);
}

/**
 * A job waits for those that are there and have not ended. When all that it is known to wait for has succeeded, it is ready;
 * but for one that is lost, it is not known how it ended, or whether there was another.
 */
function freeWaiting(db: Connection, now: number, waitsLost: boolean): number[] {
  const unknown = "select key from holdfast_jobs where state = 'waiting' and key not in (select job from holdfast_waits)";
  const bereft = new Set(keys(db, unknown));
  db.exec("delete from holdfast_waits where job not in (select key from holdfast_jobs where state = 'waiting')");
  db.exec("delete from holdfast_waits where upstream in (select key from holdfast_jobs where state = 'succeeded')");
  db.exec("delete from holdfast_waits where upstream in (select job from holdfast_ids where ended = 'succeeded')");
  const ready = keys(db, unknown).filter((key) => !bereft.has(key));
  if (waitsLost) for (const key of ready) bereft.add(key);
  else
    for (const key of ready)
      db.prepare("update holdfast_jobs set state = 'pending', gate = 'time', run_at = min(run_at, ?) where key = ?").run(
        now,
        key,
      );
  const gone = `select distinct job from holdfast_waits
    where upstream not in (select key from holdfast_jobs where state in ('waiting', 'pending', 'running'))`;
  for (const key of keys(db, gone)) bereft.add(key);
  const error = JSON.stringify({
    name: "SalvagedError",
    code: "UPSTREAM_LOST",
    message: "What it waited for was lost when the database was salvaged, or ended meanwhile. Retry it if it may run.",
  });
  const put = db.prepare("update holdfast_jobs set state = 'quarantined', error = ?, finished_at = ? where key = ?");
  const drop = db.prepare("delete from holdfast_waits where job = ?");
  for (const key of bereft) {
    put.run(error, now, key);
    drop.run(key);
  }
  return [...bereft];
}

function recount(db: Connection): void {
  db.exec(`update holdfast_tally set n = 0`);
  db.exec(`insert into holdfast_tally (lane, state, n, ended)
    select lane, state, count(*), count(*) from holdfast_jobs
    where state in ('succeeded', 'failed', 'cancelled', 'quarantined') group by lane, state
    on conflict (lane, state) do update set n = excluded.n, ended = max(ended, excluded.n)`);
}

/** The next entry continues the last that is there. A gap before it stays one, and shows. */
function closeAudit(db: Connection): void {
  const last = db.prepare("select seq, hash from holdfast_audit where hash is not null order by seq desc limit 1").row();
  const [seq, hash] = (last as [number, string] | undefined) ?? [NO_ENTRY.seq, NO_ENTRY.hash];
  db.prepare("insert or replace into holdfast_audit_head (id, seq, hash) values (1, ?, ?)").run(seq, hash);
}

function keys(db: Connection, sql: string): number[] {
  return db
    .prepare(sql)
    .rows()
    .map(([key]) => key as number);
}
