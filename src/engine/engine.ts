import { hostname } from "node:os";
import { Worker as Thread } from "node:worker_threads";
import type { Artifacts } from "../artifacts/artifacts.ts";
import type { Clock } from "../core/text/duration.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { DEFAULT_FILE_MODE } from "../core/text/text.ts";
import type { ProcessId } from "../core/text/ids.ts";
import { readersText } from "../core/recovery/loss.ts";
import { ArtifactFolder } from "./maintenance/artifact-folder.ts";
import { bootId, processIdentity, systemClock } from "./host.ts";
import { checkAll } from "./maintenance/check.ts";
import { actorOf, type EngineOptions } from "./open-options.ts";
import { type Log, logFailure, DAMAGE_HINT, READ_ERROR_HINT, describeError } from "./log.ts";
import { LeaseTable, Keeper, KeeperGuard, type Loss, lossReason, type LossReason, NEVER, type TimedOut } from "./leases.ts";
import { Janitor } from "./maintenance/janitor.ts";
import type { FromKeeper, KeeperThreadData, ToKeeper } from "./keeper-thread.ts";
import { Telemetry } from "./telemetry.ts";
import { MinuteRecorder } from "./progress.ts";
import { Heartbeats } from "./maintenance/heartbeats.ts";
import { CHECKS, needsOperator, recoveryPending, runChecks } from "./maintenance/recovery.ts";
import { Relays } from "./events/relays.ts";
import { Scheduler } from "./schedules.ts";
import { openStore, type StoreLocation } from "../store/open-store.ts";
import type { OwnThread } from "../store/own-file.ts";
import type { Works } from "../store/processes.ts";
import { modeLike } from "../store/sqlite/faults.ts";
import type { Change, Claimed, Store } from "../store/store.ts";

const MAINTENANCE_CHECK_MS = 1_000;
/** The first process to open a file checks it after this time, so that short commands do not pay for the check. */
const FIRST_CHECK_MS = 20_000;
const KEEPER_RESTART_MS = 500;
/** What the keeper allocates is short-lived and little; without a limit its young generation grows to 48 MB. */
const YOUNG_MB = 2;

export interface LeaseOwner {
  readonly claimed: Claimed;
  lose(reason: LossReason): void;
}

const UNREGISTERED = 0 as ProcessId;

export class Engine {
  readonly store: Store;
  readonly location: StoreLocation;
  readonly clock: Clock;
  readonly log: Log;
  readonly self: ProcessId;
  /** True while crash recovery waits for an operator's approval. */
  readonly isReadOnly: boolean;
  readonly leaseTable = new LeaseTable();
  readonly janitor: Janitor;
  readonly scheduler: Scheduler;
  readonly relays: Relays;
  readonly heartbeats: Heartbeats;
  readonly program: string;
  readonly actor: string;
  readonly minutes: MinuteRecorder;
  readonly telemetry: Telemetry | null;
  readonly artifactFolder: ArtifactFolder;
  readonly #owners: (LeaseOwner | undefined)[] = [];
  readonly #timedOut = new Map<number, Claimed>();
  readonly #works = new Set<readonly Works[]>();
  readonly #stopMaintenance: () => void;
  /** False if no thread can reach the store, or the clock is not the system's. */
  readonly #hasThread: boolean;
  #unlisten: (() => void) | null = null;
  readonly #keeperFile: KeeperGuard;
  #keeper: Keeper | null = null;
  #thread: Thread | null = null;
  #isThreadReady = false;
  #isAlert = false;
  #keeperReady: Promise<void> = Promise.resolve();
  #keeperTimer: (() => void) | null = null;
  #closing = false;
  #cancelCheck: () => void = () => {};
  #checking: Promise<void> = Promise.resolve();

  static async open(location: StoreLocation, options: EngineOptions, tries = 0): Promise<Engine> {
    const { clock } = options;
    const own = { injected: clock !== systemClock, actor: actorOf(options), identity: processIdentity(), boot: bootId() };
    const store = await openStore(location, { backsUp: true, ...options, ...own });
    try {
      if (options.onlyReads || store.damage.damaged !== null) return new Engine(store, location, options, UNREGISTERED);
      if (options.recovery === "manual" && (await needsOperator(store))) {
        store.hooks.refuseWrites = () => recoveryPending(location.name);
        return new Engine(store, location, options, UNREGISTERED, true);
      }
      const self = await store.processes.register({
        pid: process.pid,
        host: hostname(),
        boot: bootId(),
        program: options.program,
        identity: processIdentity(),
        stoppable: options.onStop !== undefined,
      });
      const engine = new Engine(store, location, options, self);
      if (options.recovery === "auto") await engine.janitor.open();
      await engine.#checkLater();
      return engine;
    } catch (error) {
      const isMet = store.damage.damaged !== null && (error as HoldfastError | null)?.code !== "DATABASE_GONE";
      await store.close();
      // Damage was found just now. If a second read confirmed it, the next try opens the database read-only.
      if (isMet && tries < 2) return Engine.open(location, options, tries + 1);
      throw error;
    }
  }

  private constructor(store: Store, location: StoreLocation, options: EngineOptions, self: ProcessId, isReadOnly = false) {
    this.store = store;
    this.isReadOnly = isReadOnly;
    this.location = location;
    // Times in the store come from the store's clock; this host's clock may be an hour off.
    this.clock = store.clock;
    this.#hasThread = location.key !== null && options.clock === systemClock;
    this.log = options.log;
    this.#keeperFile = new KeeperGuard(this.log, location);
    this.self = self;
    this.program = options.program;
    this.actor = actorOf(options);
    this.artifactFolder = new ArtifactFolder(store, location, this.clock, options.artifacts);
    this.heartbeats = new Heartbeats({
      store,
      clock: this.clock,
      log: this.log,
      send: (message) => {
        if (this.#hasThread) this.startKeeper();
        this.#thread?.postMessage(message satisfies ToKeeper);
        return this.#hasThread;
      },
    });
    this.telemetry = options.telemetry === true ? new Telemetry(store) : null;
    this.minutes = new MinuteRecorder({ store, clock: this.clock, log: this.log });
    const { onStop } = options;
    this.janitor = new Janitor({
      store,
      leaseTable: this.leaseTable,
      clock: this.clock,
      log: this.log,
      self,
      ...(this.#hasThread ? { check: (circumstances) => runChecks(CHECKS, this, circumstances) } : {}),
      ...(onStop === undefined ? {} : { onStop }),
    });
    // An operator may ask the process to stop before it has a worker.
    if (onStop !== undefined && self !== UNREGISTERED) this.janitor.start();
    this.scheduler = new Scheduler({ store, clock: this.clock, log: this.log });
    const mode = () => (location.kind === "sqlite" ? modeLike(location.path) : (location.mode ?? DEFAULT_FILE_MODE));
    this.relays = new Relays({ store, clock: this.clock, log: this.log, self, janitor: this.janitor, mode });
    store.hooks.onDamaged = (error) => this.#onDamaged(error);
    if (store.damage.damaged !== null)
      this.log.error("the database is damaged, and is only read", { what: store.damage.damaged, hint: DAMAGE_HINT });
    const interval = setInterval(() => {
      store.damage.refusal("write", true);
      if (this.#thread === null && self !== UNREGISTERED && store.maintenance.isOverdue) this.startKeeper();
    }, MAINTENANCE_CHECK_MS).unref();
    this.#stopMaintenance = () => clearInterval(interval);
  }

  /** Schedules a check: a page may have gone bad while no process had the file open. A process that exits soon skips it. */
  async #checkLater(): Promise<void> {
    if (!this.#hasThread || this.location.kind === "postgres" || (await this.store.processes.probe()).others.length > 0) return;
    const timer = setTimeout(() => {
      this.#checking = checkAll(this, "quick")
        .then((findings) =>
          findings.forEach((what) =>
            this.log.error("a check has found something", { what, hint: "`holdfast doctor` says more." }),
          ),
        )
        .catch((error: unknown) => this.log.warn("the database could not be checked", describeError(error)));
    }, FIRST_CHECK_MS).unref();
    this.#cancelCheck = () => clearTimeout(timer);
  }

  /** Logs why the store rejects all writes from now on, or all claims if its locks are lost. Null: it accepts them again. */
  #onDamaged(error: HoldfastError | null): void {
    if (error === null) return this.log.warn("the damage was not found again; writes are allowed", { hint: READ_ERROR_HINT });
    const { code, message, hint } = error;
    if (code === "LOCKS_LOST")
      return this.log.error("the locks on the database are lost; no more jobs are claimed", { error: message, hint });
    if (code === "DATABASE_GONE")
      this.log.error("the database's files were replaced; this handle is read-only", { error: message, hint });
    else
      return this.log.error("the database is damaged, and is only read from now on", {
        what: this.store.damage.damaged,
        hint: DAMAGE_HINT,
      });
    void this.janitor.stop();
    void this.scheduler.stop();
  }

  artifacts(): Promise<Artifacts> {
    return this.artifactFolder.open();
  }

  refuseClosed(): void {
    if (this.#closing) throw closedError();
  }

  refuseDamaged(): void {
    const refusal = this.store.damage.refusal("write");
    if (refusal !== null) throw refusal;
  }

  announce(works: readonly Works[]): () => void {
    this.#works.add(works);
    this.#announceAll();
    return () => {
      this.#works.delete(works);
      if (!this.#closing) this.#announceAll();
    };
  }

  #announceAll(): void {
    this.store.processes
      .update(this.self, { works: [...this.#works].flat() })
      .catch((error: unknown) => this.log.warn("the names of this process's jobs could not be announced", describeError(error)));
  }

  /** Adds a lease that the keeper renews until `release`. `before` is when the claim was sent. */
  hold(claimed: Claimed, owner: LeaseOwner, before: number): number {
    const slot = this.leaseTable.add(claimed, { expiresAt: before + claimed.lease, since: before });
    this.#owners[slot] = owner;
    return slot;
  }

  rescheduleKeeper(): void {
    if (this.#keeper === null) return;
    this.#keeperTimer?.();
    const at = this.#keeper.nextAt();
    if (at !== NEVER) this.#keeperTimer = this.clock.after(Math.max(0, at - this.clock.monotonic()), () => this.#runKeeper());
  }

  release(slot: number): void {
    this.#owners[slot] = undefined;
    this.leaseTable.free(slot);
  }

  /** Reports the loss of leases that this process's own commits ended, such as a cancelled job's. */
  #onEnded(change: Change): void {
    if (change.ended.length === 0) return;
    const ended = new Map(change.ended.map(({ job, fence }) => [job, fence]));
    for (const [slot, owner] of this.#owners.entries()) {
      if (owner !== undefined && ended.get(owner.claimed.job) === owner.claimed.fence) void this.#explainLoss(slot, owner);
    }
  }

  requireKeeper(): void {
    if (this.#hasThread) this.#keeperFile.require();
  }

  startKeeper(): void {
    if (this.#keeper !== null || this.#thread !== null || this.#closing) return;
    this.#unlisten ??= this.store.onChange((change) => this.#onEnded(change), { ownOnly: true });
    if (this.#hasThread) {
      const thread = this.#keeperFile.find();
      if (thread !== null) this.#startThread(thread);
    } else
      this.#keeper = new Keeper({
        store: this.store,
        leaseTable: this.leaseTable,
        clock: this.clock,
        onLoss: (loss) => this.#onLoss(loss),
        onTimedOut: (timedOut) => this.#recordTimeout(timedOut),
      });
  }

  /** Resolves once the keeper renews short leases, which would expire while the keeper thread starts or sleeps. */
  async alertKeeper(): Promise<void> {
    this.startKeeper();
    if (!this.#isAlert) this.#thread?.postMessage("alert" satisfies ToKeeper);
    this.#isAlert = true;
    if (!this.#isThreadReady) this.#thread?.ref();
    await this.#keeperReady;
    this.requireKeeper();
  }

  async close(): Promise<void> {
    this.#closing = true;
    this.#stopMaintenance();
    this.store.hooks.onDamaged = () => {};
    this.#cancelCheck();
    await this.#checking;
    this.#keeperTimer?.();
    this.#unlisten?.();
    await this.scheduler.stop();
    await this.janitor.stop();
    await this.#stopThread();
    await this.#releaseAll();
    await this.minutes.flush();
    this.telemetry?.close();
    await this.artifactFolder.close();
    if (this.self !== UNREGISTERED) {
      await this.store.processes
        .unregister(this.self)
        .catch((error: unknown) => this.log.warn("the process could not be unregistered", describeError(error)));
    }
    await this.store.close();
  }

  /** Settles claims that no caller settled as interrupted, so that closing does not count as a crash. */
  async #releaseAll(): Promise<void> {
    const held = [...this.leaseTable.all()];
    if (held.length === 0) return;
    const settlements = held.map(({ job, fence }) => ({ job, fence, outcome: { kind: "interrupted" } as const }));
    await this.store
      .settle(settlements)
      .catch((error: unknown) => this.log.warn("claims could not be released", describeError(error)));
  }

  #runKeeper(): void {
    void this.#keeper
      ?.round()
      .catch((error: unknown) => this.log.warn("renewing leases failed; it is tried again", describeError(error)))
      .finally(() => this.rescheduleKeeper());
  }

  #startThread({ code, options }: OwnThread): void {
    const data: KeeperThreadData = {
      location: this.location,
      process: this.self,
      leaseTable: this.leaseTable.buffer,
      alert: this.#isAlert,
    };
    const thread = new Thread(code, { workerData: data, resourceLimits: { maxYoungGenerationSizeMb: YOUNG_MB }, ...options });
    this.#thread = thread;
    this.heartbeats.resend();
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#keeperReady = promise;
    thread.on("message", (message: FromKeeper) => {
      switch (message.type) {
        case "awake":
          if (!this.#isAlert) this.#unrefThread(thread);
          return;
        case "ready":
          this.#isThreadReady = true;
          this.#unrefThread(thread);
          this.store.maintenance.keptBy = "thread";
          return resolve();
        case "loss":
          return this.#onLoss(message.loss);
        case "timed-out":
          return this.#recordTimeout(message.timedOut);
        case "orchestrator-lock-lost":
          return this.heartbeats.lost(message.token);
        case "long-wal":
          return this.log.warn("the write-ahead log is long: a reader of an old state keeps it from starting anew", {
            bytes: message.wal.bytes,
            readers: readersText(message.wal.readers) ?? "not known from here",
            hint: "Look for a program that keeps a transaction open, and end it; until then the log grows.",
          });
        case "failed":
          return this.log.warn("the keeper had trouble; it tries again", message.failure);
      }
    });
    thread.on("error", (error) => {
      if (!this.#isThreadReady) this.#keeperFile.onThreadFailed(error);
      this.log.error("the keeper thread failed", describeError(error));
    });
    thread.on("exit", () => {
      this.#thread = null;
      this.#isThreadReady = false;
      this.store.maintenance.keptBy = "commits";
      resolve();
      // Without a keeper the leases of this process would expire.
      if (!this.#closing) setTimeout(() => this.startKeeper(), KEEPER_RESTART_MS).unref();
    });
  }

  /** Lets the process exit without the thread, but not while `close` waits for it: it may be all that keeps the process alive. */
  #unrefThread(thread: Thread): void {
    if (!this.#closing) thread.unref();
  }

  async #stopThread(): Promise<void> {
    const thread = this.#thread;
    if (thread === null) return;
    await new Promise<void>((resolve) => {
      thread.ref();
      thread.once("exit", () => resolve());
      thread.postMessage("close" satisfies ToKeeper);
    });
  }

  async #explainLoss(slot: number, owner: LeaseOwner): Promise<void> {
    const held = this.leaseTable.read(slot);
    if (held === null || held.fence !== owner.claimed.fence) return;
    const [state] = await this.store.inspect([held]);
    if (state === "held" || !this.leaseTable.revoke(held)) return;
    this.#onLoss({ slot, job: held.job, fence: held.fence, reason: lossReason(state) });
  }

  #onLoss(loss: Loss): void {
    const owner = this.#owners[loss.slot];
    if (owner === undefined || owner.claimed.fence !== loss.fence || owner.claimed.job !== loss.job) return;
    this.release(loss.slot);
    if (loss.reason === "TIMEOUT") this.#timedOut.set(loss.job, owner.claimed);
    owner.lose(loss.reason);
  }

  #recordTimeout({ job, outcome, decided }: TimedOut): void {
    const claimed = this.#timedOut.get(job);
    this.#timedOut.delete(job);
    if (claimed === undefined) return;
    logFailure(this.log, claimed, outcome, decided);
    if (decided !== undefined) this.minutes.countTimeout(claimed, decided);
  }
}

export function closedError(): HoldfastError {
  return new HoldfastError("CLOSED", "This handle is closed.", "Call open() again, or close the handle later.");
}
