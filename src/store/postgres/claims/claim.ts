import {
  type ClaimableLane,
  ClaimableLanes,
  MAX_PROMOTED_JOBS,
  onlyQueue,
  outlookOf,
  queueOf,
  QueueRotation,
  quotas,
} from "../../../core/jobs/claiming.ts";
import { isPipelineQueue } from "../../../core/pipelines/work.ts";
import type { Claimed, ClaimRequest } from "../../store.ts";
import {
  allOf,
  byStartedTurn,
  type ClaimLocks,
  claimSql,
  commonIn,
  type FoundLanes,
  holdsSuspect,
  isSuspect,
  laneOf,
  LOCKED,
  ReadyLanes,
  singleClaimSql,
  singleLaneClaimSql,
  type SingleRow,
  STARTED,
  type Started,
  startedIn,
  toClaimed,
} from "./claim-statements.ts";
import { listOf, type Rows, type Value } from "../connection/driver.ts";
import { RerunTransaction } from "../connection/faults.ts";
import { LimitedClaim } from "../limits/limited-claim.ts";
import type { Outcome, SingleCall, SingleStatement, Tx } from "../transactions/transaction.ts";
import type { SingleRoute } from "../transactions/write-queue.ts";
import type { JobParts } from "../store-parts.ts";

/** After one claim that a single statement could not make, so many use a transaction at once. */
const CLAIMS_WITHOUT_TRY = 8;

type ClaimParts = Pick<JobParts, "catalog" | "settings" | "limits" | "events"> & {
  locks: ClaimLocks;
  random: () => number;
  read: Rows;
};

export class Claim {
  readonly #parts: ClaimParts;
  readonly #limited: LimitedClaim;
  readonly #single: Record<"lane" | "lanes", SingleStatement>;
  #withoutTry = 0;
  readonly #ready: ReadyLanes;
  readonly #turns = new QueueRotation();
  readonly #sql: Record<"promote" | "outset" | "claim" | "recall", string>;
  #claims = 0;
  readonly route: SingleRoute<ClaimRequest, Claimed[]> = {
    call: (tx, requests, rows) => this.single(tx, requests, rows),
    recall: async (rows, outcome) => [await this.#recall(rows, outcome)],
  };

  constructor(s: string, parts: ClaimParts) {
    this.#parts = parts;
    this.#limited = new LimitedClaim(s, parts.limits);
    this.#single = { lane: singleLaneClaimSql(s), lanes: singleClaimSql(s) };
    this.#ready = new ReadyLanes(s, { random: parts.random, longest: () => parts.settings.view.longestRefillMs });
    this.#sql = {
      // The instant comes from a subselect: compared with a function, each delayed job would be read.
      promote: `
        update ${s}.jobs set gate = null where key in (
          select key from ${s}.jobs
          where gate = 'time' and lane = any($2::integer[]) and run_at <= (select ${s}.clock($1)) and limits is null
          order by run_at limit ${MAX_PROMOTED_JOBS} for update skip locked)
        returning 1`,
      outset: `
        with clock as materialized (select ${s}.clock($4) as now)
        select exists (
          select 1 from ${s}.jobs where suspect = 'pending' and gate is null and lane = any($1::integer[]))
          and ($2::bigint is null or not ${holdsSuspect(s, "$2::bigint")}),
          (select json_agg(lock.name)::text from ${s}.locks as lock, clock where lock.name = any($3::text[]) and ${LOCKED(s)})`,
      claim: claimSql(s),
      recall: `
        select ${STARTED} from ${s}.claims as claim join ${s}.jobs as job on job.key = any(claim.jobs)
        where claim.fence = $1::bigint and job.fence = claim.fence and job.state = 'running'`,
    };
  }

  isQuick({ from, exclusive }: ClaimRequest): boolean {
    if (exclusive !== undefined || !this.#isKnown()) return false;
    const matched = this.#parts.catalog.matching(from);
    if (ReadyLanes.areMany(matched)) return false;
    const queue = onlyQueue(matched.all, this.#parts.settings.view);
    return queue !== null && !this.#parts.settings.limits(queue);
  }

  async run(tx: Tx, request: ClaimRequest): Promise<Claimed[]> {
    if (!this.#isKnown()) {
      await this.#parts.settings.at(tx);
      await this.#parts.catalog.count(tx.rows);
    }
    this.#parts.settings.assumed(tx);
    tx.assume("lanes", this.#parts.catalog.counted);
    const rows = await this.#takeBatches(tx, request);
    if (rows.length === 0) return [];
    tx.wrote();
    const claimed = await this.#claimed(tx.rows, rows);
    if (request.exclusive !== undefined) await this.#lock(tx, claimed, request.worker, request.exclusive);
    const started = rows.map((row) => ({ type: "job.started", job: row[0], lane: laneOf(row) }) as const);
    await this.#parts.events.tell(tx, started);
    return claimed;
  }

  async #takeBatches(tx: Tx, request: ClaimRequest): Promise<Started[]> {
    const matched = this.#parts.catalog.matching(request.from);
    const shares = new ClaimableLanes(this.#parts.settings.view, []);
    if (!ReadyLanes.areMany(matched)) return this.#takeFrom(tx, request, shares.byQueue(matched.all));
    const taken: Started[] = [];
    const done = new Set<string>();
    for (;;) {
      const wanted = { ...request, at: tx.at, max: request.max - taken.length };
      const found = await this.#ready.find(tx.rows, wanted, matched, shares, done);
      const rows = await this.#takeFrom(tx, wanted, shares.byQueue(found.lanes));
      if (rows.length > 0) this.#ready.served(found);
      taken.push(...rows);
      if (found.isWhole || found.lanes.length === 0 || taken.length === request.max || rows.some(isSuspect)) return taken;
      for (const { lane } of found.lanes) done.add(lane.queue);
    }
  }

  async #takeFrom(tx: Tx, request: ClaimRequest, open: ClaimableLane[][]): Promise<Started[]> {
    const queues = this.#turns.order(open, this.#parts.random);
    if (queues.length === 0) return [];
    const limited = queues.filter((lanes) => this.#isLimited(lanes));
    // Pipelined in this order: locks of queues with limits come before any row.
    const prepared = limited.length === 0 ? undefined : this.#limited.prepare(tx, limited);
    const promoted = tx.rows<never[]>(this.#sql.promote, tx.at, listOf(queues.flat().map(({ lane }) => lane.id)));
    const ready = Promise.all([prepared, promoted]);
    ready.catch(() => {});
    const [only, ...others] = queues as [ClaimableLane[], ...ClaimableLane[][]];
    const taking =
      others.length > 0
        ? this.#takeShares(tx, request, queues, limited, ready)
        : prepared !== undefined
          ? this.#limited.takeOnly(tx, request, only, suspectsOf(request), prepared)
          : this.#take(tx, request, [only], request.max, request.max, suspectsOf(request));
    const rows = await taking;
    await ready;
    if (rows[0] !== undefined) this.#served(queues, rows[0]);
    return rows;
  }

  single(
    tx: Tx,
    [request, ...others]: ClaimRequest[],
    rows: Rows,
  ): SingleCall<Claimed[][]> | null | Promise<SingleCall<Claimed[][]> | null> {
    if (request === undefined || others.length > 0 || request.exclusive !== undefined || !this.#isKnown()) return null;
    const matched = this.#parts.catalog.matching(request.from);
    const shares = new ClaimableLanes(this.#parts.settings.view, []);
    if (!ReadyLanes.areMany(matched)) return this.#singleFrom(tx, request, shares, allOf(matched));
    const found = this.#ready.find(rows, { ...request, at: tx.at }, matched, shares);
    // Without any ready lane, one lane stands for all: the statement also compares the count of lanes.
    return found.then(({ lanes, ...rest }) =>
      this.#singleFrom(tx, request, shares, { ...rest, lanes: lanes.length === 0 ? matched.all.slice(0, 1) : lanes }),
    );
  }

  #singleFrom(tx: Tx, request: ClaimRequest, shares: ClaimableLanes, found: FoundLanes): SingleCall<Claimed[][]> | null {
    const queues = this.#turns.order(shares.byQueue(found.lanes), this.#parts.random);
    const recordsEvents = (lanes: ClaimableLane[]) => this.#parts.settings.view.recordsEvents(queueOf(lanes));
    if (found.isDue || queues.some((lanes) => this.#isLimited(lanes) || recordsEvents(lanes))) return null;
    if (queues.length > 1 && sharesBudgets(queues, request.max)) return null;
    const [only, ...more] = openShares(queues);
    if (only === undefined || (this.#withoutTry > 0 && this.#withoutTry-- > 0)) return null;
    this.#parts.settings.assumed(tx);
    tx.assume("lanes", this.#parts.catalog.counted);
    const { max, holder } = request;
    const read = (rows: readonly (readonly unknown[])[]) =>
      this.#readSingle(tx, request, queues, found, rows as readonly SingleRow[]);
    if (more.length === 0) {
      const { lane, lease, budget } = only;
      const values = [tx.at, holder, request.worker || null, Math.min(max, budget.left), lane.id, lane.queue, lease];
      return { statement: this.#single.lane, values, read };
    }
    const quota = Math.max(1, Math.ceil(max / queues.length));
    return { statement: this.#single.lanes, values: claimValues(tx, request, queues, { max, quota, most: quota + 1 }), read };
  }

  #readSingle(
    tx: Tx,
    { left }: ClaimRequest,
    queues: ClaimableLane[][],
    found: FoundLanes,
    rows: readonly SingleRow[],
  ): Promise<Claimed[][]> | null {
    const [now, isRefused, more, nextAt] = commonIn(rows);
    if (isRefused) {
      this.#withoutTry = CLAIMS_WITHOUT_TRY;
      return null;
    }
    if (!found.isWhole && rows.length === 1) return null;
    if (found.isWhole && more === false) left?.(outlookOf(false, [nextAt, found.nextAt], now));
    const started = startedIn(rows).sort(inTurn(queues));
    const [first] = started;
    if (first === undefined) return Promise.resolve([[]]);
    tx.wrote();
    this.#ready.served(found);
    this.#served(queues, first);
    return Promise.resolve(this.#claimed(this.#parts.read, started)).then((claimed) => [claimed]);
  }

  /** Answers a claim whose answer was lost, by its fence: jobs that still run. */
  async #recall(rows: Rows, { made: fence }: Outcome): Promise<Claimed[]> {
    if (fence === null) return [];
    const started = await rows<Started>(this.#sql.recall, fence);
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

  async #takeShares(
    tx: Tx,
    request: ClaimRequest,
    queues: ClaimableLane[][],
    limited: ClaimableLane[][],
    ready: Promise<unknown>,
  ): Promise<Started[]> {
    if (limited.length > 0) await ready;
    const [[suspects, locked]] = (await tx.rows<[boolean, string | null]>(
      this.#sql.outset,
      listOf(queues.flat().map(({ lane }) => lane.id)),
      request.holder,
      listOf(queues.map(queueOf)),
      tx.at,
    )) as [[boolean, string | null]];
    const closed = new Set(locked === null ? [] : (JSON.parse(locked) as string[]));
    const open = queues.filter((lanes) => !closed.has(queueOf(lanes)));
    // Queues with a common source, or with suspects, are claimed one after the other: each decides what the next may give.
    const apart = suspects || limited.length > 0 || sharesBudgets(open, request.max);
    return apart ? this.#takeEach(tx, request, open, limited) : this.#takeAll(tx, request, open);
  }

  /** One statement for all queues, and another if some gave less than their share. */
  async #takeAll(tx: Tx, request: ClaimRequest, queues: ClaimableLane[][]): Promise<Started[]> {
    const rows: Started[] = [];
    for (const quota of quotas(request.max, queues.length)) {
      const taken = await this.#take(tx, request, queues, quota, request.max - rows.length, false);
      rows.push(...taken);
      if (rows.length === request.max || taken.length === 0) break;
    }
    return rows;
  }

  async #takeEach(tx: Tx, request: ClaimRequest, queues: ClaimableLane[][], limited: ClaimableLane[][]): Promise<Started[]> {
    const rows: Started[] = [];
    let suspects = suspectsOf(request);
    for (const quota of quotas(request.max, queues.length)) {
      for (const lanes of queues) {
        const left = Math.min(quota, request.max - rows.length);
        if (left <= 0) return rows;
        const taken = limited.includes(lanes)
          ? await this.#limited.take(tx, request, lanes, left, suspects)
          : await this.#take(tx, request, [lanes], left, left, suspects);
        rows.push(...taken);
        if (taken.some(isSuspect)) suspects = false;
      }
    }
    return rows;
  }

  async #lock(tx: Tx, claimed: readonly Claimed[], worker: string, token: string): Promise<void> {
    const queues = new Set<string>();
    for (const claim of claimed) {
      if (queues.has(claim.queue)) continue;
      queues.add(claim.queue);
      if (!(await this.#parts.locks.bind(tx, claim, worker, token))) throw new RerunTransaction("The queue is locked by now.");
    }
  }

  #isKnown(): boolean {
    return this.#parts.settings.isKnown && this.#parts.catalog.counted !== -1;
  }

  #isLimited([share]: readonly ClaimableLane[]): boolean {
    return share !== undefined && this.#parts.settings.limits(share.lane.queue);
  }

  async #take(
    tx: Tx,
    request: ClaimRequest,
    queues: ClaimableLane[][],
    quota: number,
    max: number,
    suspects: boolean | null,
  ): Promise<Started[]> {
    const shares = openShares(queues);
    if (shares.length === 0) return [];
    const values = claimValues(tx, request, queues, { max, quota, most: quota });
    const rows = await tx.rows<Started>(this.#sql.claim, ...values, suspects);
    const byLane = new Map(shares.map((share) => [share.lane.id, share]));
    for (const row of rows) (byLane.get(laneOf(row)) as ClaimableLane).budget.left -= 1;
    return rows.sort(inTurn(queues));
  }

  #served(queues: ClaimableLane[][], started: Started): void {
    const lane = laneOf(started);
    const first = queues.find((shares) => shares.some((share) => share.lane.id === lane));
    if (first !== undefined) this.#turns.recordServed(first, ++this.#claims);
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

function claimValues(
  tx: Tx,
  { holder, worker }: ClaimRequest,
  queues: readonly ClaimableLane[][],
  { max, quota, most }: { max: number; quota: number; most: number },
): Value[] {
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
    listOf(shares.map(({ budget }) => Math.min(most, max, budget.left))),
    listOf(shares.map((share) => places.get(share) as number)),
    listOf(shares.map(({ budget }) => budgets.indexOf(budget))),
    listOf(shares.map(({ budget }) => Math.min(max, budget.left))),
    quota,
  ];
}

/** Whether queues have a source in common that may give fewer jobs than wanted. */
function sharesBudgets(queues: readonly ClaimableLane[][], max: number): boolean {
  const seen = new Set<ClaimableLane["budget"]>();
  return queues.some((lanes) => {
    const scarce = new Set(lanes.map(({ budget }) => budget).filter(({ left }) => left < max));
    return [...scarce].some((budget) => seen.size === seen.add(budget).size);
  });
}

/** Whether a suspect may be claimed: by hand always; null: if the process holds none. */
function suspectsOf({ holder }: ClaimRequest): boolean | null {
  return holder === null ? true : null;
}
