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
    this.after = after instanceof Date ? after : toMillis(after, "RetryAfterError's delay");
  }
}
