import type { JobKey } from "../../core/ids.ts";
import type { Connection, Statement } from "./driver.ts";

/** Beyond this many, what was claimed here and settled elsewhere is forgotten with the rest. */
const MOST = 50_000;

/**
 * The lane of each job that was claimed through this store, and its limits where it has any, so that settling a batch
 * need not read its rows first. Neither ever changes.
 */
export class ClaimedLanes {
  readonly #lanes = new Map<JobKey, number>();
  readonly #limits = new Map<JobKey, string>();
  readonly #row: Statement;

  constructor(db: Connection) {
    this.#row = db.prepare("select lane, limits from holdfast_jobs where key = ?");
  }

  add(job: JobKey, lane: number, limits: string | null): void {
    if (this.#lanes.size >= MOST) {
      this.#lanes.clear();
      this.#limits.clear();
    }
    this.#lanes.set(job, lane);
    if (limits !== null) this.#limits.set(job, limits);
  }

  lane(job: JobKey): number {
    const lane = this.#lanes.get(job);
    if (lane !== undefined) return lane;
    const row = this.#row.row(job) as [number, string | null] | undefined;
    if (row !== undefined) this.add(job, ...row);
    return row?.[0] ?? 0;
  }

  /** After `lane`, which looks up what is not known here. */
  limits(job: JobKey): string | null {
    return this.#limits.get(job) ?? null;
  }

  /** It has ended. */
  forget(job: JobKey): void {
    this.#lanes.delete(job);
    this.#limits.delete(job);
  }
}
