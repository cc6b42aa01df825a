import type { Fence, JobKey, ProcessId } from "../text/ids.ts";
import type { JobState } from "./job.ts";

/** One attempt's right to settle. Every write of the attempt names it, and is rejected once the job has another attempt. */
export interface LeaseRef {
  job: JobKey;
  fence: Fence;
}

/** Whether a lease is still held, or what became of its job. "gone": the job was removed. */
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

/** Who holds a lease. "dead" is proven by a lock that the kernel freed; "orphan" is an own lease whose claim got no answer. */
export type Holder = "by-hand" | "alive" | "orphan" | "unknown" | "dead" | "rebooted";

export type LeaseVerdict = "keep" | "cut" | "crashed" | "interrupted" | "stalled";

/** How often a lease is renewed. Also the grace of an expired lease: its holder gets the time of one more renewal. */
export function renewalInterval(lease: number): number {
  return Math.max(1, Math.floor(lease / 3));
}

export function isProvenDead(life: Holder): life is "dead" | "rebooted" {
  return life === "dead" || life === "rebooted";
}

/** Returns how a lease of a dead process ends. After a reboot no job is charged, because none of them caused it. */
export function endedBy(life: "dead" | "rebooted"): "crashed" | "interrupted" {
  return life === "dead" ? "crashed" : "interrupted";
}

/** Judges a lease. `expiredFor` is monotonic time of this process: wall clocks jump, and keepers renew soon after a suspend. */
export function judgeLease({ lease, left }: StaleLease, holder: Holder, expiredFor: number): LeaseVerdict {
  if (isProvenDead(holder)) return endedBy(holder);
  // No lease is this long, so the clock was set back. If the lease is not cut, it delays the reclaim by that much.
  if (left > lease) return "cut";
  if (left > 0) return "keep";
  switch (holder) {
    case "by-hand":
      return "crashed";
    case "orphan":
      // Nothing ran, or the holder knows that it has lost the lease, so the job is not to blame.
      return "interrupted";
    case "alive":
      return expiredFor >= renewalInterval(lease) ? "stalled" : "keep";
    case "unknown":
      return expiredFor >= renewalInterval(lease) ? "crashed" : "keep";
  }
}
