import type { JobKey } from "../../core/ids.ts";
import type { Catalog } from "./catalog.ts";
import type { Tx } from "./group.ts";
import type { Settings } from "./settings.ts";

/** A job as its limits see it: `limits` is what stands in its row. */
export interface LimitedJob {
  key: JobKey;
  lane: number;
  priority: number;
  limits: string;
}

/** Limits over all workers. To come: what is here says only what its callers rely on. */
export class Limits {
  readonly catalog: Catalog;

  constructor(_s: string, parts: { catalog: Catalog; settings: Settings }) {
    this.catalog = parts.catalog;
  }

  /** Before anything is read of jobs with limits in these queues: nobody else decides about them until the commit. */
  async lock(_tx: Tx, _queues: readonly string[]): Promise<void> {}

  /** Jobs that become pending: the gate each stands before, which the caller writes into its row. */
  async admit(_tx: Tx, jobs: readonly LimitedJob[]): Promise<("limit" | null)[]> {
    return jobs.map(() => null);
  }

  /** Jobs that run no more. Those that never began give back what they took of the rate. */
  async end(_tx: Tx, _jobs: readonly (LimitedJob & { began: boolean })[]): Promise<void> {}

  /** Pending jobs that are so no more, and were never started. `gate` is where each stood. */
  async withdraw(_tx: Tx, _jobs: readonly (LimitedJob & { gate: string | null })[]): Promise<void> {}
}
