import {
  type Candidate,
  chooseCandidates,
  LaneBatch,
  type ClaimableLane,
  type MatchedLane,
  type MatchedLanes,
  canClaimSuspect,
  outlookOf,
  MAX_PROMOTED_JOBS,
  quotas,
  nextReadFactor,
  MAX_CLAIM_READS,
  ClaimableLanes,
  type StartVerdict,
  QueueRotation,
} from "../../../core/jobs/claiming.ts";
import { EVENT_OF } from "../../../core/jobs/event.ts";
import type { LeaseRef } from "../../../core/jobs/lease.ts";
import type { JobKey } from "../../../core/text/ids.ts";
import { ELSEWHERE, HEAD, type HeadRow, publicId, toClaimed } from "../../job-row.ts";
import { runSync } from "../../sql/script.ts";
import type { ClaimRequest, ClaimSource, Claimed, ClaimOutlook } from "../../store.ts";
import { isHeld } from "../../sql/locks.ts";
import { damagedError, jobChecksum } from "../checksum.ts";
import type { JobParts } from "./enqueue.ts";
import type { Connection, Statement } from "../driver.ts";
import { corrupt } from "../faults.ts";
import type { Tx } from "../group-commit.ts";
import { DIALECT } from "../scripts.ts";

interface Head extends Candidate {
  row: HeadRow;
  input: string | null;
}

interface ClaimParts extends JobParts {
  locks: ClaimLocks;
  lanes: ClaimedLanes;
  random: () => number;
}

export class Claim {
  readonly #parts: ClaimParts;
  readonly #sql;
  readonly #turns = new QueueRotation();
  readonly #scan: ReadyLanes;

  constructor(db: Connection, parts: ClaimParts) {
    this.#parts = parts;
    this.#scan = new ReadyLanes(db, parts.random);
    this.#sql = {
      // Reads the next jobs of one lane by holdfast_jobs_ready, at a cost that does not depend on how many there are.
      head: db.prepare(headSql("= 0")),
      suspectHead: db.prepare(headSql("> 0")),
      // No process can interfere: the jobs were read in the same transaction, which holds the database's only write lock.
      take: db.prepare(
        `update holdfast_jobs set
           state = 'running', attempt = attempt + 1, fence = ?, holder = ?, worker = ?, started_at = ?, lease = ?, expires_at = ?
         where key in (select value from json_each(?)) and state = 'pending'`,
      ),
      quarantine: db.prepare(
        `update holdfast_jobs set state = 'quarantined', fence = ?, error = ?, finished_at = ?
         where key = ? and state = 'pending' and gate is null`,
      ),
      promote: db.prepare(
        `update holdfast_jobs set gate = null where key in (
           select key from holdfast_jobs
           where gate = 'time' and lane = ? and run_at <= ? and limits is null order by run_at limit ${MAX_PROMOTED_JOBS})`,
      ),
      dueLimited: db.prepare(
        `select key, priority, limits from holdfast_jobs
         where gate = 'time' and lane = ? and run_at <= ? and limits is not null order by run_at, key limit ${MAX_PROMOTED_JOBS}`,
      ),
      setGate: db.prepare("update holdfast_jobs set gate = ? where key = ?"),
      anySuspect: db.prepare("select 1 from holdfast_jobs where state = 'pending' and gate is null and crashes > 0 limit 1"),
      holdsSuspect: db.prepare("select 1 from holdfast_jobs where holder = ? and state = 'running' and crashes > 0 limit 1"),
      input: db.prepare("select body from holdfast_inputs where job = ?"),
      nextCounter: db.prepare("select min(due_at) from holdfast_counters where due_at is not null"),
      counted: db.prepare("select lanes, settings from holdfast_counter where id = 1"),
    };
  }

  run(tx: Tx, request: ClaimRequest): Claimed[] {
    this.#parts.settings.at(tx.settings);
    const matched = this.#parts.catalog.matching(request.from, tx.lanes);
    const claimables = new ClaimableLanes(this.#parts.settings.view, this.#parts.locks.held(tx.now));
    if (!matched.all.some((one) => claimables.of(one) !== null)) return [];
    this.#promoteDue(tx, matched, claimables);
    this.#parts.limits.serveDue(tx);
    let suspects =
      this.#sql.anySuspect.row() !== undefined &&
      canClaimSuspect(request.holder, (process) => this.#sql.holdsSuspect.row(process) !== undefined);
    const claimed: Claimed[] = [];
    for (const queues of this.#scan.batches(matched, claimables, request.max, suspects)) {
      suspects = this.#takeFairly(tx, request, this.#turns.order(queues, this.#parts.random), suspects, claimed);
      if (claimed.length === request.max) break;
    }
    return claimed;
  }

  #takeFairly(tx: Tx, request: ClaimRequest, queues: ClaimableLane[][], suspects: boolean, claimed: Claimed[]): boolean {
    for (const most of quotas(request.max - claimed.length, queues.length)) {
      for (const lanes of queues) {
        const left = Math.min(most, request.max - claimed.length);
        if (left <= 0) return suspects;
        const taken = this.#takeFrom(tx, request, lanes, left, suspects);
        if (taken.length === 0) continue;
        if (claimed.length === 0) this.#turns.recordServed(lanes, tx.commit);
        if (taken.some(({ suspect }) => suspect)) suspects = false;
        for (const { claim } of taken) claimed.push(claim);
      }
    }
    return suspects;
  }

  /** Claims jobs of one queue. If limits hold jobs back, it parks these and reads the next ones. */
  #takeFrom(tx: Tx, request: ClaimRequest, lanes: ClaimableLane[], max: number, suspects: boolean): Taken[] {
    const taken: Taken[] = [];
    let ahead = 1;
    for (let round = 0; round < MAX_CLAIM_READS; round++) {
      const { chosen, held } = this.#choose(tx, lanes, max - taken.length, suspects, ahead);
      const opened = this.#parts.settings.view.hasLimits ? this.#parts.limits.write(tx) : 0;
      ahead = nextReadFactor(ahead, { chosen, held });
      if (chosen.length > 0) this.#mark(tx, request, lanes, chosen);
      for (const one of chosen) {
        const { row, claimable, input, suspect } = one;
        this.#parts.lanes.add(row[0], claimable.lane.id, row[8]);
        const policy = this.#parts.catalog.policy(row[2]);
        taken.push({ claim: toClaimed(row, claimable, input, policy, tx.commit, tx.now), suspect });
        if (suspect) suspects = false;
      }
      if (held + opened === 0 || taken.length === max) break;
    }
    const [first] = taken;
    if (first !== undefined && request.exclusive !== undefined)
      this.#parts.locks.bind(tx, first.claim, request.worker, request.exclusive);
    return taken;
  }

  outlook(from: readonly ClaimSource[], now: number): ClaimOutlook {
    const [counted, settings] = this.#sql.counted.row() as [number, number];
    this.#parts.settings.at(settings);
    const matched = this.#parts.catalog.matching(from, counted);
    const claimables = new ClaimableLanes(this.#parts.settings.view, this.#parts.locks.held(now));
    const ready = this.#scan.isReady(matched, claimables);
    const instants = [...this.#scan.timed(matched, claimables)].map(({ at }) => at);
    if (this.#parts.settings.view.hasLimits && matched.all.some((one) => claimables.of(one) !== null))
      instants.push((this.#sql.nextCounter.row()?.[0] ?? null) as number | null);
    return outlookOf(ready, instants, now);
  }

  #promoteDue(tx: Tx, matched: MatchedLanes, claimables: ClaimableLanes): void {
    for (const { lane, at } of this.#scan.timed(matched, claimables)) {
      if (at === null || at > tx.now) continue;
      if (this.#sql.promote.run(lane, tx.now) > 0) tx.wrote();
      if (this.#parts.settings.view.hasLimits) this.#promoteLimited(tx, lane);
    }
  }

  #promoteLimited(tx: Tx, lane: number): void {
    for (const row of this.#sql.dueLimited.rows(lane, tx.now)) {
      const [key, priority, limits] = row as [JobKey, number, string];
      this.#sql.setGate.run(this.#parts.limits.admit(tx, { key, lane, priority, limits }), key);
      tx.wrote();
    }
  }

  /** Chooses the next jobs of some lanes. It reads `ahead` times as many as are wanted. */
  #choose(tx: Tx, lanes: ClaimableLane[], max: number, suspects: boolean, ahead: number): { chosen: Head[]; held: number } {
    const heads: Head[] = [];
    const ends = new Map<ClaimableLane, Head>();
    for (const claimable of lanes) {
      const most = Math.min(claimable.budget.left, max);
      if (most === 0) continue;
      const limit = most * ahead;
      const rows = this.#sql.head.rows(claimable.lane.id, limit) as HeadRow[];
      for (const row of rows) heads.push({ key: row[0], priority: row[1], row, claimable, suspect: false, input: row[6] });
      if (rows.length === limit) ends.set(claimable, heads.at(-1) as Head);
      if (!suspects) continue;
      for (const row of this.#sql.suspectHead.rows(claimable.lane.id, 1) as HeadRow[]) {
        heads.push({ key: row[0], priority: row[1], row, claimable, suspect: true, input: row[6] });
      }
    }
    return chooseCandidates(heads, ends, max, (head) => this.#start(tx, head));
  }

  #start(tx: Tx, head: Head): StartVerdict {
    const { key, priority, row } = head;
    const lane = head.claimable.lane.id;
    const limits = row[8];
    if (head.input === ELSEWHERE) head.input = (this.#sql.input.row(key)?.[0] ?? null) as string | null;
    const [, , policy, , created_at, id, , scheduled_for, , slot, meta, stored] = row;
    const { input } = head;
    if (stored !== jobChecksum({ key, lane, priority, policy, created_at, id, slot, input, scheduled_for, limits, meta })) {
      this.#quarantine(tx, publicId(id, created_at, key), { key, lane, priority, limits });
      return "held";
    }
    return limits === null ? "started" : this.#parts.limits.tryStart(tx, { key, lane, priority, limits });
  }

  /** Quarantines a job with a wrong checksum instead of claiming it. It relies only on the lane in which the row was found. */
  #quarantine(
    tx: Tx,
    id: string,
    { limits, ...job }: { key: JobKey; lane: number; priority: number; limits: string | null },
  ): void {
    const { key, lane } = job;
    const { effects, batches, jobEvents } = this.#parts;
    const error = damagedError(id);
    if (this.#sql.quarantine.run(tx.commit, JSON.stringify(error), tx.now, key) === 0) throw corrupt(OTHER_INDEX);
    tx.wrote();
    try {
      if (limits !== null) this.#parts.limits.withdraw(tx, [{ ...job, limits, gate: null }]);
    } catch {
      // The limits themselves are damaged, so the slot stays taken until the limit is declared again.
    }
    effects.add(key, lane, "quarantined");
    const batch = runSync(batches.ending(tx, [{ job: key, lane }]));
    if (batch !== null) {
      const next = { state: "quarantined", delay: 0, attempt: 0, errors: 0, crashes: 0, error, dropCheckpoint: false } as const;
      batch.ended(tx.now, key, { outcome: { kind: "unreadable", error }, next, by: "reclaimer", work: undefined });
      runSync(batches.close(tx, batch));
    }
    jobEvents.addIfEnabled(tx, EVENT_OF.quarantined, lane, key);
    effects.write(tx);
    tx.damaged(error.message);
  }

  #mark(tx: Tx, request: ClaimRequest, lanes: ClaimableLane[], chosen: Head[]): void {
    // Only a claim by hand has a worker's name, because the process identifies its own workers.
    const worker = request.worker || null;
    for (const claimable of lanes) {
      const keys = chosen.filter((one) => one.claimable === claimable).map(({ key }) => key);
      if (keys.length === 0) continue;
      const { lease } = claimable;
      const taken = this.#sql.take.run(tx.commit, request.holder, worker, tx.now, lease, tx.now + lease, JSON.stringify(keys));
      // The index contains jobs that the table lacks, or has in another state.
      if (taken !== keys.length) throw corrupt(OTHER_INDEX);
    }
    tx.wrote();
    if (!this.#parts.settings.view.hasEvents) return;
    const enabled = new Set(lanes.filter(({ lane }) => this.#parts.jobEvents.isEnabled(tx, lane.id)));
    for (const { key, claimable } of chosen) if (enabled.has(claimable)) this.#parts.jobEvents.add(tx, "job.started", key);
  }
}

const OTHER_INDEX = "the index of jobs that are ready is not that of the jobs";

interface Taken {
  claim: Claimed;
  suspect: boolean;
}

function headSql(crashes: string): string {
  return `
    select ${HEAD} from holdfast_jobs
    where lane = ? and state = 'pending' and gate is null and crashes ${crashes} order by priority desc, key limit ?`;
}

/** Up to this many lanes are read one by one. If there are more, the indexes find the lanes that have jobs. */
const FEW_LANES = 8;

class ReadyLanes {
  readonly #random: () => number;
  readonly #sql;
  /** The last lane that a claim took jobs from. The next claim begins behind it, so that every lane has its turn. */
  #cursor: number | null = null;

  constructor(db: Connection, random: () => number) {
    this.#random = random;
    // Each query is a seek in holdfast_jobs_ready, holdfast_jobs_suspect or holdfast_jobs_timed.
    const next = (which: string) =>
      db.prepare(`select lane from holdfast_jobs where ${which} and lane > ? order by lane limit 1`);
    this.#sql = {
      readyIn: db.prepare(
        `select 1 from holdfast_jobs where lane = :lane and state = 'pending' and gate is null and crashes = 0
         union all
         select 1 from holdfast_jobs where lane = :lane and state = 'pending' and gate is null and crashes > 0
         limit 1`,
      ),
      nextAt: db.prepare("select min(run_at) from holdfast_jobs where gate = 'time' and lane = ?"),
      nextReady: next("state = 'pending' and gate is null and crashes = 0"),
      nextSuspect: next("state = 'pending' and gate is null and crashes > 0"),
      nextTimed: db.prepare(
        "select lane, run_at from holdfast_jobs where gate = 'time' and lane > ? order by lane, run_at limit 1",
      ),
    };
  }

  /** Yields queues to take up to `max` jobs from: few lanes in one batch, many in batches of `max` queues that have jobs. */
  *batches(matched: MatchedLanes, claimables: ClaimableLanes, max: number, suspects: boolean): Generator<ClaimableLane[][]> {
    if (matched.all.length <= FEW_LANES) return yield claimables.byQueue(matched.all);
    const done = new Set<string>();
    let batch = new LaneBatch(matched, max);
    for (const lane of this.#cycle(matched, suspects)) {
      const one = matched.byId.get(lane);
      if (one === undefined || done.has(one.lane.queue) || claimables.of(one) === null || !batch.add(one)) continue;
      this.#cursor = lane;
      yield claimables.byQueue(batch.lanes);
      for (const queue of batch.queues) done.add(queue);
      batch = new LaneBatch(matched, max);
    }
    if (batch.queues.size > 0) yield claimables.byQueue(batch.lanes);
  }

  isReady(matched: MatchedLanes, claimables: ClaimableLanes): boolean {
    if (matched.all.length <= FEW_LANES)
      return matched.all.some((one) => claimables.of(one) !== null && this.#sql.readyIn.get({ lane: one.lane.id }) !== undefined);
    for (const lane of this.#between(0, null, true)) {
      const one = matched.byId.get(lane);
      if (one !== undefined && claimables.of(one) !== null) return true;
    }
    return false;
  }

  *timed(matched: MatchedLanes, claimables: ClaimableLanes): Generator<{ lane: number; at: number | null }> {
    if (matched.all.length <= FEW_LANES) {
      for (const one of matched.all) {
        if (claimables.of(one) === null) continue;
        yield { lane: one.lane.id, at: (this.#sql.nextAt.row(one.lane.id)?.[0] ?? null) as number | null };
      }
      return;
    }
    let row = this.#sql.nextTimed.row(0) as [number, number] | undefined;
    for (; row !== undefined; row = this.#sql.nextTimed.row(row[0]) as [number, number] | undefined) {
      const one = matched.byId.get(row[0]);
      if (one !== undefined && claimables.of(one) !== null) yield { lane: row[0], at: row[1] };
    }
  }

  /** Yields every lane with jobs once, from the cursor on, which is random at first, so that processes do not start alike. */
  *#cycle(matched: MatchedLanes, suspects: boolean): Generator<number> {
    const start = (this.#cursor ??= (matched.all[Math.floor(this.#random() * matched.all.length)] as MatchedLane).lane.id);
    yield* this.#between(start, null, suspects);
    yield* this.#between(0, start, suspects);
  }

  *#between(after: number, last: number | null, suspects: boolean): Generator<number> {
    for (let lane = after; ;) {
      const ready = (this.#sql.nextReady.row(lane)?.[0] ?? null) as number | null;
      const suspect = suspects ? ((this.#sql.nextSuspect.row(lane)?.[0] ?? null) as number | null) : null;
      const next = ready === null || suspect === null ? (ready ?? suspect) : Math.min(ready, suspect);
      if (next === null || (last !== null && next > last)) return;
      yield (lane = next);
    }
  }
}

/** Most remembered jobs. Beyond, all are forgotten, because jobs that another process settled would stay for ever. */
const MOST_CLAIMED = 50_000;

interface ClaimedLane {
  lane: number;
  limits: string | null;
}

/** Remembers lane and limits of each job that this store claimed, so that a settle need not read its row first. */
export class ClaimedLanes {
  readonly #claimed = new Map<JobKey, ClaimedLane>();
  readonly #row: Statement;

  constructor(db: Connection) {
    this.#row = db.prepare("select lane, limits from holdfast_jobs where key = ?");
  }

  add(job: JobKey, lane: number, limits: string | null): void {
    if (this.#claimed.size >= MOST_CLAIMED) this.#claimed.clear();
    this.#claimed.set(job, { lane, limits });
  }

  take(job: JobKey): ClaimedLane {
    const claimed = this.#claimed.get(job);
    this.#claimed.delete(job);
    if (claimed !== undefined) return claimed;
    const [lane, limits] = this.#row.row(job) as [number, string | null];
    return { lane, limits };
  }

  lane(job: JobKey): number | undefined {
    return this.#claimed.get(job)?.lane ?? (this.#row.row(job)?.[0] as number | undefined);
  }

  forget(job: JobKey): void {
    this.#claimed.delete(job);
  }

  /** Called after a rollback, because the keys of its jobs are given out again. */
  forgetAll(): void {
    this.#claimed.clear();
  }
}

export class ClaimLocks {
  readonly #sql;

  constructor(db: Connection) {
    this.#sql = {
      any: db.prepare("select 1 from holdfast_locks limit 1"),
      held: db.prepare(`select name from holdfast_locks as lock where ${isHeld(DIALECT)}`),
      bind: db.prepare(
        `insert into holdfast_locks (name, holder, token, acquired_at, job, fence)
         values (:name, :holder, :token, :now, :job, :fence)
         on conflict (name) do update set
           holder = excluded.holder, token = excluded.token, acquired_at = excluded.acquired_at, ttl = null,
           expires_at = null, job = excluded.job, fence = excluded.fence, process = null`,
      ),
    };
  }

  held(now: number): string[] {
    if (this.#sql.any.row() === undefined) return [];
    return this.#sql.held.all<{ name: string }>({ now }).map(({ name }) => name);
  }

  /** Takes the lock for an exclusive claim, which has checked in this transaction that it is free. */
  bind(tx: Tx, claim: LeaseRef & { queue: string }, holder: string, token: string): void {
    this.#sql.bind.run({ name: claim.queue, holder, token, now: tx.now, job: claim.job, fence: claim.fence });
    tx.wrote();
  }
}
