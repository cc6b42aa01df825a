import type { ProcessId } from "../core/ids.ts";
import { type CrashedProcess, type RecoveryCounts, type ReportState, wasSuccessful } from "../core/recovery-report.ts";
import type { ReportTotals, StoredReport } from "./recoveries.ts";

/** A report as it is read; `errors` is JSON. */
export interface ReportRow {
  id: number;
  state: ReportState;
  owner: ProcessId | null;
  begun_at: number;
  recovered_at: number;
  spent: number;
  running_before: number;
  jobs: number;
  reset: number;
  quarantined: number;
  builds: number;
  locks: number;
  pending: number;
  wal_bytes: number;
  wal_frames: number;
  commits_missing: number | null;
  errors: string;
  acknowledged_by: string | null;
  acknowledged_at: number | null;
}

/** Its columns, in this order. */
export const REPORT_COLUMNS = [
  "id",
  "state",
  "owner",
  "begun_at",
  "recovered_at",
  "spent",
  "running_before",
  "jobs",
  "reset",
  "quarantined",
  "builds",
  "locks",
  "pending",
  "wal_bytes",
  "wal_frames",
  "commits_missing",
  "errors",
  "acknowledged_by",
  "acknowledged_at",
] as const satisfies readonly (keyof ReportRow)[];

/** Where what is counted is written. */
export const COUNTED: Record<keyof RecoveryCounts, keyof ReportRow> = {
  jobsRunningBeforeCrash: "running_before",
  jobsRecovered: "jobs",
  jobsResetToPending: "reset",
  jobsQuarantined: "quarantined",
  buildsCrashed: "builds",
  locksReleased: "locks",
  recoveryDurationMs: "spent",
};

/** Sums of all reports that were ended; `open` and `failed`: those with errors, not acknowledged or of all that are kept. */
export type TotalsRow = Record<(typeof TOTALLED)[number] | "open" | "failed", number>;
/** Their columns, in this order. */
export const TOTALLED = ["reports", ...Object.values(COUNTED), "commits_missing"] as const;
/** What the report `excluded` makes of the sums `total`; both databases read it the same. */
export const ADDED = TOTALLED.map((column) => `${column} = total.${column} + excluded.${column}`).join(", ");

/** Null: there was none so far. */
export function toTotals(row: { [Column in keyof TotalsRow]?: number | null } | undefined): ReportTotals {
  const counts = Object.entries(COUNTED).map(([name, column]) => [name, row?.[column as keyof TotalsRow] ?? 0]);
  return {
    reports: row?.reports ?? 0,
    open: row?.open ?? 0,
    failed: row?.failed ?? 0,
    commitsMissing: row?.commits_missing ?? 0,
    ...(Object.fromEntries(counts) as unknown as RecoveryCounts),
  };
}

export function errorsOf({ errors }: Pick<ReportRow, "errors">): string[] {
  return JSON.parse(errors) as string[];
}

export function toReport(row: ReportRow, crashed: readonly CrashedProcess[]): StoredReport {
  const errors = errorsOf(row);
  return {
    id: row.id,
    state: row.state,
    owner: row.owner,
    begunAt: row.begun_at,
    recoveredAt: row.recovered_at,
    crashed: crashed.map(({ host, pid, program, startedAt }) => ({ host, pid, program, startedAt })),
    recoveryDurationMs: row.spent,
    errors,
    wasSuccessful: wasSuccessful(errors),
    jobsRecovered: row.jobs,
    jobsPending: row.pending,
    jobsRunningBeforeCrash: row.running_before,
    jobsResetToPending: row.reset,
    jobsQuarantined: row.quarantined,
    buildsCrashed: row.builds,
    locksReleased: row.locks,
    walSizeBeforeRecoveryBytes: row.wal_bytes,
    walFramesReplayed: row.wal_frames,
    commitsMissing: row.commits_missing,
    acknowledgedBy: row.acknowledged_by,
    acknowledgedAt: row.acknowledged_at,
  };
}
