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

/** States of a slot. TAKEN: the keeper has settled the lease; the main thread frees the slot. */
const FREE = 0;
const WAITING = 1;
const RUNNING = 2;
const TAKEN = 3;
/** The upper bits count the slot's uses, so that a compare-and-exchange never hits a later use. */
const USE = 4;

/** Columns of a slot; times are monotonic milliseconds. */
const JOB = 0;
const FENCE = 1;
const LEASE = 2;
const EXPIRES_AT = 3;
const TIMEOUT_AT = 4;
const SINCE = 5;
const SLOT_WIDTH = 6;

export const NEVER = Number.MAX_SAFE_INTEGER;
const CAPACITY = MAX_CONCURRENCY;

interface HeldSlot extends LeaseRef {
  slot: number;
  word: number;
  lease: number;
  expiresAt: number;
  timeoutAt: number;
  since: number;
  running: boolean;
}

// Keeps leases in memory that the threads share: a claim costs no message, and a busy main thread need not be asked. Only the
// main thread fills and frees slots. Either thread may move a slot on from WAITING and RUNNING, by compare-and-exchange.
export class LeaseTable {
  readonly buffer: SharedArrayBuffer;
  readonly #states: Int32Array;
  readonly #numbers: Float64Array;
  readonly #free: number[] = [];
  #unused = 0;

  constructor(buffer = new SharedArrayBuffer(CAPACITY * (4 + SLOT_WIDTH * 8))) {
    this.buffer = buffer;
    this.#numbers = new Float64Array(buffer, 0, CAPACITY * SLOT_WIDTH);
    this.#states = new Int32Array(buffer, CAPACITY * SLOT_WIDTH * 8, CAPACITY);
  }

  get room(): number {
    return CAPACITY - this.#unused + this.#free.length;
  }

  add(lease: LeaseRef & { lease: number }, times: { expiresAt: number; since: number }): number {
    const slot = this.#free.pop() ?? this.#unused++;
    const at = slot * SLOT_WIDTH;
    this.#numbers[at + JOB] = lease.job;
    this.#numbers[at + FENCE] = lease.fence;
    this.#numbers[at + LEASE] = lease.lease;
    this.#numbers[at + EXPIRES_AT] = times.expiresAt;
    this.#numbers[at + TIMEOUT_AT] = NEVER;
    this.#numbers[at + SINCE] = times.since;
    Atomics.store(this.#states, slot, (this.#states[slot] as number) + USE + WAITING);
    return slot;
  }

  start(slot: number, timeoutAt: number): boolean {
    this.#numbers[slot * SLOT_WIDTH + TIMEOUT_AT] = timeoutAt;
    const use = useOf(this.#states[slot] as number);
    return Atomics.compareExchange(this.#states, slot, use + WAITING, use + RUNNING) === use + WAITING;
  }

  setTimeoutAt(slot: number, timeoutAt: number): void {
    this.#numbers[slot * SLOT_WIDTH + TIMEOUT_AT] = timeoutAt;
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

  *all(): Generator<HeldSlot, void> {
    for (let slot = 0; slot < CAPACITY; slot++) {
      const held = this.read(slot);
      if (held !== null) yield held;
      // Slots are used from the front, so the first slot that was never used ends the list.
      else if (this.#numbers[slot * SLOT_WIDTH + FENCE] === 0) return;
    }
  }

  read(slot: number): HeldSlot | null {
    const word = Atomics.load(this.#states, slot);
    const state = word - useOf(word);
    if (state !== WAITING && state !== RUNNING) return null;
    const at = slot * SLOT_WIDTH;
    const held: HeldSlot = {
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
    // Another thread changed the slot during the read; the next round sees the change.
    return Atomics.load(this.#states, slot) === word ? held : null;
  }

  setExpiresAt(held: HeldSlot, expiresAt: number): void {
    if (useOf(Atomics.load(this.#states, held.slot)) === useOf(held.word))
      this.#numbers[held.slot * SLOT_WIDTH + EXPIRES_AT] = expiresAt;
  }

  /** Takes a lease away from the main thread; false if the main thread changed it first. */
  revoke(held: HeldSlot): boolean {
    return Atomics.compareExchange(this.#states, held.slot, held.word, useOf(held.word) + TAKEN) === held.word;
  }
}

function useOf(word: number): number {
  return word & ~(USE - 1);
}

const WATCH_INTERVAL_MS = 50;
/** Interval while nothing is held, because waking a sleeping process costs more than the check itself. */
const IDLE_WATCH_INTERVAL_MS = 500;
/** A check later than this means that the thread, or the whole process, did not run. */
const MAX_WATCH_DELAY_MS = 150;
const MAX_GAPS = 64;

// Reports expired leases without asking the store: a renewal at an unreachable server may wait for longer than a lease lasts,
// and another process may run the job by then. After a suspension, a lease gets the time that other processes leave it before
// they reclaim. A lease that expired before the gap is lost, so that a stuttering host delays no loss for long.
export class LeaseWatch {
  readonly #parts: Pick<KeeperParts, "leaseTable" | "clock" | "onLoss">;
  #checkedAt = Number.NaN;
  #dueAt = Number.NaN;
  readonly #gaps: { from: number; to: number }[] = [];
  #cancel: () => void = () => {};

  constructor(parts: Pick<KeeperParts, "leaseTable" | "clock" | "onLoss">) {
    this.#parts = parts;
  }

  start(): void {
    this.#check();
  }

  stop(): void {
    this.#cancel();
  }

  #check(): void {
    const now = this.#parts.clock.monotonic();
    if (now - this.#dueAt > MAX_WATCH_DELAY_MS) this.#gaps.push({ from: this.#checkedAt, to: now });
    if (this.#gaps.length > MAX_GAPS) this.#gaps.shift();
    let holds = false;
    for (const held of this.#parts.leaseTable.all()) {
      holds = true;
      if (now < this.#heldUntil(held.expiresAt, held.lease)) continue;
      if ((this.#parts.leaseTable.read(held.slot)?.expiresAt ?? now) > now || !this.#parts.leaseTable.revoke(held)) continue;
      this.#parts.onLoss({ slot: held.slot, job: held.job, fence: held.fence, reason: "LEASE_LOST" });
    }
    const wait = holds ? WATCH_INTERVAL_MS : IDLE_WATCH_INTERVAL_MS;
    this.#checkedAt = now;
    this.#dueAt = now + wait;
    this.#cancel = this.#parts.clock.after(wait, () => this.#check());
  }

  #heldUntil(expiresAt: number, lease: number): number {
    const gap = this.#gaps.findLast(({ from }) => from <= expiresAt);
    return gap === undefined ? expiresAt : Math.max(expiresAt, gap.to + renewalInterval(lease));
  }
}

/** A prefetched job that did not start within this time is returned: its worker is busy. */
const MAX_WAITING_MS = 1_000;
const INSPECT_INTERVAL_MS = 250;
const RETRY_MS = 100;
/** If wall and monotonic time part by more than this in one round, the wall clock was set or the host slept. */
const CLOCK_JUMP_MS = 500;

export type LossReason = "LEASE_LOST" | "CANCELLED" | "TIMEOUT" | "GIVEN_BACK";

export function lossReason(state: LeaseState | undefined): LossReason {
  return state === "cancelled" ? "CANCELLED" : "LEASE_LOST";
}

export interface Loss {
  slot: number;
  job: number;
  fence: number;
  reason: LossReason;
}

export interface TimedOut {
  job: number;
  outcome: Outcome;
  decided: Next | undefined;
}

interface KeeperParts {
  store: Pick<Store, "inspect" | "renew" | "settle">;
  leaseTable: LeaseTable;
  clock: Clock;
  onLoss: (loss: Loss) => void;
  onTimedOut: (timedOut: TimedOut) => void;
}

/** Renews leases, settles timeouts, and returns prefetched jobs; if possible in its own thread, so that no handler blocks it. */
export class Keeper {
  readonly #parts: KeeperParts;
  #inspectedAt = 0;
  #drift: number | null = null;
  #unwritten: Settlement[] = [];
  #round: Promise<void> | null = null;
  /** Delays the next try after a failed renewal: the store may reject all writes. */
  #renewAgainAt = Number.NEGATIVE_INFINITY;

  constructor(parts: KeeperParts) {
    this.#parts = parts;
  }

  round(): Promise<void> {
    this.#round ??= this.#run().finally(() => (this.#round = null));
    return this.#round;
  }

  nextAt(): number {
    if (this.#unwritten.length > 0) return this.#parts.clock.monotonic() + RETRY_MS;
    let at = NEVER;
    for (const held of this.#parts.leaseTable.all())
      at = Math.min(at, Math.max(renewAt(held), this.#renewAgainAt), held.running ? held.timeoutAt : held.since + MAX_WAITING_MS);
    return at;
  }

  async #run(): Promise<void> {
    const now = this.#parts.clock.monotonic();
    const renew: HeldSlot[] = [];
    const inspect: HeldSlot[] = [];
    const inspecting = now - this.#inspectedAt >= INSPECT_INTERVAL_MS;
    const jumped = this.#hasClockJumped(now);
    for (const held of this.#parts.leaseTable.all()) {
      if (now >= held.timeoutAt) this.#settle(held, "TIMEOUT", { kind: "error", error: timeoutError(held, now) });
      else if (!held.running && now - held.since >= MAX_WAITING_MS) this.#settle(held, "GIVEN_BACK", { kind: "released" });
      else if (jumped || now >= renewAt(held)) renew.push(held);
      else if (inspecting && held.running && now - held.since >= INSPECT_INTERVAL_MS) inspect.push(held);
    }
    if (inspecting) this.#inspectedAt = now;
    if (renew.length > 0) await this.#renew(renew, now);
    await this.#writeSettlements();
    if (inspect.length > 0) this.#reportLosses(inspect, await this.#parts.store.inspect(inspect));
  }

  /** Whether the wall clock was set, or the host slept: other processes may then see these leases as expired. */
  #hasClockJumped(monotonic: number): boolean {
    const drift = this.#parts.clock.now() - monotonic;
    const jumped = this.#drift !== null && Math.abs(drift - this.#drift) > CLOCK_JUMP_MS;
    this.#drift = drift;
    return jumped;
  }

  async #renew(held: HeldSlot[], now: number): Promise<void> {
    try {
      const states = await this.#parts.store.renew(held);
      for (const one of held) this.#parts.leaseTable.setExpiresAt(one, now + one.lease);
      this.#reportLosses(held, states);
    } catch {
      // The next round tries again; a lease that has expired meanwhile is lost.
      const later = this.#parts.clock.monotonic();
      this.#renewAgainAt = later + RETRY_MS;
      this.#reportLosses(
        held,
        held.map((one) => (later >= one.expiresAt ? "lost" : "held")),
      );
    }
  }

  /** Revokes the lease now and settles it later: else the main thread might start a job that was just settled. */
  #settle(held: HeldSlot, reason: LossReason, outcome: Outcome): void {
    if (!this.#parts.leaseTable.revoke(held)) return;
    this.#parts.onLoss({ slot: held.slot, job: held.job, fence: held.fence, reason });
    this.#unwritten.push({ job: held.job, fence: held.fence, outcome });
  }

  /** Writes settlements, and keeps failed ones for the next round. After a failed batch it writes each one alone. */
  async #writeSettlements(): Promise<void> {
    if (this.#unwritten.length === 0) return;
    const batch = this.#unwritten;
    this.#unwritten = [];
    const settle = async (some: readonly Settlement[]) => {
      await this.#parts.store.settle(some);
      for (const { job, outcome, decided } of some)
        if (outcome.kind === "error") this.#parts.onTimedOut({ job, outcome, decided });
    };
    try {
      await settle(batch);
    } catch (error) {
      if (batch.length === 1) this.#unwritten.push(...batch);
      else await Promise.all(batch.map((one) => settle([one]).catch(() => this.#unwritten.push(one))));
      throw error;
    }
  }

  #reportLosses(held: HeldSlot[], states: LeaseState[]): void {
    for (const [i, one] of held.entries()) {
      const state = states[i];
      if (state === "held" || !this.#parts.leaseTable.revoke(one)) continue;
      this.#parts.onLoss({ slot: one.slot, job: one.job, fence: one.fence, reason: lossReason(state) });
    }
  }
}

function renewAt(held: HeldSlot): number {
  return held.expiresAt - held.lease + renewalInterval(held.lease);
}

function timeoutError(held: HeldSlot, now: number): JobError {
  return { name: "TimeoutError", code: "TIMEOUT", message: `It ran for ${Math.round(now - held.since)} ms, past its timeout.` };
}

const MISSING_CODE = "KEEPER_MISSING";
const THREAD_NAME = "the keeper thread";

/** Rejects claims if the thread cannot run: a handler that blocks for longer than its lease would run in two processes. */
export class KeeperGuard {
  readonly #log: Log;
  readonly #kind: StoreLocation["kind"];
  #thread: OwnThread | null = null;
  #missing: HoldfastError | null = null;
  #isLogged = false;

  constructor(log: Log, { kind }: StoreLocation) {
    this.#log = log;
    this.#kind = kind;
  }

  require(): OwnThread {
    if (this.#missing !== null) throw this.#missing;
    if (this.#thread !== null) return this.#thread;
    this.#requireDriver();
    return (this.#thread = ownThread({ here: import.meta.url, name: "./keeper-thread", runs: THREAD_NAME, code: MISSING_CODE }));
  }

  /** Like `require`, for a process that claims nothing and continues without the thread. */
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

  onThreadFailed(error: unknown): void {
    if (isModuleMissing(error)) this.#missing = fileMissing(MISSING_CODE, THREAD_NAME, (error as Error).message, error);
  }

  /** A bundler may have put the PostgreSQL driver into the program; the thread needs the package itself. */
  #requireDriver(): void {
    if (THREAD_CODE === null || this.#kind !== "postgres") return;
    try {
      findPackage("postgres");
    } catch (cause) {
      this.#missing = new HoldfastError(
        MISSING_CODE,
        "The keeper thread needs the package `postgres`, which is not installed beside this program.",
        "Run `npm install postgres` where the program runs. A bundler may keep it out of the bundle, but need not.",
        { cause },
      );
      throw this.#missing;
    }
  }
}
