import type { Fence, JobKey } from "../../../core/text/ids.ts";
import { type JobState, mayMove } from "../../../core/jobs/job.ts";
import { runSync } from "../../sql/script.ts";
import type { WorkBatches } from "../../sql/work/work-batches.ts";
import type { Catalog } from "./catalog.ts";
import type { Connection, Statement } from "../driver.ts";
import type { Endings, Waits } from "./endings.ts";
import type { JobEvents } from "./events.ts";
import type { Tx } from "../group-commit.ts";
import type { Limits } from "./limits.ts";

interface Row {
  key: JobKey;
  state: JobState;
  lane: number;
  fence: Fence;
  gate: string | null;
  priority: number;
  limits: string | null;
}

/** Ends jobs that have not ended, whoever holds them. The caller then writes the endings. */
export class Cancel {
  readonly #catalog: Catalog;
  readonly #endings: Endings;
  readonly #waits: Waits;
  readonly #limits: Limits;
  readonly #events: JobEvents;
  readonly #batches: WorkBatches;
  readonly #row: Statement;
  readonly #cancel: Statement;

  constructor(
    db: Connection,
    parts: { catalog: Catalog; endings: Endings; waits: Waits; limits: Limits; events: JobEvents; batches: WorkBatches },
  ) {
    this.#catalog = parts.catalog;
    this.#endings = parts.endings;
    this.#waits = parts.waits;
    this.#limits = parts.limits;
    this.#events = parts.events;
    this.#batches = parts.batches;
    this.#row = db.prepare("select key, state, lane, fence, gate, priority, limits from holdfast_jobs where key = :key");
    this.#cancel = db.prepare(
      `update holdfast_jobs set state = 'cancelled', gate = null, finished_at = :now, expires_at = null, holder = null, worker = null
       where key = :key`,
    );
  }

  /** An operator's act: a work item has failed by it. False: it has ended already. */
  run(tx: Tx, job: JobKey): boolean {
    const row = this.#take(tx, job);
    if (row === undefined) return false;
    this.#events.always(tx, "job.cancelled", row.key);
    runSync(this.#batches.cancelled(tx, tx.now, [{ job: row.key, lane: row.lane, was: row.state }]));
    return true;
  }

  /** Cancels work items that a build does not need any more: those that had not ended, and their states before. */
  quietly(tx: Tx, jobs: readonly JobKey[]): Map<JobKey, JobState> {
    const cancelled = new Map<JobKey, JobState>();
    for (const job of jobs) {
      const row = this.#take(tx, job);
      if (row === undefined) continue;
      this.#events.tell(tx, "job.cancelled", row.lane, row.key);
      cancelled.set(row.key, row.state);
    }
    this.#endings.write(tx);
    return cancelled;
  }

  #take(tx: Tx, job: JobKey): Row | undefined {
    const row = this.#row.get<Row>({ key: job });
    if (row === undefined || !mayMove("cancel", row.state)) return undefined;
    this.#cancel.runNamed({ key: row.key, now: tx.now });
    this.#endings.add(row.key, row.lane, "cancelled");
    if (row.state === "waiting") this.#waits.forget(row.key);
    if (row.limits !== null && row.state === "pending") this.#limits.withdraw(tx, { ...row, limits: row.limits }, row.gate);
    if (row.limits !== null && row.state === "running") this.#limits.end(tx, row.lane, row.limits, true);
    if (row.state === "running") {
      tx.ended(row.key, row.fence);
      // It may have been an exclusive claim: its queue is open again.
      tx.ready(this.#catalog.lane(row.lane).queue);
    }
    tx.wrote();
    return row;
  }
}
