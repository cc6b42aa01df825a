import type { Fence, JobKey, ProcessId } from "../text/ids.ts";
import type { JobState } from "./job.ts";

/** One attempt's right to settle: every write of the attempt names it and is rejected once the job has another. */
export interface LeaseRef {
  job: JobKey;
  fence: Fence;
}

/** What became of a lease: still held, or the job's state now. `gone`: the job was removed. */
export type LeaseState = "held" | "lost" | "cancelled" | "gone";

export function leaseState({ fence }: LeaseRef, row: { state: JobState; fence: Fence } | undefined): LeaseState {
  if (row === undefined) return "gone";
  if (row.state === "running" && row.fence === fence) return "held";
  return row.state === "cancelled" ? "cancelled" : "lost";
}

/** A running job's lease as a reclaiming process reads it. `holder` is null for a claim by hand. */
export interface HeldLease extends LeaseRef {
  holder: ProcessId | null;
  expiresAt: number;
  lease: number;
}

export interface StaleLease extends HeldLease {
  left: number;
}

/** `dead` needs proof (the kernel freed its lock); `orphan`: this process's own lease whose claim's answer was lost. */
export type Holder = "by-hand" | "alive" | "orphan" | "unknown" | "dead" | "rebooted";

export type LeaseVerdict = "keep" | "cut" | "crashed" | "interrupted" | "stalled";

/** Also the grace of an expired lease: before a reclaim, its holder gets the time of one more renewal. */
export function renewalInterval(lease: number): number {
  return Math.max(1, Math.floor(lease / 3));
}

export function isProvenDead(life: Holder): life is "dead" | "rebooted" {
  return life === "dead" || life === "rebooted";
}

/** After a reboot no job is charged: none of them caused it. */
export function endedBy(life: "dead" | "rebooted"): "crashed" | "interrupted" {
  return life === "dead" ? "crashed" : "interrupted";
}

/** `expiredFor`: by this process's monotonic clock: wall clocks jump, and after a suspend the keepers are about to renew. */
export function judgeLease({ lease, left }: StaleLease, holder: Holder, expiredFor: number): LeaseVerdict {
  if (isProvenDead(holder)) return endedBy(holder);
  // Longer than a lease can be: the clock was set back. Uncut, it would delay the reclaim by that much.
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
