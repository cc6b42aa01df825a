import type { LaneShare } from "../../core/claiming.ts";
import type { ClaimRequest } from "../store.ts";
import { byStartedTurn, type Started } from "./claimed-row.ts";
import { listOf, type Value } from "./driver.ts";
import type { SoleStatement } from "./receipts.ts";
import { soleTakingSql } from "./taking.ts";
import type { Sole, Tx } from "./transaction.ts";

/** So many claims go the longer way without asking when one had to. */
const LONGER = 8;

/** Jobs out of one queue that has neither limits nor events, by one statement: what a worker that is idle waits for. */
export class SoleClaim {
  readonly #sql: Record<"one" | "many", SoleStatement>;
  #longer = 0;

  constructor(s: string) {
    this.#sql = soleTakingSql(s);
  }

  /** Null: the longer way. */
  of<T>(
    tx: Tx,
    { max, holder, worker }: ClaimRequest,
    lanes: readonly LaneShare[],
    read: (rows: Started[]) => T | Promise<T>,
  ): Sole<T> | null {
    const shares = lanes.filter(({ budget }) => budget.left > 0);
    const [only, ...others] = shares;
    if (only === undefined || (this.#longer > 0 && this.#longer-- > 0)) return null;
    const common: Value[] = [tx.at, holder, holder === null ? worker : null];
    const { id, queue } = only.lane;
    const most = ({ budget }: LaneShare): number => Math.min(max, budget.left);
    if (others.length === 0)
      return {
        statement: this.#sql.one,
        values: [...common, most(only), id, queue, only.lease],
        read: (rows) => this.#read(rows as Started[], read, only),
      };
    const budgets = [...new Set(shares.map(({ budget }) => budget))];
    const columns = [
      listOf(shares.map(({ lane }) => lane.id)),
      queue,
      listOf(shares.map(({ lease }) => lease)),
      listOf(shares.map(most)),
      listOf(shares.map(({ budget }) => budgets.indexOf(budget))),
      listOf(shares.map(most)),
    ];
    return {
      statement: this.#sql.many,
      values: [...common, max, ...columns],
      read: (rows) => this.#read(rows as Started[], read),
    };
  }

  /** There is always a row, also where nothing was taken. */
  #read<T>(rows: Started[], read: (rows: Started[]) => T | Promise<T>, only?: LaneShare): T | Promise<T> | null {
    const [first] = rows as [Started | [null, ...unknown[]]];
    // The last but one: behind the columns of the job.
    if (first.at(-2) === true) {
      this.#longer = LONGER;
      return null;
    }
    if (first[0] === null) return read([]);
    if (only !== undefined) for (const row of rows) [row[11], row[12]] = [only.lane.id, only.lease];
    return read(rows.sort(byStartedTurn));
  }
}
