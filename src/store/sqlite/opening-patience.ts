import type { Connection } from "./driver.ts";

/** How long opening waits while no other process commits, and how long at most, in milliseconds. */
const STUCK_MS = 5_000;
const MOST_MS = 120_000;
/** Looks that must find no commit: a process that waits among hundreds for a processor looks seldom. */
const STUCK_LOOKS = 25;

/**
 * How long opening waits for a locked file: as long as other processes commit, since hundreds that open it at once take turns
 * in no order, and not longer than a moment where one program keeps the lock.
 */
export class OpeningPatience {
  readonly #db: Connection;
  readonly #since = performance.now();
  #committedAt = this.#since;
  #version: number | null = null;
  #looks = 0;

  constructor(db: Connection) {
    this.#db = db;
  }

  isOver(): boolean {
    const now = performance.now();
    const version = this.#look();
    this.#looks++;
    if (version !== null && version !== this.#version) {
      this.#committedAt = now;
      this.#looks = 0;
    }
    this.#version = version ?? this.#version;
    const isStuck = now - this.#committedAt >= STUCK_MS && this.#looks >= STUCK_LOOKS;
    return isStuck || now - this.#since >= MOST_MS;
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
