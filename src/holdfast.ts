import type { TransactionHandle } from "./core/jobs/job.ts";
import { type Duration, toMillis } from "./core/text/duration.ts";
import {
  checkBoolean,
  checkFunction,
  checkText,
  describeValue,
  invalidOption,
  limitArguments,
  refuseUnknown,
} from "./core/text/options.ts";
import { HoldfastError, idTaken, upstreamMissing } from "./core/text/errors.ts";
import { isPipeline, type Pipeline } from "./core/pipelines/pipeline.ts";
import { countPlan, type RecoveryPlan, type CrashRecoveryReport, unrecordedReport } from "./core/recovery/recovery-report.ts";
import type { Schedule } from "./core/jobs/schedule.ts";
import { type AnyVersion, type Claim, claimByHand, type ClaimOptions } from "./engine/claim.ts";
import type { Enqueued, EnqueueOptions } from "./core/pipelines/stage.ts";
import { type Definition, definitionOf, type JobDef, newJob } from "./engine/definition.ts";
import { closedError, type Engine } from "./engine/engine.ts";
import type { OnEvent, SubscribeOptions, Subscription } from "./engine/events/relays.ts";
import { ProgressWriter } from "./engine/progress.ts";
import { enqueueWithin, ifReadable, Jobs, type PostgresTx, Queues, type SqliteTx, transact } from "./engine/client.ts";
import { type BackupOptions, makeBackup } from "./engine/maintenance/backups.ts";
import { checkAll } from "./engine/maintenance/check.ts";
import { type Lock, lockOf } from "./engine/lock.ts";
import { type RecoveryStats, recoveryStats, type StaleStats } from "./engine/maintenance/janitor.ts";
import { recoveryPending } from "./engine/maintenance/recovery.ts";
import { type ScheduleOptions, Schedules } from "./engine/schedules.ts";
import { onSignals } from "./engine/shared-engine.ts";
import { type Worker, WorkerLoop, type WorkOptions } from "./engine/worker.ts";
import { Builds } from "./pipelines/builds.ts";
import { reportOf } from "./store/recoveries.ts";
import type { Enqueued as StoreEnqueued, NewJob } from "./store/store.ts";

/** Most reports that `history` returns. Fewer are kept, except those with errors. */
const MAX_REPORTS = 2_000;

/** An open database. */
export class Holdfast implements AsyncDisposable {
  static {
    limitArguments(this.prototype, "hf", {
      enqueue: 3,
      enqueueMany: 3,
      transaction: 1,
      work: 2,
      schedule: 2,
      claim: 2,
      lock: 1,
      backup: 2,
      check: 0,
      close: 0,
    });
  }

  readonly jobs: Jobs;
  readonly queues: Queues;
  readonly schedules: Schedules;
  readonly builds: Builds;
  readonly recovery: {
    /** Recovers now what the janitor would recover in a moment. */
    recoverStale(): Promise<RecoveryStats>;
    /** Returns how much all processes have recovered so far, when one last did, and how much a recovery would reclaim now. */
    stats(): Promise<StaleStats>;
    /** Reclaims leases that expired at least this long ago. */
    reclaimStale(expiredFor: Duration): Promise<RecoveryStats>;
    /** Returns the report of the last recovery, or of what is wrong with a damaged database. Null: there is neither. */
    lastReport(): Promise<CrashRecoveryReport | null>;
    /** Returns the reports of all recoveries, the newest first. */
    history(): Promise<CrashRecoveryReport[]>;
    /** Returns what a recovery would do now, without doing it. Null: there is nothing to recover. */
    preview(): Promise<RecoveryPlan | null>;
    /** Acknowledges the open reports with errors, and returns them. */
    acknowledge(): Promise<CrashRecoveryReport[]>;
  };
  readonly events: {
    /**
     * Calls `on` with each event, one at a time and in order, until the returned function is called. With a `name` its position
     * is stored, so that each event reaches it at least once, over restarts and crashes. Without one it gets new events only.
     */
    subscribe(on: OnEvent, options?: SubscribeOptions): () => Promise<void>;
  };
  readonly #engine: Engine;
  readonly #progress: ProgressWriter;
  readonly #leave: (engine: Engine) => Promise<void>;
  readonly #workers = new Set<WorkerLoop>();
  readonly #subscriptions = new Set<Subscription>();
  /** Aborts when this handle is closed, which ends the calls that still wait. */
  readonly #abort = new AbortController();
  readonly #pending = new Set<Promise<unknown>>();
  #ignoreSignals: (() => void) | null = null;
  #closed: Promise<void> | null = null;

  /** @internal Use `open`. */
  constructor(engine: Engine, leave: (engine: Engine) => Promise<void>) {
    this.#engine = engine;
    this.#leave = leave;
    this.#progress = new ProgressWriter(engine);
    this.jobs = new Jobs(engine, () => this.#refuseClosed(), this.#abort.signal);
    this.queues = new Queues(engine, () => this.#refuseClosed());
    this.schedules = new Schedules(engine, () => this.#refuseClosed());
    this.builds = new Builds(engine, {
      refuseClosed: () => this.#refuseClosed(),
      refuseClosing: () => this.#refuseClosing(),
      work: (defs, concurrency) => this.#work(defs, { concurrency }),
    });
    const events: Holdfast["events"] = {
      subscribe: (on, options = {}) => {
        this.#refuseClosing();
        const subscription = engine.relays.subscribe(on, options);
        this.#subscriptions.add(subscription);
        return () => {
          this.#subscriptions.delete(subscription);
          return subscription.end();
        };
      },
    };
    this.events = limitArguments(events, "events", { subscribe: 2 });
    const recovery: Holdfast["recovery"] = {
      recoverStale: async () => recoveryStats(await engine.janitor.recover(engine.actor), engine.clock.now()),
      stats: async () => {
        const { locksCleaned, entriesReclaimed, recoveredAt } = (await engine.store.recoveries.history({ limit: 0 })).totals;
        const stale = countPlan(await engine.janitor.preview());
        return {
          locksCleaned,
          entriesReclaimed,
          recoveryTimestamp: recoveredAt,
          staleLocks: stale.locks,
          staleEntries: stale.jobs,
        };
      },
      reclaimStale: async (expiredFor) => {
        const plan = await engine.janitor.reclaimStale(toMillis(expiredFor, "expiredFor"), engine.actor);
        return recoveryStats(plan, engine.clock.now());
      },
      lastReport: async () => (await this.#reports(1))[0] ?? null,
      history: async () => this.#reports(MAX_REPORTS),
      preview: async () => engine.janitor.preview(),
      acknowledge: async () => (await engine.store.recoveries.close("acknowledged")).closed.map(reportOf),
    };
    const none = { recoverStale: 0, stats: 0, lastReport: 0, history: 0, preview: 0, acknowledge: 0 } as const;
    this.recovery = limitArguments(recovery, "recovery", { ...none, reclaimStale: 1 }, () => this.#refuseClosed());
  }

  /** Reads the newest reports, after it has waited for the one that this process is about to write. */
  async #reports(limit: number): Promise<CrashRecoveryReport[]> {
    await this.#engine.janitor.recovery.settled();
    const { damage, recoveries } = this.#engine.store;
    const recorded = (await ifReadable(() => recoveries.history({ limit })))?.reports ?? [];
    // A read-only database cannot store the report of why it is read-only.
    const unrecorded = damage.incomplete === null ? null : unrecordedReport(await damage.findings());
    return [...(unrecorded === null ? [] : [unrecorded]), ...recorded.map(reportOf)].slice(0, limit);
  }

  /** @internal The engine of this handle, for the commands. */
  get engine(): Engine {
    return this.#engine;
  }

  /**
   * Enqueues a job, and resolves when the job is durable. With a SQLite `tx` the call is synchronous: the job exists once that
   * transaction commits, and an error is thrown at once, so that the transaction rolls back.
   */
  enqueue<In, Out>(def: JobDef<In, Out>, input: NoInfer<In>, options: EnqueueOptions & { tx: SqliteTx }): Enqueued<Out>;
  enqueue<In, Out>(
    def: JobDef<In, Out>,
    input: NoInfer<In>,
    options?: EnqueueOptions & { tx?: PostgresTx },
  ): Promise<Enqueued<Out>>;
  enqueue<Out>(
    def: JobDef<never, Out>,
    input: unknown,
    options?: EnqueueOptions & {
      /** Open transaction of your own connection, in which the job is inserted. On SQLite the call is then synchronous. */
      tx?: SqliteTx | PostgresTx;
    },
  ): Enqueued<Out> | Promise<Enqueued<Out>> {
    if (options?.tx === undefined) return this.#enqueue(def, input, withoutTx(options));
    if (this.#engine.location.kind === "sqlite") return this.#enqueueWithin(def, input, options);
    // On PostgreSQL every error is a rejected promise.
    return (async () => this.#enqueueWithin(def, input, options))();
  }

  #enqueueWithin<Out>(
    def: JobDef<never, Out>,
    input: unknown,
    { tx, ...options }: EnqueueOptions & { tx?: unknown },
  ): Enqueued<Out> | Promise<Enqueued<Out>> {
    this.#refuseClosed();
    const definition = definitionOf(def, "hf.enqueue");
    const answer = enqueueWithin(this.#engine.store, tx, newJob(definition, input, options));
    return answer instanceof Promise ? answer.then((one) => toEnqueued(one, definition)) : toEnqueued(answer, definition);
  }

  async #enqueue<Out>(def: JobDef<never, Out>, input: unknown, options?: EnqueueOptions): Promise<Enqueued<Out>> {
    this.#refuseClosed();
    const drafted = newJob(definitionOf(def, "hf.enqueue"), input, options);
    const job = drafted instanceof Promise ? await drafted : drafted;
    this.#refuseClosed();
    const [answer] = await this.#send([job]);
    return toEnqueued(answer as StoreEnqueued, job);
  }

  #send(jobs: NewJob[], options?: { whole: boolean }): Promise<StoreEnqueued[]> {
    const { store, telemetry } = this.#engine;
    if (telemetry === null) return store.enqueue(jobs, options);
    return telemetry.send(jobs, () => store.enqueue(jobs, options));
  }

  /** Enqueues a job for each input: all of them, or none. */
  async enqueueMany<In, Out>(
    def: JobDef<In, Out>,
    inputs: NoInfer<In>[],
    options?: EnqueueOptions | ((input: In, index: number) => EnqueueOptions),
  ): Promise<Enqueued<Out>[]> {
    this.#refuseClosed();
    const definition = definitionOf(def, "hf.enqueueMany");
    if (!Array.isArray(inputs)) throw invalidOption("enqueueMany needs an array of inputs.", "Give an array.");
    const jobs: NewJob[] = [];
    for (const [i, input] of inputs.entries()) {
      const drafted = newJob(definition, input, withoutTx(typeof options === "function" ? options(input, i) : options));
      jobs.push(drafted instanceof Promise ? await drafted : drafted);
    }
    this.#refuseClosed();
    const answers = await this.#send(jobs, { whole: true });
    return answers.map((answer, i) => toEnqueued(answer, jobs[i] as NewJob));
  }

  /**
   * Writes your rows and your jobs in one commit, or neither. It calls the synchronous callback once, under the write lock,
   * and rolls everything back if that throws. Resolves when the commit is durable. SQLite only.
   *
   * ```ts
   * await hf.transaction(({ db }) => {
   *   const { id } = addOrder(db, order);
   *   hf.enqueue(ship, { order: id }, { tx: db });
   * });
   * ```
   */
  async transaction<R>(run: (tx: { db: TransactionHandle }) => R extends PromiseLike<unknown> ? never : R): Promise<R> {
    this.#refuseClosed();
    return transact<R>(this.#engine.store, run);
  }

  /** Runs these jobs in this process until the worker is stopped. It handles signals only if `signals` is true. */
  work(
    defs: (JobDef | Pipeline)[],
    options: WorkOptions & {
      /** True: SIGINT, SIGTERM and SIGHUP close this handle, and the process exits. Default: false. */
      signals?: boolean;
    } = {},
  ): Worker {
    this.#refuseClosing();
    if (typeof options !== "object" || options === null || Array.isArray(options))
      throw invalidOption(
        `The second argument of hf.work must be an options object, got ${describeValue(options)}.`,
        "Give { concurrency, drain, signals }, or leave it out. The handler is `run` of job({ name, run }).",
      );
    refuseUnknown(options, ["concurrency", "drain", "signals"], "work");
    if (options.signals !== undefined) checkBoolean(options.signals, "signals");
    if (!Array.isArray(defs)) throw invalidOption("work needs an array of jobs and pipelines.", "Call hf.work([resize]).");
    if (this.#engine.isReadOnly) throw recoveryPending(this.#engine.location.name);
    if (defs.length === 0)
      this.#engine.log.warn("hf.work was given no jobs: this worker runs nothing", { hint: "Call hf.work([resize])." });
    const all = defs.flatMap((def) => (isPipeline(def) ? this.builds.definitions(def) : [definitionOf(def, "hf.work")]));
    const worker = this.#work(all, options);
    if (options.signals) this.#ignoreSignals ??= onSignals(() => this.close());
    return worker;
  }

  #work(defs: readonly Definition[], options: WorkOptions): Worker {
    this.#engine.refuseDamaged();
    this.#engine.requireKeeper();
    const worker = new WorkerLoop(this.#engine, this.#progress, defs, options);
    this.#workers.add(worker);
    return worker;
  }

  /** Enqueues this job at each tick of a cron pattern: one job a tick, however many processes there are. Upsert by `key`. */
  async schedule<In>(def: JobDef<In>, options: ScheduleOptions<NoInfer<In>>): Promise<Schedule> {
    return this.schedules.save(def, options);
  }

  /** Claims one job of a queue, of a definition, or of a name in any version. Null: there is none. */
  async claim<In = unknown>(from: string | JobDef<In> | AnyVersion, options: ClaimOptions): Promise<Claim<In> | null> {
    this.#refuseClosing();
    const handle = { refuseClosed: () => this.#refuseClosed(), over: this.#abort.signal };
    const claim = claimByHand(this.#engine, from, options, handle);
    this.#pending.add(claim);
    return claim.finally(() => this.#pending.delete(claim));
  }

  lock(name: string): Lock {
    return lockOf(this.#engine, name, () => this.#refuseClosed());
  }

  /**
   * Copies the whole database as it is now, while all processes continue, and checks the copy; writes a manifest beside
   * it, `<path>.json`. Your own tables are included. Rejects if `path` exists. SQLite only.
   *
   * ```ts
   * await hf.backup("backups/monday.db");
   * ```
   */
  async backup(path: string, options: BackupOptions = {}): Promise<void> {
    this.#refuseClosed();
    refuseUnknown(options, ["artifacts", "onProgress"], "backup");
    if (options.artifacts !== undefined) checkBoolean(options.artifacts, "artifacts");
    if (options.onProgress !== undefined) checkFunction(options.onProgress, "onProgress");
    checkText(path, "The path of a backup");
    const { findings } = await this.#closeWaitsFor(makeBackup(this.#engine, path, options));
    // The copy stays, since it may be all there is; but the caller must not take it for a good one.
    if (findings.length > 0) throw damagedBackup(path, findings);
  }

  /**
   * Checks every page, index and row, and that referenced artifacts exist, while all processes continue. If it finds
   * damage, the database is read-only from then on, for all processes.
   *
   * ```ts
   * const { ok, findings } = await hf.check();
   * ```
   */
  async check(): Promise<{ ok: boolean; findings: string[] }> {
    this.#refuseClosed();
    const findings = await this.#closeWaitsFor(checkAll(this.#engine, "whole"));
    return { ok: findings.length === 0, findings };
  }

  #closeWaitsFor<T>(work: Promise<T>): Promise<T> {
    this.#pending.add(work);
    return work.finally(() => this.#pending.delete(work));
  }

  /** Stops this handle's workers, then closes the database unless other handles of this process use it. */
  async close(): Promise<void> {
    this.#closed ??= this.#close();
    return this.#closed;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }

  async #close(): Promise<void> {
    await this.builds.stopAll();
    await Promise.all([...this.#workers].map((worker) => worker.stop()));
    this.#progress.flush();
    await Promise.all([...this.#subscriptions].map((subscription) => subscription.endSoon()));
    this.#abort.abort(closedError());
    // A claim in flight releases the job that it gets.
    await Promise.allSettled(this.#pending);
    await this.#leave(this.#engine);
    this.#ignoreSignals?.();
  }

  /** Rejects calls once this handle is closed. While workers drain, their handlers may still use the handle. */
  #refuseClosed(): void {
    if (this.#abort.signal.aborted) throw closedError();
    this.#engine.refuseClosed();
  }

  #refuseClosing(): void {
    if (this.#closed !== null) throw closedError();
    this.#refuseClosed();
  }
}

/** `{ tx: undefined }` means no transaction. Any other `tx` stays, and is rejected where none can be used. */
function withoutTx(options: (EnqueueOptions & { tx?: unknown }) | undefined): EnqueueOptions | undefined {
  if (typeof options !== "object" || options === null || !("tx" in options) || options.tx !== undefined) return options;
  const { tx: _, ...rest } = options;
  return rest;
}

function damagedBackup(path: string, findings: readonly string[]): HoldfastError {
  return new HoldfastError(
    "DAMAGED",
    `${path} was written, but it has the damage of the database: ${findings.join("; ")}.`,
    "Keep the earlier backups. Stop all workers and run `holdfast restore` with one of them.",
  );
}

function toEnqueued<Out>(answer: StoreEnqueued, job: { name: string }): Enqueued<Out> {
  if ("taken" in answer) throw idTaken(answer.id, answer.taken, job.name);
  if ("missing" in answer) throw upstreamMissing(answer.id, job.name);
  return answer;
}
