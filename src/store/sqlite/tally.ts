import type { FinishedState } from "../../core/job.ts";
import type { Connection, Statement } from "./driver.ts";

const MINUTE = 60_000;

export interface Tallied {
  lane: number;
  state: FinishedState;
  n: number;
  ended: number;
  since: number;
  fresh: number;
  before: number;
}

/** Counts of finished jobs, kept with each change of one, so that counting never walks history. */
export class Tally {
  readonly #add: Statement;
  readonly #subtract: Statement;
  readonly #all: Statement;
  /** Sums of one operation, written once at its end: a settled batch is one row here. */
  #sums = new Map<number, Map<FinishedState, number>>();

  constructor(db: Connection) {
    // ended never falls; fresh counts the minute that began at since, before the one that went before it.
    this.#add = db.prepare(
      `insert into holdfast_tally (lane, state, n, ended, fresh, since) values (?, ?, ?, ?, ?, ?)
       on conflict (lane, state) do update set n = n + excluded.n, ended = ended + excluded.n,
         before = case when excluded.since - since between 0 and ${MINUTE - 1} then before
                       when excluded.since - since between ${MINUTE} and ${2 * MINUTE - 1} then fresh else 0 end,
         fresh = case when excluded.since - since between 0 and ${MINUTE - 1} then fresh + excluded.n else excluded.n end,
         since = case when excluded.since - since between 0 and ${MINUTE - 1} then since else excluded.since end`,
    );
    this.#subtract = db.prepare("update holdfast_tally set n = n + ? where lane = ? and state = ?");
    this.#all = db.prepare("select lane, state, n, ended, since, fresh, before from holdfast_tally");
  }

  add(lane: number, state: FinishedState, n: number): void {
    let states = this.#sums.get(lane);
    if (states === undefined) this.#sums.set(lane, (states = new Map()));
    states.set(state, (states.get(state) ?? 0) + n);
  }

  /** Called by each operation as its last act, so that an undone one leaves nothing here. */
  write(now: number): void {
    if (this.#sums.size === 0) return;
    for (const [lane, states] of this.#sums) {
      for (const [state, n] of states) {
        if (n > 0) this.#add.run(lane, state, n, n, n, now);
        else if (n < 0) this.#subtract.run(n, lane, state);
      }
    }
    this.#sums.clear();
  }

  forget(): void {
    this.#sums.clear();
  }

  all(): Tallied[] {
    return this.#all.all<Tallied>();
  }
}

/** How many of them ended within the last minute, as far as two counters of a minute each can tell. */
export function lastMinute({ since, fresh, before }: Tallied, now: number): number {
  const elapsed = now - since;
  if (elapsed < 0 || elapsed >= 2 * MINUTE) return 0;
  if (elapsed >= MINUTE) return Math.round(fresh * (2 - elapsed / MINUTE));
  return Math.round(fresh + before * (1 - elapsed / MINUTE));
}
