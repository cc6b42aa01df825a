import { claimable, type LaneShare, PROMOTED, quotas, Turns } from "../../core/claiming.ts";
import type { Fence, JobKey } from "../../core/ids.ts";
import { byTurn } from "../../core/job.ts";
import { publicId } from "../job-row.ts";
import type { Claimed, ClaimRequest } from "../store.ts";
import type { Catalog } from "./catalog.ts";
import { listOf } from "./driver.ts";
import { Overtaken } from "./faults.ts";
import type { Tx } from "./group.ts";
import type { JobEvents } from "./job-events.ts";
import { LOCKED, type Locks } from "./locks.ts";
import type { Settings } from "./settings.ts";

type Row = [
  key: JobKey,
  lane: number,
  priority: number,
  policy: number,
  attempt: number,
  createdAt: number,
  id: string | null,
  input: string | null,
  scheduledFor: number | null,
  fence: Fence,
  expiresAt: number,
];

/** Jobs out. */
export class Claim {
  readonly #catalog: Catalog;
  readonly #settings: Settings;
  readonly #events: JobEvents;
  readonly #locks: Locks;
  readonly #turns = new Turns();
  readonly #random: () => number;
  readonly #sql: Record<"promote" | "takeOne" | "takeMany", string>;
  #claims = 0;

  constructor(s: string, parts: { catalog: Catalog; settings: Settings; events: JobEvents; locks: Locks; random: () => number }) {
    this.#catalog = parts.catalog;
    this.#settings = parts.settings;
    this.#events = parts.events;
    this.#locks = parts.locks;
    this.#random = parts.random;
    this.#sql = {
      promote: `
        update ${s}.jobs set gate = null where key in (
          select key from ${s}.jobs
          where gate = 'time' and lane = any($2::integer[]) and run_at <= ${s}.clock($1) and limits is null
          order by run_at limit ${PROMOTED} for update skip locked)`,
      takeOne: takeSql(s, false),
      takeMany: takeSql(s, true),
    };
  }

  /** Whether it is one statement, which nobody needs to wait for. */
  isQuick({ from, exclusive }: ClaimRequest): boolean {
    return exclusive === undefined && this.#isKnown() && this.#open(from).length === 1;
  }

  async run(tx: Tx, request: ClaimRequest): Promise<Claimed[]> {
    if (!this.#isKnown()) {
      await this.#settings.at(tx);
      await this.#catalog.count(tx.rows);
    }
    this.#settings.assumed(tx);
    tx.assume("lanes", this.#catalog.counted);
    const queues = this.#turns.order(this.#open(request.from), this.#random);
    if (queues.length === 0) return [];
    const promoted = tx.rows<never[]>(this.#sql.promote, tx.at, listOf(queues.flat().map(({ lane }) => lane.id)));
    promoted.catch(() => {});
    const claimed: Claimed[] = [];
    for (const quota of quotas(request.max, queues.length)) {
      const taken = await this.#take(tx, request, queues, quota, request.max - claimed.length);
      if (claimed.length === 0 && taken.length > 0) this.#served(queues, taken);
      claimed.push(...taken);
      if (claimed.length === request.max || taken.length === 0) break;
    }
    await promoted;
    if (claimed.length === 0) return claimed;
    tx.wrote();
    if (request.exclusive !== undefined) await this.#lock(tx, claimed, request.worker, request.exclusive);
    await this.#events.tell(
      tx,
      claimed.map((claim) => ({ type: "job.started", job: claim.job, lane: this.#catalog.laneOf(claim) })),
    );
    return claimed;
  }

  /** The lock of each queue, with the first of its claims. Somebody may have been faster, and then nothing was free. */
  async #lock(tx: Tx, claimed: readonly Claimed[], worker: string, token: string): Promise<void> {
    const queues = new Set<string>();
    for (const claim of claimed) {
      if (queues.has(claim.queue)) continue;
      queues.add(claim.queue);
      if (!(await this.#locks.bind(tx, claim, worker, token))) throw new Overtaken("The queue is locked by now.");
    }
  }

  #isKnown(): boolean {
    return this.#settings.isKnown && this.#catalog.counted !== -1;
  }

  #open(from: ClaimRequest["from"]): LaneShare[][] {
    return claimable(from, this.#catalog.lanes(), this.#settings, []);
  }

  /** At most `quota` of each queue, in their order, and `max` of all. */
  async #take(tx: Tx, request: ClaimRequest, queues: LaneShare[][], quota: number, max: number): Promise<Claimed[]> {
    const shares = queues.flat().filter(({ budget }) => budget.left > 0);
    if (shares.length === 0) return [];
    const budgets = [...new Set(shares.map(({ budget }) => budget))];
    const places = new Map(queues.flatMap((lanes, place) => lanes.map(({ lane }) => [lane.id, place])));
    const leases = new Map(shares.map(({ lane, lease }) => [lane.id, lease]));
    const most = (share: LaneShare) => Math.min(quota, max, share.budget.left);
    const worker = request.holder === null ? request.worker : null;
    const all = shares.length === 1 ? most(shares[0] as LaneShare) : max;
    const common = [tx.at, request.holder, worker, request.holder === null, all] as const;
    const lanes = [
      listOf(shares.map(({ lane }) => lane.id)),
      listOf(shares.map(({ lane }) => lane.queue)),
      listOf(shares.map(({ lease }) => lease)),
      listOf(shares.map(most)),
    ];
    const rows =
      shares.length === 1
        ? await tx.rows<Row>(this.#sql.takeOne, ...common, ...lanes)
        : await tx.rows<Row>(
            this.#sql.takeMany,
            ...common,
            ...lanes,
            listOf(shares.map(({ lane }) => places.get(lane.id) as number)),
            listOf(shares.map(({ budget }) => budgets.indexOf(budget))),
            listOf(shares.map(({ budget }) => Math.min(budget.left, max))),
            quota,
          );
    await this.#catalog.knowPolicies(
      tx.rows,
      rows.map((row) => row[3]),
    );
    const byLane = new Map(shares.map((share) => [share.lane.id, share]));
    for (const row of rows) (byLane.get(row[1]) as LaneShare).budget.left -= 1;
    return rows
      .map((row) => this.#claimed(row, leases.get(row[1]) as number))
      .sort((a, b) => (places.get(laneIn(a)) as number) - (places.get(laneIn(b)) as number) || byTurn(turnOf(a), turnOf(b)))
      .map(({ claimed }) => claimed);
  }

  #served(queues: LaneShare[][], taken: readonly Claimed[]): void {
    const first = queues.find(([share]) => share?.lane.queue === taken[0]?.queue);
    if (first !== undefined) this.#turns.served(first, ++this.#claims);
  }

  #claimed(row: Row, lease: number): { claimed: Claimed; lane: number } {
    const [job, laneId, priority, policy, attempt, createdAt, id, input, scheduledFor, fence, expiresAt] = row;
    const { name, queue, version } = this.#catalog.lane(laneId);
    const claimed = {
      job,
      fence,
      id: publicId(id, createdAt, job),
      name,
      queue,
      version,
      input,
      attempt,
      priority,
      policy: this.#catalog.policy(policy),
      lease,
      expiresAt,
      scheduledFor,
    };
    return { claimed, lane: laneId };
  }
}

function laneIn({ lane }: { lane: number }): number {
  return lane;
}

function turnOf({ claimed: { job, priority } }: { claimed: Claimed }): { key: JobKey; priority: number } {
  return { key: job, priority };
}

/**
 * One statement: the heads of the lanes, each locked or stepped over; of these the next of each queue, as many as it and
 * their source may give, at most one of them a suspect. What was locked and not taken is free again with the commit.
 */
export function takeSql(s: string, many: boolean): string {
  const head = (crashes: string, limit: string) => `
    select key, priority, crashes > 0 as suspect from ${s}.jobs
    where lane = lane.id and state = 'pending' and gate is null and crashes ${crashes}
    order by priority desc, key limit ${limit} for update skip locked`;
  const chosen = many
    ? `select key, lease from (
         select *, row_number() over (partition by place order by priority desc, key) as turn,
           row_number() over (partition by source order by place, priority desc, key) as nth
         from (
           select *, row_number() over (partition by suspect order by priority desc, key) as which from head) as head
         where which = 1 or not suspect) as head
       where turn <= $13 and nth <= budget order by place, turn limit $5`
    : "select key, lease from head order by priority desc, key limit $5";
  return `
    with clock as materialized (select ${s}.clock($1) as now),
    fence as materialized (select nextval('${s}.fence') as fence),
    lane as (
      select * from unnest($6::integer[], $7::text[], $8::bigint[], $9::integer[]${many ? ", $10::integer[], $11::integer[], $12::integer[]" : ""})
        as lane (id, queue, lease, most${many ? ", place, source, budget" : ""})
      where not exists (select 1 from ${s}.locks as lock, clock where lock.name = lane.queue and ${LOCKED(s)})),
    head as (
      select job.*, lane.* from lane cross join lateral (
        select * from (${head("= 0", "lane.most")}) as ready
        union all
        select * from (${head("> 0", "1")}) as suspect
        where $4 or not exists (
          select 1 from ${s}.jobs where state = 'running' and crashes > 0 and holder = $2)) as job),
    chosen as (${chosen})
    update ${s}.jobs as job set state = 'running', attempt = attempt + 1, fence = (select fence from fence), holder = $2::bigint, worker = $3,
      started_at = clock.now, lease = chosen.lease, expires_at = clock.now + chosen.lease
    from chosen, clock where job.key = chosen.key
    returning job.key, job.lane, job.priority, job.policy, job.attempt, job.created_at, job.id, job.input, job.scheduled_for,
      job.fence, job.expires_at`;
}
