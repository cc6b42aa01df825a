/**
 * Where a flipped bit may stay unnoticed, by table: columns that change all the time, and are in no index. A star is for
 * all of a table. docs/guarantees.md says the same in words; whatever else differs after a flip has to be reported.
 */
export const UNCOVERED: Record<string, readonly string[]> = {
  holdfast_jobs: [
    "attempt",
    "errors",
    "crashes",
    "fence",
    "holder",
    "worker",
    "lease",
    "expires_at",
    "run_at",
    "started_at",
    "finished_at",
    "sum",
  ],
  holdfast_notes: ["fraction", "message", "sum"],
  holdfast_schedules: ["revision", "paused", "created_at", "last_at", "last_job", "next_at", "sum"],
  holdfast_events: ["sum"],
  // Of jobs that were pruned, and how they ended.
  holdfast_ids: ["id", "job", "name", "chosen", "ended"],
  holdfast_tally: ["ended", "since", "fresh", "before"],
  holdfast_results: ["target", "parts", "output_hash", "output_size", "micros", "tokens", "error", "at"],
  holdfast_targets: ["*"],
  holdfast_builds: ["*"],
  holdfast_build_stages: ["*"],
  holdfast_stage_costs: ["*"],
  holdfast_work: ["*"],
  holdfast_leads: ["*"],
  holdfast_tokens: ["*"],
  holdfast_artifacts: ["*"],
  holdfast_locks: ["*"],
  holdfast_processes: ["*"],
  holdfast_queues: ["*"],
  holdfast_limits: ["*"],
  holdfast_counters: ["*"],
  holdfast_parked: ["*"],
  holdfast_expiring: ["*"],
  holdfast_sinks: ["*"],
  holdfast_database: ["created_at"],
  holdfast_counter: ["*"],
  holdfast_migrations: ["name", "applied_at"],
  holdfast_recovery_totals: ["*"],
  holdfast_recovery_log: ["*"],
  holdfast_recoveries: ["*"],
  holdfast_report_totals: ["*"],
};

export function isUncovered(table: string, column: string): boolean {
  return UNCOVERED[table]?.some((one) => one === "*" || one === column) ?? false;
}
