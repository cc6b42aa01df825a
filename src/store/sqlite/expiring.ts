import type { FinishedState } from "../../core/job.ts";
import { FINISHED_STATES } from "../../core/job.ts";
import type { JobKey } from "../../core/ids.ts";
import type { Catalog } from "./catalog.ts";
import type { Connection, Statement } from "./driver.ts";
import type { Tx } from "./group-commit.ts";
import type { Settings } from "./settings.ts";
import type { Tally } from "./tally.ts";

/** Rows that are looked through in one step for jobs that ended before their queue said how long to keep them. */
const BACKFILL = 2_000;

/**
 * Finished jobs of queues that do not keep them for ever, in the order in which they ended: what has to go is found
 * without walking history. A job that an operator has retried may still be listed; it is looked at before it goes.
 */
export class Expiring {
  readonly #catalog: Catalog;
  readonly #settings: Settings;
  readonly #tally: Tally;
  readonly #add: Statement;
  readonly #oldest: Statement;
  readonly #forget: Statement;
  readonly #still: Statement;
  readonly #unlisted: Statement;
  readonly #ended: Statement;
  readonly #endedUpTo: Statement;
  readonly #goOn: Statement;

  constructor(db: Connection, parts: { catalog: Catalog; settings: Settings; tally: Tally }) {
    this.#catalog = parts.catalog;
    this.#settings = parts.settings;
    this.#tally = parts.tally;
    this.#add = db.prepare(
      "insert into holdfast_expiring (lane, state, finished_at, job) values (?, ?, ?, ?) on conflict do nothing",
    );
    this.#oldest = db.prepare(
      "select job, finished_at from holdfast_expiring where lane = ? and state = ? order by finished_at, job limit ?",
    );
    this.#forget = db.prepare("delete from holdfast_expiring where lane = ? and state = ? and finished_at = ? and job = ?");
    this.#still = db.prepare("select 1 from holdfast_jobs where key = ? and state = ? and finished_at = ?");
    this.#unlisted = db.prepare("select name, backfill from holdfast_queues where backfill is not null limit 1");
    this.#endedUpTo = db.prepare(
      `select max(key) from (select key from holdfast_jobs where key > ? order by key limit ${BACKFILL})`,
    );
    this.#ended = db.prepare(
      "select key, lane, state, finished_at from holdfast_jobs where key > ? and key <= ? and finished_at is not null",
    );
    this.#goOn = db.prepare("update holdfast_queues set backfill = ? where name = ?");
  }

  add(lane: number, state: FinishedState, finishedAt: number, job: JobKey): void {
    if (this.#settings.keep(this.#catalog.lane(lane).queue, state) !== undefined) this.#add.run(lane, state, finishedAt, job);
  }

  /** Jobs whose time is over, at most so many. */
  due(tx: Tx, limit: number): { job: JobKey; lane: number; state: FinishedState }[] {
    const due: { job: JobKey; lane: number; state: FinishedState }[] = [];
    const counts = this.#counts();
    for (const [name, { keep }] of this.#settings.queues()) {
      const lanes = [...this.#catalog.lanes(tx.lanes)].filter(({ queue }) => queue === name).map(({ id }) => id);
      for (const state of FINISHED_STATES) {
        const { age, count } = keep[state] ?? {};
        if (age === undefined && count === undefined) continue;
        const total = lanes.reduce((sum, lane) => sum + (counts.get(`${lane} ${state}`) ?? 0), 0);
        let excess = count === undefined ? 0 : Math.max(0, total - count);
        const before = age === undefined ? Number.NEGATIVE_INFINITY : tx.now - age;
        for (const { lane, job, finishedAt } of this.#inOrder(lanes, state, limit - due.length)) {
          if (excess === 0 && finishedAt >= before) break;
          this.#forget.run(lane, state, finishedAt, job);
          tx.wrote();
          // It was retried since: it is listed anew when it ends again.
          if (this.#still.row(job, state, finishedAt) === undefined) continue;
          if (excess > 0) excess--;
          due.push({ job, lane, state });
        }
        if (due.length >= limit) return due;
      }
    }
    return due;
  }

  /** Lists what ended before; true while there is more to look through. */
  backfill(tx: Tx): boolean {
    const unlisted = this.#unlisted.row() as [string, number] | undefined;
    if (unlisted === undefined) return false;
    const [name, from] = unlisted;
    const to = (this.#endedUpTo.row(from)?.[0] ?? null) as number | null;
    if (to !== null) {
      for (const row of this.#ended.rows(from, to)) {
        const [job, lane, state, finishedAt] = row as [JobKey, number, FinishedState, number];
        if (this.#catalog.lane(lane).queue === name) this.add(lane, state, finishedAt, job);
      }
    }
    this.#goOn.run(to, name);
    tx.wrote();
    return true;
  }

  #inOrder(lanes: number[], state: FinishedState, limit: number): { lane: number; job: JobKey; finishedAt: number }[] {
    return lanes
      .flatMap((lane) =>
        this.#oldest.rows(lane, state, limit).map(([job, at]) => ({ lane, job: job as JobKey, finishedAt: at as number })),
      )
      .sort((a, b) => a.finishedAt - b.finishedAt || a.job - b.job)
      .slice(0, limit);
  }

  #counts(): Map<string, number> {
    return new Map(this.#tally.all().map(({ lane, state, n }) => [`${lane} ${state}`, n]));
  }
}
