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
import { type Log, logFailure, MEND, READ_ERRORS, describeError } from "./log.ts";
import { LeaseTable, Keeper, KeeperFile, type Loss, type LossReason, type TimedOut } from "./leases.ts";
import { Janitor } from "./maintenance/janitor.ts";
import type { FromKeeper, KeeperThreadData, ToKeeper } from "./keeper-thread.ts";
import { Heartbeats } from "./maintenance/heartbeats.ts";
import { CHECKS, isLeftBehind, recoveryPending, runChecks } from "./maintenance/recovery.ts";
import { Relays } from "./events/relays.ts";
import { Scheduler } from "./schedules.ts";
import { openStore, type StoreLocation } from "../store/open-store.ts";
import type { OwnThread } from "../store/own-file.ts";
import type { Works } from "../store/processes.ts";
import { modeLike } from "../store/sqlite/faults.ts";
import type { Change, Claimed, Store } from "../store/store.ts";

/** Interval at which a process without a keeper thread checks for overdue maintenance. */
const CARE = 1_000;
/** The first process to open a file checks it after this time: short commands do not pay for it. */
const CHECK_AFTER = 20_000;
const RESTART = 500;

/** The holder of a lease in this process. */
export interface Owner {
  readonly lease: Claimed;
  lose(reason: LossReason): void;
}

/** A process that only reads is not registered. */
const UNREGISTERED = 0 as ProcessId;

/** The parts of an open database, shared by all handles on it in this process. */
export class Engine {
  readonly store: Store;
  readonly location: StoreLocation;
  readonly clock: Clock;
  readonly log: Log;
  readonly self: ProcessId;
  /** Read-only: crash recovery waits for an operator's approval. */
  readonly isSealed: boolean;
  readonly leaseTable = new LeaseTable();
  readonly janitor: Janitor;
  readonly scheduler: Scheduler;
  readonly relays: Relays;
  readonly heartbeats: Heartbeats;
  readonly program: string;
  readonly actor: string;
  readonly artifactFolder: ArtifactFolder;
  readonly #owners: (Owner | undefined)[] = [];
  /** Attempts past their timeout, until the keeper has settled them. */
  readonly #timedOut = new Map<number, Claimed>();
  readonly #works = new Set<readonly Works[]>();
  readonly #care: () => void;
  readonly #forgetDamage: () => void;
  /** False if no thread can reach the store, or the clock is not the system's. */
  readonly #threaded: boolean;
  #unlisten: (() => void) | null = null;
  readonly #keeperFile: KeeperFile;
  #keeper: Keeper | null = null;
  #thread: Thread | null = null;
  /** The thread has the store open. */
  #ready = false;
  /** Short leases are held here. */
  #alert = false;
  #kept: Promise<void> = Promise.resolve();
  #keeperTimer: (() => void) | null = null;
  #closing = false;
  #cancelCheck: () => void = () => {};
  #checking: Promise<void> = Promise.resolve();

  static async open(location: StoreLocation, options: EngineOptions, tries = 0): Promise<Engine> {
    const { clock } = options;
    const store = await openStore(location, {
      clock,
      injected: clock !== systemClock,
      actor: actorOf(options),
      backsUp: options.backsUp ?? true,
      identity: processIdentity(),
      boot: bootId(),
      onlyReads: options.onlyReads ?? false,
      ...(options.journal === undefined ? {} : { journal: options.journal }),
      ...(options.writeWaitMs === undefined ? {} : { writeWaitMs: options.writeWaitMs }),
    });
    try {
      // A damaged database is only read: opening it writes nothing, and recovers nothing.
      if (options.onlyReads || store.damage.damaged !== null) return new Engine(store, location, options, UNREGISTERED);
      if (options.recovery === "manual" && (await isLeftBehind(store))) {
        store.seal(() => recoveryPending(location.name));
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
      const isMet = store.damage.damaged !== null && !isGone(error);
      await store.close();
      // Damage was found just now. If a second read confirmed it, the next try opens the database read-only.
      if (isMet && tries < 2) return Engine.open(location, options, tries + 1);
      throw error;
    }
  }

  private constructor(store: Store, location: StoreLocation, options: EngineOptions, self: ProcessId, isSealed = false) {
    this.store = store;
    this.isSealed = isSealed;
    this.location = location;
    // Times in the store are by its clock; this host's may be an hour off.
    this.clock = store.clock;
    this.#threaded = location.key !== null && options.clock === systemClock;
    this.log = options.log;
    this.#keeperFile = new KeeperFile(this.log, location);
    this.self = self;
    this.program = options.program;
    this.actor = actorOf(options);
    this.artifactFolder = new ArtifactFolder(store, location, this.clock, options.artifacts);
    this.heartbeats = new Heartbeats({
      store,
      clock: this.clock,
      log: this.log,
      send: (message) => {
        if (this.#threaded) this.keep();
        this.#thread?.postMessage(message satisfies ToKeeper);
        return this.#threaded;
      },
    });
    const { onStop } = options;
    this.janitor = new Janitor({
      store,
      leaseTable: this.leaseTable,
      clock: this.clock,
      log: this.log,
      self,
      ...(this.#threaded ? { check: (circumstances) => runChecks(CHECKS, this, circumstances) } : {}),
      ...(onStop === undefined ? {} : { onStop }),
    });
    // An operator may ask the process to stop before it has a worker.
    if (onStop !== undefined && self !== UNREGISTERED) this.janitor.start();
    this.scheduler = new Scheduler({ store, clock: this.clock, log: this.log });
    const mode = () => (location.kind === "sqlite" ? modeLike(location.path) : (location.mode ?? DEFAULT_FILE_MODE));
    this.relays = new Relays({ store, clock: this.clock, log: this.log, self, janitor: this.janitor, mode });
    this.#forgetDamage = store.damage.onDamaged((error) => this.#damaged(error));
    if (store.damage.damaged !== null)
      this.log.error("the database is damaged, and is only read", { what: store.damage.damaged, hint: MEND });
    const interval = setInterval(() => {
      store.damage.refusal("write", true);
      if (this.#thread === null && self !== UNREGISTERED && store.maintenance.isOverdue) this.keep();
    }, CARE).unref();
    this.#care = () => clearInterval(interval);
  }

  /**
   * A page may have gone bad while no process had the file open, or in a crash of the host. A process that exits soon does
   * not check.
   */
  async #checkLater(): Promise<void> {
    if (!this.#threaded || this.location.kind === "postgres" || (await this.store.processes.all()).length > 1) return;
    const timer = setTimeout(() => {
      this.#checking = checkAll(this, "quick")
        .then((findings) =>
          findings.forEach((what) =>
            this.log.error("a check has found something", { what, hint: "`holdfast doctor` says more." }),
          ),
        )
        .catch((error: unknown) => this.log.warn("the database could not be checked", describeError(error)));
    }, CHECK_AFTER).unref();
    this.#cancelCheck = () => clearTimeout(timer);
  }

  /** From now on every write (without its locks: every claim) is rejected. */
  #damaged(error: HoldfastError | null): void {
    if (error === null) return this.log.warn("the damage was not found again; writes are allowed", { hint: READ_ERRORS });
    const { code, message, hint } = error;
    if (code === "LOCKS_LOST")
      return this.log.error("the locks on the database are lost; no more jobs are claimed", { error: message, hint });
    if (code === "DATABASE_GONE")
      this.log.error("the database's files were replaced; this handle is read-only", { error: message, hint });
    else
      return this.log.error("the database is damaged, and is only read from now on", {
        what: this.store.damage.damaged,
        hint: MEND,
      });
    void this.janitor.stop();
    void this.scheduler.stop();
  }

  artifacts(): Promise<Artifacts> {
    return this.artifactFolder.open();
  }

  get closing(): boolean {
    return this.#closing;
  }

  refuseClosed(): void {
    if (!this.#closing) return;
    throw new HoldfastError("CLOSED", "This handle is closed.", "Call open() again, or close the handle later.");
  }

  refuseDamaged(): void {
    const refusal = this.store.damage.refusal("write");
    if (refusal !== null) throw refusal;
  }

  /** Announces a worker's jobs to operators; the returned function withdraws them. */
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
      .announce(this.self, [...this.#works].flat())
      .catch((error: unknown) => this.log.warn("could not say what is worked on", describeError(error)));
  }

  get room(): number {
    return this.leaseTable.room;
  }

  /** Renews the lease until `release`. `before`: when the claim was sent. */
  hold(claimed: Claimed, owner: Owner, before: number): number {
    const slot = this.leaseTable.take(claimed, { expiresAt: before + claimed.lease, since: before });
    this.#owners[slot] = owner;
    return slot;
  }

  /** Reschedules a keeper on the main thread after a lease was added or started. */
  poke(): void {
    if (this.#keeper === null) return;
    this.#keeperTimer?.();
    const wait = this.#keeper.nextAt() - this.clock.monotonic();
    if (wait < 1e12) this.#keeperTimer = this.clock.after(Math.max(0, wait), () => this.#keep());
  }

  release(slot: number): void {
    this.#owners[slot] = undefined;
    this.leaseTable.free(slot);
  }

  /** Leases that this process's own commits ended, such as a cancelled job's. */
  #ended(change: Change): void {
    if (change.ended.length === 0) return;
    const ended = new Map(change.ended.map(({ job, fence }) => [job, fence]));
    for (const [slot, owner] of this.#owners.entries()) {
      if (owner !== undefined && ended.get(owner.lease.job) === owner.lease.fence) void this.#explainLoss(slot, owner);
    }
  }

  /** Throws KEEPER_MISSING if the keeper thread cannot start. */
  requireKeeper(): void {
    if (this.#threaded) this.#keeperFile.require();
  }

  keep(): void {
    if (this.#keeper !== null || this.#thread !== null || this.#closing) return;
    this.#unlisten ??= this.store.onChange((change) => this.#ended(change), { ownOnly: true });
    if (this.#threaded) {
      const thread = this.#keeperFile.find();
      if (thread !== null) this.#startThread(thread);
    } else
      this.#keeper = new Keeper({
        store: this.store,
        leaseTable: this.leaseTable,
        clock: this.clock,
        onLoss: (loss) => this.#lost(loss),
        onTimedOut: (timedOut) => this.#logTimeout(timedOut),
      });
  }

  /** Resolves when the keeper renews short leases, which would expire while the thread starts or sleeps. */
  async kept(): Promise<void> {
    this.keep();
    if (!this.#alert) this.#thread?.postMessage("alert" satisfies ToKeeper);
    this.#alert = true;
    if (!this.#ready) this.#thread?.ref();
    await this.#kept;
    this.requireKeeper();
  }

  async close(): Promise<void> {
    this.#closing = true;
    this.#care();
    this.#forgetDamage();
    this.#cancelCheck();
    await this.#checking;
    this.#keeperTimer?.();
    this.#unlisten?.();
    await this.scheduler.stop();
    await this.janitor.stop();
    await this.#stopThread();
    await this.#letGo();
    await this.artifactFolder.close();
    if (this.self !== UNREGISTERED) {
      await this.store.processes
        .unregister(this.self)
        .catch((error: unknown) => this.log.warn("could not sign off", describeError(error)));
    }
    await this.store.close();
  }

  /** Returns claims that no caller settled, so that closing is no crash. */
  async #letGo(): Promise<void> {
    const held = [...this.leaseTable.all()];
    if (held.length === 0) return;
    const settlements = held.map(({ job, fence }) => ({ job, fence, outcome: { kind: "interrupted" } as const }));
    await this.store.settle(settlements).catch((error: unknown) => this.log.warn("could not let go", describeError(error)));
  }

  #keep(): void {
    void this.#keeper
      ?.round()
      .catch((error: unknown) => this.log.warn("renewing leases failed; it is tried again", describeError(error)))
      .finally(() => this.poke());
  }

  #startThread({ code, options }: OwnThread): void {
    const data: KeeperThreadData = {
      location: this.location,
      process: this.self,
      leaseTable: this.leaseTable.buffer,
      alert: this.#alert,
    };
    const thread = new Thread(code, { workerData: data, ...options });
    this.#thread = thread;
    this.heartbeats.resend();
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#kept = promise;
    thread.on("message", (message: FromKeeper) => {
      switch (message.type) {
        case "awake":
          if (!this.#alert) this.#leave(thread);
          return;
        case "ready":
          this.#ready = true;
          this.#leave(thread);
          this.store.maintenance.leaveTo("thread");
          return resolve();
        case "loss":
          return this.#lost(message.loss);
        case "timed-out":
          return this.#logTimeout(message.timedOut);
        case "lead-lost":
          return this.heartbeats.lost(message.token);
        case "long-wal":
          return this.log.warn("the write-ahead log is long: a reader of an old state keeps it from starting anew", {
            bytes: message.wal.bytes,
            readers: readersText(message.wal.readers) ?? "not known from here",
            hint: "Look for a program that keeps a transaction open, and end it; until then the log grows.",
          });
        case "trouble":
          return this.log.warn("the keeper had trouble; it tries again", message.trouble);
        case "closed":
          return;
      }
    });
    thread.on("error", (error) => {
      if (!this.#ready) this.#keeperFile.failed(error);
      this.log.error("the keeper thread failed", describeError(error));
    });
    thread.on("exit", () => {
      this.#thread = null;
      this.#ready = false;
      this.store.maintenance.leaveTo("commits");
      resolve();
      // Without a keeper the leases of this process would expire.
      if (!this.#closing) setTimeout(() => this.keep(), RESTART).unref();
    });
  }

  /** While the thread is awaited, it may be all that keeps the process alive. */
  #leave(thread: Thread): void {
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

  async #explainLoss(slot: number, owner: Owner): Promise<void> {
    const held = this.leaseTable.read(slot);
    if (held === null || held.fence !== owner.lease.fence) return;
    const [fate] = await this.store.inspect([held]);
    if (fate === "held" || !this.leaseTable.revoke(held)) return;
    this.#lost({ slot, job: held.job, fence: held.fence, reason: fate === "cancelled" ? "CANCELLED" : "LEASE_LOST" });
  }

  #lost(loss: Loss): void {
    const owner = this.#owners[loss.slot];
    if (owner === undefined || owner.lease.fence !== loss.fence || owner.lease.job !== loss.job) return;
    this.release(loss.slot);
    if (loss.reason === "TIMEOUT") this.#timedOut.set(loss.job, owner.lease);
    owner.lose(loss.reason);
  }

  #logTimeout({ job, outcome, decided }: TimedOut): void {
    const claimed = this.#timedOut.get(job);
    this.#timedOut.delete(job);
    if (claimed !== undefined) logFailure(this.log, claimed, outcome, decided);
  }
}

function isGone(error: unknown): boolean {
  return error instanceof HoldfastError && error.code === "DATABASE_GONE";
}
