import type { JobError } from "../core/jobs/job.ts";
import { type LeaseRef, renewalInterval } from "../core/jobs/lease.ts";
import type { Next, Outcome } from "../core/jobs/retry.ts";
import { MAX_CONCURRENCY } from "../core/jobs/run-options.ts";
import type { Clock } from "../core/text/duration.ts";
import { HoldfastError } from "../core/text/errors.ts";
import type { Fence, JobKey } from "../core/text/ids.ts";
import type { StoreLocation } from "../store/open-store.ts";
import { fileMissing, findPackage, isModuleMissing, type OwnThread, ownThread } from "../store/own-file.ts";
import type { LeaseState, Settlement, Store } from "../store/store.ts";
import { THREAD_CODE } from "../store/thread-code.ts";
import type { Log } from "./log.ts";

/** What a slot is in. TAKEN: the keeper has ended or given back the lease; the main thread frees the slot. */
const FREE = 0;
const WAITING = 1;
const RUNNING = 2;
const TAKEN = 3;
/** The rest of the state word counts the slot's uses, so that a compare-and-exchange never hits a later use. */
const USE = 4;

/** Numbers of a slot; times are monotonic milliseconds. */
const JOB = 0;
const FENCE = 1;
const LEASE = 2;
const EXPIRES_AT = 3;
const TIMEOUT_AT = 4;
const SINCE = 5;
const WIDTH = 6;

export const NEVER = Number.MAX_SAFE_INTEGER;
const CAPACITY = MAX_CONCURRENCY;

interface Holding extends LeaseRef {
  slot: number;
  /** The slot's state word when it was read. */
  word: number;
  lease: number;
  expiresAt: number;
  timeoutAt: number;
  since: number;
  running: boolean;
}

/**
 * What this process holds, in memory that its threads share: the main thread puts a lease in when its claim has
 * arrived, the keeper thread reads it from there. So a hundred claims cost no message, and a main thread that is busy
 * for a minute need not be asked.
 *
 * Only the main thread fills and frees slots; from WAITING and RUNNING either may move one on, by compare-and-exchange.
 */
export class LeaseTable {
  readonly buffer: SharedArrayBuffer;
  readonly #states: Int32Array;
  readonly #numbers: Float64Array;
  readonly #free: number[] = [];
  /** Slots from here on were never used. */
  #unused = 0;

  constructor(buffer = new SharedArrayBuffer(CAPACITY * (4 + WIDTH * 8))) {
    this.buffer = buffer;
    this.#numbers = new Float64Array(buffer, 0, CAPACITY * WIDTH);
    this.#states = new Int32Array(buffer, CAPACITY * WIDTH * 8, CAPACITY);
  }

  get room(): number {
    return CAPACITY - this.#unused + this.#free.length;
  }

  /** The lease that a claim has just brought; it waits to be run, or runs at once. */
  take(lease: LeaseRef & { lease: number }, times: { expiresAt: number; since: number }): number {
    const slot = this.#free.pop() ?? this.#unused++;
    const at = slot * WIDTH;
    this.#numbers[at + JOB] = lease.job;
    this.#numbers[at + FENCE] = lease.fence;
    this.#numbers[at + LEASE] = lease.lease;
    this.#numbers[at + EXPIRES_AT] = times.expiresAt;
    this.#numbers[at + TIMEOUT_AT] = NEVER;
    this.#numbers[at + SINCE] = times.since;
    Atomics.store(this.#states, slot, (this.#states[slot] as number) + USE + WAITING);
    return slot;
  }

  /** From now on it runs, until `timeoutAt` at most; false when the keeper has given it back meanwhile. */
  start(slot: number, timeoutAt: number): boolean {
    this.#numbers[slot * WIDTH + TIMEOUT_AT] = timeoutAt;
    const use = useOf(this.#states[slot] as number);
    return Atomics.compareExchange(this.#states, slot, use + WAITING, use + RUNNING) === use + WAITING;
  }

  /** It had to wait for something before it could really begin. */
  prolong(slot: number, timeoutAt: number): void {
    this.#numbers[slot * WIDTH + TIMEOUT_AT] = timeoutAt;
  }

  free(slot: number): void {
    Atomics.store(this.#states, slot, useOf(this.#states[slot] as number) + FREE);
    this.#free.push(slot);
  }

  holds(lease: LeaseRef): boolean {
    for (let slot = 0; slot < this.#unused; slot++) {
      const held = this.read(slot);
      if (held !== null && held.job === lease.job && held.fence === lease.fence) return true;
    }
    return false;
  }

  // ── the keeper's side ──

  /** Every lease that is held now. */
  *all(): Generator<Holding, void> {
    for (let slot = 0; slot < CAPACITY; slot++) {
      const held = this.read(slot);
      if (held !== null) yield held;
      // Slots are used from the front, so the first one that never was is the end.
      else if (this.#numbers[slot * WIDTH + FENCE] === 0) return;
    }
  }

  read(slot: number): Holding | null {
    const word = Atomics.load(this.#states, slot);
    const state = word - useOf(word);
    if (state !== WAITING && state !== RUNNING) return null;
    const at = slot * WIDTH;
    const held: Holding = {
      slot,
      word,
      job: this.#numbers[at + JOB] as JobKey,
      fence: this.#numbers[at + FENCE] as Fence,
      lease: this.#numbers[at + LEASE] as number,
      expiresAt: this.#numbers[at + EXPIRES_AT] as number,
      timeoutAt: this.#numbers[at + TIMEOUT_AT] as number,
      since: this.#numbers[at + SINCE] as number,
      running: state === RUNNING,
    };
    // Moved on while it was being read? Then the next round will see it.
    return Atomics.load(this.#states, slot) === word ? held : null;
  }

  renewed(held: Holding, expiresAt: number): void {
    if (useOf(Atomics.load(this.#states, held.slot)) === useOf(held.word))
      this.#numbers[held.slot * WIDTH + EXPIRES_AT] = expiresAt;
  }

  /** The keeper takes a lease out of the main thread's hands; false when that was quicker. */
  revoke(held: Holding): boolean {
    return Atomics.compareExchange(this.#states, held.slot, held.word, useOf(held.word) + TAKEN) === held.word;
  }
}

function useOf(word: number): number {
  return word & ~(USE - 1);
}

/** How often it looks, in milliseconds: that late, at most, is a loss told. */
const EVERY = 50;
/** The same while nothing is held: less often, because waking a sleeping process costs more than the look itself. */
const IDLE_EVERY = 500;
/** A look that comes later than it was meant to by more than this: this thread, or the whole process, did not run. */
const LATE = 150;
/** So many of the last such gaps count. */
const REMEMBERED = 64;

/**
 * Reports leases that have expired. It asks no server: one that is gone keeps the renewal waiting for longer than a lease
 * lasts, and what runs under a lease that has run out may run elsewhere by then.
 *
 * Only what ran out under its eyes is lost. Where the process was stopped, or its host suspended, nothing could be renewed:
 * then there is as much time for it as others leave it before they take an expired lease away. What had run out before a
 * gap has been lost before it: a host that stutters puts nothing off for long.
 */
export class LeaseWatch {
  readonly #leaseTable: LeaseTable;
  readonly #clock: Clock;
  readonly #onLoss: (loss: Loss) => void;
  #lookedAt = Number.NaN;
  #dueAt = Number.NaN;
  /** When it did not run, the last of them last. */
  readonly #gaps: { from: number; to: number }[] = [];
  #cancel: () => void = () => {};

  constructor(parts: { leaseTable: LeaseTable; clock: Clock; onLoss: (loss: Loss) => void }) {
    this.#leaseTable = parts.leaseTable;
    this.#clock = parts.clock;
    this.#onLoss = parts.onLoss;
  }

  start(): void {
    this.#look();
  }

  stop(): void {
    this.#cancel();
  }

  #look(): void {
    const now = this.#clock.monotonic();
    if (now - this.#dueAt > LATE) this.#gaps.push({ from: this.#lookedAt, to: now });
    if (this.#gaps.length > REMEMBERED) this.#gaps.shift();
    let holds = false;
    for (const held of this.#leaseTable.all()) {
      holds = true;
      if (now < this.#until(held.expiresAt, held.lease)) continue;
      // Renewed since it was read? Then it is good for another while.
      if ((this.#leaseTable.read(held.slot)?.expiresAt ?? now) > now || !this.#leaseTable.revoke(held)) continue;
      this.#onLoss({ slot: held.slot, job: held.job, fence: held.fence, reason: "LEASE_LOST" });
    }
    const wait = holds ? EVERY : IDLE_EVERY;
    this.#lookedAt = now;
    this.#dueAt = now + wait;
    this.#cancel = this.#clock.after(wait, () => this.#look());
  }

  /** Until when it counts as held. */
  #until(expiresAt: number, lease: number): number {
    const gap = this.#gaps.findLast(({ from }) => from <= expiresAt);
    return gap === undefined ? expiresAt : Math.max(expiresAt, gap.to + renewalInterval(lease));
  }
}

/** A job that was claimed ahead and did not get to run for this long goes back: its worker is busy with another. */
const PATIENCE = 1_000;
/** How often it looks whether a running job was cancelled, or reclaimed by another process. */
const PATROL = 250;
/** A round that failed is made again after this, where rounds are made only when needed. */
const RETRY = 100;
/** Wall and monotonic time that part by more than this in one round have not just drifted. */
const JUMP = 500;

/** Why the main thread no longer holds a lease. */
export type LossReason = "LEASE_LOST" | "CANCELLED" | "TIMEOUT" | "GIVEN_BACK";
export interface Loss {
  slot: number;
  job: number;
  fence: number;
  reason: LossReason;
}

/** An attempt that ran past its timeout, as the store has settled it. */
export interface TimedOut {
  job: number;
  outcome: Outcome;
  decided: Next | undefined;
}

interface KeeperParts {
  store: Store;
  leaseTable: LeaseTable;
  clock: Clock;
  onLoss: (loss: Loss) => void;
  onTimedOut: (timedOut: TimedOut) => void;
}

/**
 * Renews all leases of a process together, ends attempts at their timeout, gives back what waits too long, and notices
 * losses. It runs in a thread of its own wherever it can, so a handler that blocks the event loop keeps its job.
 */
export class Keeper {
  readonly #store: Store;
  readonly #leaseTable: LeaseTable;
  readonly #clock: Clock;
  readonly #onLoss: (loss: Loss) => void;
  readonly #onTimedOut: (timedOut: TimedOut) => void;
  #patrolledAt = 0;
  /** Wall time less monotonic time, when last looked. */
  #drift: number | null = null;
  /** Attempts that were ended here and are not written yet. */
  #endings: Settlement[] = [];
  #round: Promise<void> | null = null;
  /** A renewal that failed is tried again then, and not at once: the store may refuse all writes. */
  #renewAgainAt = Number.NEGATIVE_INFINITY;

  constructor(parts: KeeperParts) {
    this.#store = parts.store;
    this.#leaseTable = parts.leaseTable;
    this.#clock = parts.clock;
    this.#onLoss = parts.onLoss;
    this.#onTimedOut = parts.onTimedOut;
  }

  /** One round; errors of the store are left for the next one, until a lease is in danger. */
  round(): Promise<void> {
    this.#round ??= this.#run().finally(() => (this.#round = null));
    return this.#round;
  }

  /** When something will have to be done; NEVER when nothing is held. */
  nextAt(): number {
    if (this.#endings.length > 0) return this.#clock.monotonic() + RETRY;
    let at = NEVER;
    for (const held of this.#leaseTable.all())
      at = Math.min(at, Math.max(renewAt(held), this.#renewAgainAt), held.running ? held.timeoutAt : held.since + PATIENCE);
    return at;
  }

  async #run(): Promise<void> {
    const now = this.#clock.monotonic();
    const renew: Holding[] = [];
    const patrol: Holding[] = [];
    const patrolling = now - this.#patrolledAt >= PATROL;
    const jumped = this.#jumped(now);
    for (const held of this.#leaseTable.all()) {
      if (now >= held.timeoutAt) this.#end(held, "TIMEOUT", { kind: "error", error: timeoutError(held, now) });
      else if (!held.running && now - held.since >= PATIENCE) this.#end(held, "GIVEN_BACK", { kind: "released" });
      else if (jumped || now >= renewAt(held)) renew.push(held);
      else if (patrolling && held.running && now - held.since >= PATROL) patrol.push(held);
    }
    if (patrolling) this.#patrolledAt = now;
    if (renew.length > 0) await this.#renew(renew, now);
    await this.#writeEndings();
    if (patrol.length > 0) this.#notice(patrol, await this.#store.inspect(patrol));
  }

  /**
   * The wall clock was set, or the host slept: what is written in the store no longer means what it meant, and to the
   * others these leases may look expired.
   */
  #jumped(monotonic: number): boolean {
    const drift = this.#clock.now() - monotonic;
    const jumped = this.#drift !== null && Math.abs(drift - this.#drift) > JUMP;
    this.#drift = drift;
    return jumped;
  }

  async #renew(held: Holding[], now: number): Promise<void> {
    try {
      const fates = await this.#store.renew(held);
      for (const one of held) this.#leaseTable.renewed(one, now + one.lease);
      this.#notice(held, fates);
    } catch {
      // A passing trouble is tried again in the next round; a lease that has run out meanwhile cannot be trusted.
      const later = this.#clock.monotonic();
      this.#renewAgainAt = later + RETRY;
      this.#notice(
        held,
        held.map((one) => (later >= one.expiresAt ? "lost" : "held")),
      );
    }
  }

  /** First take it from the main thread, then write: the other way round it might start what was just ended. */
  #end(held: Holding, reason: LossReason, outcome: Outcome): void {
    if (!this.#leaseTable.revoke(held)) return;
    this.#onLoss({ slot: held.slot, job: held.job, fence: held.fence, reason });
    this.#endings.push({ job: held.job, fence: held.fence, outcome });
  }

  /**
   * What could not be written stays for the next round, and if the lease runs out before, the store refuses it. None waits for
   * another: once they have failed together, each is written by itself.
   */
  async #writeEndings(): Promise<void> {
    if (this.#endings.length === 0) return;
    const endings = this.#endings;
    this.#endings = [];
    const settle = async (some: readonly Settlement[]) => {
      await this.#store.settle(some);
      for (const { job, outcome, decided } of some) if (outcome.kind === "error") this.#onTimedOut({ job, outcome, decided });
    };
    try {
      await settle(endings);
    } catch (error) {
      if (endings.length === 1) this.#endings.push(...endings);
      else await Promise.all(endings.map((one) => settle([one]).catch(() => this.#endings.push(one))));
      throw error;
    }
  }

  #notice(held: Holding[], fates: LeaseState[]): void {
    for (const [i, one] of held.entries()) {
      const fate = fates[i];
      if (fate === "held" || !this.#leaseTable.revoke(one)) continue;
      this.#onLoss({ slot: one.slot, job: one.job, fence: one.fence, reason: fate === "cancelled" ? "CANCELLED" : "LEASE_LOST" });
    }
  }
}

function renewAt(held: Holding): number {
  return held.expiresAt - held.lease + renewalInterval(held.lease);
}

function timeoutError(held: Holding, now: number): JobError {
  return { name: "TimeoutError", code: "TIMEOUT", message: `It ran for ${Math.round(now - held.since)} ms, past its timeout.` };
}

const CODE = "KEEPER_MISSING";
const RUNS = "the keeper thread";

/**
 * The code that the keeper thread runs. Without that thread, a handler that blocks for longer than its lease runs in two
 * processes at once, so no job is claimed where the code, or a module that it imports, is missing.
 */
export class KeeperFile {
  readonly #log: Log;
  readonly #kind: StoreLocation["kind"];
  #thread: OwnThread | null = null;
  #missing: HoldfastError | null = null;
  #isLogged = false;

  constructor(log: Log, { kind }: StoreLocation) {
    this.#log = log;
    this.#kind = kind;
  }

  /** Throws KEEPER_MISSING. */
  require(): OwnThread {
    if (this.#missing !== null) throw this.#missing;
    if (this.#thread !== null) return this.#thread;
    this.#requireDriver();
    return (this.#thread = ownThread({ here: import.meta.url, name: "./keeper-thread", runs: RUNS, code: CODE }));
  }

  /** For a process that claims nothing, and continues without the thread. */
  find(): OwnThread | null {
    try {
      return this.require();
    } catch (error) {
      const { code, message, hint } = error as HoldfastError;
      if (!this.#isLogged) this.#log.warn("the keeper thread cannot start", { code, error: message, hint });
      this.#isLogged = true;
      return null;
    }
  }

  /** The thread ended before it was at work. */
  failed(error: unknown): void {
    if (isModuleMissing(error)) this.#missing = fileMissing(CODE, RUNS, (error as Error).message, error);
  }

  /** A bundler may have taken the driver for PostgreSQL into the program; the thread needs the package itself. */
  #requireDriver(): void {
    if (THREAD_CODE === null || this.#kind !== "postgres") return;
    try {
      findPackage("postgres");
    } catch (cause) {
      this.#missing = new HoldfastError(
        CODE,
        "The keeper thread needs the package `postgres`, which is not installed beside this program.",
        "Run `npm install postgres` where the program runs. A bundler may keep it out of the bundle, but need not.",
        { cause },
      );
      throw this.#missing;
    }
  }
}
