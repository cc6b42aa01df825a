import type { AttemptView } from "../core/jobs/attempts.ts";
import { explain, type Explanation } from "../core/jobs/explain.ts";
import {
  type Finished,
  isFinished,
  type Job,
  type JobState,
  type SqliteHandle,
  type TransactionHandle,
} from "../core/jobs/job.ts";
import { checkJobFilter, FILTER_OPTIONS, type JobFilter } from "../core/jobs/filter.ts";
import { isProvenDead } from "../core/jobs/lease.ts";
import { type Duration, toMillis } from "../core/text/duration.ts";
import {
  checkBoolean,
  checkCount,
  checkName,
  checkOneOf,
  checkSignal,
  definedOnly,
  describeValue,
  invalidOption,
  limitArguments,
  refuseUnknown,
} from "../core/text/options.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { checkStorable, isAsyncFunction, isThenable } from "../core/text/text.ts";
import { countJobs } from "../store/queries.ts";
import type { DamageStore, Enqueued as StoreEnqueued, NewJob, Store } from "../store/store.ts";
import type { Enqueued } from "../core/pipelines/stage.ts";
import { changeMatching, type MatchingResult } from "./all-matching.ts";
import type { Engine } from "./engine.ts";
import { bootId } from "./host.ts";

/** One page of a list. `next` is an opaque cursor for `after`. */
export interface Page<T> {
  items: T[];
  next?: string;
  /** Why items may be missing: the database is damaged, or lacks commits. Absent if neither is known. */
  incomplete?: string;
}

interface ListOptions extends JobFilter {
  /** By creation. Default: "oldest" first. */
  order?: "newest" | "oldest";
  /** Default: 100. */
  limit?: number;
  after?: string | undefined;
}

export class Jobs {
  static {
    const all = { retryAll: 1, cancelAll: 1, removeAll: 1 } as const;
    const one = { get: 1, attempts: 1, explain: 1, list: 1, counts: 1, cancel: 1, retry: 1 } as const;
    limitArguments(this.prototype, "jobs", { ...one, ...all, wait: 2, watch: 2 }, (jobs) => jobs.#refuseClosed());
  }

  readonly #engine: Engine;
  readonly #refuseClosed: () => void;
  readonly #over: AbortSignal;

  /** @internal `over` aborts when the handle's workers have stopped: jobs that end while they drain can still be awaited. */
  constructor(engine: Engine, refuseClosed: () => void, over: AbortSignal) {
    this.#engine = engine;
    this.#refuseClosed = refuseClosed;
    this.#over = over;
  }

  async get(id: string): Promise<Job | null> {
    checkId(id);
    const job = await this.#engine.store.queries.get(id);
    const { damaged } = this.#engine.store.damage;
    if (job === null && damaged !== null) throw notReadable(`Job ${id}`, damaged);
    return job;
  }

  /** Explains in a sentence and in figures why a job does not run. Null: there is no such job. */
  async explain(id: string): Promise<Explanation | null> {
    const [explained] = await explainJobs(this.#engine.store, [{ id: checkId(id) }]);
    return explained?.explanation ?? null;
  }

  /** Returns a job's attempts, oldest first: those that its queue keeps, and the running or succeeded one. Empty: no such job. */
  async attempts(id: string): Promise<AttemptView[]> {
    return this.#engine.store.queries.attempts(checkId(id));
  }

  /** Lists jobs. A page may have fewer items than `limit`, or none, and still have `next`: the search continues there. */
  async list(options: ListOptions = {}): Promise<Page<Job>> {
    refuseUnknown(options, [...FILTER_OPTIONS, "order", "limit", "after"], "jobs.list");
    const { limit = 100, after, order, ...filter } = options;
    if (order !== undefined) checkOneOf(order, ["newest", "oldest"], "order");
    if (after !== undefined && !(typeof after === "string" && /^\d{1,16}$/.test(after))) {
      throw invalidOption(`\`after\` must be a cursor, got ${describeValue(after)}.`, "Give `next` of the previous page.");
    }
    const page = await this.#engine.store.queries.list({
      limit: checkCount(limit, "limit", 1),
      ...checkJobFilter(filter, "jobs.list"),
      ...definedOnly({ order, after }),
    });
    return { ...page, ...incompleteOf(this.#engine.store.damage) };
  }

  /** Counts the jobs in each state. Rejects with `DAMAGED` if commits cannot be read, unless `incomplete` is true. */
  async counts(options: { queue?: string; name?: string } & ReadOptions = {}): Promise<Record<JobState, number>> {
    refuseUnknown(options, ["queue", "name", "incomplete"], "jobs.counts");
    const { queue, name, ...how } = options;
    if (queue !== undefined) checkStorable(queue, "The queue");
    if (name !== undefined) checkStorable(name, "The name");
    const { damage, queries } = this.#engine.store;
    await rejectIncomplete(damage, how, "jobs.counts", "Jobs cannot be counted");
    return countJobs(queries, definedOnly({ queue, name }));
  }

  /** Cancels a job, and aborts the signal of its handler, whose result is discarded. False: it had finished, or is unknown. */
  async cancel(id: string): Promise<boolean> {
    checkId(id);
    return this.#engine.store.cancel(id);
  }

  /** Makes a failed or quarantined job pending again, with fresh counts. */
  async retry(id: string): Promise<boolean> {
    checkId(id);
    const retried = await this.#engine.store.retry(id);
    if (retried !== "key-taken") return retried;
    throw new HoldfastError(
      "KEY_TAKEN",
      `Another unfinished job has the key of job ${id}.`,
      "Wait for that job, or cancel it first.",
    );
  }

  /** Retries all failed and quarantined jobs that match when it starts, in small transactions. Call it again after a crash. */
  async retryAll(filter: JobFilter): Promise<MatchingResult> {
    return changeMatching(this.#engine.store, "retry", filter);
  }

  /** Cancels all unfinished jobs that match when it starts, in small transactions. */
  async cancelAll(filter: JobFilter): Promise<MatchingResult> {
    return changeMatching(this.#engine.store, "cancel", filter);
  }

  /** Removes all finished jobs that match when it starts, in small transactions. Ids that callers chose stay taken. */
  async removeAll(filter: JobFilter): Promise<MatchingResult> {
    return changeMatching(this.#engine.store, "remove", filter);
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
    const cancel = timeout === null ? () => {} : this.#engine.clock.after(timeout, () => stop.abort(waitTimeout(id, timeout)));
    const signal = options.signal === undefined ? stop.signal : AbortSignal.any([options.signal, stop.signal]);
    try {
      for await (const seen of this.#follow(id, signal)) if (isFinished(seen.state)) return seen as Finished<Out>;
      throw signal.reason;
    } finally {
      cancel();
    }
  }

  /** Yields the job as it is, and again after each change, until it has ended. */
  async *watch(id: string, options: { signal?: AbortSignal } = {}): AsyncGenerator<Job> {
    this.#refuseClosed();
    refuseUnknown(options, ["signal"], "jobs.watch");
    if (options.signal !== undefined) checkSignal(options.signal, "signal");
    for await (const seen of this.#follow(id, options.signal ?? new AbortController().signal)) {
      yield seen;
      if (isFinished(seen.state)) return;
    }
  }

  async *#follow(id: string, signal: AbortSignal): AsyncGenerator<Job> {
    checkId(id);
    const stop = AbortSignal.any([signal, this.#over]);
    let hasChanged = false;
    let wake: (() => void) | null = null;
    const onChange = () => {
      hasChanged = true;
      wake?.();
    };
    const unlisten = this.#engine.store.onChange(onChange);
    stop.addEventListener("abort", onChange);
    followers++;
    try {
      for (let last = ""; !stop.aborted; hasChanged = false) {
        const seen = await this.#engine.store.queries.get(id);
        if (seen === null) throw noSuchJob(id);
        // A renewed lease is no change of the job.
        const text = JSON.stringify({ ...seen, leaseExpiresAt: undefined });
        if (text !== last) yield seen;
        last = text;
        if (followers > MAX_EAGER_FOLLOWERS) await new Promise((resolve) => setTimeout(resolve, followers / FOLLOWERS_PER_MS));
        if (hasChanged) continue;
        // A caller waits for this, so the process must stay alive.
        const stay = setInterval(() => {}, 2 ** 30);
        await new Promise<void>((resolve) => (wake = resolve));
        clearInterval(stay);
      }
      if (!signal.aborted) throw this.#over.reason;
    } finally {
      followers--;
      unlisten();
      stop.removeEventListener("abort", onChange);
    }
  }
}

/** Explains why jobs, or the oldest pending jobs of queues, do not run. Null: there is no such job. */
export async function explainJobs(
  { queries, processes }: Pick<Store, "queries" | "processes">,
  asked: readonly ({ id: string } | { queue: string })[],
): Promise<({ id: string; createdAt: number; explanation: Explanation } | null)[]> {
  if (asked.length === 0) return [];
  const all = await Promise.all(asked.map((of) => queries.facts(of)));
  const { self, others } = await processes.probe(bootId());
  // Count every process that is not proven dead: a process on another host may be alive.
  const live = [self, ...others.filter(({ life }) => !isProvenDead(life)).map(({ process }) => process)];
  const works = live.flatMap((process) => process?.works ?? []);
  return all.map((facts) => {
    if (facts === null) return null;
    const { id, name, createdAt } = facts.job;
    const worked = works.filter((work) => work.name === name).map(({ version }) => version);
    return { id, createdAt, explanation: explain(facts, worked) };
  });
}

/** Up to this many followers read their job after each commit. More of them pause first, or the process would only read. */
const MAX_EAGER_FOLLOWERS = 50;
const FOLLOWERS_PER_MS = 20;
let followers = 0;

function checkId(id: unknown): string {
  if (typeof id === "string") return checkStorable(id, "The id");
  throw invalidOption(`The id of a job must be a string, got ${describeValue(id)}.`, "Give the id that enqueue returned.");
}

export function noSuchJob(id: string): HoldfastError {
  return new HoldfastError(
    "NO_SUCH_JOB",
    `There is no job ${id}.`,
    "Check the id and the database; the job may have been removed.",
  );
}

function waitTimeout(id: string, timeout: number): HoldfastError {
  return new HoldfastError(
    "WAIT_TIMEOUT",
    `Job ${id} did not end within ${timeout} ms.`,
    "Wait longer, or call jobs.get; the timeout does not affect the job.",
  );
}

interface QueueView {
  name: string;
  paused: boolean;
  counts: Record<JobState, number>;
  /** Creation time of the oldest job that could run now. */
  oldestAt?: number;
}

export class Queues {
  static {
    limitArguments(this.prototype, "queues", { pause: 1, resume: 1, list: 1 }, (queues) => queues.#refuseClosed());
  }

  readonly #engine: Engine;
  readonly #refuseClosed: () => void;

  /** @internal */
  constructor(engine: Engine, refuseClosed: () => void) {
    this.#engine = engine;
    this.#refuseClosed = refuseClosed;
  }

  /** Pauses a queue: until `resume`, no worker claims its jobs. Running jobs continue, enqueued ones wait. */
  async pause(name: string): Promise<void> {
    await this.#engine.store.queues.setPaused(checkName(name, "The queue"), true);
  }

  async resume(name: string): Promise<void> {
    await this.#engine.store.queues.setPaused(checkName(name, "The queue"), false);
  }

  /** Lists the queues by name. */
  async list(options: ReadOptions = {}): Promise<QueueView[]> {
    await rejectIncomplete(this.#engine.store.damage, options, "queues.list", "Queues cannot be listed");
    const { queues } = await this.#engine.store.queries.overview();
    return queues.map(({ name, paused, counts, oldestAt }) => {
      return oldestAt === undefined ? { name, paused, counts } : { name, paused, counts, oldestAt };
    });
  }
}

/** Returns what `read` returns, or null if damage makes it unreadable. A check reports the damage itself. */
export async function ifReadable<T>(read: () => Promise<T>): Promise<T | null> {
  try {
    return await read();
  } catch (error) {
    if (error instanceof HoldfastError && error.code === "DAMAGED") return null;
    throw error;
  }
}

/** Options of calls whose result cannot say that something may be missing. */
export interface ReadOptions {
  /** True: what can be read. Default: the call rejects with `DAMAGED` where commits of a damaged database cannot be read. */
  incomplete?: boolean;
}

/** Rejects if commits cannot be read, because a list that lacks rows looks like a complete one. */
export async function rejectIncomplete(damage: DamageStore, options: ReadOptions, call: string, what: string): Promise<void> {
  refuseUnknown(options, ["incomplete"], call);
  const { incomplete = false } = options;
  checkBoolean(incomplete, "`incomplete`");
  if (incomplete || damage.damaged === null) return;
  const missing = (await damage.findings()).find((one) => one.severity === "damage" && (one.commitsMissing ?? 0) > 0);
  if (missing === undefined) return;
  throw new HoldfastError(
    "DAMAGED",
    `${what}, because ${missing.commitsMissing} commits of the database cannot be read. ${missing.what}`,
    `Run \`holdfast doctor --recheck\` to check again, or \`holdfast salvage\`, which also reads what SQLite cannot. \`${call}({ incomplete: true })\` returns what can be read.`,
  );
}

export function notReadable(what: string, damaged: string): HoldfastError {
  return new HoldfastError(
    "DAMAGED",
    `${what} was not found, and the database is damaged. ${damaged}`,
    "Run `holdfast doctor --recheck` to check again, or `holdfast salvage`, which also reads what SQLite cannot.",
  );
}

export function incompleteOf({ incomplete }: DamageStore): { incomplete?: string } {
  return incomplete === null ? {} : { incomplete };
}

/** A SQLite handle with an open write transaction, given as it is or as `db`. */
export type SqliteTx = { db: SqliteHandle } | SqliteHandle;

/** An object that runs queries in an open transaction: a client of pg or postgres, or an ORM's, wrapped in one line. */
export type PostgresTx =
  | { query(text: string, values: unknown[]): Promise<{ rows: unknown[] }> }
  | { unsafe(text: string, values?: never[]): PromiseLike<unknown> };

/** Runs a user's callback as one transaction. Rejects an asynchronous one, because parts of it would run after the commit. */
export async function transact<R>(store: Store, run: (tx: { db: TransactionHandle }) => R): Promise<R> {
  if (typeof run !== "function") {
    throw invalidOption("hf.transaction needs a function.", "Call hf.transaction(({ db }) => {…}).");
  }
  // Do not call it: what it does after its first await could not be rolled back.
  if (isAsyncFunction(run)) throw asyncCallback();
  return store.transact((handle) => {
    const value = run({ db: handle as TransactionHandle });
    if (!isThenable(value)) return value;
    // No caller awaits this promise. Other thenables are left alone, because an ORM's query runs when it is awaited.
    if (value instanceof Promise) value.catch(() => {});
    throw asyncCallback();
  });
}

export function enqueueWithin(store: Store, tx: unknown, job: NewJob | Promise<NewJob>): StoreEnqueued | Promise<StoreEnqueued> {
  if (job instanceof Promise) {
    // No caller awaits this promise, and an unhandled rejection would end the process.
    job.catch(() => {});
    throw new HoldfastError(
      "SCHEMA_ASYNC",
      "The schema of the input is asynchronous, and a transaction cannot wait for it.",
      "Give the job a synchronous schema, and do asynchronous checks before the transaction.",
    );
  }
  const answers = store.enqueueWithin(tx, [job]);
  return answers instanceof Promise ? answers.then(([one]) => one as StoreEnqueued) : (answers[0] as StoreEnqueued);
}

function asyncCallback(): HoldfastError {
  return new HoldfastError(
    "TX_ASYNC",
    "The callback of hf.transaction is asynchronous or returns a promise, so it was rolled back.",
    "Make the callback synchronous, and end an ORM's queries with run(), get() or all(). " +
      "For an asynchronous transaction open a handle of your own, and give that as `tx`.",
  );
}
