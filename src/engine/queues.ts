import type { JobState } from "../core/jobs/job.ts";
import { checkName } from "../core/text/options.ts";
import { type ReadOptions, refuseMissing } from "./readable.ts";
import type { Engine } from "./engine.ts";

export interface QueueView {
  name: string;
  paused: boolean;
  counts: Record<JobState, number>;
  /** When the oldest job that could run now was made. */
  oldestAt?: number;
}

/** An operator's hand on queues. */
export class Queues {
  readonly #engine: Engine;
  readonly #refuseClosed: () => void;

  /** @internal */
  constructor(engine: Engine, refuseClosed: () => void) {
    this.#engine = engine;
    this.#refuseClosed = refuseClosed;
  }

  /** Nothing more is claimed from it, by anybody, until it is resumed. What runs goes on, what is enqueued waits. */
  async pause(name: string): Promise<void> {
    this.#refuseClosed();
    await this.#engine.store.queues.setPaused(checkName(name, "The queue"), true);
  }

  async resume(name: string): Promise<void> {
    this.#refuseClosed();
    await this.#engine.store.queues.setPaused(checkName(name, "The queue"), false);
  }

  /** By name. */
  async list(options: ReadOptions = {}): Promise<QueueView[]> {
    this.#refuseClosed();
    await refuseMissing(this.#engine.store.damage, options, "queues.list", "Queues cannot be listed");
    const queues = await this.#engine.store.look.queues();
    return queues.map(({ name, paused, counts, oldestAt }) => {
      return oldestAt === undefined ? { name, paused, counts } : { name, paused, counts, oldestAt };
    });
  }
}
