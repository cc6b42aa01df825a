import type { JobKey } from "../../../core/text/ids.ts";
import type { FinishedState } from "../../../core/jobs/job.ts";
import { BACKFILL, excesses, longer, type Over } from "../../../core/jobs/retention.ts";
import type { Catalog } from "./catalog.ts";
import type { Connection, Statement } from "../driver.ts";
import type { Tx } from "../group-commit.ts";
import type { Settings } from "./settings.ts";
import type { Tally } from "./endings.ts";

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
  readonly #allUnlisted: Statement;
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
      `select job, finished_at from holdfast_expiring
       where lane = ? and state = ? and finished_at < ? order by finished_at, job limit ?`,
    );
    this.#forget = db.prepare("delete from holdfast_expiring where lane = ? and state = ? and finished_at = ? and job = ?");
    this.#still = db.prepare("select 1 from holdfast_jobs where key = ? and state = ? and finished_at = ?");
    this.#unlisted = db.prepare("select name, backfill from holdfast_queues where backfill is not null limit 1");
    this.#allUnlisted = db.prepare("select name from holdfast_queues where backfill is not null");
    this.#endedUpTo = db.prepare(
      `select max(key) from (select key from holdfast_jobs where key > ? order by key limit ${BACKFILL})`,
    );
    this.#ended = db.prepare(
      "select key, lane, state, finished_at from holdfast_jobs where key > ? and key <= ? and finished_at is not null",
    );
    this.#goOn = db.prepare("update holdfast_queues set backfill = ? where name = ?");
  }

  /** Lists those of them that are not kept for ever. */
  add(ended: readonly { job: JobKey; lane: number; state: FinishedState }[], finishedAt: number): void {
    // A batch is of few lanes and states: each is looked up once.
    const listed = new Map<string, boolean>();
    for (const { job, lane, state } of ended) {
      const what = `${lane} ${state}`;
      let isListed = listed.get(what);
      if (isListed === undefined) {
        isListed = this.#settings.view.keep(this.#catalog.lane(lane).queue, state) !== undefined;
        listed.set(what, isListed);
      }
      if (isListed) this.#add.run(lane, state, finishedAt, job);
    }
  }

  /** Whether there is anything to do: reads only, since most of the time there is not. */
  isDue(now: number, leastAge: number): boolean {
    return this.#unlisted.row() !== undefined || this.#due(now, leastAge, 1).length > 0;
  }

  /** Takes jobs off the list whose time is over, at most so many. */
  take(tx: Tx, limit: number, leastAge: number): { taken: number; over: Over[] } {
    const due = this.#due(tx.now, leastAge, limit);
    for (const { lane, state, finishedAt, job } of due) this.#forget.run(lane, state, finishedAt, job);
    if (due.length > 0) tx.wrote();
    // One that was retried since is listed anew when it ends again.
    const over = due.filter(({ job, state, finishedAt }) => this.#still.row(job, state, finishedAt) !== undefined);
    return { taken: due.length, over };
  }

  #due(now: number, leastAge: number, limit: number): Over[] {
    const due: Over[] = [];
    this.#catalog.reload();
    const kept = {
      set: this.#settings.view.queues,
      lanes: this.#catalog.lanes(0),
      finished: this.#tally.all(),
      unlisted: new Set(this.#allUnlisted.rows().map(([name]) => name as string)),
    };
    for (const { lanes, state, count, countBefore, ageBefore } of excesses(kept, now, leastAge)) {
      const left = limit - due.length;
      const tooMany = count === 0 ? [] : this.#oldestOf(lanes, state, countBefore, Math.min(count, left));
      const tooOld = ageBefore === null ? [] : this.#oldestOf(lanes, state, ageBefore, left);
      due.push(...longer(tooMany, tooOld));
      if (due.length >= limit) return due;
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
        if (this.#catalog.lane(lane).queue === name) this.add([{ job, lane, state }], finishedAt);
      }
    }
    this.#goOn.run(to, name);
    tx.wrote();
    return true;
  }

  #oldestOf(lanes: readonly number[], state: FinishedState, before: number, limit: number): Over[] {
    return lanes
      .flatMap((lane) =>
        this.#oldest.rows(lane, state, before, limit).map(([job, finishedAt]): Over => {
          return { job: job as JobKey, lane, state, finishedAt: finishedAt as number };
        }),
      )
      .sort((a, b) => a.finishedAt - b.finishedAt || a.job - b.job)
      .slice(0, limit);
  }
}
