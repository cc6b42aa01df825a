import type { StartVerdict } from "../jobs/claiming.ts";
import type { JobKey } from "../text/ids.ts";
import {
  addParked,
  addPassed,
  comesBeforeLastPassed,
  type Counter,
  countReady,
  isIdle,
  type JobPosition,
  type LaneUsage,
  lowerBuckets,
  markStored,
  type ParkedJob,
  type ParkedRow,
  parkedRow,
  removeParked,
  type UsageRow,
} from "./lane-usage.ts";
import {
  canJoin,
  capBucket,
  countEnd,
  countFree,
  countStart,
  type LimitRule,
  MAX_READY_JOBS,
  opensAt,
  readyWindow,
} from "./limit.ts";

export type Gate = "limit" | null;
export type LimitPair = [rule: number, key: string];

export interface LimitedJob extends JobPosition {
  lane: number;
  limits: string;
}

/** A parked job: where the rows have it, and where it is parked by now. */
interface Move {
  job: ParkedJob;
  from: LaneUsage | null;
  to: LaneUsage | null;
}

export interface LimitMoves {
  unparked: ParkedRow[];
  parked: ParkedRow[];
}

export interface LimitChanges extends LimitMoves {
  added: UsageRow[];
  saved: UsageRow[];
  removed: UsageRow[];
  /** Jobs that a claim has read and that are parked now. */
  closed: JobKey[];
  opened: JobKey[];
  /** Lanes that have jobs to start now, or at an instant that workers do not know yet. */
  lanes: Set<number>;
}

// Enforces limits over all workers. A pending job passes its limits in order, or is parked outside the index that claims read.
// The store loads an operation's counters, calls `refill` and loads parked jobs until no usage wants any, and writes the changes.
export class LimitGate {
  now = 0;
  readonly #ruleOf: (id: number) => LimitRule;
  readonly #counters = new Map<number, Map<string, Counter>>();
  readonly #byText = new Map<string, readonly Counter[]>();
  /** Counters that the operation has used, and those where parked jobs may pass. */
  readonly #used = new Set<Counter>();
  readonly #unchecked = new Set<Counter>();
  #unnamed: LaneUsage[] = [];
  readonly #moves = new Map<JobKey, Move>();
  readonly #closed = new Set<JobKey>();
  #opened: JobKey[] = [];
  #lanes = new Set<number>();

  constructor(ruleOf: (id: number) => LimitRule) {
    this.#ruleOf = ruleOf;
  }

  get size(): number {
    let size = 0;
    for (const { size: counters } of this.#counters.values()) size += counters;
    return size;
  }

  isLoaded(limits: string): boolean {
    return this.#byText.has(limits);
  }

  unloaded(pairs: Iterable<LimitPair>): LimitPair[] {
    const missing = new Map<string, LimitPair>();
    for (const [rule, key] of pairs) {
      if (this.#counters.get(rule)?.has(key) !== true) missing.set(`${rule}:${key}`, [rule, key]);
    }
    return [...missing.values()];
  }

  load(pairs: readonly LimitPair[], rows: readonly UsageRow[]): void {
    for (const [rule, key] of pairs) {
      let counters = this.#counters.get(rule);
      if (counters === undefined) this.#counters.set(rule, (counters = new Map()));
      counters.set(key, { rule, key, usages: [], running: 0, bucket: 0 });
    }
    for (const row of rows) {
      const counter = this.#counter(row.rule, row.key);
      counter.usages.push({ ...row, counter, isStored: true, isChanged: false, first: [] });
      counter.running += row.running;
      counter.bucket = Math.max(counter.bucket, row.bucket);
    }
  }

  loadParked(usage: LaneUsage, rows: readonly ParkedRow[]): void {
    usage.first = rows.map(({ job, priority, limits }) => ({ key: job, priority, limits }));
    if (rows.length === 0) usage.parked = 0;
    this.#unchecked.add(usage.counter);
  }

  forgetRules(isForgotten: (rule: number) => boolean): void {
    for (const rule of this.#counters.keys()) if (isForgotten(rule)) this.#counters.delete(rule);
    this.#byText.clear();
  }

  forget(): void {
    for (const part of [this.#counters, this.#byText, this.#used, this.#unchecked, this.#moves, this.#closed]) part.clear();
    [this.#unnamed, this.#opened, this.#lanes] = [[], [], new Set()];
  }

  /** Admits a job that becomes pending. The caller writes the returned gate into the job's row. */
  admit(job: LimitedJob): Gate {
    return this.#pass(job, this.#countersOf(job.limits), 0) ? null : "limit";
  }

  tryStart(job: LimitedJob): StartVerdict {
    const counters = this.#countersOf(job.limits);
    const blocked = counters.findIndex((counter) => this.#free(counter) < 1);
    if (blocked === -1) {
      let isLast = false;
      for (const counter of counters) if (this.#start(counter, job.lane)) isLast = true;
      return isLast ? "last" : "started";
    }
    for (const [i, counter] of counters.entries()) {
      const usage = this.#usage(counter, job.lane);
      if (i < blocked) usage.beyond += 1;
      else usage.passed -= 1;
      usage.isChanged = true;
    }
    this.#park(this.#usage(counters[blocked] as Counter, job.lane), toParked(job, counters));
    this.#closed.add(job.key);
    return "held";
  }

  /** Frees the slots of a job that runs no more. If it never began, its token returns to the rate. */
  finish(lane: number, limits: string, began: boolean): void {
    for (const counter of this.#countersOf(limits)) {
      countEnd(this.#ruleOf(counter.rule), counter, began);
      const usage = this.#usage(counter, lane);
      usage.running -= 1;
      usage.isChanged = true;
      if (!began) lowerBuckets(counter);
    }
  }

  /** Returns where a job may be parked. The list is empty if memory tells. */
  placesOf({ key, lane, limits }: LimitedJob): UsageRow[] {
    const counters = this.#countersOf(limits);
    if (counters.length === 1 || this.#moves.has(key)) return [];
    return counters.map((counter) => this.#usage(counter, lane));
  }

  /** Removes a pending job that was never started. `gate` is the gate in its row, and `place` where the rows have it parked. */
  withdraw(job: LimitedJob, gate: string | null, place?: UsageRow): void {
    if (gate === "time") return;
    const counters = this.#countersOf(job.limits);
    const at = this.#moves.get(job.key)?.to ?? place ?? this.#usage(counters.at(-1) as Counter, job.lane);
    for (const counter of counters) {
      const usage = this.#usage(counter, job.lane);
      if (gate === "limit" && usage === at) return this.#unpark(usage, toParked(job, counters));
      usage.passed -= 1;
      usage.isChanged = true;
      if (gate === "limit") this.#countBeyond(counter, job.lane, -1);
    }
  }

  recheck(rule: number, key: string): void {
    this.#use(this.#counter(rule, key));
  }

  /** Lets parked jobs pass where slots are free. Returns the usages that need parked jobs loaded, and how many. */
  refill(): Map<LaneUsage, number> {
    const wanted = new Map<LaneUsage, number>();
    // A job that passes here may be parked at a later limit, or have waited there, so the set grows during the loop.
    for (const counter of this.#unchecked) {
      this.#unchecked.delete(counter);
      const window = readyWindow(this.#free(counter));
      for (const usage of counter.usages) if (usage.parked > 0) this.#refill(usage, window, wanted);
    }
    return wanted;
  }

  /** Returns the usages that need an id before `takeMoves` and `takeChanges`. */
  takeUnnamed(): UsageRow[] {
    const unnamed = this.#unnamed;
    if (unnamed.length > 0) this.#unnamed = [];
    return unnamed;
  }

  takeMoves(): LimitMoves {
    const moves: LimitMoves = { unparked: [], parked: [] };
    for (const { job, from, to } of this.#moves.values()) {
      if (from === to) continue;
      if (from !== null) moves.unparked.push(parkedRow(from, job));
      if (to !== null) moves.parked.push(parkedRow(to, job));
    }
    this.#moves.clear();
    return moves;
  }

  /** Ends each operation, after `refill`. Returns what the store must write, or null if nothing was used. */
  takeChanges(): LimitChanges | null {
    if (this.#used.size === 0) return null;
    const changes: LimitChanges = {
      ...this.takeMoves(),
      added: [],
      saved: [],
      removed: [],
      closed: [...this.#closed],
      opened: this.#opened,
      lanes: this.#lanes,
    };
    for (const counter of this.#used) this.#takeRows(counter, changes);
    this.#used.clear();
    this.#closed.clear();
    this.#opened = [];
    this.#lanes = new Set();
    return changes;
  }

  #pass(job: LimitedJob, counters: readonly Counter[], from: number): boolean {
    for (let i = from; i < counters.length; i++) {
      const counter = counters[i] as Counter;
      const usage = this.#usage(counter, job.lane);
      const window = this.#admissionWindow(counter, counters.length);
      const isOpen = usage.parked === 0 && usage.beyond < MAX_READY_JOBS && countReady(usage) < window;
      if (!isOpen) {
        // If the job must not wait behind the ready jobs, `refill` lets it pass.
        this.#park(usage, toParked(job, counters));
        for (const before of counters.slice(from, i)) this.#countBeyond(before, job.lane, 1);
        return false;
      }
      addPassed(usage, job);
    }
    return true;
  }

  /**
   * How many jobs may stand ready. While a key has a free slot, more may than it has slots: opening a parked job costs as much
   * as starting it, and a claim parks the jobs that it may not start. Not with several limits, or a rate, which refills slowly.
   */
  #admissionWindow(counter: Counter, limits: number): number {
    const free = this.#free(counter);
    return free > 0 && limits === 1 && this.#ruleOf(counter.rule).rate === null ? MAX_READY_JOBS : readyWindow(free);
  }

  #start(counter: Counter, lane: number): boolean {
    countStart(this.#ruleOf(counter.rule), counter, this.now);
    const usage = this.#usage(counter, lane);
    usage.running += 1;
    usage.passed -= 1;
    usage.bucket = counter.bucket;
    usage.isChanged = true;
    return countReady(usage) === 0 && usage.parked > 0 && usage.beyond < MAX_READY_JOBS && this.#free(counter) > 0;
  }

  #refill(usage: LaneUsage, window: number, wanted: Map<LaneUsage, number>): void {
    for (let joined = 0; usage.parked > 0 && usage.beyond < MAX_READY_JOBS;) {
      const ready = countReady(usage);
      const isFull = ready >= window;
      if (isFull && (joined >= window || usage.passed === 0 || !canJoin(ready, window))) break;
      const [job] = usage.first;
      if (job === undefined) return void wanted.set(usage, window - ready);
      // A job that precedes the ready ones in claim order (higher priority, or returned) must not wait behind them.
      if (isFull && !comesBeforeLastPassed(job, usage)) break;
      if (isFull) joined++;
      this.#unpark(usage, job);
      addPassed(usage, job);
      if (job.limits !== null && !this.#passLater(usage, job, job.limits)) continue;
      this.#closed.delete(job.key);
      this.#opened.push(job.key);
      this.#lanes.add(usage.lane);
    }
    // The instant at which the rate opens depends on the first parked job.
    const isAsked = usage.first.length === 0 && usage.parked > 0 && usage.passed > 0;
    if (isAsked && this.#ruleOf(usage.rule).rate !== null) wanted.set(usage, 1);
  }

  #passLater({ counter, lane }: LaneUsage, { key, priority }: JobPosition, limits: string): boolean {
    const counters = this.#countersOf(limits);
    const at = counters.indexOf(counter);
    if (!this.#pass({ key, lane, priority, limits }, counters, at + 1)) {
      this.#countBeyond(counter, lane, 1);
      return false;
    }
    for (const before of counters.slice(0, at)) this.#countBeyond(before, lane, -1);
    return true;
  }

  #countBeyond(counter: Counter, lane: number, by: 1 | -1): void {
    const usage = this.#usage(counter, lane);
    usage.beyond += by;
    usage.isChanged = true;
    if (by === -1 && usage.beyond === MAX_READY_JOBS - 1) this.#unchecked.add(counter);
  }

  #park(usage: LaneUsage, job: ParkedJob): void {
    addParked(usage, job);
    const move = this.#moves.get(job.key);
    if (move === undefined) this.#moves.set(job.key, { job, from: null, to: usage });
    else move.to = usage;
  }

  #unpark(usage: LaneUsage, job: ParkedJob): void {
    removeParked(usage, job);
    const move = this.#moves.get(job.key);
    if (move === undefined) this.#moves.set(job.key, { job, from: usage, to: null });
    else move.to = null;
  }

  #takeRows(counter: Counter, { added, saved, removed, lanes }: LimitChanges): void {
    // Idle usages are deleted, because otherwise every key ever used would stay.
    const isOver = (usage: LaneUsage) => isIdle(usage) && usage.bucket <= this.now;
    let over = 0;
    for (const usage of counter.usages) {
      if (isOver(usage)) {
        over++;
        if (usage.isStored) removed.push(usage);
        continue;
      }
      const dueAt = isIdle(usage) ? Math.ceil(usage.bucket) : usage.parked > 0 ? this.#opensAt(counter, usage) : null;
      if (dueAt !== usage.due_at) {
        if (usage.due_at === null && usage.parked > 0) lanes.add(usage.lane);
        usage.due_at = dueAt;
        usage.isChanged = true;
      }
      if (usage.isChanged) (usage.isStored ? saved : added).push(usage);
      markStored(usage);
    }
    if (over === 0) return;
    counter.usages = over === counter.usages.length ? [] : counter.usages.filter((usage) => !isOver(usage));
    // The state of the rate is deleted with its usages, even if the clock is set back later.
    counter.bucket = counter.usages.reduce((latest, { bucket }) => Math.max(latest, bucket), 0);
  }

  /** When the rate has a token for the first parked job, which passes, or joins passed jobs that it precedes in claim order. */
  #opensAt(counter: Counter, usage: LaneUsage): number | null {
    const rule = this.#ruleOf(counter.rule);
    if (rule.rate === null) return null;
    const [job] = usage.first;
    const ready = countReady(usage);
    const joins = job !== undefined && usage.passed > 0 && comesBeforeLastPassed(job, usage);
    return opensAt(rule, counter, this.now, joins ? Math.min(ready, this.#free(counter)) : ready);
  }

  #countersOf(limits: string): readonly Counter[] {
    let counters = this.#byText.get(limits);
    if (counters === undefined) {
      counters = parseLimits(limits).map(([rule, key]) => this.#counter(rule, key));
      this.#byText.set(limits, counters);
    }
    for (const counter of counters) this.#use(counter);
    return counters;
  }

  #use(counter: Counter): void {
    this.#used.add(counter);
    this.#unchecked.add(counter);
    if (counter.bucket <= this.now) return;
    // Store the cap, or the bucket would be too full again and again after the clock was set back.
    counter.bucket = capBucket(this.#ruleOf(counter.rule), counter.bucket, this.now);
    lowerBuckets(counter);
  }

  #counter(rule: number, key: string): Counter {
    const counter = this.#counters.get(rule)?.get(key);
    if (counter === undefined) throw new Error(`The counter of limit ${rule} under "${key}" was not loaded.`);
    return counter;
  }

  #usage(counter: Counter, lane: number): LaneUsage {
    for (const usage of counter.usages) if (usage.lane === lane) return usage;
    const { rule, key } = counter;
    const counts = { running: 0, passed: 0, beyond: 0, parked: 0, lowest: 0, last: 0, bucket: 0, due_at: null };
    const usage: LaneUsage = { id: 0, rule, key, lane, ...counts, counter, isStored: false, isChanged: true, first: [] };
    counter.usages.push(usage);
    this.#unnamed.push(usage);
    return usage;
  }

  #free(counter: Counter): number {
    return countFree(this.#ruleOf(counter.rule), counter, this.now);
  }
}

export function limitsText(rules: readonly number[], keys: readonly string[]): string | null {
  return rules.length === 0 ? null : JSON.stringify(rules.map((rule, i) => [rule, keys[i] ?? ""]));
}

export function parseLimits(text: string): LimitPair[] {
  return JSON.parse(text) as LimitPair[];
}

function toParked({ key, priority, limits }: LimitedJob, counters: readonly Counter[]): ParkedJob {
  return { key, priority, limits: counters.length > 1 ? limits : null };
}
