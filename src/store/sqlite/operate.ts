import type { Fence, JobKey } from "../../core/ids.ts";
import { type FinishedState, type JobState, mayMove } from "../../core/job.ts";
import type { Catalog } from "./catalog.ts";
import type { Connection, Statement } from "./driver.ts";
import type { Tx } from "./group-commit.ts";
import type { Look } from "./look.ts";
import type { Tally } from "./tally.ts";

interface Row {
  key: JobKey;
  state: JobState;
  lane: number;
  fence: Fence;
  slot: string | null;
}

export interface PruneFilter {
  state: FinishedState;
  queue?: string;
  ids?: readonly string[];
  finishedBefore?: number;
  limit: number;
}

/** What an operator does to jobs. */
export class Operate {
  readonly #catalog: Catalog;
  readonly #look: Look;
  readonly #tally: Tally;
  readonly #row: Statement;
  readonly #cancel: Statement;
  readonly #retry: Statement;
  readonly #unfinished: Statement;
  readonly #prunable: Statement;
  readonly #keepHighest: Statement;
  readonly #remove: Statement[];

  constructor(db: Connection, parts: { catalog: Catalog; look: Look; tally: Tally }) {
    this.#catalog = parts.catalog;
    this.#look = parts.look;
    this.#tally = parts.tally;
    this.#row = db.prepare("select key, state, lane, fence, slot from holdfast_jobs where key = :key");
    this.#cancel = db.prepare(
      `update holdfast_jobs set state = 'cancelled', gate = null, finished_at = :now, expires_at = null, holder = null, worker = null
       where key = :key`,
    );
    this.#retry = db.prepare(
      `update holdfast_jobs set state = 'pending', gate = null, errors = 0, crashes = 0, run_at = :now, finished_at = null
       where key = :key`,
    );
    this.#unfinished = db.prepare(
      `select key from holdfast_jobs
       where slot = ? and slot is not null and (state = 'pending' or state = 'running' or state = 'waiting')`,
    );
    // By holdfast_jobs_aside, or by the key: finished jobs are the oldest.
    this.#prunable = db.prepare(
      `select key, state, lane, fence, slot from holdfast_jobs
       where state = :state and (:before is null or finished_at < :before)
         and (:keys is null or key in (select value from json_each(:keys)))
         and (:lanes is null or lane in (select value from json_each(:lanes)))
       order by key limit :limit`,
    );
    // A key is never used again, also not the highest: a zombie's (job, fence) must not fit a stranger.
    this.#keepHighest = db.prepare(
      "update holdfast_counter set jobs = max(jobs, coalesce((select max(key) from holdfast_jobs), 0)) where id = 1",
    );
    // The ids that callers chose stay: one job ever.
    this.#remove = [
      "delete from holdfast_ids where chosen = 0 and id = (select id from holdfast_jobs where key = ?)",
      "delete from holdfast_inputs where job = ?",
      "delete from holdfast_notes where job = ?",
      "delete from holdfast_jobs where key = ?",
    ].map((sql) => db.prepare(sql));
  }

  cancel(tx: Tx, id: string): boolean {
    const row = this.#find(id);
    if (row === undefined || !mayMove("cancel", row.state)) return false;
    this.#cancel.runNamed({ key: row.key, now: tx.now });
    this.#tally.add(row.lane, "cancelled", 1);
    this.#tally.write();
    if (row.state === "running") {
      tx.ended(row.key, row.fence);
      // It may have been an exclusive claim: its queue is open again.
      tx.ready(this.#catalog.lane(row.lane).queue);
    }
    tx.wrote();
    return true;
  }

  retry(tx: Tx, id: string): boolean | "key-taken" {
    const row = this.#find(id);
    if (row === undefined || !mayMove("retry", row.state)) return false;
    if (row.slot !== null && this.#unfinished.row(row.slot) !== undefined) return "key-taken";
    this.#retry.runNamed({ key: row.key, now: tx.now });
    this.#tally.add(row.lane, row.state as FinishedState, -1);
    this.#tally.write();
    tx.ready(this.#catalog.lane(row.lane).queue);
    tx.wrote();
    return true;
  }

  prune(tx: Tx, filter: PruneFilter): number {
    const keys = filter.ids?.map((id) => this.#find(id)?.key).filter((key) => key !== undefined);
    const lanes =
      filter.queue === undefined ? null : [...this.#catalog.lanes(tx.lanes)].filter(({ queue }) => queue === filter.queue);
    const rows = this.#prunable.all<Row>({
      state: filter.state,
      before: filter.finishedBefore ?? null,
      keys: keys === undefined ? null : JSON.stringify(keys),
      lanes: lanes && JSON.stringify(lanes.map(({ id }) => id)),
      limit: filter.limit,
    });
    if (rows.length > 0) this.#keepHighest.run();
    for (const row of rows) {
      for (const remove of this.#remove) remove.run(row.key);
      this.#tally.add(row.lane, filter.state, -1);
    }
    this.#tally.write();
    if (rows.length > 0) tx.wrote();
    return rows.length;
  }

  #find(id: string): Row | undefined {
    const key = this.#look.keyOf(id);
    return key === null ? undefined : this.#row.get<Row>({ key });
  }
}
