import { logLine, type LogLine } from "../core/jobs/attempts.ts";
import type { LeaseRef } from "../core/jobs/lease.ts";
import type { Clock } from "../core/text/duration.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { toStorable } from "../core/text/text.ts";
import type { AttemptLog, ProgressReport, Store } from "../store/store.ts";
import { describeError, type Log } from "./log.ts";

const WRITE_INTERVAL_MS = 200;

/** Writes what running attempts report, progress and log lines, in batches. */
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
    // Progress is for people, and no reason to fail.
    const text = message === undefined ? null : toStorable(String(message));
    this.#reports.set(lease.job, { job: lease.job, fence: lease.fence, fraction, message: text });
    this.#flushSoon();
  }

  /** The log of a handler. Where its queue keeps lines, they are also stored with the attempt, but for those of `debug`. */
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

  /** The store drops reports of lost leases. */
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
