import { logLine, type LogLine } from "../core/jobs/attempts.ts";
import type { LeaseRef } from "../core/jobs/lease.ts";
import type { Clock } from "../core/text/duration.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { toStorable } from "../core/text/text.ts";
import type { AttemptLog, ProgressReport, Store, Claimed, Settlement } from "../store/store.ts";
import { describeError, type Log } from "./log.ts";
import {
  countAttempt,
  type EndedAttempt,
  MINUTE_MS,
  type MinuteCounts,
  noMinute,
  type QueueMinute,
} from "../core/jobs/minutes.ts";
import type { Job } from "../core/jobs/job.ts";
import type { Next } from "../core/jobs/retry.ts";
import type { Attempt } from "./attempt.ts";

const WRITE_INTERVAL_MS = 200;

export class ProgressWriter {
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #log: Log;
  #reports = new Map<number, ProgressReport>();
  #logs: OpenLog[] = [];
  #cancel: (() => void) | null = null;

  constructor(parts: { store: Store; clock: Clock; log: Log }) {
    ({ store: this.#store, clock: this.#clock, log: this.#log } = parts);
  }

  report(lease: LeaseRef, fraction: number, message?: string): void {
    checkFraction(fraction);
    // Progress is for people, so a text that cannot be stored must not fail the attempt.
    const text = message === undefined ? null : toStorable(String(message));
    this.#reports.set(lease.job, { job: lease.job, fence: lease.fence, fraction, message: text });
    this.#flushSoon();
  }

  /** Returns the log of a handler. If its queue keeps lines, all but those of `debug` are also stored with the attempt. */
  keepLog({ job, fence }: LeaseRef, keep: number, log: Log): Log {
    if (keep === 0) return log;
    const open: OpenLog = { job, fence, keep, first: 1, lines: [] };
    const at = (level: LogLine["level"]) => (message: string, data?: object) => {
      log[level](message, data);
      this.#add(open, logLine(this.#clock.now(), level, message, data));
    };
    return { debug: log.debug, info: at("info"), warn: at("warn"), error: at("error") };
  }

  #add(open: OpenLog, line: LogLine): void {
    if (open.lines.push(line) === 1) this.#logs.push(open);
    if (open.lines.length > open.keep) {
      open.lines.shift();
      open.first++;
    }
    this.#flushSoon();
  }

  #flushSoon(): void {
    this.#cancel ??= this.#clock.after(WRITE_INTERVAL_MS, () => this.flush());
  }

  /** Writes the reports in the background. The store drops those of lost leases. */
  flush(): void {
    if (this.#cancel === null) return;
    this.#cancel();
    this.#cancel = null;
    const reports = [...this.#reports.values(), ...this.#logs.map(takeLines)];
    this.#reports = new Map();
    this.#logs = [];
    if (reports.length === 0) return;
    this.#store
      .saveProgress(reports)
      .catch((error: unknown) => this.#log.warn("progress and log lines were not written", describeError(error)));
  }
}

interface OpenLog extends AttemptLog {
  lines: LogLine[];
}

function takeLines(open: OpenLog): AttemptLog {
  const taken = { ...open };
  open.first += open.lines.length;
  open.lines = [];
  return taken;
}

export function checkFraction(fraction: number): void {
  if (fraction >= 0 && fraction <= 1) return;
  throw new HoldfastError(
    "NUMBER_INVALID",
    `progress must be a number from 0 to 1, got ${String(fraction)}.`,
    "Give a fraction from 0 to 1.",
  );
}

const KEPT_MINUTES = 7 * 24 * 60;

type StartedJob = Pick<Job, "queue" | "attempt" | "createdAt" | "runAt">;

/** Counts ended attempts in memory, and adds them to the database once a minute. A killed worker loses its counts since. */
export class MinuteRecorder {
  readonly #parts: { store: Store; clock: Clock; log: Log };
  readonly #counted = new Map<string, MinuteCounts>();
  #minute = 0;
  #cancel: (() => void) | null = null;

  constructor(parts: { store: Store; clock: Clock; log: Log }) {
    this.#parts = parts;
  }

  /** Counts an attempt whose outcome is written, unless it was released or interrupted. */
  count({ claimed, outcome, decided, runMs }: Pick<Attempt, "claimed" | "outcome" | "decided" | "runMs">): void {
    const end = endOf(outcome, decided);
    if (end !== null) this.#add(claimed, end, runMs, claimed.expiresAt - claimed.lease);
  }

  countClaim(job: Job, { outcome, decided }: Pick<Settlement, "outcome" | "decided">): void {
    const end = endOf(outcome, decided);
    const { startedAt = job.createdAt } = job;
    if (end !== null) this.#add(job, end, this.#parts.clock.now() - startedAt, startedAt, true);
  }

  countTimeout(claimed: Claimed, { state }: Next): void {
    this.#add(claimed, state === "pending" ? "retried" : "failed", claimed.policy.timeout, claimed.expiresAt - claimed.lease);
  }

  #add(job: StartedJob, end: EndedAttempt["end"], runMs: number, startedAt: number, byHand = false): void {
    const { queue, attempt, createdAt, runAt } = job;
    const waitMs = attempt === 1 ? startedAt - Math.max(createdAt, runAt) : null;
    let counts = this.#counted.get(queue);
    if (counts === undefined) this.#counted.set(queue, (counts = noMinute()));
    countAttempt(counts, { end, waitMs, runMs, byHand });
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

function endOf(outcome: Settlement["outcome"], decided: Settlement["decided"]): EndedAttempt["end"] | null {
  if (outcome.kind === "released" || outcome.kind === "interrupted") return null;
  if (outcome.kind === "succeeded") return "succeeded";
  return decided?.state === "pending" ? "retried" : "failed";
}
