import { type LaneShare, outlookOf, queueOf } from "../../../core/jobs/claiming.ts";
import { storedWorker } from "../../job-row.ts";
import type { ClaimRequest } from "../../store.ts";
import { listOf, type Value } from "../connection/driver.ts";
import type { FoundLanes } from "./ready-lanes.ts";
import { byStartedTurn, laneOf, type SoleStarted, soleTakingSql, type Started } from "./claim-statements.ts";
import type { SingleStatement } from "../transactions/receipts.ts";
import type { SingleCall, Tx } from "../transactions/transaction.ts";

/** So many claims go the longer way without asking when one had to. */
const LONGER = 8;

/** Jobs out of queues that have neither limits nor events, by one statement: what a worker that is idle waits for. */
export class SoleClaim {
  readonly #sql: Record<"one" | "many", SingleStatement>;
  #longer = 0;

  constructor(s: string) {
    this.#sql = soleTakingSql(s);
  }

  /** Of these queues, in their order, each its share; null: the longer way. */
  of<T>(
    tx: Tx,
    { max, holder, worker, left }: ClaimRequest,
    queues: readonly LaneShare[][],
    { isWhole, nextAt: later }: FoundLanes,
    read: (rows: Started[]) => T | Promise<T>,
  ): SingleCall<T> | null {
    const shares = queues.flat().filter(({ budget }) => budget.left > 0);
    const [only, ...others] = shares;
    if (only === undefined || (this.#longer > 0 && this.#longer-- > 0)) return null;
    const common: Value[] = [tx.at, holder, storedWorker({ worker })];
    const leases = new Map(shares.map(({ lane, lease }) => [lane.id, lease]));
    const answer = (rows: readonly (readonly unknown[])[], inOrder: (a: Started, b: Started) => number) => {
      const common = rows.find(([key]) => key === null) as SoleStarted;
      const [now, longer, more, nextAt] = [common[10], common[11], common[12], common[13]];
      if (longer) {
        this.#longer = LONGER;
        return null;
      }
      // Other lanes have jobs, which may be all that is left.
      if (!isWhole && rows.length === 1) return null;
      if (isWhole && more === false) left?.(outlookOf(false, [nextAt, later], now));
      return read(startedOf(rows as readonly SoleStarted[], common, leases).sort(inOrder));
    };
    if (others.length === 0) {
      const { lane, lease, budget } = only;
      const values = [...common, Math.min(max, budget.left), lane.id, lane.queue, lease];
      return { statement: this.#sql.one, values, read: (rows) => answer(rows, byStartedTurn) };
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
    const inOrder = (a: Started, b: Started): number => place(laneOf(a)) - place(laneOf(b)) || byStartedTurn(a, b);
    return { statement: this.#sql.many, values, read: (rows) => answer(rows, inOrder) };
  }
}

/** What has a key is a job; suspects go the longer way. */
function startedOf(rows: readonly SoleStarted[], common: SoleStarted, leases: ReadonlyMap<number, number>): Started[] {
  const [fence, now] = [common[9], common[10]];
  const started: Started[] = [];
  for (const [key, priority, policy, attempt, createdAt, id, input, scheduledFor, lane] of rows) {
    if (key === null) continue;
    const lease = leases.get(lane) as number;
    const held = now + lease;
    started.push([key, priority ?? 0, policy, attempt ?? 1, createdAt, id, input, scheduledFor, fence, held, false, lane, lease]);
  }
  return started;
}
