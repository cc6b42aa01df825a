import type { BuildReason } from "../core/pipelines/build.ts";
import type { ProcessId } from "../core/text/ids.ts";
import {
  type CrashedProcess,
  type CrashRecoveryReport,
  type Findings,
  type RecoveryCounts,
  type ReportState,
  wasSuccessful,
} from "../core/recovery/recovery-report.ts";
import type { HeldByDead } from "../core/recovery/recovery-plan.ts";
import type { HeldLease, LeaseRef, StaleLease } from "../core/jobs/lease.ts";
import type { Reclaimed } from "../core/jobs/retry.ts";
import type { NewAuditEntry } from "./audit.ts";
import type { KnownProcesses, Life } from "./processes.ts";

/**
 * Reclaims what dead processes and expired leases hold, and reports it. The same rules as in `Store`: each call is one atomic
 * unit. A report is a row: each transaction adds what it reclaimed to that row, so a report is exact wherever a recovery is
 * killed, and the next recovery continues it. At most one report is under way.
 */
export interface RecoveryStore {
  /**
   * Opens a report, or continues the one that is under way, and names the dead that are still registered, with the number of
   * their jobs. Null, and nothing is written: no process is dead, there is no finding, and no report is without an owner.
   */
  begin(found: Found): Promise<Recovering | null>;
  /**
   * At most `limit` jobs of a dead process go back, with the locks of its exclusive claims. If it holds no job after that, the
   * rest follows in the same transaction: its builds are CRASHED, its locks are free, and it is unregistered (`isDone`).
   */
  reclaimFrom(dead: DeadProcess): Promise<RecoveredProcess>;
  /**
   * The last transaction, by the report's owner: ends the report, with its audit entry and its event. Named processes that are
   * still registered are answered instead. Without findings the owner gives the report up, and the next recovery continues it.
   * Null: given up, or the report has another owner.
   */
  close(report: number, ending: SettleAs | { by: ProcessId }): Promise<StoredReport | { left: Left[] } | null>;
  /** Marks the reports with errors as seen by an operator; answers them. */
  acknowledge(): Promise<StoredReport[]>;
  /** The newest first: those that are ended, or all, or those that are open: under way, or with errors and not acknowledged. */
  reports(query: { limit: number; which?: "ended" | "all" | "open" }): Promise<StoredReport[]>;
  /** Sums over everything that was ever reclaimed and reported. It costs the same however much that was. */
  totals(): Promise<RecoveryTotals>;
  /** What a recovery would do about the dead processes and these expired leases. Nothing is written. */
  preview(known: KnownProcesses, expired: readonly LeaseRef[]): Promise<RecoveryPreview>;
  /** Leases worth a judgement: expired, expiring further away than they can (`skewed`), or held by one of the `dead`. */
  stale(query: { dead: readonly ProcessId[]; skewed: boolean; limit: number }): Promise<StaleLease[]>;
  /** Ends or cuts leases as judged; each only if it is still exactly the lease that was judged. `by`: an operator, for the audit. */
  reclaim(judgements: readonly Judgement[], cause: string, by?: string): Promise<Reclaimed>;
}

export interface Judgement extends HeldLease {
  verdict: "cut" | "crashed" | "interrupted" | "stalled";
}

/** At most so many reports are kept; those with errors that stand open, always. */
export const REPORTS_KEPT = 1_000;

export interface Found {
  dead: readonly { id: ProcessId; life: Life }[];
  /** Who recovers. */
  by: ProcessId;
  /** It has just opened the database: what the write-ahead log was before that is known. */
  opening: boolean;
  /** No other process has it open. */
  alone: boolean;
  /** What is wrong with the database, or missing: worth a report even if no process is dead. */
  findings?: Partial<Findings>;
  /** The ids of these findings: once the report records them, `DamageStore.findings` names them no more. */
  findingIds?: readonly string[];
}

/** A dead process, and how its death was proven. */
export interface Left extends CrashedProcess {
  id: ProcessId;
  life: Life;
}

export interface Recovering {
  report: number;
  /** Who calls is the one to end it. */
  owned: boolean;
  /** Another process began it and has left it unended; the caller continues it. */
  continued: boolean;
  /** Named in it, and not buried yet. */
  left: Left[];
}

export interface DeadProcess {
  report: number;
  process: ProcessId;
  /** How its attempts ended. */
  as: "crashed" | "interrupted";
  /** Why its builds are CRASHED. */
  reason: BuildReason;
  /** At most this many jobs go back. */
  limit: number;
  /** Time that went by since the transaction before, in milliseconds; 0 from processes that do not own the report. */
  spent: number;
  /** For the log of what was recovered. */
  cause: string;
}

export interface RecoveredProcess extends Reclaimed, HeldByDead {
  /** The process holds nothing any more and is unregistered. */
  isDone: boolean;
  /** This call has unregistered it; false if another process was faster. */
  isUnregistered: boolean;
}

export interface SettleAs extends Findings {
  by: ProcessId;
  /** How many jobs were pending when all was given back. */
  jobsPending: number;
  /** The operator who asked for it, for the audit; left out: the janitor found it by itself. */
  asked?: string;
}

export interface StoredReport extends CrashRecoveryReport {
  id: number;
  state: ReportState;
  begunAt: number;
  owner: ProcessId | null;
  acknowledgedBy: string | null;
  acknowledgedAt: number | null;
}

/** They never fall, but for `open` and `failed`: old reports that were acknowledged are removed. */
export interface ReportTotals extends RecoveryCounts {
  reports: number;
  /** With errors, and not acknowledged. */
  open: number;
  /** With errors, of those that are kept. */
  failed: number;
  /** As far as anything tells. */
  commitsMissing: number;
}

export interface ReclaimTotals {
  locksCleaned: number;
  entriesReclaimed: number;
  /** 0: never. */
  recoveredAt: number;
  /** The newest first, at most 50. */
  log: { at: number; cause: string; entries: number; quarantined: number; failed: number; locks: number }[];
}

export type RecoveryTotals = ReclaimTotals & { reports: ReportTotals };

/** What everybody may read of it: what is kept in the audit, and told in the event, too. */
export function reportOf(stored: StoredReport): CrashRecoveryReport {
  const { id: _, state: __, begunAt: ___, owner: ____, acknowledgedBy: _____, acknowledgedAt: ______, ...report } = stored;
  return report;
}

/** What a recovery would do now. */
export interface RecoveryPreview extends HeldByDead {
  /** How many jobs the dead processes hold. */
  jobs: number;
  /** Names of locks that are over, or would be once the expired leases are reclaimed. */
  staleLocks: string[];
}

/** What is kept in the audit of leases that were taken back. */
export function reclaimedBy(by: string, cause: string, { entries, quarantined, failed }: Reclaimed): NewAuditEntry {
  const after = { cause, jobs: entries, quarantined, failed };
  return { by, action: "recovery.reclaimed", subject: "leases", before: null, after };
}

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
export type ReportTotalsRow = Record<(typeof TOTALLED)[number] | "open" | "failed", number>;
/** Their columns, in this order. */
export const TOTALLED = ["reports", ...Object.values(COUNTED), "commits_missing"] as const;
/** What the report `excluded` makes of the sums `total`; both databases read it the same. */
export const ADDED = TOTALLED.map((column) => `${column} = total.${column} + excluded.${column}`).join(", ");

/** Null: there was none so far. */
export function toTotals(row: { [Column in keyof ReportTotalsRow]?: number | null } | undefined): ReportTotals {
  const counts = Object.entries(COUNTED).map(([name, column]) => [name, row?.[column as keyof ReportTotalsRow] ?? 0]);
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
