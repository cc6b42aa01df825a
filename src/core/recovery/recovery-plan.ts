import type { Reclaimed } from "../jobs/retry.ts";
import type { CrashedProcess } from "./recovery-report.ts";

/** With `recovery: "manual"` in the config, the command line adds `--apply`. */
export const RECOVER_COMMAND = "holdfast recover";

export interface HeldByDead {
  builds: string[];
  locks: string[];
  orchestratorLocks: string[];
}

export interface CrashRecovery extends HeldByDead {
  /** Continues a recovery that was killed, or that left its report open. */
  continues: boolean;
  crashed: CrashedProcess[];
  jobs: number;
  /** Of the reclaimed jobs: how many are not pending again. */
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
  /** Of holders not proven dead: running jobs with expired leases, and names of expired locks. */
  expired: { jobs: number; locks: string[] };
  /** Leases and locks that expire later than they can since the clock was set back; they are shortened. */
  overlong: { leases: number; locks: string[] };
  /** Unfinished jobs of builds that have ended; they are cancelled. */
  leftoverJobs: number;
}

export function noCrashRecovery(): CrashRecovery {
  return { continues: false, crashed: [], jobs: 0, ends: noEnds(), builds: [], locks: [], orchestratorLocks: [] };
}

export function planOf(crash: CrashRecovery, more: Partial<RecoveryPlan> = {}): RecoveryPlan {
  return { expired: { jobs: 0, locks: [] }, overlong: { leases: 0, locks: [] }, leftoverJobs: 0, ...crash, ...more };
}

/** The plan in a fixed order; null: nothing to do. */
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
