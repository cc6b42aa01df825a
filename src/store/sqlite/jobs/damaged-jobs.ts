import { damagedRow } from "../../../core/text/errors.ts";
import { EVENT_OF } from "../../../core/jobs/event.ts";
import type { JobKey } from "../../../core/text/ids.ts";
import type { JobError } from "../../../core/jobs/job.ts";
import { runSync } from "../../sql/script.ts";
import type { WorkBatches } from "../../sql/work/work-batches.ts";
import type { Connection, Statement } from "../driver.ts";
import type { SettleEffects } from "./settle-effects.ts";
import type { JobEvents } from "./events.ts";
import { corrupt } from "../faults.ts";
import type { Tx } from "../group-commit.ts";
import type { Limits } from "./limits.ts";

/** A job whose row cannot be believed, as far as it can be. */
export interface DamagedJob {
  key: JobKey;
  /** What people know it by, as far as that can be told. */
  id: string;
  lane: number;
  priority: number;
  limits: string | null;
}

/**
 * Jobs whose row is not what was written there. None of them is handed out: the process that would have claimed one puts it
 * into quarantine instead, where an operator finds it. Nothing that its row says is relied on, but the lane it was found in.
 */
export class DamagedJobs {
  readonly #effects: SettleEffects;
  readonly #limits: Limits;
  readonly #events: JobEvents;
  readonly #batches: WorkBatches;
  readonly #quarantine: Statement;

  constructor(db: Connection, parts: { effects: SettleEffects; limits: Limits; events: JobEvents; batches: WorkBatches }) {
    this.#effects = parts.effects;
    this.#limits = parts.limits;
    this.#events = parts.events;
    this.#batches = parts.batches;
    // A claim and its end in one: the transaction holds the only write lock.
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
    this.#freePlace(tx, job);
    this.#effects.add(key, lane, "quarantined");
    const batch = runSync(this.#batches.ending(tx, [{ job: key, lane }]));
    if (batch !== null) {
      const next = { state: "quarantined", delay: 0, attempt: 0, errors: 0, crashes: 0, error, dropCheckpoint: false } as const;
      batch.ended(tx.now, key, { outcome: { kind: "unreadable", error }, next, by: "reclaimer", work: undefined });
      runSync(this.#batches.close(tx, batch));
    }
    this.#events.tell(tx, EVENT_OF.quarantined, lane, key);
    this.#effects.write(tx);
    tx.damaged(error.message);
  }

  /** Its limits may be what is damaged: then its place stays taken until the limit is declared anew. */
  #freePlace(tx: Tx, { limits, ...job }: DamagedJob): void {
    if (limits === null) return;
    try {
      this.#limits.withdraw(tx, { ...job, limits }, null);
    } catch {
      // Neither a rule nor a key can be read in it.
    }
  }
}

/** What its readers are told instead of what it holds. */
export function damagedError(id: string): JobError {
  const { code, message } = damagedRow(`Job ${id}`);
  return { name: "DamagedError", code, message };
}
