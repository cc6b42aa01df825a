import { type LaneShare, queueOf } from "../../core/claiming.ts";
import type { ClaimRequest } from "../store.ts";
import { byStartedTurn, laneOf, type Started } from "./claimed-row.ts";
import { listOf, type Value } from "./driver.ts";
import type { SoleStatement } from "./receipts.ts";
import { soleTakingSql } from "./taking.ts";
import type { Sole, Tx } from "./transaction.ts";

/** So many claims go the longer way without asking when one had to. */
const LONGER = 8;

/** Jobs out of queues that have neither limits nor events, by one statement: what a worker that is idle waits for. */
export class SoleClaim {
  readonly #sql: Record<"one" | "many", SoleStatement>;
  #longer = 0;

  constructor(s: string) {
    this.#sql = soleTakingSql(s);
  }

  /** Of these queues, in their order, each its share; null: the longer way. */
  of<T>(
    tx: Tx,
    { max, holder, worker }: ClaimRequest,
    queues: readonly LaneShare[][],
    read: (rows: Started[]) => T | Promise<T>,
  ): Sole<T> | null {
    const shares = queues.flat().filter(({ budget }) => budget.left > 0);
    const [only, ...others] = shares;
    if (only === undefined || (this.#longer > 0 && this.#longer-- > 0)) return null;
    const common: Value[] = [tx.at, holder, holder === null ? worker : null];
    if (others.length === 0) {
      const { lane, lease, budget } = only;
      const known = (rows: Started[]): Started[] => {
        for (const row of rows) [row[11], row[12]] = [lane.id, lease];
        return rows.sort(byStartedTurn);
      };
      const values = [...common, Math.min(max, budget.left), lane.id, lane.queue, lease];
      return { statement: this.#sql.one, values, read: (rows) => this.#read(rows as Started[], known, read) };
    }
    const places = new Map(queues.flatMap((lanes, place) => lanes.map(({ lane }) => [lane.id, place])));
    const place = (lane: number): number => places.get(lane) as number;
    const budgets = [...new Set(shares.map(({ budget }) => budget))];
    const share = Math.max(1, Math.ceil(max / queues.length));
    const values = [
      ...common,
      max,
      listOf(shares.map(({ lane }) => lane.id)),
      listOf(queues.map(queueOf)),
      listOf(shares.map(({ lease }) => lease)),
      // One more shows that there are more.
      listOf(shares.map(({ budget }) => Math.min(share + 1, max, budget.left))),
      listOf(shares.map(({ lane }) => place(lane.id))),
      listOf(shares.map(({ budget }) => budgets.indexOf(budget))),
      listOf(shares.map(({ budget }) => Math.min(max, budget.left))),
      share,
    ];
    const inOrder = (rows: Started[]): Started[] =>
      rows.sort((a, b) => place(laneOf(a)) - place(laneOf(b)) || byStartedTurn(a, b));
    return { statement: this.#sql.many, values, read: (rows) => this.#read(rows as Started[], inOrder, read) };
  }

  /** There is always a row, also where nothing was taken. */
  #read<T>(
    rows: Started[],
    inOrder: (rows: Started[]) => Started[],
    read: (rows: Started[]) => T | Promise<T>,
  ): T | Promise<T> | null {
    const [first] = rows as [Started | [null, ...unknown[]]];
    // The last but one: behind the columns of the job.
    if (first.at(-2) === true) {
      this.#longer = LONGER;
      return null;
    }
    return read(first[0] === null ? [] : inOrder(rows));
  }
}
