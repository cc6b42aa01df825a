import { randomUUID } from "node:crypto";
import { NO_ENTRY } from "../../../../core/recovery/audit.ts";
import { checkRunOptions } from "../../../../core/jobs/run-options.ts";
import { column, type Connection } from "../../driver.ts";
import { fillChecksums } from "../damage/check.ts";

interface Adjustments {
  /** Keys of jobs that were quarantined, because they wait for lost ones. */
  quarantined: number[];
  abandonedBuilds: string[];
  notes: string[];
}

interface Options {
  now: number;
  databaseId: string | null;
  waitsLost: boolean;
}

/** Makes the tables agree after rows were lost. It derives rows where it can, and leaves the rest to an operator. */
export function makeConsistent(db: Connection, { now, databaseId, waitsLost }: Options): Adjustments {
  const notes = [...restoreSingleRows(db, now, databaseId), ...removeNameless(db), ...replaceLostPolicies(db)];
  db.exec(
    `insert or ignore into holdfast_ids (id, job, name, chosen)
       select job.id, job.key, lane.name, 1 from holdfast_jobs as job join holdfast_lanes as lane on lane.id = job.lane
       where job.id is not null;
     -- An id belongs to one job; a row that disagrees with the list of ids is older.
     delete from holdfast_jobs
       where id is not null and key <> (select job from holdfast_ids where holdfast_ids.id = holdfast_jobs.id);
     delete from holdfast_ids
       where exists (select 1 from holdfast_jobs as job where job.key = holdfast_ids.job and job.id is not holdfast_ids.id)`,
  );
  for (const table of ["holdfast_inputs", "holdfast_notes", "holdfast_attempts", "holdfast_waits"])
    db.exec(`delete from ${table} where job not in (select key from holdfast_jobs)`);
  const abandonedBuilds = abandonBuilds(db, now);
  resetLimits(db, now);
  const quarantined = releaseWaiting(db, now, waitsLost);
  db.exec(
    `delete from holdfast_expiring;
     update holdfast_queues set backfill = 0 where keep is not null;
     update holdfast_tally set n = 0;
     insert into holdfast_tally (lane, state, n, ended)
       select lane, state, count(*), count(*) from holdfast_jobs
       where state in ('succeeded', 'failed', 'cancelled', 'quarantined') group by lane, state
       on conflict (lane, state) do update set n = excluded.n, ended = max(ended, excluded.n)`,
  );
  resetAuditHead(db);
  fillChecksums(db);
  return { quarantined, abandonedBuilds, notes };
}

function restoreSingleRows(db: Connection, now: number, databaseId: string | null): string[] {
  const added = db
    .prepare("insert or ignore into holdfast_database (id, database_id, durability, created_at) values (1, ?, 'power', ?)")
    .run(databaseId ?? randomUUID(), now);
  db.exec(
    `insert or ignore into holdfast_counter (id, commits, jobs, lanes, settings, writer) values (1, 0, 0, 0, 0, 0);
     insert or ignore into holdfast_recovery_totals (id, entries, locks, recovered_at) values (1, 0, 0, 0);
     -- Higher than every number in a row that was read.
     update holdfast_counter set lanes = (select count(*) from holdfast_lanes), settings = settings + 1,
       commits = max(commits, coalesce((select max(fence) from holdfast_jobs), 0)),
       jobs = max(jobs, coalesce((select max(job) from holdfast_ids), 0))`,
  );
  return added === 0
    ? []
    : [`The database has ${databaseId === null ? "a new id" : "its id"} and durability "power": its first row is lost.`];
}

/** Removes jobs whose lane is lost, because no worker could run them. */
function removeNameless(db: Connection): string[] {
  const keys = column<number>(db, "delete from holdfast_jobs where lane not in (select id from holdfast_lanes) returning key");
  return keys.length === 0 ? [] : [`Jobs whose names are lost were removed. Their keys: ${keys.join(", ")}.`];
}

function replaceLostPolicies(db: Connection): string[] {
  const { policy } = checkRunOptions({}, "a salvaged job");
  const replaced = db
    .prepare(
      `insert into holdfast_policies (id, body) select distinct policy, json_set(?, '$.salvaged', policy) from holdfast_jobs
       where policy not in (select id from holdfast_policies)`,
    )
    .run(JSON.stringify(policy));
  return replaced === 0 ? [] : ["How often some jobs are tried again is lost: they have the defaults (3 attempts, 1 h)."];
}

/** Abandons builds, whose targets and items may be from different times. Later builds find the results by their context. */
function abandonBuilds(db: Connection, now: number): string[] {
  db.prepare(
    `update holdfast_jobs set state = 'cancelled', gate = null, holder = null, worker = null, lease = null, expires_at = null, finished_at = ?
     where state in ('waiting', 'pending', 'running') and key in (select job from holdfast_work)`,
  ).run(now);
  db.exec("delete from holdfast_work; delete from holdfast_leads; update holdfast_build_stages set open = 0");
  return column(
    db,
    `update holdfast_builds set state = 'ABANDONED', reason = 'abandoned', note = 'salvaged', seq = seq + 1, open = 0,
       reserved_micros = 0, reserved_tokens = 0, blocked = null, finished_at = ?
     where state not in ('SUCCESS', 'FAILED', 'ABANDONED') returning id`,
    now,
  );
}

/** Deletes the counters of limits. Jobs pass their limits again at the next claim, which makes new counters. */
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
  const unblocked = "state = 'waiting' and key not in (select job from holdfast_waits)";
  const bereft = `state = 'waiting' and key in (select job from holdfast_waits
    where upstream not in (select key from holdfast_jobs where state in ('waiting', 'pending', 'running')))`;
  const error = JSON.stringify({
    name: "SalvagedError",
    code: "UPSTREAM_LOST",
    message: "What it waited for was lost when the database was salvaged, or ended meanwhile. Retry it if it may run.",
  });
  const quarantine = (which: string) =>
    column<number>(
      db,
      `update holdfast_jobs set state = 'quarantined', error = ?, finished_at = ? where ${which} returning key`,
      error,
      now,
    );
  const quarantined = quarantine(unblocked);
  db.exec(
    `delete from holdfast_waits where upstream in (select key from holdfast_jobs where state = 'succeeded')
       or upstream in (select job from holdfast_ids where ended = 'succeeded')`,
  );
  if (waitsLost) quarantined.push(...quarantine(unblocked));
  else
    db.prepare(`update holdfast_jobs set state = 'pending', gate = 'time', run_at = min(run_at, ?) where ${unblocked}`).run(now);
  // Repeat this, because jobs may also wait for one that was just quarantined.
  for (let more = quarantine(bereft); more.length > 0; more = quarantine(bereft)) quarantined.push(...more);
  db.exec("delete from holdfast_waits where job not in (select key from holdfast_jobs where state = 'waiting')");
  return quarantined;
}

/** Sets the head to the last entry that was read, to which the next is chained. A gap before it stays visible. */
function resetAuditHead(db: Connection): void {
  const last = db.prepare("select seq, hash from holdfast_audit where hash is not null order by seq desc limit 1").row();
  const [seq, hash] = (last as [number, string] | undefined) ?? [NO_ENTRY.seq, NO_ENTRY.hash];
  db.prepare("insert or replace into holdfast_audit_head (id, seq, hash) values (1, ?, ?)").run(seq, hash);
}
