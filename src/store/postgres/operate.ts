import { removedJobs } from "../../core/event.ts";
import type { Fence, JobKey } from "../../core/ids.ts";
import { FINISHED_STATES, type FinishedState, type JobState, mayMove } from "../../core/job.ts";
import { isMore } from "../../core/retention.ts";
import type { PruneFilter } from "../store.ts";
import type { Catalog } from "./catalog.ts";
import { listOf, type Value } from "./driver.ts";
import type { Ended, Endings } from "./endings.ts";
import type { Events } from "./events.ts";
import type { Expiring } from "./expiring.ts";
import type { Tx } from "./transaction.ts";
import type { JobEvents } from "./job-events.ts";
import type { LimitedJob, Limits } from "./limits.ts";
import { idValues, keyOf } from "./look.ts";
import { Stalled } from "./queue-locks.ts";
import { endedSql } from "./running.ts";
import type { Settings } from "./settings.ts";
import type { Tally } from "./tally.ts";
import type { Waits } from "./waits.ts";

type Row = [
  key: JobKey,
  state: JobState,
  lane: number,
  fence: Fence,
  slot: string | null,
  gate: string | null,
  priority: number,
  limits: string | null,
];

/** A job that nobody else can change until the commit. */
interface Locked {
  key: JobKey;
  state: JobState;
  lane: number;
  fence: Fence;
  slot: string | null;
  gate: string | null;
  /** As its limits see it; null when it has none. */
  limited: LimitedJob | null;
}

/** What an operator does to jobs. A row is locked first, and then read as it is. */
export class Operate {
  readonly #s: string;
  readonly #catalog: Catalog;
  readonly #settings: Settings;
  readonly #tally: Tally;
  readonly #endings: Endings;
  readonly #waits: Waits;
  readonly #limits: Limits;
  readonly #expiring: Expiring;
  readonly #events: JobEvents;
  readonly #outbox: Events;
  readonly #sql: Record<"find" | "lock" | "hasClaim" | "cancel" | "holderOf" | "retry" | "keysOf" | "drop", string>;

  constructor(
    s: string,
    parts: {
      catalog: Catalog;
      settings: Settings;
      tally: Tally;
      endings: Endings;
      waits: Waits;
      limits: Limits;
      expiring: Expiring;
      events: JobEvents;
      outbox: Events;
    },
  ) {
    this.#s = s;
    this.#catalog = parts.catalog;
    this.#settings = parts.settings;
    this.#tally = parts.tally;
    this.#endings = parts.endings;
    this.#waits = parts.waits;
    this.#limits = parts.limits;
    this.#expiring = parts.expiring;
    this.#events = parts.events;
    this.#outbox = parts.outbox;
    this.#sql = {
      find: `select key, lane, limits is not null from ${s}.jobs where key = ${keyOf(s, "$1", "$2", "$3")}`,
      lock: `select key, state, lane, fence, slot, gate, priority, limits from ${s}.jobs where key = $1 for update`,
      // Null: there is none.
      hasClaim: `
        select exists (select 1 from (select 1 from ${s}.claims where fence = $1 for update skip locked) as held)
        from ${s}.claims where fence = $1`,
      cancel: `
        with ended as (
          update ${s}.jobs as job set state = 'cancelled', gate = null, finished_at = $2, expires_at = null, holder = null, worker = null
          from (select key, state from ${s}.jobs where key = $1) as was where job.key = was.key
          returning case when was.state = 'running' then job.fence end as fence),
        ${endedSql(s, "ended")}
        select 1 from ended`,
      // One that is being added at this instant is not seen here; jobs_slot finds it, and then all is done again.
      holderOf: `
        select 1 from ${s}.jobs where reserved = $1`,
      retry: `
        update ${s}.jobs set state = 'pending', gate = $3, errors = 0, crashes = 0, run_at = $2, finished_at = null
        where key = $1`,
      keysOf: `
        select distinct ${keyOf(s, "one.id", "one.key", "one.created_at")}
        from unnest($1::text[], $2::bigint[], $3::bigint[]) as one (id, key, created_at)`,
      // The ids that callers chose stay: one job ever. How it ended stays with them, for what is to come after it.
      drop: `
        with gone as (delete from ${s}.jobs where key = any($1::bigint[]) returning key, id, state),
        remembered as (update ${s}.ids as one set ended = gone.state from gone where one.id = gone.id and one.chosen),
        forgotten as (delete from ${s}.ids as one using gone where one.id = gone.id and not one.chosen)
        delete from ${s}.notes as note using gone where note.job = gone.key`,
    };
  }

  async cancel(tx: Tx, id: string): Promise<boolean> {
    const row = await this.#lock(tx, id);
    if (row === undefined || !mayMove("cancel", row.state)) return false;
    const { key, lane, state, limited } = row;
    // Whoever settles others of its claim may wait for its row: nobody waits for him meanwhile.
    if (state === "running" && !(await this.#hasClaim(tx, row.fence))) throw new Stalled();
    await this.#settings.at(tx);
    const now = await tx.now();
    await tx.rows(this.#sql.cancel, key, now);
    await this.#events.always(tx, [{ type: "job.cancelled", job: key }]);
    if (state === "waiting") await this.#waits.forget(tx, key);
    if (limited !== null && state === "pending") await this.#limits.withdraw(tx, [{ ...limited, gate: row.gate }]);
    if (limited !== null && state === "running") await this.#limits.end(tx, [{ ...limited, began: true }]);
    await this.#endings.follow(tx, now, [{ job: key, lane, state: "cancelled" }]);
    if (state === "running") {
      tx.ended(key, row.fence);
      // It may have been an exclusive claim: its queue is open again.
      tx.ready(this.#catalog.lane(lane).queue);
    }
    tx.wrote();
    return true;
  }

  async retry(tx: Tx, id: string): Promise<boolean | "key-taken"> {
    const row = await this.#lock(tx, id);
    if (row === undefined || !mayMove("retry", row.state)) return false;
    const { key, lane, state, slot, limited } = row;
    if (slot !== null && (await tx.rows(this.#sql.holderOf, slot)).length > 0) return "key-taken";
    await this.#settings.at(tx);
    const [gate = null] = limited === null ? [] : await this.#limits.admit(tx, [limited]);
    await tx.rows(this.#sql.retry, key, await tx.now(), gate);
    await this.#events.always(tx, [{ type: "job.retried", job: key }]);
    await this.#tally.subtract(tx, [{ lane, state: state as FinishedState }]);
    tx.ready(this.#catalog.lane(lane).queue);
    tx.wrote();
    return true;
  }

  async prune(tx: Tx, filter: PruneFilter): Promise<number> {
    const { state } = filter;
    if (!FINISHED_STATES.includes(state)) return 0;
    const jobs = await this.#prunable(tx, filter);
    await this.#drop(tx, jobs);
    if (jobs.length > 0) await this.#outbox.act(tx, "jobs.removed", state, removedJobs(jobs.length, filter));
    return jobs.length;
  }

  /**
   * One small step of forgetting what its queue need not keep any longer. One process at a time: two would both take
   * for too many what only one of them may remove; who comes second has nothing to do.
   */
  async expire(tx: Tx, step: { limit: number; leastAge: number; unlisted: readonly string[] }): Promise<Expired> {
    if (!(await this.#expiring.alone(tx))) return { removed: 0, more: false };
    const listing = await this.#expiring.backfill(tx, step.unlisted);
    const { taken, over } = await this.#expiring.take(tx, step.limit, step.leastAge);
    await this.#drop(tx, over);
    return { removed: over.length, more: isMore({ listing, taken, removed: over.length, limit: step.limit }) };
  }

  /** A queue's limits are locked before its jobs are, by everybody: or two would wait for each other. */
  async #lock(tx: Tx, id: string): Promise<Locked | undefined> {
    const [found] = await tx.rows<[JobKey, number, boolean]>(this.#sql.find, ...idValues(id));
    if (found === undefined) return undefined;
    await this.#catalog.knowLanes(tx.rows, [found[1]]);
    if (found[2]) await this.#limits.lock(tx, [this.#catalog.lane(found[1]).queue]);
    const [row] = await tx.rows<Row>(this.#sql.lock, found[0]);
    if (row === undefined) return undefined;
    const [key, state, lane, fence, slot, gate, priority, limits] = row;
    return { key, state, lane, fence, slot, gate, limited: limits === null ? null : { key, lane, priority, limits } };
  }

  async #hasClaim(tx: Tx, fence: Fence): Promise<boolean> {
    const [row] = await tx.rows<[boolean]>(this.#sql.hasClaim, fence);
    return row?.[0] ?? true;
  }

  /** By jobs_aside, or by the key: finished jobs are the oldest. The state is written out, so that its index is found. */
  async #prunable(tx: Tx, { state, queue, ids, finishedBefore, limit }: PruneFilter): Promise<Ended[]> {
    const where = [state === "succeeded" ? "state = 'succeeded'" : `aside = '${state}'`];
    const values: Value[] = [limit];
    if (finishedBefore !== undefined) where.push(`finished_at < $${values.push(finishedBefore)}`);
    if (ids !== undefined) where.push(`key = any($${values.push(listOf(await this.#keysOf(tx, ids)))}::bigint[])`);
    if (queue !== undefined) {
      await this.#catalog.reload(tx.rows);
      const lanes = [...this.#catalog.lanes()].filter((lane) => lane.queue === queue);
      where.push(`lane = any($${values.push(listOf(lanes.map(({ id }) => id)))}::integer[])`);
    }
    const text = `select key, lane from ${this.#s}.jobs where ${where.join(" and ")} order by key limit $1 for update`;
    return (await tx.rows<[JobKey, number]>(text, ...values)).map(([job, lane]) => ({ job, lane, state }));
  }

  async #keysOf(tx: Tx, ids: readonly string[]): Promise<JobKey[]> {
    const asked = ids.map(idValues);
    const rows = await tx.rows<[JobKey | null]>(
      this.#sql.keysOf,
      listOf(asked.map(([id]) => id)),
      listOf(asked.map(([, key]) => key)),
      listOf(asked.map(([, , createdAt]) => createdAt)),
    );
    return rows.flatMap(([key]) => key ?? []);
  }

  /** The caller has locked their rows. */
  async #drop(tx: Tx, jobs: readonly Ended[]): Promise<void> {
    if (jobs.length === 0) return;
    await tx.rows(this.#sql.drop, listOf(jobs.map(({ job }) => job)));
    await this.#tally.subtract(tx, jobs);
    tx.wrote();
  }
}

export interface Expired {
  removed: number;
  more: boolean;
}
