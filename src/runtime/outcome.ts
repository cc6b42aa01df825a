import type { Clock } from "../core/clock.ts";
import { NonRetryableError } from "../core/errors.ts";
import { type JobError, toJobError } from "../core/job.ts";
import type { Outcome } from "../core/retry.ts";
import { RetryAfterError } from "../core/retry-after.ts";

/** What a thrown value means for the attempt. Names are looked at too: an app may hold two copies of this package. */
export function outcomeOf(thrown: unknown, clock: Clock): Outcome {
  const error = toJobError(thrown);
  if (isNamed(thrown, RetryAfterError, "RetryAfterError")) return { kind: "later", delay: delayOf(thrown, clock), error };
  if (isNamed(thrown, NonRetryableError, "NonRetryableError")) return { kind: "error", error, retry: false };
  return { kind: "error", error };
}

export function unreadable(thrown: unknown): Outcome {
  return { kind: "unreadable", error: toJobError(thrown) };
}

export function failForGood(error: JobError): Outcome {
  return { kind: "error", error, retry: false };
}

function delayOf(error: RetryAfterError, clock: Clock): number {
  return Math.max(0, error.after instanceof Date ? error.after.getTime() - clock.now() : error.after);
}

function isNamed<T extends Error>(thrown: unknown, kind: new (...args: never[]) => T, name: string): thrown is T {
  return thrown instanceof kind || (thrown instanceof Error && thrown.name === name);
}
