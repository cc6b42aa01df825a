import type { Fence, JobKey, ProcessId } from "../text/ids.ts";
import type { JobState } from "./job.ts";

/** One attempt's right to settle: every write of the attempt names it and is refused when it is no longer the job's. */
export interface LeaseRef {
  job: JobKey;
  fence: Fence;
}

/** What became of a lease: still held, or what the job is now. `gone`: there is no such job any more. */
export type Fate = "held" | "lost" | "cancelled" | "gone";

/** By the job's row as it is; undefined: there is none. */
export function fateOf({ fence }: LeaseRef, row: { state: JobState; fence: Fence } | undefined): Fate {
  if (row === undefined) return "gone";
  if (row.state === "running" && row.fence === fence) return "held";
  return row.state === "cancelled" ? "cancelled" : "lost";
}

/** A running job's lease, as a process that may reclaim it sees it. `holder` is null for a claim by hand. */
export interface HeldLease extends LeaseRef {
  holder: ProcessId | null;
  expiresAt: number;
  lease: number;
}

/** One that may have to be taken back. */
export interface StaleLease extends HeldLease {
  /** How long it still lasts by the store's clock, which is the one that counts; what is over for so long is less than nothing. */
  left: number;
}

/**
 * What is known of a lease's holder. `dead` needs proof (the kernel freed its lock), `rebooted` the same and another
 * boot since; `orphan` is this very process's lease that it never got (the claim's answer was lost).
 */
export type Holder = "by-hand" | "alive" | "orphan" | "unknown" | "dead" | "rebooted";

export type Verdict = "keep" | "cut" | "crashed" | "interrupted" | "stalled";

/** Leases are renewed when a third of them has passed. */
export function renewalInterval(lease: number): number {
  return Math.max(1, Math.floor(lease / 3));
}

/** That it is dead is proven. */
export function isProven(life: Holder): life is "dead" | "rebooted" {
  return life === "dead" || life === "rebooted";
}

/** What the jobs of a dead process are charged: after a reboot none of them caused its end. */
export function endedBy(life: "dead" | "rebooted"): "crashed" | "interrupted" {
  return life === "dead" ? "crashed" : "interrupted";
}

/**
 * Whether to reclaim. `expiredFor` is how long this observer has watched it expired, on its monotonic clock: wall
 * clocks jump, and a whole host may have been suspended, its keepers about to renew.
 */
export function judge({ lease, left }: StaleLease, holder: Holder, expiredFor: number): Verdict {
  if (isProven(holder)) return endedBy(holder);
  // Further away than a lease can be: the clock was set back since. Left alone it would delay the reclaim by that much.
  if (left > lease) return "cut";
  if (left > 0) return "keep";
  switch (holder) {
    case "by-hand":
      return "crashed";
    case "orphan":
      // Nothing ran, or the holder knows that it has lost the lease: the job is not to blame.
      return "interrupted";
    case "alive":
      return expiredFor >= renewalInterval(lease) ? "stalled" : "keep";
    case "unknown":
      return expiredFor >= renewalInterval(lease) ? "crashed" : "keep";
  }
}
