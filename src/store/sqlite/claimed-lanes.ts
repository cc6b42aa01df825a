import type { JobKey } from "../../core/ids.ts";
import type { Connection, Statement } from "./driver.ts";

/** Beyond this many, what was claimed here and settled elsewhere is forgotten with the rest. */
const MOST = 50_000;

/** The lane of each job that was claimed through this store, so that settling a batch need not read its rows first. */
export class ClaimedLanes {
  readonly #lanes = new Map<JobKey, number>();
  readonly #lane: Statement;

  constructor(db: Connection) {
    this.#lane = db.prepare("select lane from holdfast_jobs where key = ?");
  }

  add(job: JobKey, lane: number): void {
    if (this.#lanes.size >= MOST) this.#lanes.clear();
    this.#lanes.set(job, lane);
  }

  /** A lane never changes; looked up once, because the job has just ended. */
  of(job: JobKey): number {
    const lane = this.#lanes.get(job) ?? (this.#lane.row(job)?.[0] as number);
    this.#lanes.delete(job);
    return lane;
  }
}
