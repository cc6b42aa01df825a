import type { Connection } from "./driver.ts";

/** How long opening waits while no other process commits, and how long at most, in milliseconds. */
const STUCK_MS = 5_000;
const MOST_MS = 120_000;

/**
 * How long opening waits for a locked file: as long as other processes commit, since hundreds that open it at once take turns
 * in no order, and not longer than a moment where one program keeps the lock.
 */
export class OpeningPatience {
  readonly #db: Connection;
  readonly #since = performance.now();
  #committedAt = this.#since;
  #version: number | null = null;

  constructor(db: Connection) {
    this.#db = db;
  }

  isOver(): boolean {
    const now = performance.now();
    const version = this.#look();
    if (version !== null && version !== this.#version) this.#committedAt = now;
    this.#version = version ?? this.#version;
    return now - this.#since >= MOST_MS || now - this.#committedAt >= STUCK_MS;
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
