import type { BuildReason } from "../core/pipelines/build.ts";
import type { ProcessId } from "../core/text/ids.ts";
import type {
  CrashedProcess,
  CrashRecoveryReport,
  Findings,
  RecoveryCounts,
  ReportState,
  HeldByDead,
  JobEnds,
} from "../core/recovery/recovery-report.ts";
import type { HeldLease, LeaseRef } from "../core/jobs/lease.ts";
import type { Reclaimed } from "../core/jobs/retry.ts";
import type { NewAuditEntry } from "./audit.ts";
import type { Life } from "./processes.ts";

export interface Judgement extends HeldLease {
  verdict: "cut" | "crashed" | "interrupted" | "stalled";
}

export interface ExpiredLease extends LeaseRef {
  verdict: Exclude<Judgement["verdict"], "cut">;
}

export const REPORTS_KEPT = 1_000;

export interface Found {
  dead: readonly { id: ProcessId; life: Life }[];
  by: ProcessId;
  /** True: the process has just opened the database, so the state of the write-ahead log before that is known. */
  opening: boolean;
  alone: boolean;
  findings?: Partial<Findings>;
  /** Once the report records them, `DamageStore.findings` does not return them any more. */
  findingIds?: readonly string[];
}

export interface Left extends CrashedProcess {
  id: ProcessId;
  life: Life;
}

export interface Recovering {
  report: number;
  /** Whether the caller is to close the report. */
  owned: boolean;
  /** Whether the caller continues a report that another process began and did not end. */
  continued: boolean;
  left: Left[];
}

export interface DeadProcess {
  report: number;
  process: ProcessId;
  as: "crashed" | "interrupted";
  reason: BuildReason;
  limit: number;
  /** Milliseconds since the last transaction; 0 from processes that do not own the report. */
  spent: number;
  cause: string;
}

export interface RecoveredProcess extends Reclaimed, HeldByDead {
  isDone: boolean;
  /** Whether this call has unregistered the process. False: another process was faster. */
  isUnregistered: boolean;
}

export interface OwnReport {
  report: number;
  by: ProcessId;
  /** Null: the process gives the report up. */
  ending: ReportEnding | null;
}

interface ReportEnding extends Findings {
  jobsPending: number;
  /** The operator who asked for the recovery; default: the janitor. */
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

/** Sums over all reports. Only `open` and `failed` can fall, because old acknowledged reports are removed. */
export interface ReportTotals extends RecoveryCounts {
  reports: number;
  open: number;
  failed: number;
  commitsMissing: number;
}

export interface ReclaimTotals {
  locksCleaned: number;
  entriesReclaimed: number;
  recoveredAt: number;
  log: { at: number; cause: string; entries: number; quarantined: number; failed: number; locks: number }[];
}

type RecoveryTotals = ReclaimTotals & { reports: ReportTotals };

export interface RecoveryHistory {
  reports: StoredReport[];
  totals: RecoveryTotals;
}

export function reportOf(stored: StoredReport): CrashRecoveryReport {
  const { id: _, state: __, begunAt: ___, owner: ____, acknowledgedBy: _____, acknowledgedAt: ______, ...report } = stored;
  return report;
}

export interface RecoveryPreview extends HeldByDead {
  jobs: number;
  ends: JobEnds;
  /** Names of locks that are stale, or will be once the expired leases are reclaimed. */
  staleLocks: string[];
  overlongLocks: string[];
  /** Work items of ended builds that are idle, or will be once the leases of the dead and the expired leases are reclaimed. */
  leftoverJobs: number;
}

export function reclaimedBy(by: string, cause: string, { entries, quarantined, failed }: Reclaimed): NewAuditEntry {
  const after = { cause, jobs: entries, quarantined, failed };
  return { by, action: "recovery.reclaimed", subject: "leases", before: null, after };
}

export const COUNTED: Record<keyof RecoveryCounts, string> = {
  jobsRunningBeforeCrash: "running_before",
  jobsRecovered: "jobs",
  jobsResetToPending: "reset",
  jobsQuarantined: "quarantined",
  buildsCrashed: "builds",
  locksReleased: "locks",
  recoveryDurationMs: "spent",
};
