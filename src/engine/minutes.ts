import {
  countAttempt,
  type EndedAttempt,
  MINUTE_MS,
  type MinuteCounts,
  noMinute,
  type QueueMinute,
} from "../core/jobs/minutes.ts";
import type { Clock } from "../core/text/duration.ts";
import type { Claimed, Store } from "../store/store.ts";
import type { Attempt } from "./attempt.ts";
import { describeError, type Log } from "./log.ts";

const KEPT_MINUTES = 7 * 24 * 60;

/** Counts ended attempts in memory, and adds them to the database once a minute: what a killed worker counted since is lost. */
export class MinuteRecorder {
  readonly #parts: { store: Store; clock: Clock; log: Log };
  readonly #counted = new Map<string, MinuteCounts>();
  #minute = 0;
  #cancel: (() => void) | null = null;

  constructor(parts: { store: Store; clock: Clock; log: Log }) {
    this.#parts = parts;
  }

  /** An attempt whose end is written. Those that were given back are not counted. */
  count({ claimed, outcome, decided, runMs }: Pick<Attempt, "claimed" | "outcome" | "decided" | "runMs">): void {
    if (outcome.kind === "released" || outcome.kind === "interrupted") return;
    this.#add(claimed, outcome.kind === "succeeded" ? "succeeded" : decided?.state === "pending" ? "retried" : "failed", runMs);
  }

  /** The keeper has ended it, by the same policy. */
  countTimeout(claimed: Claimed): void {
    this.#add(claimed, claimed.attempt < claimed.policy.attempts ? "retried" : "failed", claimed.policy.timeout);
  }

  #add(claimed: Claimed, end: EndedAttempt["end"], runMs: number): void {
    const readyAt = Math.max(claimed.createdAt, claimed.scheduledFor ?? 0);
    const waitMs = claimed.attempt === 1 ? claimed.expiresAt - claimed.lease - readyAt : null;
    this.#record(claimed.queue, { end, waitMs, runMs });
  }

  #record(queue: string, attempt: EndedAttempt): void {
    let counts = this.#counted.get(queue);
    if (counts === undefined) this.#counted.set(queue, (counts = noMinute()));
    countAttempt(counts, attempt);
    if (this.#cancel !== null) return;
    const now = this.#parts.clock.now();
    this.#minute = Math.floor(now / MINUTE_MS);
    this.#cancel = this.#parts.clock.after(MINUTE_MS - (now % MINUTE_MS), () => void this.flush());
  }

  async flush(): Promise<void> {
    this.#cancel?.();
    this.#cancel = null;
    if (this.#counted.size === 0) return;
    const minutes = [...this.#counted].map(([queue, counts]): QueueMinute =>
      Object.assign(counts, { queue, minute: this.#minute }),
    );
    this.#counted.clear();
    try {
      await this.#parts.store.queues.addMinutes(minutes, this.#minute - KEPT_MINUTES);
    } catch (error) {
      this.#parts.log.warn("the counts of a minute could not be written, and are lost", describeError(error));
    }
  }
}
