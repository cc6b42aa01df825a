import { generatedId, type JobKey } from "../../core/ids.ts";
import type { FinishedState } from "../../core/job.ts";
import type { Catalog } from "./catalog.ts";
import type { Connection, Statement } from "./driver.ts";
import type { Expiring } from "./expiring.ts";
import type { Tx } from "./group-commit.ts";
import type { JobEvents } from "./job-events.ts";
import type { Limits } from "./limits.ts";
import type { Settings } from "./settings.ts";
import type { Tally } from "./tally.ts";
import { upstreamEnded, type Waits } from "./waits.ts";

interface Ended {
  job: JobKey;
  lane: number;
  state: FinishedState;
}

type WaitingRow = [lane: number, priority: number, runAt: number, limits: string | null];

/**
 * What the end of a job means for everything around its row: counts, how long it is kept, and the jobs that come after
 * it. Nothing waits for ever: a job that ends otherwise than succeeded cancels those that were to come after it, and
 * those after them, in the same transaction.
 */
export class Endings {
  readonly #catalog: Catalog;
  readonly #settings: Settings;
  readonly #tally: Tally;
  readonly #waits: Waits;
  readonly #limits: Limits;
  readonly #expiring: Expiring;
  readonly #events: JobEvents;
  readonly #waiting: Statement;
  readonly #unblock: Statement;
  readonly #cancel: Statement;
  readonly #idOf: Statement;
  /** Somebody may wait for what ends, or it is not kept for ever. */
  #followed = true;
  #ended: Ended[] = [];

  constructor(
    db: Connection,
    parts: {
      catalog: Catalog;
      settings: Settings;
      tally: Tally;
      waits: Waits;
      limits: Limits;
      expiring: Expiring;
      events: JobEvents;
    },
  ) {
    this.#catalog = parts.catalog;
    this.#settings = parts.settings;
    this.#tally = parts.tally;
    this.#waits = parts.waits;
    this.#limits = parts.limits;
    this.#expiring = parts.expiring;
    this.#events = parts.events;
    this.#waiting = db.prepare("select lane, priority, run_at, limits from holdfast_jobs where key = ? and state = 'waiting'");
    this.#unblock = db.prepare("update holdfast_jobs set state = 'pending', gate = ? where key = ? and state = 'waiting'");
    this.#cancel = db.prepare(
      "update holdfast_jobs set state = 'cancelled', error = ?, finished_at = ? where key = ? and state = 'waiting'",
    );
    this.#idOf = db.prepare("select created_at, id from holdfast_jobs where key = ?");
  }

  /** Before a whole batch ends: where nothing follows from an end, nothing is noted. */
  begin(tx: Tx): void {
    this.#followed = this.#settings.at(tx.settings).forgetting || this.#waits.any();
  }

  add(job: JobKey, lane: number, state: FinishedState): void {
    this.#tally.add(lane, state, 1);
    if (this.#followed) this.#ended.push({ job, lane, state });
  }

  /** The last act of each operation, so that an undone one leaves nothing here. */
  write(tx: Tx): void {
    if (this.#ended.length > 0) this.#follow(tx);
    this.#tally.write(tx.now);
    this.#limits.write(tx);
    this.#followed = true;
  }

  /** After an undone transaction. */
  forget(): void {
    this.#ended = [];
    this.#followed = true;
    this.#tally.forget();
  }

  #follow(tx: Tx): void {
    const forgetting = this.#settings.at(tx.settings).forgetting;
    const waited = this.#waits.any();
    // What is cancelled on the way has ended, too, and is looked at in the next round.
    while (this.#ended.length > 0) {
      const ended = this.#ended;
      this.#ended = [];
      if (forgetting) for (const { job, lane, state } of ended) this.#expiring.add(lane, state, tx.now, job);
      if (waited) this.#tellBehind(tx, ended);
    }
  }

  #tellBehind(tx: Tx, ended: readonly Ended[]): void {
    const states = new Map(ended.map(({ job, state }) => [job, state]));
    for (const { job, upstream } of this.#waits.behind([...states.keys()])) {
      const state = states.get(upstream) as FinishedState;
      if (state !== "succeeded") this.#cancelBehind(tx, job, upstream, state);
      else if (this.#waits.passed(job, upstream)) this.#unblocked(tx, job);
    }
  }

  #unblocked(tx: Tx, key: JobKey): void {
    const row = this.#waiting.row(key) as WaitingRow | undefined;
    if (row === undefined) return;
    const [lane, priority, runAt, limits] = row;
    const gate = runAt > tx.now ? "time" : limits === null ? null : this.#limits.admit(tx, { key, lane, priority, limits });
    this.#unblock.run(gate, key);
    tx.ready(this.#catalog.lane(lane).queue);
    tx.wrote();
  }

  #cancelBehind(tx: Tx, key: JobKey, upstream: JobKey, state: FinishedState): void {
    this.#waits.forget(key);
    const row = this.#waiting.row(key) as WaitingRow | undefined;
    if (row === undefined) return;
    const [createdAt, id] = this.#idOf.row(upstream) as [number, string | null];
    this.#cancel.run(upstreamEnded(id ?? generatedId(createdAt, upstream), state), tx.now, key);
    this.#events.tell(tx, "job.cancelled", row[0], key);
    this.add(key, row[0], "cancelled");
    tx.wrote();
  }
}
