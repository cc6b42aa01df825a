import { behind, isEarly, upstreamEnded } from "../../core/dependency.ts";
import type { JobKey } from "../../core/ids.ts";
import type { FinishedState } from "../../core/job.ts";
import { isPipelineQueue } from "../../core/work.ts";
import { publicId } from "../job-row.ts";
import type { Catalog } from "./catalog.ts";
import type { Connection, Statement } from "./driver.ts";
import type { Expiring } from "./expiring.ts";
import type { Tx } from "./group-commit.ts";
import type { JobEvents } from "./job-events.ts";
import type { Limits } from "./limits.ts";
import type { Settings } from "./settings.ts";
import type { Tally } from "./tally.ts";
import type { Waits } from "./waits.ts";
import type { Accounts } from "./work/accounts.ts";
import type { Items } from "../work/items.ts";

interface Ended {
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
  readonly #settings: Settings;
  readonly #tally: Tally;
  readonly #waits: Waits;
  readonly #limits: Limits;
  readonly #expiring: Expiring;
  readonly #events: JobEvents;
  readonly #items: Items;
  readonly #accounts: Accounts;
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
      items: Items;
      accounts: Accounts;
    },
  ) {
    this.#catalog = parts.catalog;
    this.#settings = parts.settings;
    this.#tally = parts.tally;
    this.#waits = parts.waits;
    this.#limits = parts.limits;
    this.#expiring = parts.expiring;
    this.#events = parts.events;
    this.#items = parts.items;
    this.#accounts = parts.accounts;
    const these = "key in (select value from json_each(?)) and state = 'waiting'";
    this.#waiting = db.prepare(
      `select key, lane, priority, run_at, created_at, limits from holdfast_jobs where ${these} order by key`,
    );
    this.#unblock = db.prepare(`update holdfast_jobs set state = 'pending', gate = ? where ${these}`);
    this.#cancel = db.prepare(`update holdfast_jobs set state = 'cancelled', error = ?, finished_at = ? where ${these}`);
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
    this.#accounts.write(tx);
    this.#followed = true;
  }

  /** After an undone transaction. */
  forget(): void {
    this.#ended = [];
    this.#followed = true;
    this.#tally.forget();
    this.#accounts.forget();
  }

  #follow(tx: Tx): void {
    const forgetting = this.#settings.at(tx.settings).forgetting;
    const waited = this.#waits.any();
    // What is cancelled on the way has ended, too, and is looked at in the next round.
    while (this.#ended.length > 0) {
      const ended = this.#ended;
      this.#ended = [];
      if (forgetting) this.#expiring.add(ended, tx.now);
      if (waited) this.#tellBehind(tx, ended);
    }
  }

  /** In a handful of statements, however many come after them. */
  #tellBehind(tx: Tx, ended: readonly Ended[]): void {
    const states = new Map(ended.map(({ job, state }) => [job, state]));
    const pairs = this.#waits.behind([...states.keys()]);
    if (pairs.length === 0) return;
    const { cancelled, freer } = behind(pairs, states);
    this.#waits.over([...states.keys()], [...cancelled.keys()]);
    for (const [upstream, jobs] of Map.groupBy(cancelled.keys(), (job) => cancelled.get(job) as JobKey)) {
      this.#cancelBehind(tx, jobs, upstream, states.get(upstream) as FinishedState);
    }
    this.#unblocked(tx, this.#waits.free(freer));
    tx.wrote();
  }

  #unblocked(tx: Tx, jobs: readonly JobKey[]): void {
    const open: JobKey[] = [];
    const timed: JobKey[] = [];
    for (const [key, lane, priority, runAt, createdAt, limits] of this.#waitingOf(jobs)) {
      if (isEarly(runAt, createdAt, tx.now)) timed.push(key);
      else if (limits === null) open.push(key);
      else this.#unblock.run(this.#limits.admit(tx, { key, lane, priority, limits }), JSON.stringify([key]));
      tx.ready(this.#catalog.lane(lane).queue);
    }
    if (open.length > 0) this.#unblock.run(null, JSON.stringify(open));
    if (timed.length > 0) this.#unblock.run("time", JSON.stringify(timed));
  }

  #cancelBehind(tx: Tx, jobs: readonly JobKey[], upstream: JobKey, state: FinishedState): void {
    const [createdAt, id] = this.#idOf.row(upstream) as [number, string | null];
    const rows = this.#waitingOf(jobs);
    const error = JSON.stringify(upstreamEnded(publicId(id, createdAt, upstream), state));
    this.#cancel.run(error, tx.now, JSON.stringify(jobs));
    for (const [key, lane] of rows) {
      this.#events.tell(tx, "job.cancelled", lane, key);
      if (isPipelineQueue(this.#catalog.lane(lane).queue)) this.#items.cancelled(tx.now, key, "waiting");
      this.add(key, lane, "cancelled");
    }
  }

  #waitingOf(jobs: readonly JobKey[]): WaitingRow[] {
    return jobs.length === 0 ? [] : (this.#waiting.rows(JSON.stringify(jobs)) as WaitingRow[]);
  }
}
