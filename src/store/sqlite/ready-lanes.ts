import type { LaneShare, Shares } from "../../core/claiming.ts";
import { LaneBatch, type MatchedLane, type MatchedLanes } from "../../core/lane-index.ts";
import type { Connection, Statement } from "./driver.ts";

/**
 * Up to this many lanes are asked one by one. Beyond, the indexes are asked for the lanes that have jobs, so that a claim
 * does not cost more because there are more queues and definitions.
 */
const FEW_LANES = 8;

/** Finds the lanes that have something to claim, among those that a claim may take from. */
export class ReadyLanes {
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
