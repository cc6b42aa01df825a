import { generatedId, type JobKey } from "../../core/ids.ts";
import { byTurn } from "../../core/job.ts";
import type { Claimed, ClaimRequest, ClaimSource, Outlook } from "../store.ts";
import type { Catalog, Lane } from "./catalog.ts";
import type { ClaimedLanes } from "./claimed-lanes.ts";
import type { Connection, Statement, Value } from "./driver.ts";
import { ELSEWHERE } from "./enqueue.ts";
import type { Tx } from "./group-commit.ts";
import type { Locks } from "./locks.ts";

/** Delayed jobs that become claimable in one transaction; the rest follows with the next claim. */
const PROMOTED = 1_000;

interface LaneShare {
  lane: Lane;
  lease: number;
  /** How many more of its source may be taken; lanes of one source share it. */
  budget: { left: number };
}

/** Jobs out. */
export class Claim {
  readonly #db: Connection;
  readonly #catalog: Catalog;
  readonly #locks: Locks;
  readonly #lanes: ClaimedLanes;
  readonly #promote: Statement;
  readonly #anySuspect: Statement;
  readonly #holdsSuspect: Statement;
  readonly #input: Statement;
  readonly #readyIn: Statement;
  readonly #nextAt: Statement;
  readonly #lanesCounted: Statement;
  readonly #random: () => number;
  readonly #take = new Map<string, Statement>();
  /** When each queue was last the first to be served here, in claims. */
  readonly #served = new Map<string, number>();

  constructor(db: Connection, parts: { catalog: Catalog; locks: Locks; lanes: ClaimedLanes; random: () => number }) {
    this.#db = db;
    this.#catalog = parts.catalog;
    this.#locks = parts.locks;
    this.#lanes = parts.lanes;
    this.#random = parts.random;
    this.#promote = db.prepare(
      `update holdfast_jobs set gate = null where key in (
         select key from holdfast_jobs where gate = 'time' and lane = ? and run_at <= ? order by run_at limit ${PROMOTED})`,
    );
    this.#anySuspect = db.prepare("select 1 from holdfast_jobs where state = 'pending' and gate is null and crashes > 0 limit 1");
    this.#holdsSuspect = db.prepare("select 1 from holdfast_jobs where holder = ? and state = 'running' and crashes > 0 limit 1");
    this.#input = db.prepare("select body from holdfast_inputs where job = ?");
    this.#readyIn = db.prepare(
      `select 1 from holdfast_jobs where lane = :lane and state = 'pending' and gate is null and crashes = 0
       union all
       select 1 from holdfast_jobs where lane = :lane and state = 'pending' and gate is null and crashes > 0
       limit 1`,
    );
    // The first entry of the lane in holdfast_jobs_timed.
    this.#nextAt = db.prepare("select min(run_at) from holdfast_jobs where gate = 'time' and lane = ?");
    this.#lanesCounted = db.prepare("select lanes from holdfast_counter where id = 1");
  }

  run(tx: Tx, request: ClaimRequest): Claimed[] {
    const queues = this.#inTurn(this.#byQueue(request.from, tx.lanes, tx.now));
    if (queues.length === 0) return [];
    this.#promoteDue(tx, queues);
    let suspects = this.#maySuspect(request);
    const claimed: Claimed[] = [];
    // Each queue its share first, so that a long queue does not shut out the others; then what is left to whoever has more.
    const share = Math.max(1, Math.ceil(request.max / queues.length));
    for (const most of queues.length === 1 ? [request.max] : [share, request.max]) {
      for (const lanes of queues) {
        const left = Math.min(most, request.max - claimed.length);
        if (left <= 0) return claimed;
        const taken = this.#takeWithin(tx, request, lanes, left, suspects);
        if (claimed.length === 0 && taken.length > 0) this.#served.set(queueOf(lanes), tx.commit);
        for (const job of taken) claimed.push(job);
        if (suspects && taken.some((job) => job.suspect)) suspects = false;
      }
    }
    return claimed;
  }

  /** Reads only: is there anything, and if not, when? */
  outlook(from: readonly ClaimSource[], now: number): Outlook {
    const [counted] = this.#lanesCounted.row() as [number];
    const lanes = this.#byQueue(from, counted, now).flatMap((shares) => shares.map(({ lane }) => lane.id));
    const ready = lanes.some((lane) => this.#readyIn.get({ lane }) !== undefined);
    const nextAt = this.#soonest(lanes);
    return { ready: ready || (nextAt !== null && nextAt <= now), nextAt };
  }

  /** When the first delayed job of these lanes is due. */
  #soonest(lanes: number[]): number | null {
    let soonest: number | null = null;
    for (const lane of lanes) {
      const at = (this.#nextAt.row(lane)?.[0] ?? null) as number | null;
      if (at !== null && (soonest === null || at < soonest)) soonest = at;
    }
    return soonest;
  }

  #promoteDue(tx: Tx, queues: LaneShare[][]): void {
    for (const lanes of queues) {
      for (const { lane } of lanes) {
        const at = this.#soonest([lane.id]);
        if (at !== null && at <= tx.now && this.#promote.run(lane.id, tx.now) > 0) tx.wrote();
      }
    }
  }

  /** The lanes that may be claimed from, queue by queue; a queue whose lock is held has none. */
  #byQueue(from: readonly ClaimSource[], lanes: number, now: number): LaneShare[][] {
    const queues = new Map<string, LaneShare[]>();
    const budgets = new Map<ClaimSource, { left: number }>();
    for (const lane of this.#catalog.lanes(lanes)) {
      const source = from.find((one) => matches(one, lane));
      if (source === undefined || source.max === 0) continue;
      let shares = queues.get(lane.queue);
      if (shares === undefined) queues.set(lane.queue, (shares = []));
      let budget = budgets.get(source);
      if (budget === undefined) budgets.set(source, (budget = { left: source.max ?? Number.MAX_SAFE_INTEGER }));
      shares.push({ lane, lease: source.lease, budget });
    }
    for (const queue of this.#locks.held(now)) queues.delete(queue);
    return [...queues.values()];
  }

  /** The queue that has waited longest to be first comes first, so that a worker of one job at a time serves all of them. */
  #inTurn(queues: LaneShare[][]): LaneShare[][] {
    if (queues.length < 2) return queues;
    const start = Math.floor(this.#random() * queues.length);
    const turn = (lanes: LaneShare[]) => this.#served.get(queueOf(lanes)) ?? 0;
    return [...queues.slice(start), ...queues.slice(0, start)].sort((a, b) => turn(a) - turn(b));
  }

  /**
   * A process holds one job at a time that was running when a worker died. Otherwise one poison job would take its
   * neighbours along into quarantine.
   */
  #maySuspect(request: ClaimRequest): boolean {
    if (this.#anySuspect.row() === undefined) return false;
    return request.holder === null || this.#holdsSuspect.row(request.holder) === undefined;
  }

  /**
   * The statement limits each lane, and suspects apart. Where a source's limit could be passed by their sum, jobs are
   * taken one by one.
   */
  #takeWithin(
    tx: Tx,
    request: ClaimRequest,
    lanes: LaneShare[],
    max: number,
    suspects: boolean,
  ): (Claimed & { suspect: boolean })[] {
    const taken: (Claimed & { suspect: boolean })[] = [];
    let step: number;
    do {
      const open = lanes.filter(({ budget }) => budget.left > 0);
      if (open.length === 0) break;
      const maySuspect = suspects && !taken.some((job) => job.suspect);
      step = limitsOverlap(open, max - taken.length, maySuspect) ? 1 : max - taken.length;
      const batch = this.#takeFrom(tx, request, open, step, maySuspect);
      if (batch.length === 0) break;
      taken.push(...batch);
    } while (step === 1 && taken.length < max);
    return taken;
  }

  #takeFrom(
    tx: Tx,
    request: ClaimRequest,
    lanes: LaneShare[],
    max: number,
    suspects: boolean,
  ): (Claimed & { suspect: boolean })[] {
    const leases = lanes.length === 1 ? [(lanes[0] as LaneShare).lease] : lanes.flatMap(({ lane, lease }) => [lane.id, lease]);
    const params: Value[] = [tx.commit, request.holder, request.holder === null ? request.worker : null, tx.now];
    params.push(...leases, tx.now, ...leases);
    for (const { lane, budget } of lanes) params.push(lane.id, Math.min(budget.left, max));
    if (suspects) for (const { lane } of lanes) params.push(lane.id);
    if (suspects || lanes.length > 1) params.push(max);
    const rows = this.#statement(lanes.length, suspects).rows(...params);
    if (rows.length === 0) return [];
    tx.wrote();
    const jobs = rows.map((row) => this.#claimed(tx, row, lanes));
    if (request.exclusive !== undefined) this.#locks.bind(tx, jobs[0] as Claimed, request.worker, request.exclusive);
    return jobs.sort((a, b) => byTurn({ priority: a.priority, key: a.job }, { priority: b.priority, key: b.job }));
  }

  #claimed(tx: Tx, row: Value[], lanes: LaneShare[]): Claimed & { suspect: boolean } {
    const [key, laneId, policy, priority, attempt, crashes, createdAt, id, input] = row as [
      JobKey,
      number,
      number,
      number,
      number,
      number,
      number,
      string | null,
      string | null,
    ];
    const { lane, lease, budget } = lanes.find((one) => one.lane.id === laneId) as LaneShare;
    budget.left -= 1;
    this.#lanes.add(key, laneId);
    return {
      job: key,
      fence: tx.commit,
      id: id ?? generatedId(createdAt, key),
      name: lane.name,
      queue: lane.queue,
      version: lane.version,
      input: input === ELSEWHERE ? (this.#input.row(key)?.[0] as string) : input,
      attempt,
      priority,
      policy: this.#catalog.policy(policy),
      lease,
      expiresAt: tx.now + lease,
      suspect: crashes > 0,
    };
  }

  /**
   * One statement takes the jobs: it walks the heads of the lanes in holdfast_jobs_ready (and one suspect a lane), and
   * marks what it took. Its cost does not depend on how many jobs there are.
   */
  #statement(lanes: number, suspects: boolean): Statement {
    const name = `${lanes}${suspects ? " with suspects" : ""}`;
    let statement = this.#take.get(name);
    if (statement === undefined) this.#take.set(name, (statement = this.#db.prepare(takeSql(lanes, suspects))));
    return statement;
  }
}

function queueOf(lanes: LaneShare[]): string {
  return (lanes[0] as LaneShare).lane.queue;
}

function limitsOverlap(lanes: LaneShare[], max: number, suspects: boolean): boolean {
  const limited = lanes.map(({ budget }) => budget).filter(({ left }) => left < max);
  return suspects ? limited.length > 0 : new Set(limited).size < limited.length;
}

function matches(source: ClaimSource, lane: Lane): boolean {
  if (source.queue !== undefined && source.queue !== lane.queue) return false;
  if (source.name !== undefined && source.name !== lane.name) return false;
  return source.version === undefined || source.version === lane.version;
}

function takeSql(lanes: number, suspects: boolean): string {
  const all = (one: string) => Array(lanes).fill(`select key, priority from (${one})`).join(" union all ");
  const clean = lanes === 1 ? head("= 0", "?") : all(head("= 0", "?"));
  const suspect = `select key, priority from (${all(head("> 0", "1"))}) order by priority desc, key limit 1`;
  const heads = suspects ? `select key, priority from (${clean}) union all select key, priority from (${suspect})` : clean;
  const chosen =
    lanes === 1 && !suspects ? `select key from (${clean})` : `select key from (${heads}) order by priority desc, key limit ?`;
  const lease = lanes === 1 ? "?" : `case lane ${"when ? then ? ".repeat(lanes)} end`;
  return `
    update holdfast_jobs set
      state = 'running', attempt = attempt + 1, fence = ?, holder = ?, worker = ?, started_at = ?,
      lease = ${lease}, expires_at = ? + ${lease}
    where key in (${chosen})
    returning key, lane, policy, priority, attempt, crashes, created_at, id, input`;
}

/** The next jobs of one lane, by holdfast_jobs_ready or holdfast_jobs_suspect. */
function head(crashes: string, limit: string): string {
  return `select key, priority from holdfast_jobs
     where lane = ? and state = 'pending' and gate is null and crashes ${crashes} order by priority desc, key limit ${limit}`;
}
