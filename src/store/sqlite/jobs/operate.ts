import { auditedJob, subjectOf } from "../../../core/recovery/audit.ts";
import type { Fence, JobKey } from "../../../core/text/ids.ts";
import { type FinishedState, type JobState, mayMove } from "../../../core/jobs/job.ts";
import { isMore } from "../../../core/jobs/retention.ts";
import { isPipelineQueue } from "../../../core/pipelines/work.ts";
import { jobsRemoved } from "../../job-row.ts";
import type { Audit } from "../../sql/audit.ts";
import { runSync } from "../../sql/script.ts";
import type { PruneFilter } from "../../store.ts";
import type { Catalog } from "./catalog.ts";
import type { Connection, Statement } from "../driver.ts";
import type { JobEvents } from "./events.ts";
import type { Tx } from "../group-commit.ts";
import type { Look } from "../look.ts";
import type { Cancel } from "./cancel.ts";
import type { Endings, Tally } from "./endings.ts";
import type { Expiring } from "./expiring.ts";
import type { Limits } from "./limits.ts";

interface Row {
  key: JobKey;
  state: JobState;
  lane: number;
  fence: Fence;
  slot: string | null;
  gate: string | null;
  priority: number;
  limits: string | null;
}

const ROW = "key, state, lane, fence, slot, gate, priority, limits";

/** What an operator does to jobs. */
export class Operate {
  readonly #catalog: Catalog;
  readonly #look: Look;
  readonly #tally: Tally;
  readonly #endings: Endings;
  readonly #limits: Limits;
  readonly #expiring: Expiring;
  readonly #events: JobEvents;
  readonly #audit: Audit;
  readonly #cancel: Cancel;
  readonly #row: Statement;
  readonly #remember: Statement;
  readonly #retry: Statement;
  readonly #unfinished: Statement;
  readonly #prunable: Statement;
  readonly #keepHighest: Statement;
  readonly #remove: Statement[];

  constructor(
    db: Connection,
    parts: {
      catalog: Catalog;
      look: Look;
      tally: Tally;
      endings: Endings;
      limits: Limits;
      expiring: Expiring;
      events: JobEvents;
      audit: Audit;
      cancel: Cancel;
    },
  ) {
    this.#catalog = parts.catalog;
    this.#look = parts.look;
    this.#tally = parts.tally;
    this.#endings = parts.endings;
    this.#limits = parts.limits;
    this.#expiring = parts.expiring;
    this.#events = parts.events;
    this.#audit = parts.audit;
    this.#cancel = parts.cancel;
    this.#row = db.prepare(`select ${ROW} from holdfast_jobs where key = :key`);
    this.#retry = db.prepare(
      `update holdfast_jobs set state = 'pending', gate = :gate, errors = 0, crashes = 0, run_at = :now, finished_at = null
       where key = :key`,
    );
    this.#unfinished = db.prepare(
      `select key from holdfast_jobs
       where slot = ? and slot is not null and (state = 'pending' or state = 'running' or state = 'waiting')`,
    );
    // By holdfast_jobs_aside, or by the key: finished jobs are the oldest.
    this.#prunable = db.prepare(
      `select ${ROW} from holdfast_jobs
       where state = :state and (:before is null or finished_at < :before)
         and (:keys is null or key in (select value from json_each(:keys)))
         and (:lanes is null or lane in (select value from json_each(:lanes)))
       order by key limit :limit`,
    );
    // A key is never used again, also not the highest: a zombie's (job, fence) must not fit a stranger.
    this.#keepHighest = db.prepare(
      `update holdfast_counter set jobs = highest
       from (select max(jobs, coalesce((select max(key) from holdfast_jobs), 0)) as highest from holdfast_counter) where id = 1`,
    );
    // The ids that callers chose stay: one job ever. How it ended stays with them, for what is to come after it.
    this.#remember = db.prepare(
      `update holdfast_ids set ended = ?
       where chosen = 1 and ended is null and id = (select id from holdfast_jobs where key = ?)`,
    );
    this.#remove = [
      "delete from holdfast_ids where chosen = 0 and id = (select id from holdfast_jobs where key = ?)",
      "delete from holdfast_inputs where job = ?",
      "delete from holdfast_notes where job = ?",
      "delete from holdfast_jobs where key = ?",
    ].map((sql) => db.prepare(sql));
  }

  cancel(tx: Tx, id: string): boolean {
    const row = this.#find(id);
    if (row === undefined || !this.#cancel.run(tx, row.key)) return false;
    this.#endings.write(tx);
    this.#wasDone(tx, "job.cancelled", id, row, "cancelled");
    return true;
  }

  retry(tx: Tx, id: string): boolean | "key-taken" {
    const row = this.#find(id);
    if (row === undefined || !mayMove("retry", row.state)) return false;
    // A work item that has ended is none any more: the next build does it again.
    if (isPipelineQueue(this.#catalog.lane(row.lane).queue)) return false;
    if (row.slot !== null && this.#unfinished.row(row.slot) !== undefined) return "key-taken";
    const gate = row.limits === null ? null : this.#limits.admit(tx, { ...row, limits: row.limits });
    this.#retry.runNamed({ key: row.key, now: tx.now, gate });
    this.#events.always(tx, "job.retried", row.key);
    this.#tally.add(row.lane, row.state as FinishedState, -1);
    this.#endings.write(tx);
    this.#wasDone(tx, "job.retried", id, row, "pending");
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
    this.#drop(
      tx,
      rows.map(({ key, lane }) => ({ job: key, lane, state: filter.state })),
    );
    if (rows.length > 0) runSync(this.#audit.record(tx, ...jobsRemoved(rows.length, filter)));
    return rows.length;
  }

  /** One small step of forgetting what its queue need not keep any longer. */
  expire(tx: Tx, limit: number, leastAge: number): { removed: number; more: boolean } {
    const listing = this.#expiring.backfill(tx);
    const { taken, over } = this.#expiring.take(tx, limit, leastAge);
    this.#drop(tx, over);
    const removed = over.length;
    return { removed, more: isMore({ listing, taken, removed, limit }) };
  }

  #drop(tx: Tx, jobs: readonly { job: JobKey; lane: number; state: FinishedState }[]): void {
    if (jobs.length === 0) return;
    this.#keepHighest.run();
    for (const { job, lane, state } of jobs) {
      this.#remember.run(state, job);
      for (const remove of this.#remove) remove.run(job);
      this.#tally.add(lane, state, -1);
    }
    this.#tally.write(tx.now);
    tx.wrote();
  }

  /** That it happened is told among the events of jobs. */
  #wasDone(tx: Tx, action: string, id: string, { lane, state }: Row, after: JobState): void {
    const of = this.#catalog.lane(lane);
    const [before, now] = [auditedJob(of, state), auditedJob(of, after)];
    runSync(this.#audit.add(tx, { action, subject: subjectOf(action, id), before, after: now }));
  }

  #find(id: string): Row | undefined {
    const key = this.#look.keyOf(id);
    return key === null ? undefined : this.#row.get<Row>({ key });
  }
}
