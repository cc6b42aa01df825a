import { damagedRow } from "../../../core/text/errors.ts";
import { EVENT_OF } from "../../../core/jobs/event.ts";
import type { JobKey } from "../../../core/text/ids.ts";
import type { JobError } from "../../../core/jobs/job.ts";
import { runSync } from "../../sql/script.ts";
import type { Connection, Statement } from "../driver.ts";
import type { JobParts } from "./enqueue.ts";
import { corrupt } from "../faults.ts";
import type { Tx } from "../group-commit.ts";

export interface DamagedJob {
  key: JobKey;
  id: string;
  lane: number;
  priority: number;
  limits: string | null;
}

/** Quarantines jobs with a wrong checksum instead of claiming them. Only the lane in which the row was found is relied on. */
export class DamagedJobs {
  readonly #parts: JobParts;
  readonly #quarantine: Statement;

  constructor(db: Connection, parts: JobParts) {
    this.#parts = parts;
    this.#quarantine = db.prepare(
      `update holdfast_jobs set state = 'quarantined', fence = ?, error = ?, finished_at = ?
       where key = ? and state = 'pending' and gate is null`,
    );
  }

  quarantine(tx: Tx, job: DamagedJob): void {
    const { key, lane } = job;
    const error = damagedError(job.id);
    const text = JSON.stringify(error);
    if (this.#quarantine.run(tx.commit, text, tx.now, key) === 0)
      throw corrupt("the index of jobs that are ready is not that of the jobs");
    tx.wrote();
    this.#freeSlot(tx, job);
    this.#parts.effects.add(key, lane, "quarantined");
    const batch = runSync(this.#parts.batches.ending(tx, [{ job: key, lane }]));
    if (batch !== null) {
      const next = { state: "quarantined", delay: 0, attempt: 0, errors: 0, crashes: 0, error, dropCheckpoint: false } as const;
      batch.ended(tx.now, key, { outcome: { kind: "unreadable", error }, next, by: "reclaimer", work: undefined });
      runSync(this.#parts.batches.close(tx, batch));
    }
    this.#parts.jobEvents.addIfEnabled(tx, EVENT_OF.quarantined, lane, key);
    this.#parts.effects.write(tx);
    tx.damaged(error.message);
  }

  #freeSlot(tx: Tx, { limits, ...job }: DamagedJob): void {
    if (limits === null) return;
    try {
      this.#parts.limits.in(tx).withdraw({ ...job, limits }, null);
    } catch {
      // The limits themselves are damaged: the slot stays taken until the limit is declared anew.
    }
  }
}

export function damagedError(id: string): JobError {
  const { code, message } = damagedRow(`Job ${id}`);
  return { name: "DamagedError", code, message };
}
