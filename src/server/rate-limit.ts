import { HoldfastError } from "../core/text/errors.ts";

const PER_SECOND = 2_000;
const BURST = 4_000;
/** Of more users than this, those that were idle longest start with a full bucket again. */
const MAX_USERS = 1_000;

/** A token bucket for each user: one client cannot take all of the server. */
export class RateLimit {
  readonly #buckets = new Map<string, { left: number; at: number }>();

  take(user: string): void {
    const now = performance.now();
    const bucket = this.#buckets.get(user) ?? { left: BURST, at: now };
    bucket.left = Math.min(BURST, bucket.left + ((now - bucket.at) / 1_000) * PER_SECOND) - 1;
    bucket.at = now;
    // The map keeps the order of insertion: the last one is the newest.
    this.#buckets.delete(user);
    this.#buckets.set(user, bucket);
    if (this.#buckets.size > MAX_USERS) this.#buckets.delete(this.#buckets.keys().next().value as string);
    if (bucket.left >= 0) return;
    bucket.left = 0;
    throw new HoldfastError(
      "TOO_MANY_REQUESTS",
      `More than ${PER_SECOND} requests a second were sent.`,
      "Send fewer requests, or claim several jobs at once.",
    );
  }
}
