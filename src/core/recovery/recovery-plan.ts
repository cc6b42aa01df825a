import type { CrashedProcess } from "./recovery-report.ts";

/** The command that recovers, whatever the config says of recovery. */
export const RECOVER = "holdfast recover --apply";

/** What dead processes held, by name. */
export interface HeldByDead {
  /** The ids of ACTIVE builds without a live orchestrator. */
  builds: string[];
  /** Named locks and those of exclusive claims. */
  locks: string[];
  /** The pipelines of those builds, if their orchestrators have left the lock. */
  orchestratorLocks: string[];
}

/** What a recovery does about crashed processes. */
export interface CrashRecovery extends HeldByDead {
  /** It continues a recovery that was killed itself, or that left its report unended. */
  continues: boolean;
  /** The dead processes that it unregisters. */
  crashed: CrashedProcess[];
  /** How many jobs it reclaims from them. */
  jobs: number;
}

/** What a recovery would do, or what it has done: both have the same words. */
export interface RecoveryPlan extends CrashRecovery {
  /** Of holders that are not proven dead: running jobs whose lease has expired, and names of locks that are over. */
  expired: { jobs: number; locks: string[] };
}

export function noCrashRecovery(): CrashRecovery {
  return { continues: false, crashed: [], jobs: 0, builds: [], locks: [], orchestratorLocks: [] };
}

/** The plan with its names in order; null if it has nothing to do. */
export function orderPlan(plan: RecoveryPlan): RecoveryPlan | null {
  const { builds, locks, orchestratorLocks, expired } = plan;
  const { jobs, locks: locksOfPlan } = countPlan(plan);
  if (!isOfCrash(plan) && jobs + locksOfPlan + builds.length === 0) return null;
  return {
    ...plan,
    builds: builds.toSorted(),
    locks: locks.toSorted(),
    orchestratorLocks: orchestratorLocks.toSorted(),
    expired: { jobs: expired.jobs, locks: expired.locks.toSorted() },
  };
}

/** Whether a process has crashed, or a recovery was not ended: more than leases and locks whose time is over. */
export function isOfCrash({ crashed, continues }: Pick<RecoveryPlan, "crashed" | "continues">): boolean {
  return crashed.length > 0 || continues;
}

/** All jobs and all locks of a plan; null: there is nothing to do. */
export function countPlan(plan: RecoveryPlan | null): { jobs: number; locks: number } {
  if (plan === null) return { jobs: 0, locks: 0 };
  const { jobs, locks, orchestratorLocks, expired } = plan;
  return { jobs: jobs + expired.jobs, locks: locks.length + orchestratorLocks.length + expired.locks.length };
}
