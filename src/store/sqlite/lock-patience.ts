import type { Connection } from "./driver.ts";

/** How long opening waits while no other process commits, and how long at most, in milliseconds. */
const STUCK_MS = 5_000;
const MOST_MS = 120_000;
/** So many looks a millisecond must find no commit: a process that waits among hundreds for a processor looks seldom. */
const LOOKS_PER_MS = 1 / 200;

interface PatienceOptions {
  /** How long it waits while no other process commits, and how long at most. */
  stuckMs?: number;
  mostMs?: number;
  /** The monotonic clock. */
  now?: () => number;
  /** When the wait began. */
  since?: number;
}

/**
 * How long a process waits for a locked file: as long as other processes commit, since hundreds that write at once take turns
 * in no order, and not longer than a moment where one program keeps the lock. By default as long as opening waits.
 */
export class LockPatience {
  readonly #db: Connection;
  readonly #stuckMs: number;
  readonly #mostMs: number;
  readonly #now: () => number;
  readonly #since: number;
  #committedAt: number;
  #version: number | null = null;
  #looks = 0;

  constructor(db: Connection, { stuckMs = STUCK_MS, mostMs = MOST_MS, now, since }: PatienceOptions = {}) {
    this.#db = db;
    this.#stuckMs = stuckMs;
    this.#mostMs = mostMs;
    this.#now = now ?? (() => performance.now());
    this.#since = since ?? this.#now();
    this.#committedAt = this.#since;
  }

  isOver(): boolean {
    const now = this.#now();
    const version = this.#look();
    this.#looks++;
    if (version !== null && this.#version !== null && version !== this.#version) {
      this.#committedAt = now;
      this.#looks = 0;
    }
    this.#version = version ?? this.#version;
    const isStuck = now - this.#committedAt >= this.#stuckMs && this.#looks >= Math.floor(this.#stuckMs * LOOKS_PER_MS);
    return isStuck || now - this.#since >= this.#mostMs;
  }

  /** Changes with every commit of another connection; null: even reading is locked. */
  #look(): number | null {
    try {
      return (this.#db.prepare("pragma data_version").row() as [number])[0];
    } catch {
      return null;
    }
  }
}
