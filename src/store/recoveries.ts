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
import type { Reclaimed } from "../core/jobs/retry.ts";
import type { NewAuditEntry } from "./audit.ts";
import type { Life } from "./processes.ts";

/**
 * What is done about processes that died, and the report of it. The same rules as in `Store`: each call is one atomic unit. A
 * report is a row: what each transaction gives back is added to it in that very transaction, so that it is exact wherever a
 * recovery is killed; the next one goes on with it. At most one is under way.
 */
export interface RecoveryStore {
  /**
   * The first transaction: opens a report, or goes on with the one that is under way. Names in it those of the dead who are
   * still registered, with what they had in hand. Null, and nothing is written: there is nobody to bury, nothing that was found,
   * and no report that somebody has left unended.
   */
  begin(found: Found): Promise<Recovering | null>;
  /** At most `limit` of a dead process's jobs go back, with the locks of those that were exclusive. */
  takeBack(burial: Burial & { as: "crashed" | "interrupted"; limit: number }): Promise<TakenBack>;
  /**
   * The rest of a dead process: its builds are CRASHED, its locks free, its name struck off. Null, and nothing is written, while
   * it has jobs in hand. Nothing is left to do where somebody else has done it.
   */
  bury(burial: Burial & { reason: BuildReason }): Promise<Buried | null>;
  /**
   * The last transaction, by the report's owner: with the audit entry and the event. Those who are named in it and not buried yet
   * come back instead. Null: it is not his any more.
   */
  close(report: number, ending: Ending): Promise<StoredReport | { left: Left[] } | null>;
  /** Gives up a report that is not ended; the next process that recovers continues it. False if it has another owner. */
  transfer(report: number, owner: ProcessId): Promise<boolean>;
  /** Those with errors that nobody has acknowledged so far. An operator's act. */
  acknowledge(): Promise<StoredReport[]>;
  /** The newest first: those that are ended, or all, or those that stand open: under way, or with errors that nobody has acknowledged. */
  reports(query: { limit: number; which?: "ended" | "all" | "open" }): Promise<StoredReport[]>;
  /** Sums of all reports that were ever ended, however long ago. It costs the same however many there were. */
  totals(): Promise<ReportTotals>;
  /**
   * Copies the write-ahead log into the database, off this thread. `alone`: no other process has the file open; if one has,
   * a short log is left to it. `waitMs`: also empties the log, and waits this long for readers. A server needs none of it.
   */
  checkpoint(how: { alone: boolean } | { waitMs: number }): Promise<void>;
  /** What would be done about these. */
  preview(dead: readonly ProcessId[]): Promise<RecoveryPreview>;
}

/** At most so many reports are kept; those with errors that stand open, always. */
export const REPORTS_KEPT = 1_000;

export interface Found {
  dead: readonly { id: ProcessId; life: Life }[];
  /** Who recovers. */
  by: ProcessId;
  /** It has just opened the database: what the write-ahead log was before that is known. */
  opening: boolean;
  /** Nobody else has it open. */
  alone: boolean;
  /** What is wrong with the database, or missing: worth a report though nobody may have died. */
  findings?: Partial<Findings>;
}

/** Somebody who is dead, and how that was proven. */
export interface Left {
  id: ProcessId;
  life: Life;
  pid: number;
  host: string;
  program: string;
}

export interface Recovering {
  report: number;
  /** Who calls is the one to end it. */
  owned: boolean;
  /** Named in it, and not buried yet. */
  left: Left[];
}

export interface Burial {
  report: number;
  process: ProcessId;
  /** Time that went by since the transaction before, in milliseconds; 0 by those who only help. */
  spent: number;
  /** For the log of what was recovered. */
  cause: string;
}

export type TakenBack = Reclaimed & { locks: number };
export const NOTHING_BACK: TakenBack = { entries: 0, quarantined: 0, failed: 0, locks: 0 };

export interface Buried {
  builds: number;
  locks: number;
}

export interface Ending extends Findings {
  by: ProcessId;
  /** How many jobs were pending when all was given back. */
  jobsPending: number;
  /** At whose word it was done, for the audit; left out: nobody's, it is found by itself. */
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

/** What everybody may read of it: what is kept in the audit, and told in the event, too. */
export function reportOf(stored: StoredReport): CrashRecoveryReport {
  const { id: _, state: __, begunAt: ___, owner: ____, acknowledgedBy: _____, acknowledgedAt: ______, ...report } = stored;
  return report;
}

/** What a recovery would do now. */
export interface RecoveryPreview {
  /** How many jobs these have in hand. */
  jobs: number;
  /** The ids of builds that would be CRASHED. */
  builds: string[];
  /** Names of locks that would be released. */
  locks: string[];
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
