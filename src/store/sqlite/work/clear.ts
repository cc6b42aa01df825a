import type { Clearing } from "../../work.ts";
import type { Cancel } from "../cancel.ts";
import type { Endings } from "../endings.ts";
import type { Tx } from "../group-commit.ts";
import type { Leftovers } from "./leftovers.ts";

/** Does away with work that nobody wants any more. */
export class Clear {
  readonly #leftovers: Leftovers;
  readonly #cancel: Cancel;
  readonly #endings: Endings;

  constructor(parts: { leftovers: Leftovers; cancel: Cancel; endings: Endings }) {
    this.#leftovers = parts.leftovers;
    this.#cancel = parts.cancel;
    this.#endings = parts.endings;
  }

  isNeeded({ pipeline, which }: Clearing): boolean {
    return this.#leftovers.jobs(pipeline ?? null, which, 1).length > 0;
  }

  run(tx: Tx, { pipeline, which, limit }: Clearing): number {
    const jobs = this.#leftovers.jobs(pipeline ?? null, which, limit);
    for (const job of jobs) this.#cancel.quietly(tx, job);
    this.#endings.write(tx);
    return jobs.length;
  }
}
