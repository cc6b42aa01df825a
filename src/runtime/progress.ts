import type { Clock } from "../core/clock.ts";
import { HoldfastError } from "../core/errors.ts";
import type { LeaseRef } from "../core/lease.ts";
import { storable } from "../core/text.ts";
import type { ProgressReport, Store } from "../store/store.ts";
import type { Log } from "./log.ts";
import { said } from "./trouble.ts";

/** Progress may be this late on disk. */
const INTERVAL = 200;

/** Writes progress back in batches: the newest report of each job, a few times a second. */
export class ProgressWriter {
  readonly #store: Store;
  readonly #clock: Clock;
  readonly #log: Log;
  #reports = new Map<number, ProgressReport>();
  #cancel: (() => void) | null = null;

  constructor(parts: { store: Store; clock: Clock; log: Log }) {
    this.#store = parts.store;
    this.#clock = parts.clock;
    this.#log = parts.log;
  }

  report(lease: LeaseRef, fraction: number, message?: string): void {
    checkFraction(fraction);
    // It is for people to read, and no reason to fail.
    const said = message === undefined ? null : storable(String(message));
    this.#reports.set(lease.job, { job: lease.job, fence: lease.fence, fraction, message: said });
    this.#cancel ??= this.#clock.after(INTERVAL, () => this.flush());
  }

  /** What is known so far, to the store; a report of a lease that is gone is dropped there. */
  flush(): void {
    this.#cancel?.();
    this.#cancel = null;
    if (this.#reports.size === 0) return;
    const reports = [...this.#reports.values()];
    this.#reports = new Map();
    this.#store.saveProgress(reports).catch((error: unknown) => this.#log.warn("progress was not written", said(error)));
  }
}

export function checkFraction(fraction: number): void {
  if (fraction >= 0 && fraction <= 1) return;
  throw new HoldfastError("NUMBER_INVALID", `progress is ${String(fraction)}.`, "Give a fraction from 0 to 1.");
}
