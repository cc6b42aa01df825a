import type { Clock } from "../core/text/duration.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { toJobError } from "../core/jobs/job.ts";
import { fromJson, toJson } from "../core/text/json.ts";
import type { LeaseRef } from "../core/jobs/lease.ts";
import type { Outcome } from "../core/jobs/retry.ts";
import { parse } from "../core/jobs/run-options.ts";
import { isThenable, storable } from "../core/text/text.ts";
import type { Log } from "./log.ts";
import { failForGood, outcomeOf, unreadable } from "./outcome.ts";
import { said } from "./failure-log.ts";
import type { ClaimSource, ProgressReport, Store } from "../store/store.ts";
import { type Attempt, contextFor, Ending, type Runnable } from "./attempt.ts";
import type { Definition } from "./definition.ts";
import type { Engine } from "./engine.ts";

/**
 * Runs handlers: the stored input through the schema, the handler, its output through the schema. Whatever goes wrong
 * becomes an outcome. Where nothing is asynchronous, it is over when `run` returns: a promise a job would be dear.
 */
export class Executor {
  readonly #engine: Engine;
  readonly #progress: ProgressWriter;
  readonly #finish: (attempt: Attempt, outcome: Outcome) => void;

  constructor(engine: Engine, progress: ProgressWriter, finish: (attempt: Attempt, outcome: Outcome) => void) {
    this.#engine = engine;
    this.#progress = progress;
    this.#finish = finish;
  }

  run(attempt: Attempt): void {
    let input: unknown;
    try {
      input = inputOf(attempt);
    } catch (error) {
      return this.#finish(attempt, unreadable(error));
    }
    if (input instanceof Promise) {
      input.then(
        (parsed) => this.#call(attempt, parsed),
        (error: unknown) => this.#finish(attempt, unreadable(error)),
      );
    } else this.#call(attempt, input);
  }

  #call(attempt: Attempt, input: unknown): void {
    const { run, perform } = attempt.runnable.def;
    let result: unknown;
    let later: boolean;
    try {
      const context = contextFor(this.#engine, this.#progress, attempt, input);
      result = perform === undefined ? (run as NonNullable<Definition["run"]>)(context) : perform(attempt, context);
      later = isThenable(result);
    } catch (error) {
      return this.#threw(attempt, error);
    }
    if (!later) return this.#returned(attempt, result);
    // A foreign thenable may throw, or call back twice; a promise around it does not.
    const promise = result instanceof Promise ? result : Promise.resolve(result);
    promise.then(
      (output) => this.#returned(attempt, output),
      (error: unknown) => this.#threw(attempt, error),
    );
  }

  #returned(attempt: Attempt, output: unknown): void {
    try {
      const { def } = attempt.runnable;
      const checked = def.output === undefined ? output : parse(def.output, output, `The output of job "${def.name}"`);
      if (checked instanceof Promise) {
        checked.then(
          (late) => this.#succeeded(attempt, late),
          (error: unknown) => this.#finish(attempt, failForGood(toJobError(error))),
        );
      } else this.#succeeded(attempt, checked);
    } catch (error) {
      // Running it again would give the same.
      this.#finish(attempt, failForGood(toJobError(error)));
    }
  }

  #succeeded(attempt: Attempt, output: unknown): void {
    let text: string | null;
    try {
      text = toJson(output, "The output");
    } catch (error) {
      return this.#finish(attempt, failForGood(toJobError(error)));
    }
    this.#finish(attempt, { kind: "succeeded", output: text });
  }

  #threw(attempt: Attempt, error: unknown): void {
    if (error instanceof Ending) this.#finish(attempt, error.outcome);
    else if (attempt.gaveUp(error)) this.#finish(attempt, { kind: "interrupted" });
    else this.#finish(attempt, outcomeOf(error, this.#engine.clock));
  }
}

function inputOf({ claimed, runnable: { def } }: Attempt): unknown {
  const input = fromJson(claimed.input);
  return def.input === undefined ? input : parse(def.input, input, `The stored input of job ${claimed.id}`);
}

/** What a worker runs: each name and version once, with its handler. */
export class Runnables {
  readonly #runnables = new Map<string, Runnable>();
  /** The same list for every claim, so that the store can keep what it matches. */
  readonly #sources: ClaimSource[] = [];
  /** Those whose `max` changes from claim to claim. */
  readonly #bounded: Runnable[] = [];

  constructor(defs: readonly Definition[]) {
    for (const def of defs) this.#add(def);
  }

  /** A worker claims only what it runs, so it is always there. */
  of(job: { name: string; version: number }): Runnable {
    return this.#runnables.get(idOf(job)) as Runnable;
  }

  /** What may be claimed now, by each definition's own concurrency. */
  sources(): ClaimSource[] {
    for (const { def, source, held } of this.#bounded) {
      if (def.isResting?.() === true) source.max = 0;
      else if (def.concurrency !== undefined) source.max = Math.max(0, def.concurrency - held);
      else delete source.max;
    }
    return this.#sources;
  }

  #add(def: Definition): void {
    if (def.run === undefined && def.perform === undefined) {
      throw new HoldfastError("NO_HANDLER", `Job "${def.name}" has no handler.`, "Give `run` in job({ … }), or def.handle(run).");
    }
    const id = idOf(def);
    if (this.#runnables.has(id)) {
      throw new HoldfastError(
        "JOB_TWICE",
        `Job "${def.name}", version ${def.version}, was given twice.`,
        "Give each job once, or another name or version.",
      );
    }
    const { name, version, lease, queue } = def;
    const runnable: Runnable = { def, source: { name, version, lease, ...(def.bound ? { queue } : {}) }, held: 0 };
    this.#runnables.set(id, runnable);
    this.#sources.push(runnable.source);
    if (def.isResting !== undefined || def.concurrency !== undefined) this.#bounded.push(runnable);
  }
}

function idOf(job: { name: string; version: number }): string {
  return `${job.name}\n${job.version}`;
}

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
