import { type Duration, toMillis } from "../core/text/duration.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { refuseUnknown } from "../core/text/options.ts";
import type { Outcome } from "../core/jobs/retry.ts";
import { checkConcurrency } from "../core/jobs/run-options.ts";
import type { Change, ClaimSource, Claimed, Declaration, ClaimOutlook } from "../store/store.ts";
import { Attempt, Executor, type ProgressWriter, Runnables } from "./attempt.ts";
import type { Definition } from "./definition.ts";
import type { Engine } from "./engine.ts";
import { logFailure, describeError, RepeatedFailure } from "./log.ts";
import { Settler } from "./settler.ts";

const CONCURRENCY = 10;
/** A commit costs as much as some dozen jobs. */
const BATCH = 512;
/** Claimed beyond the concurrency: while one batch runs, the store claims the next. */
const AHEAD = 2 * BATCH;
/** Handlers may keep one turn of the event loop this busy. */
const TURN = 5;
const DRAIN = 10_000;
/** A handler that continues after its lease is lost no longer counts against the concurrency after this time. */
const ZOMBIE = 5_000;
/** Clocks are set, so a worker checks again by then, however far away the next delayed job is. */
const LOOK_AGAIN = 5_000;
const CLAIM_AGAIN = 250;
const DECLARE_AGAIN = 1_000;
/** Shorter leases are claimed only once the keeper renews: on a busy machine it takes a while to start. */
const BRIEF = 10_000;

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

export interface Drained {
  ran: number;
  readonly ended: Attempt[];
}

/** Claims, runs, settles. One turn of the event loop is one commit: settles what is done, and claims what is next, together. */
export class WorkerLoop implements Worker {
  readonly #engine: Engine;
  readonly #progress: ProgressWriter;
  readonly #executor: Executor;
  readonly #settler: Settler;
  readonly #runnables: Runnables;
  readonly #concurrency: number;
  readonly #drain: number;
  readonly #brief: boolean;
  readonly #unlisten: () => void;
  readonly #retire: () => void;
  readonly #stayAlive: NodeJS.Timeout;
  #waiting: Attempt[] = [];
  /** A batch that arrived while another is running. */
  #arrived: Attempt[] = [];
  readonly #running = new Set<Attempt>();
  /** Claimed beyond the concurrency. Grows while a whole batch is done within its turn, and shrinks otherwise. */
  #ahead = 0;
  #freshAt = 0;
  #turning = false;
  #pumping = false;
  #claiming = false;
  #peeking = false;
  /** Nothing to claim as far as known; `#wakes` counts what may have changed that. */
  #dry = false;
  #wakes = 0;
  /** Some jobs may not be claimed now (a second suspect, say): any commit of this process may free them. */
  #blocked = false;
  #commits = 0;
  #alarm: (() => void) | null = null;
  #stopping: Promise<void> | null = null;
  #quiet: (() => void)[] = [];
  #trouble: unknown = null;
  readonly #claims = new RepeatedFailure();
  readonly #looks = new RepeatedFailure();
  #drained: Drained | null = null;

  constructor(engine: Engine, progress: ProgressWriter, defs: readonly Definition[], options: WorkOptions) {
    this.#engine = engine;
    this.#progress = progress;
    this.#executor = new Executor(engine, progress, (attempt, outcome) => this.#finish(attempt, outcome));
    this.#settler = new Settler(engine, {
      onSettled: (attempt) => this.#settled(attempt),
      onRest: () => this.#hush(),
    });
    this.#concurrency = checkConcurrency(options.concurrency === undefined ? CONCURRENCY : options.concurrency, "concurrency");
    this.#drain = toMillis(options.drain === undefined ? DRAIN : options.drain, "drain");
    this.#brief = defs.some(({ lease }) => lease < BRIEF);
    this.#runnables = new Runnables(defs);
    this.#unlisten = engine.store.onChange((change) => this.#onChange(change), { onIncoming: () => this.#onIncoming() });
    // An idle worker keeps the process alive.
    this.#stayAlive = setInterval(() => {}, 2 ** 30);
    engine.keep();
    engine.janitor.start();
    engine.scheduler.start();
    // In the commit before the first claim: the limits of the newest code apply from here on.
    this.#declare(defs.map(({ declared }) => declared.declaration));
    this.#retire = engine.announce(defs.map(({ queue, name, version }) => ({ queue, name, version })));
    this.#soon();
  }

  stop(options: { drain?: Duration } = {}): Promise<void> {
    refuseUnknown(options, ["drain"], "worker.stop");
    this.#stopping ??= this.#stop(options.drain === undefined ? this.#drain : toMillis(options.drain, "drain"));
    return this.#stopping;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
  }

  /**
   * @internal For tests: resolves when nothing is left that is due: nothing runs here, every outcome is on the disk, and a
   * claim would find nothing. Delayed jobs stay delayed: no time is made to pass.
   */
  async drained(): Promise<Drained> {
    const drained = (this.#drained = { ran: 0, ended: [] as Attempt[] });
    for (;;) {
      const before = drained.ran;
      // A claim also reclaims from dead holders.
      this.#wake();
      await new Promise((resolve) => setImmediate(resolve));
      await this.#untilQuiet(Number.POSITIVE_INFINITY);
      if (this.#stopping !== null)
        throw new HoldfastError(
          "CLOSED",
          "The worker of this attempt was stopped.",
          "Stop the worker after the attempt has ended.",
        );
      if (this.#trouble !== null) throw this.#trouble;
      const [{ ready }, timedOut] = await Promise.all([
        this.#engine.store.outlook(this.#runnables.sources()),
        // The keeper reports the loss first, and writes the outcome then.
        this.#engine.store.inspect(drained.ended.filter(({ lost }) => lost === "TIMEOUT")),
      ]);
      const isWritten = !timedOut.includes("held");
      if (!ready && isWritten && this.#isQuiet()) return drained;
      // Due, but not claimable yet (a second suspect, say): another process has to act first, in real time.
      if (drained.ran === before) await new Promise((resolve) => setTimeout(resolve, 10));
    }
  }

  #declare(declarations: readonly Declaration[]): void {
    this.#engine.store.queues.declare(declarations).catch((error: unknown) => {
      if (this.#stopping !== null || this.#engine.store.damage.damaged !== null) return;
      this.#engine.log.warn("limits could not be declared; it is tried again", describeError(error));
      this.#engine.clock.after(DECLARE_AGAIN, () => this.#declare(declarations));
    });
  }

  #soon(): void {
    if (this.#turning) return;
    this.#turning = true;
    setImmediate(() => this.#turn());
  }

  #turn(): void {
    this.#turning = false;
    if (this.#settler.hasRecorded) {
      const allDone = this.#running.size + this.#waiting.length === 0;
      this.#ahead = allDone && !this.#isTired() ? Math.min(AHEAD, this.#ahead * 2 + this.#concurrency) : this.#ahead >> 1;
      // The last progress of a job goes before its outcome, in the same commit.
      this.#progress.flush();
      this.#settler.write();
    }
    this.#freshAt = performance.now();
    this.#pump();
    this.#next();
  }

  /** Claims at most half of the room at once as soon as more is wanted than can run. */
  #next(): void {
    if (this.#dry || this.#claiming || this.#stopping !== null) return;
    const most = Math.max(this.#concurrency, Math.min(this.#concurrency + this.#ahead, AHEAD));
    const batch = Math.max(this.#concurrency, Math.min(BATCH, most >> 1));
    const held = this.#running.size + this.#waiting.length + this.#arrived.length;
    const want = Math.min(most - held, batch, this.#engine.room);
    if (want > 0) void this.#claim(want);
  }

  #settled(attempt: Attempt): void {
    this.#engine.release(attempt.slot);
    logFailure(this.#engine.log, attempt.claimed, attempt.outcome, attempt.decided);
    const { runnable } = attempt;
    if (runnable.held-- === runnable.def.concurrency) this.#wake();
    if (attempt.outcome.kind !== "succeeded") this.#drained?.ended.push(attempt);
  }

  async #claim(max: number): Promise<void> {
    this.#claiming = true;
    let left: ClaimOutlook | null = null;
    try {
      this.#engine.requireKeeper();
      if (this.#brief) await this.#engine.kept();
      const [wakes, before] = [this.#wakes, this.#engine.clock.monotonic()];
      const from = this.#runnables.sources();
      const by = { holder: this.#engine.self, worker: "" };
      const claimed = await this.#engine.store.claim({ from, max, ...by, left: (outlook) => (left = outlook) });
      // Counted from here on: a job of this claim may be settled, and free another one, before `#rest` checks.
      const commits = this.#commits;
      this.#trouble = null;
      this.#claims.over();
      if (claimed.length > 0) this.#hold(claimed, before);
      if (claimed.length === max && max > this.#concurrency) return this.#overlap();
      this.#begin();
      // Reclaimed jobs are claimed next. The claimed jobs have started already, and do not wait for that.
      if (claimed.length < max && !(await this.#engine.janitor.heal()) && wakes === this.#wakes)
        await this.#rest(from, { wakes, commits }, left);
    } catch (error) {
      this.#trouble = error;
      this.#dry = true;
      const refusal = this.#engine.store.damage.refusal("claim");
      // Where every claim is rejected, the engine has logged why.
      const news = refusal === null ? this.#claims.news(error) : null;
      if (news !== null) this.#engine.log.error("claiming failed; it is tried again", news);
      // A finding of damage may be cleared; lost locks and replaced files stay lost.
      if (refusal === null || refusal.code === "DAMAGED") this.#alarmIn(CLAIM_AGAIN);
    }
    this.#claiming = false;
    if (!this.#dry) this.#soon();
    this.#hush();
  }

  /**
   * More jobs than can run at once: claim the next batch first, so that the store works while handlers run. Requests to a
   * server leave with the next turn of the event loop, and handlers would delay it.
   */
  #overlap(): void {
    this.#claiming = false;
    this.#next();
    setImmediate(() => setImmediate(() => this.#begin()));
  }

  #hold(claimed: Claimed[], before: number): void {
    for (const job of claimed) {
      const runnable = this.#runnables.of(job);
      const attempt = new Attempt(job, runnable, this.#onLoss);
      attempt.slot = this.#engine.hold(job, attempt, before);
      runnable.held++;
      runnable.def.prefetch?.(job);
      this.#arrived.push(attempt);
    }
    this.#engine.poke();
  }

  #begin(): void {
    this.#waiting.push(...this.#arrived.splice(0));
    this.#freshAt = performance.now();
    if (this.#stopping !== null) this.#giveBack();
    else this.#pump();
  }

  async #rest(
    from: ClaimSource[],
    { wakes, commits }: { wakes: number; commits: number },
    left: ClaimOutlook | null,
  ): Promise<void> {
    const { ready, nextIn } = left ?? (await this.#engine.store.outlook(from));
    // A blocked job may have been freed while the server was asked.
    if (wakes !== this.#wakes || (ready && commits !== this.#commits)) return;
    this.#ahead = 0;
    this.#blocked = ready;
    if (ready && from.some(({ max }) => max !== 0) && this.#waiting.length === 0 && this.#running.size === 0)
      return this.#alarmIn(50);
    this.#dry = true;
    if (nextIn !== null) this.#alarmIn(Math.min(LOOK_AGAIN, Math.max(1, nextIn)));
  }

  #alarmIn(millis: number): void {
    this.#alarm?.();
    this.#dry = true;
    this.#alarm = this.#engine.clock.after(millis, () => this.#wake());
  }

  #wake(): void {
    this.#wakes++;
    if (this.#stopping !== null) return;
    const atRest = this.#dry && !this.#settler.hasRecorded;
    this.#dry = false;
    // Nothing to share the turn with.
    if (atRest) this.#now();
    else this.#soon();
  }

  #now(): void {
    if (this.#turning) return;
    this.#turning = true;
    queueMicrotask(() => this.#turn());
  }

  #onChange(change: Change): void {
    if (change.own) this.#commits++;
    if (change.ready === null) this.#peek();
    else if (change.ready.size > 0 || this.#blocked) this.#wake();
  }

  /** Claimed in the commit that enqueues them, jobs start as soon as their producer has its answer. */
  #onIncoming(): void {
    if (!this.#dry || this.#claiming || this.#stopping !== null || this.#running.size >= this.#concurrency) return;
    this.#wakes++;
    this.#dry = false;
    queueMicrotask(() => this.#turn());
  }

  /** Another process has committed: read before asking for the write lock. */
  #peek(): void {
    if (!this.#dry || this.#peeking) return void this.#wakes++;
    this.#peeking = true;
    const wakes = ++this.#wakes;
    this.#engine.store
      .outlook(this.#runnables.sources())
      .then(({ ready, nextIn }) => {
        this.#looks.over();
        if (ready) this.#wake();
        else if (nextIn !== null && wakes === this.#wakes) this.#alarmIn(Math.max(1, Math.min(LOOK_AGAIN, nextIn)));
      })
      .catch((error: unknown) => {
        const news = this.#looks.news(error);
        if (news !== null) this.#engine.log.warn("looking for jobs failed; it is tried again", news);
      })
      .finally(() => (this.#peeking = false));
  }

  #pump(): void {
    if (this.#pumping) return;
    this.#pumping = true;
    const now = this.#engine.clock.monotonic();
    let next = 0;
    while (next < this.#waiting.length && this.#running.size < this.#concurrency && !this.#isTired()) {
      this.#start(this.#waiting[next++] as Attempt, now);
    }
    this.#waiting = this.#waiting.slice(next);
    this.#pumping = false;
    if (next > 0) this.#engine.poke();
    if (this.#waiting.length > 0 && this.#isTired()) this.#soon();
  }

  /** Handlers have computed for long enough: what is done must reach the disk. */
  #isTired(): boolean {
    return performance.now() - this.#freshAt > TURN;
  }

  #start(attempt: Attempt, now: number): void {
    if (attempt.lost !== null) return;
    // False: the keeper has just returned the job.
    if (!this.#engine.leaseTable.start(attempt.slot, now + attempt.claimed.policy.timeout)) return;
    this.#running.add(attempt);
    if (this.#drained !== null) this.#drained.ran++;
    this.#executor.run(attempt);
  }

  #finish(attempt: Attempt, outcome: Outcome): void {
    if (!this.#running.delete(attempt)) return;
    attempt.over = true;
    if (attempt.lost === null) this.#settler.record(attempt, outcome);
    this.#soon();
    this.#pump();
    this.#hush();
  }

  /** The handler was aborted; it may take a while to end, but not for ever. */
  readonly #onLoss = (attempt: Attempt): void => {
    attempt.runnable.held--;
    this.#drained?.ended.push(attempt);
    this.#waiting = this.#waiting.filter((one) => one !== attempt);
    this.#arrived = this.#arrived.filter((one) => one !== attempt);
    this.#settler.drop(attempt);
    if (this.#running.has(attempt)) {
      this.#engine.clock.after(ZOMBIE, () => {
        if (!this.#running.delete(attempt)) return;
        this.#engine.log.warn("a handler continues although its lease is gone", {
          job: attempt.claimed.id,
          name: attempt.claimed.name,
          hint: "Have it end when its `signal` is aborted: nothing more of it is kept, and another worker may run the job.",
        });
        this.#pump();
        this.#wake();
        this.#hush();
      });
    }
    this.#wake();
    this.#hush();
  };

  async #stop(drain: number): Promise<void> {
    await Promise.resolve();
    this.#alarm?.();
    this.#giveBack();
    await this.#untilQuiet(drain);
    for (const attempt of this.#running) attempt.abort("STOPPING");
    // Handlers that obey the signal end in these turns.
    for (let turn = 0; turn < 3 && this.#running.size > 0; turn++) await new Promise((resolve) => setImmediate(resolve));
    for (const attempt of this.#running) this.#finish(attempt, { kind: "interrupted" });
    this.#progress.flush();
    await this.#untilQuiet(DRAIN);
    this.#unlisten();
    this.#retire();
    clearInterval(this.#stayAlive);
  }

  #giveBack(): void {
    const waiting = [...this.#waiting.splice(0), ...this.#arrived.splice(0)];
    for (const attempt of waiting) if (attempt.lost === null) this.#settler.record(attempt, { kind: "released" });
    this.#soon();
  }

  #untilQuiet(most: number): Promise<void> {
    return new Promise((resolve) => {
      if (this.#isQuiet()) return resolve();
      const cancel = this.#engine.clock.after(most, resolve);
      this.#quiet.push(() => {
        cancel();
        resolve();
      });
    });
  }

  #isQuiet(): boolean {
    const held = this.#running.size + this.#waiting.length + this.#arrived.length;
    return !this.#claiming && held === 0 && this.#settler.isQuiet;
  }

  #hush(): void {
    if (this.#quiet.length > 0 && this.#isQuiet()) for (const resolve of this.#quiet.splice(0)) resolve();
  }
}
