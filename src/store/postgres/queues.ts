import type { Declaration } from "../../core/settings.ts";
import type { QueueStore } from "../queues.ts";
import type { Access } from "./access.ts";
import type { Acts } from "./acts.ts";
import type { Tx } from "./transaction.ts";
import type { Settings } from "./settings.ts";

/** What is said of queues, by programs and by operators. */
export class Queues implements QueueStore {
  readonly #access: Access;
  readonly #settings: Settings;
  readonly #acts: Acts;

  constructor(parts: { settings: Settings; acts: Acts }, access: Access) {
    this.#access = access;
    this.#settings = parts.settings;
    this.#acts = parts.acts;
  }

  declare(declarations: readonly Declaration[]): Promise<void> {
    return this.#access.write("declare", async (tx) => {
      for (const declaration of declarations) await this.#settings.declare(tx, declaration);
    });
  }

  pause(queue: string): Promise<boolean> {
    return this.#access.write("pause", (tx) => this.#set(tx, queue, true));
  }

  resume(queue: string): Promise<boolean> {
    return this.#access.write("pause", (tx) => this.#set(tx, queue, false));
  }

  async #set(tx: Tx, queue: string, paused: boolean): Promise<boolean> {
    if (!(await this.#settings.pause(tx, queue, paused))) return false;
    const action = paused ? "queue.paused" : "queue.resumed";
    await this.#acts.add(tx, { action, name: queue, before: { paused: !paused }, after: { paused } });
    if (!paused) tx.ready(queue);
    return true;
  }
}
