import type { Acts } from "./acts.ts";
import type { Tx } from "./group-commit.ts";
import type { Settings } from "./settings.ts";

/** What an operator does to queues. */
export class Queues {
  readonly #settings: Settings;
  readonly #acts: Acts;

  constructor(parts: { settings: Settings; acts: Acts }) {
    this.#settings = parts.settings;
    this.#acts = parts.acts;
  }

  pause(tx: Tx, queue: string, paused: boolean): boolean {
    if (!this.#settings.pause(tx, queue, paused)) return false;
    const action = paused ? "queue.paused" : "queue.resumed";
    this.#acts.add(tx, { action, name: queue, before: { paused: !paused }, after: { paused } });
    if (!paused) tx.ready(queue);
    return true;
  }
}
