import type { Fence, JobKey } from "../../../core/text/ids.ts";
import { type JobState, mayMove } from "../../../core/jobs/job.ts";
import type { Catalog } from "../catalog.ts";
import { endedSql } from "../claims/leases.ts";
import { listOf } from "../connection/driver.ts";
import type { JobEvents } from "../news/events.ts";
import type { LimitedJob, Limits } from "../limits/limits.ts";
import { Stalled } from "../limits/queue-locks.ts";
import type { Settings } from "../settings.ts";
import type { Tx } from "../transactions/transaction.ts";
import type { Endings } from "./endings.ts";
import type { Waits } from "./waits.ts";

/** A job that nobody else can change until the commit. */
export interface Locked {
  key: JobKey;
  state: JobState;
  lane: number;
  fence: Fence;
  slot: string | null;
  gate: string | null;
  /** As its limits see it; null when it has none. */
  limited: LimitedJob | null;
}

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

/** Ends jobs that have not ended, whoever holds them. The locks of their queues are held, where they have limits or are work items. */
export class Cancel {
  readonly #catalog: Catalog;
  readonly #settings: Settings;
  readonly #endings: Endings;
  readonly #waits: Waits;
  readonly #limits: Limits;
  readonly #events: JobEvents;
  readonly #sql: Record<"lock" | "claims" | "cancel", string>;

  constructor(
    s: string,
    parts: { catalog: Catalog; settings: Settings; endings: Endings; waits: Waits; limits: Limits; events: JobEvents },
  ) {
    this.#catalog = parts.catalog;
    this.#settings = parts.settings;
    this.#endings = parts.endings;
    this.#waits = parts.waits;
    this.#limits = parts.limits;
    this.#events = parts.events;
    this.#sql = {
      lock: `
        select key, state, lane, fence, slot, gate, priority, limits from ${s}.jobs
        where key = any($1::bigint[]) order by key for update`,
      // How many there are of these, and how many of them nobody else has locked.
      claims: `
        select (select count(*) from ${s}.claims where fence = any($1::bigint[])), count(*)
        from (select 1 from ${s}.claims where fence = any($1::bigint[]) order by fence for update skip locked) as held`,
      cancel: `
        with ended as (
          update ${s}.jobs as job set state = 'cancelled', gate = null, finished_at = $2, expires_at = null, holder = null, worker = null
          from (select key, state from ${s}.jobs where key = any($1::bigint[])) as was where job.key = was.key
          returning case when was.state = 'running' then job.fence end as fence),
        ${endedSql(s, "ended")}
        select 1 from ended`,
    };
  }

  /** As they are, locked. */
  async lock(tx: Tx, jobs: readonly JobKey[]): Promise<Locked[]> {
    if (jobs.length === 0) return [];
    const rows = await tx.rows<Row>(this.#sql.lock, listOf(jobs));
    await this.#catalog.knowLanes(
      tx.rows,
      rows.map((row) => row[2]),
    );
    return rows.map(([key, state, lane, fence, slot, gate, priority, limits]) => {
      return { key, state, lane, fence, slot, gate, limited: limits === null ? null : { key, lane, priority, limits } };
    });
  }

  /** An operator's act. The caller has seen that it may be cancelled. */
  async run(tx: Tx, job: Locked): Promise<void> {
    await this.#end(tx, [job], () => this.#events.always(tx, [{ type: "job.cancelled", job: job.key }]));
  }

  /** Work items that are not wanted any more: those that had not ended, and what they were. */
  async quietly(tx: Tx, jobs: readonly JobKey[]): Promise<Map<JobKey, JobState>> {
    const open = (await this.lock(tx, jobs)).filter(({ state }) => mayMove("cancel", state));
    if (open.length > 0) {
      const told = open.map(({ key, lane }) => ({ type: "job.cancelled", job: key, lane }) as const);
      await this.#end(tx, open, () => this.#events.tell(tx, told));
    }
    return new Map(open.map(({ key, state }) => [key, state]));
  }

  async #end(tx: Tx, jobs: readonly Locked[], tell: () => Promise<void>): Promise<void> {
    const running = jobs.filter(({ state }) => state === "running");
    // Whoever settles others of their claims may wait for their rows: nobody waits for him meanwhile.
    if (running.length > 0 && !(await this.#haveClaims(tx, running))) throw new Stalled();
    await this.#settings.at(tx);
    const now = await tx.now();
    await tx.rows(this.#sql.cancel, listOf(jobs.map(({ key }) => key)), now);
    await tell();
    for (const { key } of jobs.filter(({ state }) => state === "waiting")) await this.#waits.forget(tx, key);
    const of = (which: JobState) =>
      jobs.flatMap(({ state, gate, limited }) =>
        limited === null || state !== which ? [] : [{ ...limited, gate, began: true }],
      );
    const pending = of("pending");
    if (pending.length > 0) await this.#limits.withdraw(tx, pending);
    await this.#limits.end(tx, of("running"));
    await this.#endings.follow(
      tx,
      now,
      jobs.map(({ key, lane }) => ({ job: key, lane, state: "cancelled" })),
    );
    for (const { key, fence, lane } of running) {
      tx.ended(key, fence);
      // It may have been an exclusive claim: its queue is open again.
      tx.ready(this.#catalog.lane(lane).queue);
    }
    tx.wrote();
  }

  async #haveClaims(tx: Tx, running: readonly Locked[]): Promise<boolean> {
    const fences = [...new Set(running.map(({ fence }) => fence))];
    const [[all, free]] = (await tx.rows<[number, number]>(this.#sql.claims, listOf(fences))) as [[number, number]];
    return all === free;
  }
}
