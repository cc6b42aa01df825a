import type { Acts } from "./acts.ts";
import type { Tx } from "./transaction.ts";
import type { Settings } from "./settings.ts";

/** What an operator does to queues. */
export class Queues {
  readonly #settings: Settings;
  readonly #acts: Acts;

  constructor(parts: { settings: Settings; acts: Acts }) {
    this.#settings = parts.settings;
    this.#acts = parts.acts;
  }

  async pause(tx: Tx, queue: string, paused: boolean): Promise<boolean> {
    if (!(await this.#settings.pause(tx, queue, paused))) return false;
    const action = paused ? "queue.paused" : "queue.resumed";
    await this.#acts.add(tx, { action, name: queue, before: { paused: !paused }, after: { paused } });
    if (!paused) tx.ready(queue);
    return true;
  }
}
