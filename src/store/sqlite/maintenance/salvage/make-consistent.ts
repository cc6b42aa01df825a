import { randomUUID } from "node:crypto";
import { NO_ENTRY } from "../../../../core/recovery/audit.ts";
import type { Policy } from "../../../../core/jobs/retry.ts";
import { column, type Connection } from "../../driver.ts";
import { fillChecksums } from "../damage/check.ts";

const DEFAULT_POLICY: Policy = {
  attempts: 3,
  backoff: "exponential",
  delay: 1_000,
  maxDelay: 3_600_000,
  crashes: 3,
  onInterrupt: "retry",
  timeout: 3_600_000,
};

export interface Adjustments {
  /** Keys of jobs whose names are lost, so that no worker could run them. They are removed. */
  nameless: number[];
  bereft: number[];
  abandoned: string[];
  notes: string[];
}

interface Options {
  now: number;
  databaseId: string | null;
  waitsLost: boolean;
}

/** Makes the tables agree where rows are lost, or older than others: it derives what it can, and leaves the rest to an operator. */
export function makeConsistent(db: Connection, { now, databaseId, waitsLost }: Options): Adjustments {
  const run = (sql: string) => db.prepare(sql).run();
  const notes: string[] = [];
  restoreSingleRows(db, now, databaseId, notes);
  const nameless = column<number>(db, "select key from holdfast_jobs where lane not in (select id from holdfast_lanes)");
  run("delete from holdfast_jobs where lane not in (select id from holdfast_lanes)");
  replaceLostPolicies(db, notes);
  run(
    "insert or ignore into holdfast_ids (id, job, name, chosen) select job.id, job.key, lane.name, 1 from holdfast_jobs as job join holdfast_lanes as lane on lane.id = job.lane where job.id is not null",
  );
  // An id belongs to one job; a row that disagrees with the list of ids is older.
  run(
    "delete from holdfast_jobs where id is not null and key <> (select job from holdfast_ids where holdfast_ids.id = holdfast_jobs.id)",
  );
  run(
    "delete from holdfast_ids where exists (select 1 from holdfast_jobs as job where job.key = holdfast_ids.job and job.id is not holdfast_ids.id)",
  );
  for (const table of ["holdfast_inputs", "holdfast_notes", "holdfast_attempts", "holdfast_waits"]) {
    const gone = run(`delete from ${table} where job not in (select key from holdfast_jobs)`);
    if (gone > 0) notes.push(`${gone} rows of ${table} were of jobs that are not there, and went with them.`);
  }
  const abandoned = abandonBuilds(db, now);
  resetLimits(db, now);
  const bereft = releaseWaiting(db, now, waitsLost);
  run("delete from holdfast_expiring");
  run("update holdfast_queues set backfill = 0 where keep is not null");
  recount(db);
  resetAuditHead(db);
  fillChecksums(db);
  return { nameless, bereft, abandoned, notes };
}

function restoreSingleRows(db: Connection, now: number, databaseId: string | null, notes: string[]): void {
  if (db.prepare("select 1 from holdfast_database where id = 1").row() === undefined) {
    db.prepare("insert into holdfast_database (id, database_id, durability, created_at, epoch) values (1, ?, 'power', ?, 0)").run(
      databaseId ?? randomUUID(),
      now,
    );
    const id = databaseId === null ? "Which database it was is lost: it has a new id" : "Its first row is lost: it has its id";
    notes.push(`${id}, and durability "power".`);
  }
  db.exec("insert or ignore into holdfast_counter (id, commits, jobs, lanes, settings, writer) values (1, 0, 0, 0, 0, 0)");
  // Higher than every number in a row that was read.
  db.exec(`update holdfast_counter set lanes = (select count(*) from holdfast_lanes), settings = settings + 1,
    commits = max(commits, coalesce((select max(fence) from holdfast_jobs), 0)),
    jobs = max(jobs, coalesce((select max(job) from holdfast_ids), 0))`);
  db.exec("insert or ignore into holdfast_recovery_totals (id, entries, locks, recovered_at) values (1, 0, 0, 0)");
}

function replaceLostPolicies(db: Connection, notes: string[]): void {
  const missing = column<number>(
    db,
    "select distinct policy from holdfast_jobs where policy not in (select id from holdfast_policies)",
  );
  for (const [i, id] of missing.entries()) {
    const body = JSON.stringify(DEFAULT_POLICY) + " ".repeat(i + 1);
    db.prepare("insert into holdfast_policies (id, body) values (?, ?)").run(id, body);
  }
  if (missing.length > 0) notes.push("How often some jobs are tried again is lost: they have the defaults (3 attempts, 1 h).");
}

/** Targets and work items may be from different times; results are found by context, so the next build reuses them. */
function abandonBuilds(db: Connection, now: number): string[] {
  const open = "state not in ('SUCCESS', 'FAILED', 'ABANDONED')";
  const builds = column<string>(db, `select id from holdfast_builds where ${open}`);
  db.prepare(
    `update holdfast_jobs set state = 'cancelled', gate = null, holder = null, worker = null, lease = null, expires_at = null, finished_at = ?
     where state in ('waiting', 'pending', 'running') and key in (select job from holdfast_work)`,
  ).run(now);
  db.exec("delete from holdfast_work; delete from holdfast_leads; update holdfast_build_stages set open = 0");
  db.prepare(
    `update holdfast_builds set state = 'ABANDONED', reason = 'abandoned', note = 'salvaged', seq = seq + 1, open = 0,
       reserved_micros = 0, reserved_tokens = 0, blocked = null, finished_at = ? where ${open}`,
  ).run(now);
  return builds;
}

/** Jobs pass their limits again when they are claimed next, which makes the counters anew. */
function resetLimits(db: Connection, now: number): void {
  db.exec("delete from holdfast_counters; delete from holdfast_parked");
  db.prepare(
    `update holdfast_jobs set state = 'pending', gate = 'time', run_at = min(run_at, ?), holder = null, worker = null,
       lease = null, expires_at = null
     where limits is not null and (state = 'running' or (state = 'pending' and gate is not 'time'))`,
  ).run(now);
}

/** Starts jobs all of whose upstream jobs have succeeded; quarantines jobs of which an upstream job may be lost. */
function releaseWaiting(db: Connection, now: number, waitsLost: boolean): number[] {
  const unblocked = "select key from holdfast_jobs where state = 'waiting' and key not in (select job from holdfast_waits)";
  const bereft = new Set(column<number>(db, unblocked));
  db.exec(`delete from holdfast_waits where job not in (select key from holdfast_jobs where state = 'waiting');
    delete from holdfast_waits where upstream in (select key from holdfast_jobs where state = 'succeeded');
    delete from holdfast_waits where upstream in (select job from holdfast_ids where ended = 'succeeded')`);
  const start = db.prepare("update holdfast_jobs set state = 'pending', gate = 'time', run_at = min(run_at, ?) where key = ?");
  for (const key of column<number>(db, unblocked)) {
    if (bereft.has(key)) continue;
    if (waitsLost) bereft.add(key);
    else start.run(now, key);
  }
  const gone = `select distinct job from holdfast_waits
    where upstream not in (select key from holdfast_jobs where state in ('waiting', 'pending', 'running'))`;
  for (const key of column<number>(db, gone)) bereft.add(key);
  const error = JSON.stringify({
    name: "SalvagedError",
    code: "UPSTREAM_LOST",
    message: "What it waited for was lost when the database was salvaged, or ended meanwhile. Retry it if it may run.",
  });
  const quarantine = db.prepare("update holdfast_jobs set state = 'quarantined', error = ?, finished_at = ? where key = ?");
  const unwait = db.prepare("delete from holdfast_waits where job = ?");
  for (const key of bereft) {
    quarantine.run(error, now, key);
    unwait.run(key);
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

/** The next entry is chained to the last one that was read; a gap before it stays visible. */
function resetAuditHead(db: Connection): void {
  const last = db.prepare("select seq, hash from holdfast_audit where hash is not null order by seq desc limit 1").row();
  const [seq, hash] = (last as [number, string] | undefined) ?? [NO_ENTRY.seq, NO_ENTRY.hash];
  db.prepare("insert or replace into holdfast_audit_head (id, seq, hash) values (1, ?, ?)").run(seq, hash);
}
