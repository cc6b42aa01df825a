import type { JobKey } from "../../core/ids.ts";
import { byTurn } from "../../core/job.ts";
import type { Lane } from "../../core/queue.ts";
import { ELSEWHERE, publicId } from "../job-row.ts";
import type { Claimed, ClaimRequest, ClaimSource, Outlook } from "../store.ts";
import type { Catalog } from "./catalog.ts";
import type { ClaimedLanes } from "./claimed-lanes.ts";
import type { Connection, Statement } from "./driver.ts";
import type { Tx } from "./group-commit.ts";
import type { JobEvents } from "./job-events.ts";
import type { Limits } from "./limits.ts";
import type { Locks } from "./locks.ts";
import type { Settings } from "./settings.ts";

/** Delayed jobs that become claimable in one transaction; the rest follows with the next claim. */
const PROMOTED = 1_000;
/** How often one claim reads on behind jobs that their limits hold back, each time further; the rest is left to the next. */
const ROUNDS = 20;
/** And how many times more than is wanted is read then. */
const MOST_AHEAD = 128;

interface LaneShare {
  lane: Lane;
  lease: number;
  /** How many more of its source may be taken; lanes of one source share it. */
  budget: { left: number };
}

type Row = [
  key: JobKey,
  priority: number,
  policy: number,
  attempt: number,
  createdAt: number,
  id: string | null,
  input: string | null,
  scheduledFor: number | null,
  limits: string | null,
];

interface Candidate {
  row: Row;
  share: LaneShare;
  suspect: boolean;
}

/** Jobs out. */
export class Claim {
  readonly #catalog: Catalog;
  readonly #locks: Locks;
  readonly #lanes: ClaimedLanes;
  readonly #settings: Settings;
  readonly #limits: Limits;
  readonly #events: JobEvents;
  readonly #promote: Statement;
  readonly #dueLimited: Statement;
  readonly #setGate: Statement;
  readonly #anySuspect: Statement;
  readonly #holdsSuspect: Statement;
  readonly #input: Statement;
  readonly #readyIn: Statement;
  readonly #nextAt: Statement;
  readonly #nextCounter: Statement;
  readonly #counted: Statement;
  readonly #random: () => number;
  readonly #head: Statement;
  readonly #suspectHead: Statement;
  readonly #take: Statement;
  /** When each queue was last the first to be served here, in claims. */
  readonly #served = new Map<string, number>();

  constructor(
    db: Connection,
    parts: {
      catalog: Catalog;
      settings: Settings;
      limits: Limits;
      events: JobEvents;
      locks: Locks;
      lanes: ClaimedLanes;
      random: () => number;
    },
  ) {
    this.#catalog = parts.catalog;
    this.#settings = parts.settings;
    this.#limits = parts.limits;
    this.#events = parts.events;
    this.#locks = parts.locks;
    this.#lanes = parts.lanes;
    this.#random = parts.random;
    // The next jobs of one lane, by holdfast_jobs_ready: its cost does not depend on how many there are, or were.
    this.#head = db.prepare(headSql("= 0"));
    this.#suspectHead = db.prepare(headSql("> 0"));
    // The claim itself: one statement for the batch. What it takes was read in the same transaction, which holds the
    // database's only write lock, so nobody can have come between.
    this.#take = db.prepare(
      `update holdfast_jobs set
         state = 'running', attempt = attempt + 1, fence = ?, holder = ?, worker = ?, started_at = ?, lease = ?, expires_at = ?
       where key in (select value from json_each(?)) and state = 'pending'`,
    );
    this.#promote = db.prepare(
      `update holdfast_jobs set gate = null where key in (
         select key from holdfast_jobs
         where gate = 'time' and lane = ? and run_at <= ? and limits is null order by run_at limit ${PROMOTED})`,
    );
    this.#dueLimited = db.prepare(
      `select key, priority, limits from holdfast_jobs
       where gate = 'time' and lane = ? and run_at <= ? and limits is not null order by run_at, key limit ${PROMOTED}`,
    );
    this.#setGate = db.prepare("update holdfast_jobs set gate = ? where key = ?");
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
    this.#nextCounter = db.prepare("select min(due_at) from holdfast_counters where due_at is not null");
    this.#counted = db.prepare("select lanes, settings from holdfast_counter where id = 1");
  }

  run(tx: Tx, request: ClaimRequest): Claimed[] {
    this.#settings.at(tx.settings);
    const queues = this.#inTurn(this.#byQueue(request.from, tx.lanes, tx.now));
    if (queues.length === 0) return [];
    this.#promoteDue(tx, queues);
    this.#limits.serveDue(tx);
    let suspects = this.#maySuspect(request);
    const claimed: Claimed[] = [];
    // Each queue its share first, so that a long queue does not shut out the others; then what is left to whoever has more.
    const share = Math.max(1, Math.ceil(request.max / queues.length));
    for (const most of queues.length === 1 ? [request.max] : [share, request.max]) {
      for (const lanes of queues) {
        const left = Math.min(most, request.max - claimed.length);
        if (left <= 0) return claimed;
        const taken = this.#takeFrom(tx, request, lanes, left, suspects);
        if (taken.length === 0) continue;
        if (claimed.length === 0) this.#served.set(queueOf(lanes), tx.commit);
        if (taken.some(({ suspect }) => suspect)) suspects = false;
        for (const { claim } of taken) claimed.push(claim);
      }
    }
    return claimed;
  }

  /** Jobs of one queue. What a limit holds back is parked on the way, so behind it the next ones are read. */
  #takeFrom(tx: Tx, request: ClaimRequest, lanes: LaneShare[], max: number, suspects: boolean): Taken[] {
    const taken: Taken[] = [];
    let ahead = 1;
    for (let round = 0; round < ROUNDS; round++) {
      const { chosen, held, goOn } = this.#choose(tx, lanes, max - taken.length, suspects, ahead);
      ahead = held > chosen.length ? Math.min(MOST_AHEAD, ahead * 2) : 1;
      if (chosen.length > 0) this.#mark(tx, request, lanes, chosen);
      for (const one of chosen) {
        taken.push({ claim: this.#claimed(tx, one), suspect: one.suspect });
        if (one.suspect) suspects = false;
      }
      if (!goOn || taken.length === max) break;
    }
    const [first] = taken;
    if (first !== undefined && request.exclusive !== undefined)
      this.#locks.bind(tx, first.claim, request.worker, request.exclusive);
    return taken;
  }

  /** Reads only: is there anything, and if not, when? */
  outlook(from: readonly ClaimSource[], now: number): Outlook {
    const [counted, settings] = this.#counted.row() as [number, number];
    this.#settings.at(settings);
    const lanes = this.#byQueue(from, counted, now).flatMap((shares) => shares.map(({ lane }) => lane.id));
    const ready = lanes.some((lane) => this.#readyIn.get({ lane }) !== undefined);
    let nextAt = this.#soonest(lanes);
    if (this.#settings.limited && lanes.length > 0) {
      const at = (this.#nextCounter.row()?.[0] ?? null) as number | null;
      if (at !== null && (nextAt === null || at < nextAt)) nextAt = at;
    }
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
        if (at === null || at > tx.now) continue;
        if (this.#promote.run(lane.id, tx.now) > 0) tx.wrote();
        if (this.#settings.limited) this.#promoteLimited(tx, lane.id);
      }
    }
  }

  #promoteLimited(tx: Tx, lane: number): void {
    for (const row of this.#dueLimited.rows(lane, tx.now)) {
      const [key, priority, limits] = row as [JobKey, number, string];
      this.#setGate.run(this.#limits.admit(tx, { key, lane, priority, limits }), key);
      tx.wrote();
    }
  }

  /** The lanes that may be claimed from, queue by queue; a queue that is paused, or whose lock is held, has none. */
  #byQueue(from: readonly ClaimSource[], lanes: number, now: number): LaneShare[][] {
    const queues = new Map<string, LaneShare[]>();
    const budgets = new Map<ClaimSource, { left: number }>();
    for (const lane of this.#catalog.lanes(lanes)) {
      const source = from.find((one) => matches(one, lane));
      if (source === undefined || source.max === 0 || this.#settings.isPaused(lane.queue)) continue;
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

  /** The next jobs of a queue over its lanes, at most one of them a suspect. `ahead`: so many times more are read than are wanted. */
  #choose(tx: Tx, lanes: LaneShare[], max: number, suspects: boolean, ahead: number): Choice {
    const candidates: Candidate[] = [];
    /** The last that was read of lanes that may have more. */
    const ends = new Map<LaneShare, Candidate>();
    for (const share of lanes) {
      const most = Math.min(share.budget.left, max);
      if (most === 0) continue;
      const limit = most * ahead;
      const rows = this.#head.rows(share.lane.id, limit);
      for (const row of rows) candidates.push({ row: row as Row, share, suspect: false });
      if (rows.length === limit) ends.set(share, candidates.at(-1) as Candidate);
      if (!suspects) continue;
      for (const row of this.#suspectHead.rows(share.lane.id, 1)) candidates.push({ row: row as Row, share, suspect: true });
    }
    // One lane is in turn as it is read.
    if (lanes.length > 1 || suspects) candidates.sort((a, b) => byTurn(turnOf(a), turnOf(b)));
    const chosen: Candidate[] = [];
    let suspected = false;
    let held = 0;
    let end: Candidate | undefined;
    for (const candidate of candidates) {
      if (chosen.length === max) break;
      // What a lane has behind those that are held was not read yet, and may come before this one.
      if (end !== undefined && byTurn(turnOf(end), turnOf(candidate)) < 0) break;
      if (candidate.share.budget.left === 0 || (candidate.suspect && suspected)) continue;
      const verdict = this.#start(tx, candidate);
      if (verdict === "held") {
        held++;
        const last = candidate.suspect ? candidate : ends.get(candidate.share);
        if (last !== undefined && (end === undefined || byTurn(turnOf(last), turnOf(end)) < 0)) end = last;
        continue;
      }
      candidate.share.budget.left -= 1;
      suspected ||= candidate.suspect;
      chosen.push(candidate);
      // Those of its key that pass now may come before the ones that were read.
      if (verdict === "last") break;
    }
    // What now stands ready behind those that start, or instead of those that may not, is read in the next round.
    const opened = this.#settings.limited ? this.#limits.write(tx) : 0;
    return { chosen, held, goOn: held + opened > 0 };
  }

  #start(tx: Tx, { row, share }: Candidate): "started" | "last" | "held" {
    const [key, priority, , , , , , , limits] = row;
    return limits === null ? "started" : this.#limits.take(tx, { key, lane: share.lane.id, priority, limits });
  }

  #mark(tx: Tx, request: ClaimRequest, lanes: LaneShare[], chosen: Candidate[]): void {
    const worker = request.holder === null ? request.worker : null;
    for (const share of lanes) {
      const keys = chosen.filter((one) => one.share === share).map(({ row }) => row[0]);
      if (keys.length === 0) continue;
      const { lease } = share;
      this.#take.run(tx.commit, request.holder, worker, tx.now, lease, tx.now + lease, JSON.stringify(keys));
    }
    tx.wrote();
    if (!this.#settings.telling) return;
    const asked = new Set(lanes.filter(({ lane }) => this.#events.asked(tx, lane.id)));
    for (const { row, share } of chosen) if (asked.has(share)) this.#events.always(tx, "job.started", row[0]);
  }

  #claimed(tx: Tx, { row, share: { lane, lease } }: Candidate): Claimed {
    const [key, priority, policy, attempt, createdAt, id, input, scheduledFor, limits] = row;
    this.#lanes.add(key, lane.id, limits);
    return {
      job: key,
      fence: tx.commit,
      id: publicId(id, createdAt, key),
      name: lane.name,
      queue: lane.queue,
      version: lane.version,
      input: input === ELSEWHERE ? (this.#input.row(key)?.[0] as string) : input,
      attempt: attempt + 1,
      priority,
      policy: this.#catalog.policy(policy),
      lease,
      expiresAt: tx.now + lease,
      scheduledFor,
    };
  }
}

interface Choice {
  chosen: Candidate[];
  /** How many their limits hold back. */
  held: number;
  /** Others stand ready now, or may be behind those that are held. */
  goOn: boolean;
}

interface Taken {
  claim: Claimed;
  suspect: boolean;
}

function queueOf(lanes: LaneShare[]): string {
  return (lanes[0] as LaneShare).lane.queue;
}

function matches(source: ClaimSource, lane: Lane): boolean {
  if (source.queue !== undefined && source.queue !== lane.queue) return false;
  if (source.name !== undefined && source.name !== lane.name) return false;
  return source.version === undefined || source.version === lane.version;
}

function headSql(crashes: string): string {
  return `
    select key, priority, policy, attempt, created_at, id, input, scheduled_for, limits from holdfast_jobs
    where lane = ? and state = 'pending' and gate is null and crashes ${crashes} order by priority desc, key limit ?`;
}

function turnOf({ row: [key, priority] }: Candidate): { priority: number; key: JobKey } {
  return { priority, key };
}
