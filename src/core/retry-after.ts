import { type Duration, toMillis } from "./duration.ts";

/**
 * Thrown by a handler: run again then, without charging an attempt.
 *
 * ```ts
 * if (response.status === 429) throw new RetryAfterError("30s", "the API is busy");
 * ```
 */
export class RetryAfterError extends Error {
  readonly after: number | Date;

  constructor(after: Duration | Date, message = "again later") {
    super(message);
    this.name = "RetryAfterError";
    // A date that is none is no duration either, and says so.
    const isTime = after instanceof Date && !Number.isNaN(after.getTime());
    this.after = isTime ? after : toMillis(after as Duration, "RetryAfterError's delay");
  }
}
