import type { Reclaimed } from "../jobs/retry.ts";

/** What was found after a crash, and what was done about it. */
export interface CrashRecoveryReport {
  recoveredAt: number;
  /** Processes that ended without unregistering. */
  crashed: CrashedProcess[];
  /** Time until everything was reclaimed, without the checks after that, which block no worker. */
  recoveryDurationMs: number;
  errors: string[];
  wasSuccessful: boolean;
  /** Jobs reclaimed from the crashed processes, whatever became of them. */
  jobsRecovered: number;
  /** All pending jobs once everything was reclaimed. */
  jobsPending: number;
  jobsRunningBeforeCrash: number;
  jobsResetToPending: number;
  jobsQuarantined: number;
  buildsCrashed: number;
  /** Named locks, locks of exclusive claims, and those of orchestrators. */
  locksReleased: number;
  /** Size of the write-ahead log; 0 on PostgreSQL, which has its own. */
  walSizeBeforeRecoveryBytes: number;
  /** Frames of that log that the first process to open the database read back. */
  walFramesReplayed: number;
  /** Acknowledged commits that are missing; null if unknown. */
  commitsMissing: number | null;
}

export interface CrashedProcess {
  host: string;
  pid: number;
  program: string;
  startedAt: number;
}

/** State of a report. `running` may take several processes; `failed` stays until an operator acknowledges it. */
export type ReportState = "running" | "completed" | "failed" | "acknowledged";

export const NO_COUNTS = {
  jobsRunningBeforeCrash: 0,
  jobsRecovered: 0,
  jobsResetToPending: 0,
  jobsQuarantined: 0,
  buildsCrashed: 0,
  locksReleased: 0,
  recoveryDurationMs: 0,
};

export type RecoveryCounts = Record<keyof typeof NO_COUNTS, number>;

export function jobCounts({ entries, quarantined, failed, replaced }: Reclaimed): Partial<RecoveryCounts> {
  const jobsResetToPending = entries - quarantined - failed - replaced;
  return { jobsRecovered: entries, jobsQuarantined: quarantined, jobsResetToPending };
}

export interface Findings {
  errors: string[];
  commitsMissing: number | null;
  walFramesReplayed: number;
}

export const NO_FINDINGS: Findings = { errors: [], commitsMissing: null, walFramesReplayed: 0 };

export function addFindings(found: Findings, more: Partial<Findings>): Findings {
  const missing = [found.commitsMissing, more.commitsMissing ?? null].filter((one) => one !== null);
  return {
    errors: [...new Set([...found.errors, ...(more.errors ?? [])])],
    commitsMissing: missing.length === 0 ? null : Math.max(...missing),
    walFramesReplayed: Math.max(found.walFramesReplayed, more.walFramesReplayed ?? 0),
  };
}

/** Counts losses that the chosen durability allows, but does not report them as errors. */
export function findingsOf(
  findings: readonly {
    severity: "damage" | "loss" | "expected" | "row" | "unlocked";
    what: string;
    commitsMissing: number | null;
  }[],
): Partial<Findings> {
  const missing = findings.flatMap(({ commitsMissing }) => (commitsMissing === null ? [] : [commitsMissing]));
  return {
    errors: findings.filter(({ severity }) => severity !== "expected").map(({ what }) => what),
    commitsMissing: missing.length === 0 ? null : missing.reduce((sum, commits) => sum + commits),
  };
}

/** Reports findings that could not be recorded because the database is read-only. Returns null if none is worth reporting. */
export function unrecordedReport(
  findings: readonly (Parameters<typeof findingsOf>[0][number] & { at: number })[],
): CrashRecoveryReport | null {
  const { errors = [], commitsMissing = null } = findingsOf(findings.filter(({ severity }) => severity !== "unlocked"));
  if (errors.length === 0) return null;
  return {
    ...NO_COUNTS,
    recoveredAt: Math.max(...findings.map(({ at }) => at)),
    crashed: [],
    errors,
    wasSuccessful: false,
    jobsPending: 0,
    walSizeBeforeRecoveryBytes: 0,
    walFramesReplayed: 0,
    commitsMissing,
  };
}

export function isWorthReporting(findings: Partial<Findings> | undefined): boolean {
  return (findings?.errors ?? []).length > 0 || (findings?.commitsMissing ?? 0) > 0;
}

export function wasSuccessful(errors: readonly string[]): boolean {
  return errors.length === 0;
}

export function finalState(errors: readonly string[]): "completed" | "failed" {
  return wasSuccessful(errors) ? "completed" : "failed";
}

/** Returns the process that continues an open report: the one that began it, unless it is dead or has exited (`isGone`). */
export function reportOwner(open: { owner: number | null }, by: number, isGone: (owner: number) => boolean): number {
  return open.owner === null || isGone(open.owner) ? by : open.owner;
}

export function recoverySubject(id: number): string {
  return `recovery:${id}`;
}

/** The command to recover. With `recovery: "manual"` in the config, the command line adds `--apply`. */
export const RECOVER_COMMAND = "holdfast recover";

export interface HeldByDead {
  builds: string[];
  locks: string[];
  orchestratorLocks: string[];
}

export interface CrashRecovery extends HeldByDead {
  continues: boolean;
  crashed: CrashedProcess[];
  jobs: number;
  ends: JobEnds;
}

export type JobEnds = Omit<Reclaimed, "entries">;

export function noEnds(): JobEnds {
  return { quarantined: 0, failed: 0, replaced: 0 };
}

export function addEnds(ends: JobEnds, { quarantined, failed, replaced }: JobEnds): void {
  ends.quarantined += quarantined;
  ends.failed += failed;
  ends.replaced += replaced;
}

export interface RecoveryPlan extends CrashRecovery {
  /** Running jobs with expired leases, and names of expired locks, whose holders are not proven dead. */
  expired: { jobs: number; locks: string[] };
  /** Leases and locks that expire later than they can, because the clock was set back. They are shortened. */
  overlong: { leases: number; locks: string[] };
  leftoverJobs: number;
}

export function noCrashRecovery(): CrashRecovery {
  return { continues: false, crashed: [], jobs: 0, ends: noEnds(), builds: [], locks: [], orchestratorLocks: [] };
}

export function planOf(crash: CrashRecovery, more: Partial<RecoveryPlan> = {}): RecoveryPlan {
  return { expired: { jobs: 0, locks: [] }, overlong: { leases: 0, locks: [] }, leftoverJobs: 0, ...crash, ...more };
}

export function orderPlan(plan: RecoveryPlan): RecoveryPlan | null {
  const { builds, locks, orchestratorLocks, expired, overlong, leftoverJobs } = plan;
  const { jobs, locks: locksOfPlan } = countPlan(plan);
  const others = builds.length + overlong.leases + overlong.locks.length + leftoverJobs;
  if (!isOfCrash(plan) && jobs + locksOfPlan + others === 0) return null;
  return {
    ...plan,
    builds: builds.toSorted(),
    locks: locks.toSorted(),
    orchestratorLocks: orchestratorLocks.toSorted(),
    expired: { jobs: expired.jobs, locks: expired.locks.toSorted() },
    overlong: { leases: overlong.leases, locks: overlong.locks.toSorted() },
  };
}

export function isOfCrash({ crashed, continues }: Pick<RecoveryPlan, "crashed" | "continues">): boolean {
  return crashed.length > 0 || continues;
}

export function countPlan(plan: RecoveryPlan | null): { jobs: number; locks: number } {
  if (plan === null) return { jobs: 0, locks: 0 };
  const { jobs, locks, orchestratorLocks, expired } = plan;
  return { jobs: jobs + expired.jobs, locks: locks.length + orchestratorLocks.length + expired.locks.length };
}
