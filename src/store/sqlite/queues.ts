import { queueChange } from "../../core/event.ts";
import type { Events } from "./events.ts";
import type { Tx } from "./group-commit.ts";
import type { Settings } from "./settings.ts";

/** What an operator does to queues. */
export class Queues {
  readonly #settings: Settings;
  readonly #events: Events;

  constructor(parts: { settings: Settings; events: Events }) {
    this.#settings = parts.settings;
    this.#events = parts.events;
  }

  pause(tx: Tx, queue: string, paused: boolean): boolean {
    const change = this.#settings.at(tx.settings).pause(tx, queue, paused);
    if (change === null) return false;
    const type = paused ? "queue.paused" : "queue.resumed";
    this.#events.add(tx, { type, transition: queueChange(type, queue, change), data: { queue } });
    if (!paused) tx.ready(queue);
    return true;
  }
}
