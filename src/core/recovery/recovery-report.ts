import type { Reclaimed } from "../jobs/retry.ts";

/** What was found after a crash, and what was done about it. */
export interface CrashRecoveryReport {
  /** When the last of it was given back. */
  recoveredAt: number;
  /** Processes that ended without a goodbye. */
  crashed: CrashedProcess[];
  /** How long it took until everything was reclaimed, without the checks after that, which block no worker. */
  recoveryDurationMs: number;
  /** What was found to be wrong, in words. */
  errors: string[];
  /** Nothing was. */
  wasSuccessful: boolean;
  /** Jobs that were taken back from the crashed processes, whatever became of them. */
  jobsRecovered: number;
  /** All that were pending once everything was given back. */
  jobsPending: number;
  /** What the crashed processes had in hand. */
  jobsRunningBeforeCrash: number;
  jobsResetToPending: number;
  jobsQuarantined: number;
  buildsCrashed: number;
  /** Named locks, locks of exclusive claims, and those of orchestrators. */
  locksReleased: number;
  /** Of the write-ahead log; 0 on a server, which has its own. */
  walSizeBeforeRecoveryBytes: number;
  /** Frames of that log which the first to open the database has read back. */
  walFramesReplayed: number;
  /** Acknowledged commits that are not there any more, as far as anything tells; null: nothing does. */
  commitsMissing: number | null;
}

export interface CrashedProcess {
  host: string;
  pid: number;
  program: string;
  startedAt: number;
}

/**
 * A report is `running` from its first transaction until its last, over as many processes as it takes; one with errors then
 * stands open as `failed` until an operator has acknowledged it.
 */
export type ReportState = "running" | "completed" | "failed" | "acknowledged";

export const REPORT_MOVES: Record<ReportState, readonly ReportState[]> = {
  running: ["completed", "failed"],
  completed: [],
  failed: ["acknowledged"],
  acknowledged: [],
};

/** What one transaction of a recovery adds to its report. */
export interface RecoveryCounts {
  jobsRunningBeforeCrash: number;
  jobsRecovered: number;
  jobsResetToPending: number;
  jobsQuarantined: number;
  buildsCrashed: number;
  locksReleased: number;
  recoveryDurationMs: number;
}

export const NO_COUNTS: RecoveryCounts = {
  jobsRunningBeforeCrash: 0,
  jobsRecovered: 0,
  jobsResetToPending: 0,
  jobsQuarantined: 0,
  buildsCrashed: 0,
  locksReleased: 0,
  recoveryDurationMs: 0,
};

export function addCounts(counts: RecoveryCounts, more: Partial<RecoveryCounts>): RecoveryCounts {
  const sum = { ...counts };
  for (const name of Object.keys(NO_COUNTS) as (keyof RecoveryCounts)[]) sum[name] += more[name] ?? 0;
  return sum;
}

/** Jobs that were taken back are pending again, or over: too many crashes, or no second try wanted. */
export function jobCounts({ entries, quarantined, failed }: Reclaimed): Partial<RecoveryCounts> {
  return { jobsRecovered: entries, jobsQuarantined: quarantined, jobsResetToPending: entries - quarantined - failed };
}

/** What looking closer, after everything was given back, has found. */
export interface Findings {
  errors: string[];
  /** Null: nothing tells. */
  commitsMissing: number | null;
  walFramesReplayed: number;
}

export const NO_FINDINGS: Findings = { errors: [], commitsMissing: null, walFramesReplayed: 0 };

/** Of several looks: all that is wrong, each thing once, and the most that any of them says is missing. */
export function addFindings(found: Findings, more: Partial<Findings>): Findings {
  const missing = [found.commitsMissing, more.commitsMissing ?? null].filter((one) => one !== null);
  return {
    errors: [...new Set([...found.errors, ...(more.errors ?? [])])],
    commitsMissing: missing.length === 0 ? null : Math.max(...missing),
    walFramesReplayed: Math.max(found.walFramesReplayed, more.walFramesReplayed ?? 0),
  };
}

/**
 * What was met before, as a report says it: what the chosen durability allows to be lost is counted, and is no error. How much
 * is missing is the sum of what is known.
 */
export function findingsOf(
  met: readonly { severity: "damage" | "loss" | "expected" | "row" | "unlocked"; what: string; commitsMissing: number | null }[],
): Partial<Findings> {
  const missing = met.flatMap(({ commitsMissing }) => (commitsMissing === null ? [] : [commitsMissing]));
  return {
    errors: met.filter(({ severity }) => severity !== "expected").map(({ what }) => what),
    commitsMissing: missing.length === 0 ? null : missing.reduce((sum, commits) => sum + commits),
  };
}

/**
 * A report of what was found and could not be recorded, because the database is only read. Null: nothing was, or nothing but
 * what the chosen durability allows.
 */
export function unrecordedReport(
  met: readonly (Parameters<typeof findingsOf>[0][number] & { at: number })[],
): CrashRecoveryReport | null {
  const { errors = [], commitsMissing = null } = findingsOf(met.filter(({ severity }) => severity !== "unlocked"));
  if (errors.length === 0) return null;
  return {
    ...NO_COUNTS,
    recoveredAt: Math.max(...met.map(({ at }) => at)),
    crashed: [],
    errors,
    wasSuccessful: false,
    jobsPending: 0,
    walSizeBeforeRecoveryBytes: 0,
    walFramesReplayed: 0,
    commitsMissing,
  };
}

/** Whether findings are worth a report, also if no process has died. */
export function isWorthReporting(findings: Partial<Findings> | undefined): boolean {
  return (findings?.errors ?? []).length > 0 || (findings?.commitsMissing ?? 0) > 0;
}

export function wasSuccessful(errors: readonly string[]): boolean {
  return errors.length === 0;
}

/** What a report becomes with its last transaction. */
export function endedAs(errors: readonly string[]): "completed" | "failed" {
  return wasSuccessful(errors) ? "completed" : "failed";
}

/**
 * The process that continues an open report: the one that began it, as long as it is there. `isGone`: it is dead, or has
 * exited without finishing the report.
 */
export function ownerOf(open: { owner: number | null }, by: number, isGone: (owner: number) => boolean): number {
  return open.owner === null || isGone(open.owner) ? by : open.owner;
}

/** What a recovery, or an act upon its report, is about. */
export function recoverySubject(id: number): string {
  return `recovery:${id}`;
}
