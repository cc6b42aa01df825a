import { behind, isEarly, upstreamEnded } from "../../../core/jobs/admission.ts";
import type { JobKey } from "../../../core/text/ids.ts";
import type { FinishedState } from "../../../core/jobs/job.ts";
import { publicId } from "../../job-row.ts";
import type { Catalog } from "../catalog.ts";
import { listOf } from "../connection/driver.ts";
import type { JobEvents } from "../news/events.ts";
import type { Expiring } from "./expiring.ts";
import type { Limits } from "../limits/limits.ts";
import type { Tally } from "./tally.ts";
import type { Tx } from "../transactions/transaction.ts";
import type { Waits } from "./waits.ts";
import type { Sheets } from "../work/sheets.ts";

/** A job that has ended. */
export interface Ended {
  job: JobKey;
  lane: number;
  state: FinishedState;
}

type WaitingRow = [key: JobKey, lane: number, priority: number, runAt: number, createdAt: number, limits: string | null];

/**
 * What the end of a job means for everything around its row: counts, how long it is kept, and the jobs that come after
 * it. Nothing waits for ever: a job that ends otherwise than succeeded cancels those that were to come after it, and
 * those after them, in the same transaction.
 */
export class Endings {
  readonly #catalog: Catalog;
  readonly #tally: Tally;
  readonly #waits: Waits;
  readonly #limits: Limits;
  readonly #expiring: Expiring;
  readonly #events: JobEvents;
  readonly #sheets: Sheets;
  readonly #sql: Record<"waiting" | "unblock" | "cancel" | "idsOf", string>;

  constructor(
    s: string,
    parts: {
      catalog: Catalog;
      tally: Tally;
      waits: Waits;
      limits: Limits;
      expiring: Expiring;
      events: JobEvents;
      sheets: Sheets;
    },
  ) {
    this.#catalog = parts.catalog;
    this.#tally = parts.tally;
    this.#waits = parts.waits;
    this.#limits = parts.limits;
    this.#expiring = parts.expiring;
    this.#events = parts.events;
    this.#sheets = parts.sheets;
    this.#sql = {
      waiting: `
        select key, lane, priority, run_at, created_at, limits from ${s}.jobs
        where key = any($1::bigint[]) and state = 'waiting' order by key`,
      unblock: `
        update ${s}.jobs as job set state = 'pending', gate = asked.gate
        from unnest($1::bigint[], $2::text[]) as asked (key, gate) where job.key = asked.key and job.state = 'waiting'`,
      cancel: `
        update ${s}.jobs as job set state = 'cancelled', error = asked.error, finished_at = $1
        from unnest($2::bigint[], $3::text[]) as asked (key, error) where job.key = asked.key and job.state = 'waiting'`,
      idsOf: `select key, created_at, id from ${s}.jobs where key = any($1::bigint[])`,
    };
  }

  /** The settings are those of this transaction. `ended` is what the caller has written. */
  async follow(tx: Tx, now: number, ended: readonly Ended[]): Promise<void> {
    await this.#tally.add(tx, now, ended);
    // What is cancelled on the way has ended, too, and is looked at in the next round.
    for (let round = ended; round.length > 0;) {
      await this.#expiring.add(tx, round, now);
      round = await this.#tellBehind(tx, now, round);
      await this.#tally.add(tx, now, round);
    }
  }

  /** Whether anybody waits for one of these. */
  areAwaited(tx: Tx, jobs: readonly JobKey[]): Promise<boolean> {
    return this.#waits.areAny(tx, jobs);
  }

  /** Those that wait for these may go on. */
  async succeeded(tx: Tx, jobs: readonly JobKey[]): Promise<void> {
    const ended = jobs.map((job) => ({ job, state: "succeeded" }) as const);
    await this.#tellBehind(tx, await tx.now(), ended);
  }

  /** In a handful of statements, however many come after them: those of them that are cancelled by it. */
  async #tellBehind(tx: Tx, now: number, ended: readonly Pick<Ended, "job" | "state">[]): Promise<Ended[]> {
    const states = new Map(ended.map(({ job, state }) => [job, state]));
    const waits = await this.#waits.behind(tx, [...states.keys()]);
    if (waits.length === 0) return [];
    const { cancelled, freer } = behind(waits, states);
    await this.#waits.over(tx, [...states.keys()], [...cancelled.keys()]);
    const ends = cancelled.size === 0 ? [] : await this.#cancelBehind(tx, now, cancelled, states);
    await this.#unblock(tx, now, await this.#waits.free(tx, freer));
    tx.wrote();
    return ends;
  }

  async #unblock(tx: Tx, now: number, jobs: readonly JobKey[]): Promise<void> {
    const rows = await this.#waitingOf(tx, jobs);
    const gates = new Map<JobKey, string | null>();
    const limited = [];
    for (const [key, lane, priority, runAt, createdAt, limits] of rows) {
      if (isEarly(runAt, createdAt, now)) gates.set(key, "time");
      else if (limits === null) gates.set(key, null);
      else limited.push({ key, lane, priority, limits });
      tx.ready(this.#catalog.lane(lane).queue);
    }
    if (limited.length > 0) {
      const admitted = await this.#limits.admit(tx, limited);
      for (const [i, { key }] of limited.entries()) gates.set(key, admitted[i] ?? null);
    }
    if (gates.size > 0) await tx.rows(this.#sql.unblock, listOf([...gates.keys()]), listOf([...gates.values()]));
  }

  async #cancelBehind(
    tx: Tx,
    now: number,
    upstreamOf: ReadonlyMap<JobKey, JobKey>,
    states: ReadonlyMap<JobKey, FinishedState>,
  ): Promise<Ended[]> {
    const rows = await this.#waitingOf(tx, [...upstreamOf.keys()]);
    const upstreams = await tx.rows<[JobKey, number, string | null]>(this.#sql.idsOf, listOf([...new Set(upstreamOf.values())]));
    const said = new Map(
      upstreams.map(([key, createdAt, id]) => {
        return [key, JSON.stringify(upstreamEnded(publicId(id, createdAt, key), states.get(key) as FinishedState))];
      }),
    );
    const keys = rows.map(([key]) => key);
    const errors = keys.map((key) => said.get(upstreamOf.get(key) as JobKey) as string);
    await tx.rows(this.#sql.cancel, now, listOf(keys), listOf(errors));
    const cancelled = rows.map(([job, lane]): Ended => ({ job, lane, state: "cancelled" }));
    await this.#events.tell(
      tx,
      cancelled.map(({ job, lane }) => ({ type: "job.cancelled", job, lane })),
    );
    await this.#sheets.cancelled(
      tx,
      now,
      cancelled.map(({ job, lane }) => ({ job, lane, was: "waiting" })),
    );
    return cancelled;
  }

  async #waitingOf(tx: Tx, jobs: readonly JobKey[]): Promise<WaitingRow[]> {
    if (jobs.length === 0) return [];
    const rows = await tx.rows<WaitingRow>(this.#sql.waiting, listOf(jobs));
    await this.#catalog.knowLanes(
      tx.rows,
      rows.map((row) => row[1]),
    );
    return rows;
  }
}
