import type { Events } from "./events.ts";
import type { Tx } from "./transaction.ts";
import type { Settings } from "./settings.ts";

/** What an operator does to queues. */
export class Queues {
  readonly #settings: Settings;
  readonly #events: Events;

  constructor(parts: { settings: Settings; events: Events }) {
    this.#settings = parts.settings;
    this.#events = parts.events;
  }

  async pause(tx: Tx, queue: string, paused: boolean): Promise<boolean> {
    if (!(await this.#settings.pause(tx, queue, paused))) return false;
    await this.#events.act(tx, paused ? "queue.paused" : "queue.resumed", queue);
    if (!paused) tx.ready(queue);
    return true;
  }
}
