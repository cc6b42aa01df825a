import { HoldfastError } from "../core/errors.ts";
import type { ClaimSource } from "../store/store.ts";
import type { Runnable } from "./attempt.ts";
import type { Definition } from "./definition.ts";

/** What a worker runs: each name and version once, with its handler. */
export class Runnables {
  readonly #runnables = new Map<string, Runnable>();
  /** The same list for every claim, so that the store can keep what it matches. */
  readonly #sources: ClaimSource[] = [];
  /** Those whose `max` changes from claim to claim. */
  readonly #bounded: Runnable[] = [];

  constructor(defs: readonly Definition[]) {
    for (const def of defs) this.#add(def);
  }

  /** A worker claims only what it runs, so it is always there. */
  of(job: { name: string; version: number }): Runnable {
    return this.#runnables.get(idOf(job)) as Runnable;
  }

  /** What may be claimed now, by each definition's own concurrency. */
  sources(): ClaimSource[] {
    for (const { def, source, held } of this.#bounded) {
      if (def.isResting?.() === true) source.max = 0;
      else if (def.concurrency !== undefined) source.max = Math.max(0, def.concurrency - held);
      else delete source.max;
    }
    return this.#sources;
  }

  #add(def: Definition): void {
    if (def.run === undefined && def.perform === undefined) {
      throw new HoldfastError("NO_HANDLER", `Job "${def.name}" has no handler.`, "Give `run` in job({ … }), or def.handle(run).");
    }
    const id = idOf(def);
    if (this.#runnables.has(id)) {
      throw new HoldfastError(
        "JOB_TWICE",
        `Job "${def.name}", version ${def.version}, was given twice.`,
        "Give each job once, or another name or version.",
      );
    }
    const { name, version, lease, queue } = def;
    const runnable: Runnable = { def, source: { name, version, lease, ...(def.bound ? { queue } : {}) }, held: 0 };
    this.#runnables.set(id, runnable);
    this.#sources.push(runnable.source);
    if (def.isResting !== undefined || def.concurrency !== undefined) this.#bounded.push(runnable);
  }
}

function idOf(job: { name: string; version: number }): string {
  return `${job.name}\n${job.version}`;
}
