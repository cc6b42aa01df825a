import type { ProcessId } from "../core/text/ids.ts";
import type { HeldLease, StaleLease } from "../core/jobs/lease.ts";
import type { Reclaimed } from "../core/jobs/retry.ts";

/** Finding leases that may have to be taken back, and taking them back. */
export interface HealingStore {
  /** Leases worth a judgement: expired, expiring further away than they can (`skewed`), or of one of the `dead`. */
  stale(query: { dead: readonly ProcessId[]; skewed: boolean; limit: number }): Promise<StaleLease[]>;
  /** Ends or cuts leases as judged; each only if it is still exactly the lease that was judged. `by`: an operator, for the audit. */
  reclaim(judgements: readonly Judgement[], cause: string, by?: string): Promise<Reclaimed>;
  /** What was ever healed. */
  totals(): Promise<RecoveryTotals>;
}

export interface Judgement extends HeldLease {
  verdict: "cut" | "crashed" | "interrupted" | "stalled";
}

export interface RecoveryTotals {
  locksCleaned: number;
  entriesReclaimed: number;
  /** 0: never. */
  recoveredAt: number;
  /** The newest first, at most 50. */
  log: { at: number; cause: string; entries: number; quarantined: number; failed: number; locks: number }[];
}
