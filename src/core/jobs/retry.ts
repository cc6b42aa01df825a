import type { JobError, JobState } from "./job.ts";

/** A job's settings for failures. Stored with the job, because the process that reclaims it may not have its definition. */
export interface Policy {
  attempts: number;
  backoff: "exponential" | "fixed";
  delay: number;
  maxDelay: number;
  crashes: number;
  onInterrupt: "retry" | "fail" | "resume";
  timeout: number;
}

/** A job's failures so far. `attempt` counts starts that were not given back; a stall counts as a crash. */
export interface History {
  attempt: number;
  errors: number;
  crashes: number;
}

export type Outcome =
  | { kind: "succeeded"; output: string | null }
  /** The handler threw, or exceeded its timeout. `retry: false` fails now; `delay` overrides the backoff. */
  | { kind: "error"; error: JobError; retry?: boolean; delay?: number }
  | { kind: "later"; delay: number; error: JobError }
  | { kind: "unreadable"; error: JobError }
  /** Given back before its handler was called, or on the holder's request; no attempt is charged. */
  | { kind: "released" }
  /** The worker stopped, or the host restarted, during the attempt; no attempt is charged. */
  | { kind: "interrupted" }
  | { kind: "stalled" }
  | { kind: "crashed" };

/** What the store writes. `delay` counts from the store's own now. */
export interface Next {
  state: Exclude<JobState, "waiting" | "running" | "cancelled">;
  delay: number;
  attempt: number;
  errors: number;
  crashes: number;
  error: JobError | null;
  dropCheckpoint: boolean;
  /** Set by the store if the job is cancelled instead, because a newer job with its key takes its place. */
  replaced?: boolean;
}

export function decide(history: History, policy: Policy, outcome: Outcome, random: number): Next {
  switch (outcome.kind) {
    case "succeeded":
      return next(history, "succeeded", { dropCheckpoint: true });
    case "error": {
      const errors = history.errors + 1;
      if (outcome.retry === false || errors >= policy.attempts) return next(history, "failed", { errors, error: outcome.error });
      return next(history, "pending", { errors, error: outcome.error, delay: outcome.delay ?? backoff(policy, errors, random) });
    }
    case "later":
      return next(history, "pending", { attempt: history.attempt - 1, error: outcome.error, delay: outcome.delay });
    case "unreadable":
      return next(history, "quarantined", { error: outcome.error });
    case "released":
      return next(history, "pending", { attempt: history.attempt - 1 });
    case "interrupted":
      return interrupted({ ...history, attempt: history.attempt - 1 }, policy, 0);
    case "stalled":
      // A stall ends the job only beyond the limit, not at it, because a suspended process stalls once.
      return afterCrash(history, policy, { limit: policy.crashes + 1, error: stallError, random });
    case "crashed":
      return afterCrash(history, policy, { limit: policy.crashes, error: crashError, random });
  }
}

export function isDelayed({ state, delay }: Next): boolean {
  return state === "pending" && delay > 0;
}

/** Whether the handler was called. If it was not, the job returns its token to the rate. */
export function hasBegun({ kind }: Outcome): boolean {
  return kind !== "released";
}

export interface Reclaimed {
  entries: number;
  quarantined: number;
  failed: number;
  replaced: number;
}

export const NOTHING_RECLAIMED: Reclaimed = { entries: 0, quarantined: 0, failed: 0, replaced: 0 };

export function reclaimedOf(nexts: readonly Pick<Next, "state" | "replaced">[]): Reclaimed {
  const count = (state: Next["state"]) => nexts.filter((next) => next.state === state).length;
  const replaced = nexts.filter((next) => next.replaced).length;
  return { entries: nexts.length, quarantined: count("quarantined"), failed: count("failed"), replaced };
}

export function crashError(crashes: number, limit?: number): JobError {
  return {
    name: "CrashError",
    code: "CRASHED",
    message: `The worker crashed or its lease expired (crash ${crashes}${limit === undefined ? "" : ` of ${limit}`}).`,
  };
}

export function stallError(crashes: number): JobError {
  return {
    name: "StallError",
    code: "STALLED",
    message: `Its lease ran out under a worker that was alive. Its crashes and stalls: ${crashes}.`,
  };
}

interface Quarantine {
  limit: number;
  error: (crashes: number, limit: number) => JobError;
  random: number;
}

function afterCrash(history: History, policy: Policy, { limit, error, random }: Quarantine): Next {
  const crashes = history.crashes + 1;
  if (crashes >= limit) return next(history, "quarantined", { crashes, error: error(crashes, limit) });
  // The first crash may be a neighbour's fault, so it causes no delay. From the second crash on the job waits.
  return interrupted({ ...history, crashes }, policy, crashes === 1 ? 0 : backoff(policy, crashes - 1, random));
}

function interrupted(history: History, policy: Policy, delay: number): Next {
  if (policy.onInterrupt !== "fail") return next(history, "pending", { delay, dropCheckpoint: policy.onInterrupt === "retry" });
  const error = {
    name: "InterruptedError",
    code: "INTERRUPTED",
    message: 'Its worker went away in the middle, and onInterrupt is "fail".',
  };
  return next(history, "failed", { error });
}

function next(history: History, state: Next["state"], rest: Partial<Next>): Next {
  return { delay: 0, error: null, dropCheckpoint: false, ...history, ...rest, state };
}

/** Returns the delay of a retry. Its upper half has jitter, so that jobs that failed together do not come back together. */
export function backoff(policy: Policy, failures: number, random: number): number {
  if (policy.backoff === "fixed") return policy.delay;
  const full = Math.min(policy.maxDelay, policy.delay * 2 ** Math.min(failures - 1, 40));
  return Math.round(full / 2 + (full / 2) * random);
}
