import type { FinishedState } from "../../core/job.ts";
import { COUNTED, type Tallied } from "../tallied.ts";
import type { Connection, Statement } from "./driver.ts";

/** Counts of finished jobs, kept with each change of one, so that counting never walks history. */
export class Tally {
  readonly #add: Statement;
  readonly #subtract: Statement;
  readonly #all: Statement;
  /** Sums of one operation, written once at its end: a settled batch is one row here. */
  #sums = new Map<number, Map<FinishedState, number>>();

  constructor(db: Connection) {
    this.#add = db.prepare(
      `insert into holdfast_tally as old (lane, state, n, ended, fresh, since) values (?, ?, ?, ?, ?, ?)
       on conflict (lane, state) do update set ${COUNTED}`,
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
