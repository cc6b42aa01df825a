import { type ClaimableLane, ClaimableLanes, onlyQueue, outlookOf, queueOf, QueueRotation } from "../../../core/jobs/claiming.ts";
import { isPipelineQueue } from "../../../core/pipelines/work.ts";
import type { Claimed, ClaimRequest } from "../../store.ts";
import {
  allOf,
  byStartedTurn,
  type ClaimLocks,
  commonIn,
  type FoundLanes,
  inTransaction,
  isSuspect,
  laneOf,
  ReadyLanes,
  manyLaneClaimSql,
  oneLaneClaimSql,
  type SingleRow,
  STARTED,
  type Started,
  startedIn,
  toClaimed,
} from "./claim-statements.ts";
import { DecidedClaim } from "./decided-claim.ts";
import { listOf, type Rows, type Value } from "../connection/driver.ts";
import { RerunTransaction } from "../connection/faults.ts";
import type { Outcome, SingleCall, SingleStatement, Tx } from "../transactions/transaction.ts";
import type { SingleRoute } from "../transactions/write-queue.ts";
import type { JobParts } from "../store-parts.ts";

/** After a claim that one statement could not make, this many claims are decided without trying it. */
const CLAIMS_WITHOUT_TRY = 8;

type ClaimParts = Pick<JobParts, "catalog" | "settings" | "limits" | "events"> & {
  locks: ClaimLocks;
  random: () => number;
  read: Rows;
};

type ClaimCall = Pick<SingleCall<unknown>, "statement" | "values">;

export class Claim {
  readonly #parts: ClaimParts;
  readonly #decided: DecidedClaim;
  readonly #statements: Record<"lane" | "lanes", SingleStatement>;
  readonly #recallSql: string;
  readonly #ready: ReadyLanes;
  readonly #turns = new QueueRotation();
  #withoutTry = 0;
  #claims = 0;
  readonly route: SingleRoute<ClaimRequest, Claimed[]> = {
    call: (tx, requests, rows) => this.#single(tx, requests, rows),
    recall: async (rows, outcome) => [await this.#recall(rows, outcome)],
  };

  constructor(s: string, parts: ClaimParts) {
    this.#parts = parts;
    this.#decided = new DecidedClaim(s, parts.limits);
    this.#statements = { lane: oneLaneClaimSql(s), lanes: manyLaneClaimSql(s) };
    this.#recallSql = `
      select ${STARTED} from ${s}.claims as claim join ${s}.jobs as job on job.key = any(claim.jobs)
      where claim.fence = $1::bigint and job.fence = claim.fence and job.state = 'running'`;
    this.#ready = new ReadyLanes(s, { random: parts.random, longest: () => parts.settings.view.longestRefillMs });
  }

  /** Whether the claim sends one statement at once, as far as this process knows. */
  isQuick({ from, exclusive }: ClaimRequest): boolean {
    if (exclusive !== undefined || !this.#isKnown) return false;
    const matched = this.#parts.catalog.matching(from);
    if (ReadyLanes.areMany(matched)) return false;
    const queue = onlyQueue(matched.all, this.#parts.settings.view);
    return queue !== null && !this.#parts.settings.limits(queue);
  }

  /** Runs claims one after the other, because each would read the jobs that another is about to start. */
  async runEach(tx: Tx, requests: readonly ClaimRequest[]): Promise<Claimed[][]> {
    const answers: Claimed[][] = [];
    for (const request of requests) answers.push(await this.#run(tx, request));
    return answers;
  }

  async #run(tx: Tx, request: ClaimRequest): Promise<Claimed[]> {
    if (!this.#isKnown) {
      await this.#parts.settings.at(tx);
      await this.#parts.catalog.count(tx.rows);
    }
    this.#assume(tx);
    const rows = await this.#takeBatches(tx, request);
    if (rows.length === 0) return [];
    tx.wrote();
    const claimed = await this.#claimed(tx.rows, rows);
    if (request.exclusive !== undefined) await this.#lock(tx, claimed, request.worker, request.exclusive);
    const started = rows.map((row) => ({ type: "job.started", job: row[0], lane: laneOf(row) }) as const);
    await this.#parts.events.recordIfEnabled(tx, started);
    return claimed;
  }

  async #takeBatches(tx: Tx, request: ClaimRequest): Promise<Started[]> {
    const matched = this.#parts.catalog.matching(request.from);
    const shares = new ClaimableLanes(this.#parts.settings.view, []);
    if (!ReadyLanes.areMany(matched)) return this.#takeFrom(tx, request, shares, allOf(matched));
    const taken: Started[] = [];
    const done = new Set<string>();
    for (;;) {
      const wanted = { ...request, at: tx.at, max: request.max - taken.length };
      const found = await this.#ready.find(tx.rows, wanted, matched, shares, done);
      taken.push(...(await this.#takeFrom(tx, wanted, shares, found)));
      if (found.isWhole || found.lanes.length === 0 || taken.length === request.max || taken.some(isSuspect)) return taken;
      for (const { lane } of found.lanes) done.add(lane.queue);
    }
  }

  async #takeFrom(tx: Tx, request: ClaimRequest, shares: ClaimableLanes, found: FoundLanes): Promise<Started[]> {
    const queues = this.#turns.order(shares.byQueue(found.lanes), this.#parts.random);
    if (queues.length === 0) return [];
    const call = this.#statement(tx, request, queues, found);
    if (call !== null) {
      const answer = await tx.rows<SingleRow>(inTransaction(call.statement), ...call.values);
      const started = this.#started(request, queues, found, answer);
      if (started !== null) return started;
    }
    const limited = queues.filter((lanes) => this.#isLimited(lanes));
    return this.#served(queues, found, await this.#decided.take(tx, request, queues, limited));
  }

  #single(
    tx: Tx,
    [request, ...others]: ClaimRequest[],
    rows: Rows,
  ): SingleCall<Claimed[][]> | null | Promise<SingleCall<Claimed[][]> | null> {
    if (request === undefined || others.length > 0 || request.exclusive !== undefined || !this.#isKnown) return null;
    const matched = this.#parts.catalog.matching(request.from);
    const shares = new ClaimableLanes(this.#parts.settings.view, []);
    if (!ReadyLanes.areMany(matched)) return this.#singleFrom(tx, request, shares, allOf(matched));
    const found = this.#ready.find(rows, { ...request, at: tx.at }, matched, shares);
    // Without any ready lane, one lane stands for all, because the statement also compares the count of lanes.
    return found.then(({ lanes, ...rest }) =>
      this.#singleFrom(tx, request, shares, { ...rest, lanes: lanes.length === 0 ? matched.all.slice(0, 1) : lanes }),
    );
  }

  #singleFrom(tx: Tx, request: ClaimRequest, shares: ClaimableLanes, found: FoundLanes): SingleCall<Claimed[][]> | null {
    const queues = this.#turns.order(shares.byQueue(found.lanes), this.#parts.random);
    if (queues.some((lanes) => this.#parts.settings.view.recordsEvents(queueOf(lanes)))) return null;
    const call = this.#statement(tx, request, queues, found);
    if (call === null) return null;
    this.#assume(tx);
    const read = (rows: readonly (readonly unknown[])[]): Promise<Claimed[][]> | null => {
      const started = this.#started(request, queues, found, rows as readonly SingleRow[]);
      if (started === null || (started.length === 0 && !found.isWhole)) return null;
      if (started.length > 0) tx.wrote();
      return Promise.resolve(this.#claimed(this.#parts.read, started)).then((claimed) => [claimed]);
    };
    return { ...call, read };
  }

  #statement(tx: Tx, request: ClaimRequest, queues: ClaimableLane[][], found: FoundLanes): ClaimCall | null {
    if (found.isDue || queues.some((lanes) => this.#isLimited(lanes))) return null;
    const { max, holder, worker } = request;
    if (queues.length > 1 && sharesBudgets(queues, max)) return null;
    const [only, ...more] = openShares(queues);
    if (only === undefined || (this.#withoutTry > 0 && this.#withoutTry-- > 0)) return null;
    if (more.length === 0) {
      const { lane, lease, budget } = only;
      const values = [tx.at, holder, worker || null, Math.min(max, budget.left), lane.id, lane.queue, lease];
      return { statement: this.#statements.lane, values };
    }
    return { statement: this.#statements.lanes, values: claimValues(tx, request, queues) };
  }

  /** Returns null if the statement could not decide, and has claimed nothing. */
  #started({ left }: ClaimRequest, queues: ClaimableLane[][], found: FoundLanes, rows: readonly SingleRow[]): Started[] | null {
    const [now, , isRefused, more, nextAt] = commonIn(rows);
    if (isRefused) {
      this.#withoutTry = CLAIMS_WITHOUT_TRY;
      return null;
    }
    if (found.isWhole && more === false) left?.(outlookOf(false, [nextAt, found.nextAt], now));
    const byLane = new Map(queues.flat().map((share) => [share.lane.id, share]));
    const started = startedIn(rows, (lane) => {
      const { budget, lease } = byLane.get(lane) as ClaimableLane;
      budget.left -= 1;
      return lease;
    });
    return this.#served(queues, found, started);
  }

  #served(queues: ClaimableLane[][], found: FoundLanes, started: Started[]): Started[] {
    const [first] = started.sort(inTurn(queues));
    if (first === undefined) return started;
    this.#ready.served(found);
    const queue = queues.find((shares) => shares.some((share) => share.lane.id === laneOf(first)));
    if (queue !== undefined) this.#turns.recordServed(queue, ++this.#claims);
    return started;
  }

  /** Finds a lost answer by the fence of its claim, and returns the jobs that still run. */
  async #recall(rows: Rows, { made: fence }: Outcome): Promise<Claimed[]> {
    if (fence === null) return [];
    const started = await rows<Started>(this.#recallSql, fence);
    return this.#claimed(rows, started.sort(byStartedTurn));
  }

  #claimed(rows: Rows, started: readonly Started[]): Claimed[] | Promise<Claimed[]> {
    if (started.every((row) => this.#parts.catalog.knowsPolicy(row[2]))) return this.#known(started);
    const policies = started.map((row) => row[2]);
    return this.#parts.catalog.knowPolicies(rows, policies).then(() => this.#known(started));
  }

  #known(started: readonly Started[]): Claimed[] {
    const claimed = started.map((row) => toClaimed(row, this.#parts.catalog));
    for (const { job, queue } of claimed) if (isPipelineQueue(queue)) this.#parts.limits.claimed(job, queue);
    return claimed;
  }

  async #lock(tx: Tx, claimed: readonly Claimed[], worker: string, token: string): Promise<void> {
    const queues = new Set<string>();
    for (const claim of claimed) {
      if (queues.has(claim.queue)) continue;
      queues.add(claim.queue);
      if (!(await this.#parts.locks.bind(tx, claim, worker, token))) throw new RerunTransaction("The queue is locked by now.");
    }
  }

  #assume(tx: Tx): void {
    this.#parts.settings.assumed(tx);
    tx.assume("lanes", this.#parts.catalog.counted);
  }

  get #isKnown(): boolean {
    return this.#parts.settings.isKnown && this.#parts.catalog.counted !== -1;
  }

  #isLimited([share]: readonly ClaimableLane[]): boolean {
    return share !== undefined && this.#parts.settings.limits(share.lane.queue);
  }
}

function openShares(queues: readonly ClaimableLane[][]): ClaimableLane[] {
  return queues.flat().filter(({ budget }) => budget.left > 0);
}

function inTurn(queues: readonly ClaimableLane[][]): (a: Started, b: Started) => number {
  const places = new Map(queues.flatMap((lanes, place) => lanes.map(({ lane }) => [lane.id, place])));
  const place = (row: Started): number => places.get(laneOf(row)) as number;
  return (a, b) => place(a) - place(b) || byStartedTurn(a, b);
}

function claimValues(tx: Tx, { holder, worker, max }: ClaimRequest, queues: readonly ClaimableLane[][]): Value[] {
  const quota = Math.max(1, Math.ceil(max / queues.length));
  const shares = openShares(queues);
  const places = new Map(queues.flatMap((lanes, place) => lanes.map((share) => [share, place])));
  const budgets = [...new Set(shares.map(({ budget }) => budget))];
  return [
    tx.at,
    holder,
    worker || null,
    max,
    listOf(shares.map(({ lane }) => lane.id)),
    listOf(shares.map(({ lane }) => lane.queue)),
    listOf(shares.map(({ lease }) => lease)),
    listOf(shares.map(({ budget }) => Math.min(quota + 1, max, budget.left))),
    listOf(shares.map((share) => places.get(share) as number)),
    listOf(shares.map(({ budget }) => budgets.indexOf(budget))),
    listOf(shares.map(({ budget }) => Math.min(max, budget.left))),
    quota,
  ];
}

function sharesBudgets(queues: readonly ClaimableLane[][], max: number): boolean {
  const seen = new Set<ClaimableLane["budget"]>();
  return queues.some((lanes) => {
    const scarce = new Set(lanes.map(({ budget }) => budget).filter(({ left }) => left < max));
    return [...scarce].some((budget) => seen.size === seen.add(budget).size);
  });
}
