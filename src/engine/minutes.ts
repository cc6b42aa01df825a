import {
  countAttempt,
  type EndedAttempt,
  MINUTE_MS,
  type MinuteCounts,
  noMinute,
  type QueueMinute,
} from "../core/jobs/minutes.ts";
import type { Job } from "../core/jobs/job.ts";
import type { Clock } from "../core/text/duration.ts";
import type { Claimed, Settlement, Store } from "../store/store.ts";
import type { Attempt } from "./attempt.ts";
import { describeError, type Log } from "./log.ts";

const KEPT_MINUTES = 7 * 24 * 60;

type StartedJob = Pick<Job, "queue" | "attempt" | "createdAt" | "runAt">;

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
    const end = endOf(outcome, decided);
    if (end !== null) this.#add(claimed, end, runMs, claimed.expiresAt - claimed.lease);
  }

  /** An attempt that was claimed by hand, with its job as it was claimed. */
  countClaim(job: Job, { outcome, decided }: Pick<Settlement, "outcome" | "decided">): void {
    const end = endOf(outcome, decided);
    const { startedAt = job.createdAt } = job;
    if (end !== null) this.#add(job, end, this.#parts.clock.now() - startedAt, startedAt);
  }

  /** The keeper has ended it, by the same policy. */
  countTimeout(claimed: Claimed): void {
    const { attempt, policy, expiresAt, lease } = claimed;
    this.#add(claimed, attempt < policy.attempts ? "retried" : "failed", policy.timeout, expiresAt - lease);
  }

  #add(job: StartedJob, end: EndedAttempt["end"], runMs: number, startedAt: number): void {
    const { queue, attempt, createdAt, runAt } = job;
    const waitMs = attempt === 1 ? startedAt - Math.max(createdAt, runAt) : null;
    this.#record(queue, { end, waitMs, runMs });
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

/** Null: given back. */
function endOf(outcome: Settlement["outcome"], decided: Settlement["decided"]): EndedAttempt["end"] | null {
  if (outcome.kind === "released" || outcome.kind === "interrupted") return null;
  if (outcome.kind === "succeeded") return "succeeded";
  return decided?.state === "pending" ? "retried" : "failed";
}
