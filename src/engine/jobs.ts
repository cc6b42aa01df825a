import { type Duration, toMillis } from "../core/text/duration.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { type Finished, isFinished, type Job, JOB_STATES, type JobState } from "../core/jobs/job.ts";
import { checkCount, checkOneOf, checkSignal, describeValue, invalidOption, refuseUnknown } from "../core/text/options.ts";
import { checkStorable } from "../core/text/text.ts";
import { incompleteOf, notReadable, type ReadOptions, refuseMissing } from "./readable.ts";
import type { Enqueued } from "./context.ts";
import type { Engine } from "./engine.ts";

/** A list's part, in creation order; `next` is an opaque cursor for `after`. */
export interface Page<T> {
  items: T[];
  next?: string;
  /** Why something may be missing: the database is damaged, or commits are known to be gone. Left out: nothing is known to be. */
  incomplete?: string;
}

export interface ListOptions {
  queue?: string;
  name?: string;
  state?: JobState;
  limit?: number;
  after?: string | undefined;
}

/** Looking at jobs, and an operator's hand on them. */
export class Jobs {
  readonly #engine: Engine;
  readonly #refuseClosed: () => void;
  readonly #over: AbortSignal;

  /** @internal `over` aborts when the handle's workers have stopped: what ended while they drained can still be waited for. */
  constructor(engine: Engine, refuseClosed: () => void, over: AbortSignal) {
    this.#engine = engine;
    this.#refuseClosed = refuseClosed;
    this.#over = over;
  }

  async get(id: string): Promise<Job | null> {
    this.#refuseClosed();
    checkId(id);
    const job = await this.#engine.store.look.get(id);
    const { damaged } = this.#engine.store.damage;
    if (job === null && damaged !== null) throw notReadable(`Job ${id}`, damaged);
    return job;
  }

  async list(options: ListOptions = {}): Promise<Page<Job>> {
    this.#refuseClosed();
    refuseUnknown(options, ["queue", "name", "state", "limit", "after"], "jobs.list");
    const { limit = 100 } = options;
    if (options.state !== undefined) checkOneOf(options.state, JOB_STATES, "state");
    if (options.after !== undefined && !(typeof options.after === "string" && /^\d{1,16}$/.test(options.after))) {
      throw invalidOption(
        `\`after\` must be a cursor, got ${describeValue(options.after)}.`,
        "Give the `next` of the page before.",
      );
    }
    checkFilter(options);
    const page = await this.#engine.store.look.list({
      limit: checkCount(limit, "limit", 1),
      ...(options.queue === undefined ? {} : { queue: options.queue }),
      ...(options.name === undefined ? {} : { name: options.name }),
      ...(options.state === undefined ? {} : { state: options.state }),
      ...(options.after === undefined ? {} : { after: options.after }),
    });
    return { ...page, ...incompleteOf(this.#engine.store.damage) };
  }

  /**
   * How many jobs are in each state. Rejects with `DAMAGED` where commits cannot be read, which would be missing in the
   * numbers; with `incomplete: true`, what can be read is counted.
   */
  async counts(options: { queue?: string; name?: string } & ReadOptions = {}): Promise<Record<JobState, number>> {
    this.#refuseClosed();
    refuseUnknown(options, ["queue", "name", "incomplete"], "jobs.counts");
    const { queue, name, ...how } = options;
    const filter = { ...(queue === undefined ? {} : { queue }), ...(name === undefined ? {} : { name }) };
    checkFilter(filter);
    const { damage, look } = this.#engine.store;
    await refuseMissing(damage, how, "jobs.counts", "Jobs cannot be counted");
    return look.counts(filter);
  }

  /** True when it was not finished yet. A running handler's signal aborts, and nothing of it is kept. */
  async cancel(id: string): Promise<boolean> {
    this.#refuseClosed();
    checkId(id);
    return this.#engine.store.cancel(id);
  }

  /** A failed or quarantined job starts anew, with fresh counts. */
  async retry(id: string): Promise<boolean> {
    this.#refuseClosed();
    checkId(id);
    const retried = await this.#engine.store.retry(id);
    if (retried !== "key-taken") return retried;
    throw new HoldfastError(
      "KEY_TAKEN",
      `Another unfinished job has the key of job ${id} by now.`,
      "Let that one finish, or cancel it first.",
    );
  }

  /** Resolves when the job has ended, however it ended. */
  async wait<Out>(
    job: Enqueued<Out> | string,
    options: { timeout?: Duration; signal?: AbortSignal } = {},
  ): Promise<Finished<Out>> {
    const id = checkId(typeof job === "object" && job !== null ? job.id : job);
    refuseUnknown(options, ["timeout", "signal"], "jobs.wait");
    if (options.signal !== undefined) checkSignal(options.signal, "signal");
    const timeout = options.timeout === undefined ? null : toMillis(options.timeout, "timeout");
    const stop = new AbortController();
    const cancel = timeout === null ? () => {} : this.#engine.clock.after(timeout, () => stop.abort(waitedLong(id, timeout)));
    const signal = options.signal === undefined ? stop.signal : AbortSignal.any([options.signal, stop.signal]);
    try {
      for await (const seen of this.#follow(id, signal)) if (isFinished(seen.state)) return seen as Finished<Out>;
      throw signal.reason;
    } finally {
      cancel();
    }
  }

  /** The job as it is, then each time it changes, until it has ended. */
  async *watch(id: string, options: { signal?: AbortSignal } = {}): AsyncGenerator<Job> {
    refuseUnknown(options, ["signal"], "jobs.watch");
    if (options.signal !== undefined) checkSignal(options.signal, "signal");
    for await (const seen of this.#follow(id, options.signal ?? new AbortController().signal)) {
      yield seen;
      if (isFinished(seen.state)) return;
    }
  }

  async *#follow(id: string, signal: AbortSignal): AsyncGenerator<Job> {
    this.#refuseClosed();
    checkId(id);
    const stop = AbortSignal.any([signal, this.#over]);
    const news = new News(this.#engine, stop);
    try {
      let last = "";
      while (!stop.aborted) {
        const seen = await this.#engine.store.look.get(id);
        if (seen === null) throw noSuchJob(id);
        // A lease that was only renewed is no change of the job.
        const text = JSON.stringify({ ...seen, leaseExpiresAt: undefined });
        if (text !== last) yield seen;
        last = text;
        await news.next();
      }
      if (!signal.aborted) throw this.#over.reason;
    } finally {
      news.close();
    }
  }
}

/** Up to here everybody who waits looks after each commit; more of them take their time, or they would do nothing else. */
const EAGER = 50;
const PER_MILLISECOND = 20;

/** Tells once for any number of changes since it was last asked; it keeps the process alive while somebody waits. */
class News {
  static #open = 0;
  readonly #stop: () => void;
  #fresh = false;
  #tell: (() => void) | null = null;

  constructor(engine: Engine, signal: AbortSignal) {
    News.#open++;
    const heard = () => {
      this.#fresh = true;
      this.#tell?.();
    };
    const unlisten = engine.store.onChange(heard);
    signal.addEventListener("abort", heard);
    this.#stop = () => {
      unlisten();
      signal.removeEventListener("abort", heard);
    };
  }

  async next(): Promise<void> {
    if (News.#open > EAGER) await new Promise((resolve) => setTimeout(resolve, News.#open / PER_MILLISECOND));
    if (!this.#fresh) {
      const stay = setInterval(() => {}, 2 ** 30);
      await new Promise<void>((resolve) => (this.#tell = resolve));
      clearInterval(stay);
    }
    this.#fresh = false;
    this.#tell = null;
  }

  close(): void {
    News.#open--;
    this.#stop();
  }
}

function checkId(id: unknown): string {
  if (typeof id === "string") return checkStorable(id, "The id");
  throw invalidOption(`The id of a job must be a string, got ${describeValue(id)}.`, "Give the id that enqueue returned.");
}

function checkFilter({ queue, name }: { queue?: string; name?: string }): void {
  if (queue !== undefined) checkStorable(queue, "The queue");
  if (name !== undefined) checkStorable(name, "The name");
}

function noSuchJob(id: string): HoldfastError {
  return new HoldfastError("NO_SUCH_JOB", `There is no job ${id}.`, "It may have been pruned; check the id and the database.");
}

function waitedLong(id: string, timeout: number): HoldfastError {
  return new HoldfastError(
    "WAIT_TIMEOUT",
    `Job ${id} did not end within ${timeout} ms.`,
    "Wait longer, or look at it with jobs.get; it goes on.",
  );
}
