import { BALANCED, keeper, rebalance, TRIGGERED } from "../damage/balance.ts";
import { fillSums } from "../damage/fill.ts";
import type { Connection } from "../driver.ts";

/**
 * Nothing in a row changes unseen. sum: a checksum of what is made once. balance: the total of numbers that change all the
 * time. An index over the whole of a row that is seldom written is its second copy: `integrity_check` compares them.
 */
export const name = "whole rows";

export const sql = `
alter table holdfast_results add column sum integer;
alter table holdfast_targets add column sum integer;
alter table holdfast_builds add column sum integer;
alter table holdfast_ids add column sum integer;
alter table holdfast_counters add column sum integer;
${BALANCED.map(({ table }) => `alter table ${table} add column balance integer not null default 0;`).join("\n")}

create index holdfast_database_whole on holdfast_database (database_id, durability, created_at, epoch);
create index holdfast_migrations_whole on holdfast_migrations (name, applied_at);
create index holdfast_queues_whole on holdfast_queues (name, paused, events, keep, backfill);
create index holdfast_limits_whole on holdfast_limits (queue, job, position, keyed, concurrency, starts, per);
create index holdfast_locks_whole on holdfast_locks
  (name, holder, token, acquired_at, ttl, expires_at, job, fence, process);
create index holdfast_processes_whole on holdfast_processes
  (alive, identity, driver, pid, host, boot, program, started_at, works, stoppable, stop);
create index holdfast_sinks_whole on holdfast_sinks
  (name, kind, cursor, holder, token, expires_at, delivered_at, failures, failed_at, error, created_at);
create index holdfast_schedules_whole on holdfast_schedules (key, revision, paused, created_at, last_at, last_job, next_at);
create index holdfast_leads_whole on holdfast_leads
  (pipeline, build, token, holder, pid, host, program, program_hash, acquired_at, beat_at);
create index holdfast_builds_words on holdfast_builds (state, reason, note, blocked);
create index holdfast_build_stages_whole on holdfast_build_stages (build, stage, place);
create index holdfast_stage_costs_whole on holdfast_stage_costs (pipeline, stage);
create index holdfast_recovery_totals_whole on holdfast_recovery_totals (entries, locks, recovered_at);
create index holdfast_recovery_log_whole on holdfast_recovery_log (at, cause, entries, quarantined, failed, locks);
create index holdfast_recoveries_whole on holdfast_recoveries
  (state, owner, begun_at, recovered_at, spent, running_before, jobs, reset, quarantined, builds, locks, pending,
   wal_bytes, wal_frames, commits_missing, errors, acknowledged_by, acknowledged_at);
create index holdfast_report_totals_whole on holdfast_report_totals
  (reports, spent, running_before, jobs, reset, quarantined, builds, locks, commits_missing);
create index holdfast_recovery_processes_whole on holdfast_recovery_processes
  (recovery, process, life, pid, host, program, started_at);

-- These were there, and lacked what nobody looks for by them.
drop index holdfast_tokens_build;
create index holdfast_tokens_build on holdfast_tokens (build, pause, minted_at, expires_at, used_at, replaced_at);
drop index holdfast_artifacts_hash;
create index holdfast_artifacts_hash on holdfast_artifacts (hash, size);
`;

/** What is there is taken for right: a job's sum was made otherwise before, and other rows had none. */
export function fill(db: Connection): void {
  for (const table of ["holdfast_jobs", "holdfast_notes"]) db.exec(`update ${table} set sum = null`);
  fillSums(db);
  rebalance(db);
  for (const balanced of TRIGGERED) db.exec(keeper(balanced));
}
