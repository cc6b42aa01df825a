import type { Connection } from "./driver.ts";

/** How long opening waits while no other process commits, and at most. */
const STUCK_MS = 5_000;
const MOST_MS = 120_000;
/** Checks per millisecond that must find no commit: a process that shares a processor with hundreds checks seldom. */
const LOOKS_PER_MS = 1 / 200;

interface PatienceOptions {
  stuckMs?: number;
  mostMs?: number;
  now?: () => number;
  since?: number;
}

/** Waits as long as other processes commit, since hundreds of writers take turns in no order, and briefly if one keeps the lock. */
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

  /** Changes with every commit of another connection; null: reading is locked, too. */
  #look(): number | null {
    try {
      return (this.#db.prepare("pragma data_version").row() as [number])[0];
    } catch {
      return null;
    }
  }
}
