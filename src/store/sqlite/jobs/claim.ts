import {
  type Candidate,
  choose,
  LaneBatch,
  type LaneShare,
  type MatchedLane,
  type MatchedLanes,
  maySuspect,
  outlookOf,
  PROMOTED,
  quotas,
  readAhead,
  ROUNDS,
  Shares,
  type Start,
  Turns,
} from "../../../core/jobs/claiming.ts";
import type { JobKey } from "../../../core/text/ids.ts";
import { ELSEWHERE, HEAD, type HeadRow, publicId, storedWorker, toClaimed } from "../../job-row.ts";
import type { ClaimRequest, ClaimSource, Claimed, Outlook } from "../../store.ts";
import type { Catalog, Settings } from "./catalog.ts";
import { jobChecksum } from "../checksum.ts";
import type { ClaimLocks, Limits } from "./limits.ts";
import type { DamagedJobs } from "./damaged-jobs.ts";
import type { Connection, Statement } from "../driver.ts";
import type { JobEvents } from "./events.ts";
import { corrupt } from "../faults.ts";
import type { Tx } from "../group-commit.ts";

interface Head extends Candidate {
  row: HeadRow;
  /** The whole of it, wherever it is. */
  input: string | null;
}

interface ClaimParts {
  catalog: Catalog;
  settings: Settings;
  limits: Limits;
  events: JobEvents;
  locks: ClaimLocks;
  lanes: ClaimedLanes;
  damaged: DamagedJobs;
  random: () => number;
}

/** Jobs out. */
export class Claim {
  readonly #parts: ClaimParts;
  readonly #promote: Statement;
  readonly #dueLimited: Statement;
  readonly #setGate: Statement;
  readonly #anySuspect: Statement;
  readonly #holdsSuspect: Statement;
  readonly #input: Statement;
  readonly #nextCounter: Statement;
  readonly #counted: Statement;
  readonly #head: Statement;
  readonly #suspectHead: Statement;
  readonly #take: Statement;
  readonly #turns = new Turns();
  readonly #scan: ReadyLanes;

  constructor(db: Connection, parts: ClaimParts) {
    this.#parts = parts;
    this.#scan = new ReadyLanes(db, parts.random);
    // The next jobs of one lane, by holdfast_jobs_ready: its cost does not depend on how many there are, or were.
    this.#head = db.prepare(headSql("= 0"));
    this.#suspectHead = db.prepare(headSql("> 0"));
    // The claim itself: one statement for the batch. What it takes was read in the same transaction, which holds the
    // database's only write lock, so no other process can have come between.
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
    this.#nextCounter = db.prepare("select min(due_at) from holdfast_counters where due_at is not null");
    this.#counted = db.prepare("select lanes, settings from holdfast_counter where id = 1");
  }

  run(tx: Tx, request: ClaimRequest): Claimed[] {
    this.#parts.settings.at(tx.settings);
    const matched = this.#parts.catalog.matching(request.from, tx.lanes);
    const shares = new Shares(this.#parts.settings.view, this.#parts.locks.held(tx.now));
    if (!matched.all.some((one) => shares.of(one) !== null)) return [];
    this.#promoteDue(tx, matched, shares);
    this.#parts.limits.serveDue(tx);
    let suspects = this.#maySuspect(request);
    const claimed: Claimed[] = [];
    for (const queues of this.#scan.batches(matched, shares, request.max, suspects)) {
      suspects = this.#takeShares(tx, request, this.#turns.order(queues, this.#parts.random), suspects, claimed);
      if (claimed.length === request.max) break;
    }
    return claimed;
  }

  /** Each queue its share first. Returns whether a suspect may still be taken. */
  #takeShares(tx: Tx, request: ClaimRequest, queues: LaneShare[][], suspects: boolean, claimed: Claimed[]): boolean {
    for (const most of quotas(request.max - claimed.length, queues.length)) {
      for (const lanes of queues) {
        const left = Math.min(most, request.max - claimed.length);
        if (left <= 0) return suspects;
        const taken = this.#takeFrom(tx, request, lanes, left, suspects);
        if (taken.length === 0) continue;
        if (claimed.length === 0) this.#turns.served(lanes, tx.commit);
        if (taken.some(({ suspect }) => suspect)) suspects = false;
        for (const { claim } of taken) claimed.push(claim);
      }
    }
    return suspects;
  }

  /** Jobs of one queue. What a limit holds back is parked on the way, so behind it the next ones are read. */
  #takeFrom(tx: Tx, request: ClaimRequest, lanes: LaneShare[], max: number, suspects: boolean): Taken[] {
    const taken: Taken[] = [];
    let ahead = 1;
    for (let round = 0; round < ROUNDS; round++) {
      const { chosen, held } = this.#choose(tx, lanes, max - taken.length, suspects, ahead);
      // What now stands ready behind those that start, or instead of those that may not, is read in the next round.
      const opened = this.#parts.settings.view.limited ? this.#parts.limits.write(tx) : 0;
      ahead = readAhead(ahead, { chosen, held });
      if (chosen.length > 0) this.#mark(tx, request, lanes, chosen);
      for (const one of chosen) {
        taken.push({ claim: this.#claimed(tx, one), suspect: one.suspect });
        if (one.suspect) suspects = false;
      }
      if (held + opened === 0 || taken.length === max) break;
    }
    const [first] = taken;
    if (first !== undefined && request.exclusive !== undefined)
      this.#parts.locks.bind(tx, first.claim, request.worker, request.exclusive);
    return taken;
  }

  /** Reads only: is there anything, and if not, when? */
  outlook(from: readonly ClaimSource[], now: number): Outlook {
    const [counted, settings] = this.#counted.row() as [number, number];
    this.#parts.settings.at(settings);
    const matched = this.#parts.catalog.matching(from, counted);
    const shares = new Shares(this.#parts.settings.view, this.#parts.locks.held(now));
    const ready = this.#scan.isReady(matched, shares);
    const instants = [...this.#scan.timed(matched, shares)].map(({ at }) => at);
    if (this.#parts.settings.view.limited && matched.all.some((one) => shares.of(one) !== null))
      instants.push((this.#nextCounter.row()?.[0] ?? null) as number | null);
    return outlookOf(ready, instants, now);
  }

  #promoteDue(tx: Tx, matched: MatchedLanes, shares: Shares): void {
    for (const { lane, at } of this.#scan.timed(matched, shares)) {
      if (at === null || at > tx.now) continue;
      if (this.#promote.run(lane, tx.now) > 0) tx.wrote();
      if (this.#parts.settings.view.limited) this.#promoteLimited(tx, lane);
    }
  }

  #promoteLimited(tx: Tx, lane: number): void {
    for (const row of this.#dueLimited.rows(lane, tx.now)) {
      const [key, priority, limits] = row as [JobKey, number, string];
      this.#setGate.run(this.#parts.limits.admit(tx, { key, lane, priority, limits }), key);
      tx.wrote();
    }
  }

  #maySuspect({ holder }: ClaimRequest): boolean {
    if (this.#anySuspect.row() === undefined) return false;
    return maySuspect(holder, (process) => this.#holdsSuspect.row(process) !== undefined);
  }

  /** The next jobs of a queue. `ahead`: so many times more are read than are wanted. */
  #choose(tx: Tx, lanes: LaneShare[], max: number, suspects: boolean, ahead: number): { chosen: Head[]; held: number } {
    const heads: Head[] = [];
    const ends = new Map<LaneShare, Head>();
    for (const share of lanes) {
      const most = Math.min(share.budget.left, max);
      if (most === 0) continue;
      const limit = most * ahead;
      const rows = this.#head.rows(share.lane.id, limit) as HeadRow[];
      for (const row of rows) heads.push({ key: row[0], priority: row[1], row, share, suspect: false, input: row[6] });
      if (rows.length === limit) ends.set(share, heads.at(-1) as Head);
      if (!suspects) continue;
      for (const row of this.#suspectHead.rows(share.lane.id, 1) as HeadRow[]) {
        heads.push({ key: row[0], priority: row[1], row, share, suspect: true, input: row[6] });
      }
    }
    return choose(heads, ends, max, (head) => this.#start(tx, head));
  }

  #start(tx: Tx, head: Head): Start {
    const { key, priority, row } = head;
    const lane = head.share.lane.id;
    const limits = row[8];
    if (head.input === ELSEWHERE) head.input = (this.#input.row(key)?.[0] ?? null) as string | null;
    const [, , policy, , created_at, id, , scheduled_for, , slot, stored] = row;
    if (stored !== jobChecksum({ key, lane, priority, policy, created_at, id, slot, input: head.input, scheduled_for, limits })) {
      this.#parts.damaged.quarantine(tx, { key, id: publicId(id, created_at, key), lane, priority, limits });
      // What is behind it is read in the next round.
      return "held";
    }
    return limits === null ? "started" : this.#parts.limits.take(tx, { key, lane, priority, limits });
  }

  #mark(tx: Tx, request: ClaimRequest, lanes: LaneShare[], chosen: Head[]): void {
    const worker = storedWorker(request);
    for (const share of lanes) {
      const keys = chosen.filter((one) => one.share === share).map(({ key }) => key);
      if (keys.length === 0) continue;
      const { lease } = share;
      const taken = this.#take.run(tx.commit, request.holder, worker, tx.now, lease, tx.now + lease, JSON.stringify(keys));
      // The index has shown jobs that the table does not have, or not as pending.
      if (taken !== keys.length) throw corrupt("the index of jobs that are ready is not that of the jobs");
    }
    tx.wrote();
    if (!this.#parts.settings.view.telling) return;
    const asked = new Set(lanes.filter(({ lane }) => this.#parts.events.asked(tx, lane.id)));
    for (const { key, share } of chosen) if (asked.has(share)) this.#parts.events.always(tx, "job.started", key);
  }

  #claimed(tx: Tx, { row, share, input }: Head): Claimed {
    this.#parts.lanes.add(row[0], share.lane.id, row[8]);
    return toClaimed(row, share, input, this.#parts.catalog.policy(row[2]), tx.commit, tx.now);
  }
}

interface Taken {
  claim: Claimed;
  suspect: boolean;
}

function headSql(crashes: string): string {
  return `
    select ${HEAD} from holdfast_jobs
    where lane = ? and state = 'pending' and gate is null and crashes ${crashes} order by priority desc, key limit ?`;
}

/**
 * Up to this many lanes are asked one by one. Beyond, the indexes are asked for the lanes that have jobs, so that a claim
 * does not cost more because there are more queues and definitions.
 */
const FEW_LANES = 8;

/** Finds the lanes that have something to claim, among those that a claim may take from. */
class ReadyLanes {
  readonly #random: () => number;
  readonly #readyIn: Statement;
  readonly #nextAt: Statement;
  readonly #nextReady: Statement;
  readonly #nextSuspect: Statement;
  readonly #nextTimed: Statement;
  /** The last lane that a claim has taken from; the next claim begins behind it, so that every lane has its turn. */
  #cursor: number | null = null;

  constructor(db: Connection, random: () => number) {
    this.#random = random;
    this.#readyIn = db.prepare(
      `select 1 from holdfast_jobs where lane = :lane and state = 'pending' and gate is null and crashes = 0
       union all
       select 1 from holdfast_jobs where lane = :lane and state = 'pending' and gate is null and crashes > 0
       limit 1`,
    );
    // The first entry of the lane in holdfast_jobs_timed.
    this.#nextAt = db.prepare("select min(run_at) from holdfast_jobs where gate = 'time' and lane = ?");
    // Each a seek to the first entry behind a lane: in holdfast_jobs_ready, holdfast_jobs_suspect, holdfast_jobs_timed.
    const next = (what: string, which: string) =>
      db.prepare(`select ${what} from holdfast_jobs where ${which} and lane > ? order by lane limit 1`);
    this.#nextReady = next("lane", "state = 'pending' and gate is null and crashes = 0");
    this.#nextSuspect = next("lane", "state = 'pending' and gate is null and crashes > 0");
    this.#nextTimed = db.prepare(
      "select lane, run_at from holdfast_jobs where gate = 'time' and lane > ? order by lane, run_at limit 1",
    );
  }

  /**
   * The queues to take up to `max` jobs from. Few lanes are all in one batch, whether they have jobs or not. Of many, a
   * batch has the next `max` queues that have jobs; a queue of many lanes is in it with those that have jobs.
   */
  *batches(matched: MatchedLanes, shares: Shares, max: number, suspects: boolean): Generator<LaneShare[][]> {
    if (matched.all.length <= FEW_LANES) return yield shares.byQueue(matched.all);
    const done = new Set<string>();
    let batch = new LaneBatch(matched, max);
    for (const lane of this.#cycle(matched, suspects)) {
      const one = matched.byId.get(lane);
      if (one === undefined || done.has(one.lane.queue) || shares.of(one) === null || !batch.add(one)) continue;
      this.#cursor = lane;
      yield shares.byQueue(batch.lanes);
      for (const queue of batch.queues) done.add(queue);
      batch = new LaneBatch(matched, max);
    }
    if (batch.queues.size > 0) yield shares.byQueue(batch.lanes);
  }

  /** Whether one of them has a job that may start. */
  isReady(matched: MatchedLanes, shares: Shares): boolean {
    if (matched.all.length <= FEW_LANES)
      return matched.all.some((one) => shares.of(one) !== null && this.#readyIn.get({ lane: one.lane.id }) !== undefined);
    for (const lane of this.#between(0, null, true)) {
      const one = matched.byId.get(lane);
      if (one !== undefined && shares.of(one) !== null) return true;
    }
    return false;
  }

  /** Those that have delayed jobs, and when the first of them is due. */
  *timed(matched: MatchedLanes, shares: Shares): Generator<{ lane: number; at: number | null }> {
    if (matched.all.length <= FEW_LANES) {
      for (const one of matched.all) {
        if (shares.of(one) === null) continue;
        yield { lane: one.lane.id, at: (this.#nextAt.row(one.lane.id)?.[0] ?? null) as number | null };
      }
      return;
    }
    let row = this.#nextTimed.row(0) as [number, number] | undefined;
    for (; row !== undefined; row = this.#nextTimed.row(row[0]) as [number, number] | undefined) {
      const one = matched.byId.get(row[0]);
      if (one !== undefined && shares.of(one) !== null) yield { lane: row[0], at: row[1] };
    }
  }

  /** Every lane that has jobs, once, beginning behind the cursor; at first anywhere, so that processes do not begin alike. */
  *#cycle(matched: MatchedLanes, suspects: boolean): Generator<number> {
    const start = (this.#cursor ??= (matched.all[Math.floor(this.#random() * matched.all.length)] as MatchedLane).lane.id);
    yield* this.#between(start, null, suspects);
    yield* this.#between(0, start, suspects);
  }

  /** Lanes above `after`, up to `last`. What was found before may have been taken meanwhile. */
  *#between(after: number, last: number | null, suspects: boolean): Generator<number> {
    for (let lane = after; ;) {
      const ready = (this.#nextReady.row(lane)?.[0] ?? null) as number | null;
      const suspect = suspects ? ((this.#nextSuspect.row(lane)?.[0] ?? null) as number | null) : null;
      const next = ready === null || suspect === null ? (ready ?? suspect) : Math.min(ready, suspect);
      if (next === null || (last !== null && next > last)) return;
      yield (lane = next);
    }
  }
}

/** Beyond this many, what was claimed here and settled elsewhere is forgotten with the rest. */
const MOST = 50_000;

/** What never changes of a job that runs. */
interface ClaimedLane {
  lane: number;
  limits: string | null;
}

/**
 * The lane of each job that was claimed through this store, and its limits where it has any, so that settling a batch
 * need not read its rows first.
 */
export class ClaimedLanes {
  readonly #claimed = new Map<JobKey, ClaimedLane>();
  readonly #row: Statement;
  /** Jobs without limits share one object a lane. */
  readonly #plain = new Map<number, ClaimedLane>();

  constructor(db: Connection) {
    this.#row = db.prepare("select lane, limits from holdfast_jobs where key = ?");
  }

  add(job: JobKey, lane: number, limits: string | null): void {
    if (this.#claimed.size >= MOST) this.#claimed.clear();
    this.#claimed.set(job, limits === null ? this.#of(lane) : { lane, limits });
  }

  /** Looked up once, because the job has just ended. */
  take(job: JobKey): ClaimedLane {
    const claimed = this.#claimed.get(job);
    if (claimed !== undefined) {
      this.#claimed.delete(job);
      return claimed;
    }
    const [lane, limits] = this.#row.row(job) as [number, string | null];
    return { lane, limits };
  }

  /** Of a job that may have to be looked up again. */
  lane(job: JobKey): number | undefined {
    return this.#claimed.get(job)?.lane ?? (this.#row.row(job)?.[0] as number | undefined);
  }

  forget(job: JobKey): void {
    this.#claimed.delete(job);
  }

  /** After an undone transaction: the keys of its jobs are given out again. */
  forgetAll(): void {
    this.#claimed.clear();
  }

  #of(lane: number): ClaimedLane {
    let plain = this.#plain.get(lane);
    if (plain === undefined) this.#plain.set(lane, (plain = { lane, limits: null }));
    return plain;
  }
}
