import type { Clock } from "../core/text/duration.ts";
import { NonRetryableError } from "../core/text/errors.ts";
import { type JobError, toJobError } from "../core/jobs/job.ts";
import { RetryAfterError } from "../core/jobs/event.ts";
import type { Outcome } from "../core/jobs/retry.ts";

/** What a thrown value means for the attempt. Names are looked at too: an app may hold two copies of this package. */
export function outcomeOf(thrown: unknown, clock: Clock): Outcome {
  const error = toJobError(thrown);
  if (error.name === "NonRetryableError" || thrown instanceof NonRetryableError) return { kind: "error", error, retry: false };
  if (error.name === "RetryAfterError" || thrown instanceof RetryAfterError) {
    const delay = delayOf(thrown as RetryAfterError, clock);
    if (Number.isFinite(delay)) return { kind: "later", delay, error };
  }
  return { kind: "error", error };
}

export function unreadable(thrown: unknown): Outcome {
  return { kind: "unreadable", error: toJobError(thrown) };
}

export function failForGood(error: JobError): Outcome {
  return { kind: "error", error, retry: false };
}

/** What is written of an attempt whose own end can never be written, and why not. */
export function unwritable(outcome: Outcome, error: JobError): Outcome {
  switch (outcome.kind) {
    case "succeeded":
      return failForGood(error);
    case "error":
    case "later":
    case "unreadable":
      return { ...outcome, error };
    default:
      return outcome;
  }
}

function delayOf({ after }: RetryAfterError, clock: Clock): number {
  return Math.max(0, after instanceof Date ? after.getTime() - clock.now() : Number(after));
}
