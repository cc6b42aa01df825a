import type { Fence, JobKey } from "../core/ids.ts";
import type { LeaseRef } from "../core/lease.ts";
import { MAX_CONCURRENCY } from "../core/run-options.ts";

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

export interface Holding extends LeaseRef {
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
export class Holdings {
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
