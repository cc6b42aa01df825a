import type { Declaration } from "../../core/limits/settings.ts";
import type { QueueStore } from "../queues.ts";
import { type Access, type Script, type Settings, type Tx, wait } from "./script.ts";
import type { Audit } from "./audit.ts";

/** Settings that programs declare for queues, and pausing by operators. */
export class Queues implements QueueStore {
  readonly #access: Access;
  readonly #parts: { settings: Settings; audit: Audit };

  constructor(parts: { settings: Settings; audit: Audit }, access: Access) {
    this.#access = access;
    this.#parts = parts;
  }

  declare(declarations: readonly Declaration[]): Promise<void> {
    return this.#access.write("declare", (tx) => this.#declare(tx, declarations));
  }

  *#declare(tx: Tx, declarations: readonly Declaration[]): Script<void> {
    for (const declaration of declarations) yield* wait(this.#parts.settings.declare(tx, declaration));
  }

  setPaused(queue: string, paused: boolean): Promise<boolean> {
    return this.#access.write("pause", (tx) => this.#setPaused(tx, queue, paused));
  }

  *#setPaused(tx: Tx, queue: string, paused: boolean): Script<boolean> {
    const { settings, audit } = this.#parts;
    if (!(yield* wait(settings.pause(tx, queue, paused)))) return false;
    const action = paused ? "queue.paused" : "queue.resumed";
    yield* audit.record(tx, { action, name: queue, before: { paused: !paused }, after: { paused } });
    if (!paused) tx.ready(queue);
    return true;
  }
}
