import type { JobKey } from "../../core/ids.ts";
import type { Connection, Statement } from "./driver.ts";

/** Beyond this many, what was claimed here and settled elsewhere is forgotten with the rest. */
const MOST = 50_000;

/** What never changes of a job that runs. */
export interface ClaimedLane {
  lane: number;
  limits: string | null;
}

/**
 * The lane of each job that was claimed through this store, and its limits where it has any, so that settling a batch
 * need not read its rows first.
 */
export class ClaimedLanes {
  readonly #claimed = new Map<JobKey, ClaimedLane>();
  readonly #row: Statement;
  /** Jobs without limits share one object a lane. */
  readonly #plain = new Map<number, ClaimedLane>();

  constructor(db: Connection) {
    this.#row = db.prepare("select lane, limits from holdfast_jobs where key = ?");
  }

  add(job: JobKey, lane: number, limits: string | null): void {
    if (this.#claimed.size >= MOST) this.#claimed.clear();
    this.#claimed.set(job, limits === null ? this.#of(lane) : { lane, limits });
  }

  /** Looked up once, because the job has just ended. */
  take(job: JobKey): ClaimedLane {
    const claimed = this.#claimed.get(job);
    if (claimed !== undefined) {
      this.#claimed.delete(job);
      return claimed;
    }
    const [lane, limits] = this.#row.row(job) as [number, string | null];
    return { lane, limits };
  }

  /** Of a job that may have to be looked up again. */
  lane(job: JobKey): number | undefined {
    return this.#claimed.get(job)?.lane ?? (this.#row.row(job)?.[0] as number | undefined);
  }

  forget(job: JobKey): void {
    this.#claimed.delete(job);
  }

  /** After an undone transaction: the keys of its jobs are given out again. */
  forgetAll(): void {
    this.#claimed.clear();
  }

  #of(lane: number): ClaimedLane {
    let plain = this.#plain.get(lane);
    if (plain === undefined) this.#plain.set(lane, (plain = { lane, limits: null }));
    return plain;
  }
}
