import { MAX_CLAIM_BATCH, MAX_PREFETCH, nextPrefetch } from "../core/jobs/claiming.ts";
import { limitArguments, refuseUnknown } from "../core/text/options.ts";
import { type Duration, toMillis } from "../core/text/duration.ts";
import { HoldfastError } from "../core/text/errors.ts";
import type { Outcome } from "../core/jobs/retry.ts";
import { checkConcurrency } from "../core/jobs/run-options.ts";
import type { Change, Claimed, ClaimOutlook, ClaimSource, Continued, Declaration } from "../store/store.ts";
import { Attempt, Executor, Runnables } from "./attempt.ts";
import type { ProgressWriter } from "./progress.ts";
import type { Definition } from "./definition.ts";
import type { Engine } from "./engine.ts";
import { describeError, logFailure, RepeatedFailure } from "./log.ts";
import { Settler } from "./settler.ts";

const DEFAULT_CONCURRENCY = 10;
const MAX_TURN_MS = 5;
const DEFAULT_DRAIN_MS = 10_000;
/** A handler that continues after its lease is lost no longer counts against the concurrency after this time. */
const LOST_HANDLER_GRACE_MS = 5_000;
/** Longest sleep of a worker, however far away the next delayed job is, because clocks are set. */
const MAX_SLEEP_MS = 5_000;
const CLAIM_RETRY_MS = 250;
/** An idle worker that may not claim a ready job, such as a second suspect, tries again after this time. */
const BLOCKED_RETRY_MS = 50;
const DECLARE_RETRY_MS = 1_000;
/** Jobs with shorter leases are claimed only once the keeper renews: on a busy machine it takes a while to start. */
const SHORT_LEASE_MS = 10_000;

export interface Worker extends AsyncDisposable {
  /** Stops claiming, lets running jobs finish for `drain` (default: the worker's own), then gives the rest back uncharged. */
  stop(options?: { drain?: Duration }): Promise<void>;
}

export interface WorkOptions {
  /** How many jobs run at once in this worker. Default: 10. */
  concurrency?: number;
  /** How long running jobs may take after a stop, a signal or `close`. Default: "10s". */
  drain?: Duration;
}

interface DrainResult {
  ran: number;
  readonly unsuccessful: Attempt[];
}

/** Claims, runs and settles jobs. A turn of the event loop settles what is done and claims what is next, in one commit. */
export class WorkerLoop implements Worker {
  static {
    limitArguments(this.prototype, "worker", { stop: 1, untilDrained: 0 });
  }

  readonly #engine: Engine;
  readonly #progress: ProgressWriter;
  readonly #executor: Executor;
  readonly #settler: Settler;
  readonly #runnables: Runnables;
  readonly #concurrency: number;
  readonly #drain: number;
  readonly #hasShortLeases: boolean;
  readonly #unlisten: () => void;
  readonly #withdraw: () => void;
  readonly #keepAlive: NodeJS.Timeout;
  #waiting: Attempt[] = [];
  #arrived: Attempt[] = [];
  readonly #running = new Set<Attempt>();
  /** Attempts that ask for the job of their target's next stage, until they are settled. */
  readonly #continuing = new Set<Attempt>();
  /** How many jobs to claim beyond the concurrency. They must not wait here for long while other workers are idle. */
  #prefetch = 0;
  #turnStartedAt = 0;
  #isTurnScheduled = false;
  #isStarting = false;
  #isClaiming = false;
  #isPeeking = false;
  #foundJobs = false;
  /** True while there is nothing to claim as far as known. `#wakes` counts what may have changed that. */
  #isDry = false;
  #wakes = 0;
  /** True while ready jobs, such as a second suspect, may not be claimed: any commit of this process may free them. */
  #isBlocked = false;
  #commits = 0;
  #cancelAlarm: (() => void) | null = null;
  #stopping: Promise<void> | null = null;
  #quietWaiters: (() => void)[] = [];
  #claimError: unknown = null;
  readonly #claimFailure = new RepeatedFailure();
  readonly #peekFailure = new RepeatedFailure();
  #drained: DrainResult | null = null;

  constructor(engine: Engine, progress: ProgressWriter, defs: readonly Definition[], options: WorkOptions) {
    const { concurrency = DEFAULT_CONCURRENCY, drain = DEFAULT_DRAIN_MS } = options;
    this.#engine = engine;
    this.#progress = progress;
    this.#executor = new Executor(engine, progress, (attempt, outcome) => this.#finish(attempt, outcome));
    this.#settler = new Settler(engine, {
      onSettled: this.#onSettled,
      onContinued: this.#onContinued,
      onIdle: this.#onWritten,
    });
    this.#concurrency = checkConcurrency(concurrency, "concurrency");
    this.#drain = toMillis(drain, "drain");
    this.#hasShortLeases = defs.some(({ lease }) => lease < SHORT_LEASE_MS);
    this.#runnables = new Runnables(defs);
    this.#unlisten = engine.store.onChange((change) => this.#onChange(change), { onIncoming: this.#onIncoming });
    // An idle worker keeps the process alive.
    this.#keepAlive = setInterval(() => {}, 2 ** 30);
    engine.startKeeper();
    engine.janitor.start();
    engine.scheduler.start();
    // Declare in the commit before the first claim, so that the limits of the newest code apply from here on.
    this.#declare(defs.map(({ declared }) => declared.declaration));
    this.#withdraw = engine.announce(defs.map(({ queue, name, version }) => ({ queue, name, version })));
    this.#scheduleTurn();
  }

  stop(options: { drain?: Duration } = {}): Promise<void> {
    refuseUnknown(options, ["drain"], "worker.stop");
    this.#stopping ??= this.#stop(options.drain === undefined ? this.#drain : toMillis(options.drain, "drain"));
    return this.#stopping;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
  }

  /** @internal For tests: resolves when nothing due is left, and every outcome is on the disk. Delayed jobs stay delayed. */
  async untilDrained(): Promise<DrainResult> {
    const drained = (this.#drained = { ran: 0, unsuccessful: [] as Attempt[] });
    for (;;) {
      const before = drained.ran;
      this.#wake();
      await new Promise((resolve) => setImmediate(resolve));
      await this.#untilQuiet(Number.POSITIVE_INFINITY);
      if (this.#stopping !== null)
        throw new HoldfastError(
          "CLOSED",
          "The worker of this attempt was stopped.",
          "Stop the worker after the attempt has ended.",
        );
      if (this.#claimError !== null) throw this.#claimError;
      const [{ ready }, timedOut] = await Promise.all([
        this.#engine.store.outlook(this.#runnables.sources()),
        // The keeper reports a timeout before it writes the outcome, so a lease that is still held is not written yet.
        this.#engine.store.inspect(drained.unsuccessful.filter(({ lost }) => lost === "TIMEOUT")),
      ]);
      const isWritten = !timedOut.includes("held");
      if (!ready && isWritten && this.#isQuiet()) return drained;
      // A due job, such as a second suspect, is not claimable until another process acts, in real time.
      if (drained.ran === before) await new Promise((resolve) => setTimeout(resolve, 10));
    }
  }

  #declare(declarations: readonly Declaration[]): void {
    this.#engine.store.queues.declare(declarations).catch((error: unknown) => {
      if (this.#stopping !== null || this.#engine.store.damage.damaged !== null) return;
      this.#engine.log.warn("limits could not be declared; it is tried again", describeError(error));
      this.#engine.clock.after(DECLARE_RETRY_MS, () => this.#declare(declarations));
    });
  }

  #scheduleTurn(schedule: (turn: () => void) => void = setImmediate): void {
    if (this.#isTurnScheduled) return;
    this.#isTurnScheduled = true;
    schedule(() => this.#runTurn());
  }

  #runTurn(): void {
    this.#isTurnScheduled = false;
    if (this.#settler.hasRecorded) {
      this.#prefetch = nextPrefetch(this.#prefetch, this.#concurrency, this.#settler.recordedRuns());
      // Write the last progress of a job before its outcome, in the same commit.
      this.#progress.flush();
      this.#settler.write();
    }
    this.#turnStartedAt = performance.now();
    this.#startWaiting();
    this.#claimNext();
  }

  #claimNext(): void {
    if (this.#isDry || this.#isClaiming || this.#stopping !== null) return;
    // Outcomes that wait for a slow store are lost in a crash, so no more jobs are run meanwhile.
    if (this.#settler.unsettled >= MAX_PREFETCH) return;
    const most = Math.max(this.#concurrency, Math.min(this.#concurrency + this.#prefetch, MAX_PREFETCH));
    const batch = Math.max(this.#concurrency, Math.min(MAX_CLAIM_BATCH, most >> 1));
    const held = this.#running.size + this.#waiting.length + this.#arrived.length + this.#continuing.size;
    const want = Math.min(most - held, batch, this.#engine.leaseTable.room);
    if (want > 0) void this.#claim(want);
  }

  readonly #onSettled = (attempt: Attempt): void => {
    this.#continuing.delete(attempt);
    this.#engine.release(attempt.slot);
    logFailure(this.#engine.log, attempt.claimed, attempt.outcome, attempt.decided);
    this.#engine.minutes.count(attempt);
    attempt.span?.settled(attempt.runMs);
    if (attempt.work !== undefined) this.#engine.telemetry?.cost(attempt.claimed.queue, attempt.work.cost);
    const { runnable } = attempt;
    if (runnable.held-- === runnable.def.concurrency) this.#wake();
    if (attempt.outcome.kind !== "succeeded") this.#drained?.unsuccessful.push(attempt);
  };

  readonly #onWritten = (): void => {
    if (!this.#isDry) this.#scheduleTurn();
    this.#notifyIfQuiet();
  };

  readonly #onContinued = (attempts: readonly Attempt[], before: number): void => {
    for (const { onContinued, continued } of attempts) onContinued?.(continued as Continued);
    const claimed = attempts.map(({ continued }) => (continued as Continued).claimed);
    this.#addClaimed(claimed, before);
    this.#startArrived();
  };

  async #claim(max: number): Promise<void> {
    this.#isClaiming = true;
    let left: ClaimOutlook | null = null;
    try {
      this.#engine.requireKeeper();
      if (this.#hasShortLeases) await this.#engine.alertKeeper();
      const [wakes, before] = [this.#wakes, this.#engine.clock.monotonic()];
      const from = this.#runnables.sources();
      const by = { holder: this.#engine.self, worker: "" };
      const claimed = await this.#engine.store.claim({ from, max, ...by, left: (outlook) => (left = outlook) });
      // Count commits from here on: a job of this claim may be settled, and free another one, before `#sleep` checks.
      const commits = this.#commits;
      this.#claimError = null;
      this.#claimFailure.reset();
      this.#foundJobs = claimed.length > 0;
      if (this.#foundJobs) this.#addClaimed(claimed, before);
      if (claimed.length === max && max > this.#concurrency) return this.#claimNextThenStart();
      this.#startArrived();
      // Reclaimed jobs are claimed next. The claimed jobs have started already, and do not wait for that.
      if (claimed.length < max && !(await this.#engine.janitor.reclaimBeforeClaim()) && wakes === this.#wakes)
        await this.#sleep(from, { wakes, commits }, left);
    } catch (error) {
      this.#claimError = error;
      this.#isDry = true;
      const refusal = this.#engine.store.damage.refusal("claim");
      if (refusal === null) this.#claimFailure.log(this.#engine.log, "error", "claiming failed; it is tried again", error);
      // A finding of damage may be cleared; lost locks and replaced files stay lost.
      if (refusal === null || refusal.code === "DAMAGED") this.#setAlarm(CLAIM_RETRY_MS);
    }
    this.#isClaiming = false;
    if (!this.#isDry) this.#scheduleTurn();
    this.#notifyIfQuiet();
  }

  /** Claims the next batch before handlers run, because handlers would delay the request to a server. */
  #claimNextThenStart(): void {
    this.#isClaiming = false;
    this.#claimNext();
    setImmediate(() => setImmediate(() => this.#startArrived()));
  }

  #addClaimed(claimed: Claimed[], before: number): void {
    for (const job of claimed) {
      const runnable = this.#runnables.of(job);
      const attempt = new Attempt(job, runnable, this.#onLoss);
      attempt.slot = this.#engine.hold(job, attempt, before);
      runnable.held++;
      runnable.def.prefetch?.(job);
      this.#arrived.push(attempt);
    }
    this.#engine.rescheduleKeeper();
  }

  #startArrived(): void {
    this.#waiting.push(...this.#arrived.splice(0));
    this.#turnStartedAt = performance.now();
    if (this.#stopping !== null) this.#releaseWaiting();
    else this.#startWaiting();
  }

  async #sleep(
    from: ClaimSource[],
    { wakes, commits }: { wakes: number; commits: number },
    left: ClaimOutlook | null,
  ): Promise<void> {
    const { ready, nextIn } = left ?? (await this.#engine.store.outlook(from));
    // A blocked job may have been freed while the server was asked.
    if (wakes !== this.#wakes || (ready && commits !== this.#commits)) return;
    this.#prefetch = 0;
    this.#isBlocked = ready;
    if (ready && from.some(({ max }) => max !== 0) && this.#waiting.length === 0 && this.#running.size === 0)
      return this.#setAlarm(BLOCKED_RETRY_MS);
    this.#isDry = true;
    if (nextIn !== null) this.#setAlarm(nextIn);
  }

  #setAlarm(millis: number): void {
    this.#cancelAlarm?.();
    this.#isDry = true;
    this.#cancelAlarm = this.#engine.clock.after(Math.max(1, Math.min(MAX_SLEEP_MS, millis)), () => this.#wake());
  }

  #wake(): void {
    this.#wakes++;
    if (this.#stopping !== null) return;
    const atRest = this.#isDry && !this.#settler.hasRecorded;
    this.#isDry = false;
    this.#scheduleTurn(atRest ? queueMicrotask : setImmediate);
  }

  #onChange(change: Change): void {
    if (change.own) this.#commits++;
    if (change.ready === null) this.#peek();
    else if (change.ready.size > 0 || this.#isBlocked) this.#wake();
  }

  /** Claims jobs in the commit that enqueues them, so that they start as soon as their producer has its answer. */
  readonly #onIncoming = (): void => {
    if (!this.#isDry || this.#isClaiming || this.#stopping !== null || this.#running.size >= this.#concurrency) return;
    this.#wakes++;
    this.#isDry = false;
    queueMicrotask(() => this.#runTurn());
  };

  /** Reacts to another process's commit. After a claim that found nothing it reads first, to not take the write lock in vain. */
  #peek(): void {
    if (!this.#isDry || this.#isPeeking) return void this.#wakes++;
    if (this.#foundJobs) return this.#wake();
    this.#isPeeking = true;
    const wakes = ++this.#wakes;
    this.#engine.store
      .outlook(this.#runnables.sources())
      .then(({ ready, nextIn }) => {
        this.#peekFailure.reset();
        if (ready) this.#wake();
        else if (nextIn !== null && wakes === this.#wakes) this.#setAlarm(nextIn);
      })
      .catch((error: unknown) => {
        this.#peekFailure.log(this.#engine.log, "warn", "looking for jobs failed; it is tried again", error);
      })
      .finally(() => (this.#isPeeking = false));
  }

  #startWaiting(now = this.#engine.clock.monotonic()): void {
    if (this.#isStarting) return;
    this.#isStarting = true;
    let hasStarted = false;
    while (this.#waiting.length > 0 && this.#running.size < this.#concurrency && !this.#isTurnOverrun()) {
      this.#start(this.#waiting.shift() as Attempt, now);
      hasStarted = true;
    }
    this.#isStarting = false;
    if (hasStarted) this.#engine.rescheduleKeeper();
    if (this.#waiting.length > 0 && this.#isTurnOverrun()) this.#scheduleTurn();
  }

  /** Whether handlers have computed for so long that finished jobs must reach the disk first. */
  #isTurnOverrun(): boolean {
    return performance.now() - this.#turnStartedAt > MAX_TURN_MS;
  }

  #start(attempt: Attempt, now: number): void {
    if (attempt.lost !== null) return;
    // The keeper may have returned the job just now.
    if (!this.#engine.leaseTable.start(attempt.slot, now + attempt.claimed.policy.timeout)) return;
    attempt.startedAt = now;
    this.#running.add(attempt);
    if (this.#drained !== null) this.#drained.ran++;
    this.#executor.run(attempt);
  }

  #finish(attempt: Attempt, outcome: Outcome): void {
    if (!this.#running.delete(attempt)) return;
    attempt.isOver = true;
    attempt.span?.finished(outcome);
    const now = this.#engine.clock.monotonic();
    attempt.runMs = now - attempt.startedAt;
    if (attempt.lost === null) {
      const continues = outcome.kind === "succeeded" && this.#stopping === null;
      if (continues && this.#runnables.askToContinue(attempt, this.#engine.self)) this.#continuing.add(attempt);
      this.#settler.record(attempt, outcome);
    }
    this.#scheduleTurn();
    this.#startWaiting(now);
    this.#notifyIfQuiet();
  }

  readonly #onLoss = (attempt: Attempt): void => {
    attempt.span?.lost(attempt.lost ?? "LEASE_LOST");
    attempt.runnable.held--;
    this.#continuing.delete(attempt);
    this.#drained?.unsuccessful.push(attempt);
    this.#waiting = this.#waiting.filter((one) => one !== attempt);
    this.#arrived = this.#arrived.filter((one) => one !== attempt);
    this.#settler.drop(attempt);
    if (this.#running.has(attempt)) {
      this.#engine.clock.after(LOST_HANDLER_GRACE_MS, () => {
        if (!this.#running.delete(attempt)) return;
        this.#engine.log.warn("a handler continues although its lease is gone", {
          job: attempt.claimed.id,
          name: attempt.claimed.name,
          hint: "Have it end when its `signal` is aborted: nothing more of it is kept, and another worker may run the job.",
        });
        this.#startWaiting();
        this.#wake();
        this.#notifyIfQuiet();
      });
    }
    this.#wake();
    this.#notifyIfQuiet();
  };

  async #stop(drain: number): Promise<void> {
    // `stop` sets `#stopping` first, so that nothing is claimed meanwhile.
    await Promise.resolve();
    this.#cancelAlarm?.();
    this.#releaseWaiting();
    await this.#untilQuiet(drain);
    for (const attempt of this.#running) attempt.abort("STOPPING");
    // Handlers that obey the signal end in these turns.
    for (let turn = 0; turn < 3 && this.#running.size > 0; turn++) await new Promise((resolve) => setImmediate(resolve));
    for (const attempt of this.#running) this.#finish(attempt, { kind: "interrupted" });
    this.#progress.flush();
    await this.#untilQuiet(DEFAULT_DRAIN_MS);
    this.#unlisten();
    this.#withdraw();
    clearInterval(this.#keepAlive);
  }

  #releaseWaiting(): void {
    const waiting = [...this.#waiting.splice(0), ...this.#arrived.splice(0)];
    for (const attempt of waiting) if (attempt.lost === null) this.#settler.record(attempt, { kind: "released" });
    this.#scheduleTurn();
  }

  #untilQuiet(most: number): Promise<void> {
    return new Promise((resolve) => {
      if (this.#isQuiet()) return resolve();
      const cancel = this.#engine.clock.after(most, resolve);
      this.#quietWaiters.push(() => {
        cancel();
        resolve();
      });
    });
  }

  #isQuiet(): boolean {
    const held = this.#running.size + this.#waiting.length + this.#arrived.length;
    return !this.#isClaiming && held === 0 && this.#settler.unsettled === 0;
  }

  readonly #notifyIfQuiet = (): void => {
    if (this.#quietWaiters.length > 0 && this.#isQuiet()) for (const resolve of this.#quietWaiters.splice(0)) resolve();
  };
}
