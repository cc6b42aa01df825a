import {
  addPassed,
  AFTER_ALL,
  type Counter,
  type LimitRows,
  isIdle,
  lowerBuckets,
  park,
  type ParkedJob,
  comesBeforeLastPassed,
  readMoreParked,
  countReady,
  type LaneUsage,
  laneUsageOf,
  markStored,
  toCounter,
  type JobPosition,
  unpark,
} from "./lane-usage.ts";
import type { JobKey } from "../text/ids.ts";
import type { StartVerdict } from "../jobs/claiming.ts";
import { byClaimOrder } from "../jobs/job.ts";
import {
  capBucket,
  countEnd,
  type LimitRule,
  canJoin,
  opensAt,
  countFree,
  countStart,
  MAX_READY_JOBS,
  readyWindow,
} from "./limit.ts";

export interface LimitedJob extends JobPosition {
  lane: number;
  limits: string;
}

/** What a store writes, in this order: then no row refers to a missing one. */
export interface LimitChanges {
  unparked: { usage: LaneUsage; job: JobPosition }[];
  removed: LaneUsage[];
  saved: LaneUsage[];
  due: LaneUsage[];
  parked: { usage: LaneUsage; job: ParkedJob }[];
  closed: JobKey[];
  opened: { key: JobKey; lane: number }[];
  /** Their parked jobs wait for a token from now on: nothing else will wake a worker. */
  timed: LaneUsage[];
}

export type Gate = "limit" | null;

/**
 * Limits over all workers. A pending job passes its limits in the order of its row; where it cannot, it is parked there,
 * outside the index that claims read. Per lane, at most MAX_READY_JOBS jobs pass a limit: so a million jobs of one key
 * neither block nor slow the others. Jobs that finish, and tokens of a rate that return, let the next ones pass. The gate
 * decides and writes nothing: after each operation the store asks for the changes. Its state is valid as long as all changes
 * were stored and no other process made any.
 */
export class LimitGate {
  readonly #limitRows: LimitRows;
  #now: number;
  readonly #counters = new Map<string, Counter>();
  readonly #byText = new Map<string, readonly Counter[]>();
  readonly #touched = new Set<Counter>();
  readonly #freed = new Set<Counter>();
  readonly #closed = new Set<JobKey>();

  constructor(limitRows: LimitRows, now: number) {
    this.#limitRows = limitRows;
    this.#now = now;
  }

  get size(): number {
    return this.#counters.size;
  }

  get counters(): Iterable<Counter> {
    return this.#counters.values();
  }

  setNow(now: number): this {
    this.#now = now;
    return this;
  }

  /** Admits a job that becomes pending. The caller writes the returned gate into the job's row. */
  admit(job: LimitedJob): Gate {
    return this.#passLimits(job, this.#countersOf(job.limits), 0) ? null : "limit";
  }

  tryStart(job: LimitedJob): StartVerdict {
    const counters = this.#countersOf(job.limits);
    const blocked = counters.findIndex((counter) => countFree(this.#rule(counter), counter, this.#now) < 1);
    if (blocked === -1) {
      let last = false;
      for (const counter of counters) if (this.#start(counter, job.lane)) last = true;
      return last ? "last" : "started";
    }
    for (const [i, counter] of counters.entries()) {
      const usage = laneUsageOf(counter, job.lane);
      if (i < blocked) usage.beyond += 1;
      else usage.passed -= 1;
      usage.changed = true;
    }
    park(laneUsageOf(counters[blocked] as Counter, job.lane), toParked(job, counters));
    this.#closed.add(job.key);
    return "held";
  }

  /** `began`: false returns the job's token to the rate. */
  finish(lane: number, limits: string, began: boolean): void {
    for (const counter of this.#countersOf(limits)) {
      countEnd(this.#rule(counter), counter, began);
      const usage = laneUsageOf(counter, lane);
      usage.running -= 1;
      usage.changed = true;
      if (!began) lowerBuckets(counter);
    }
  }

  /** Removes a pending job that was never started. `gate`: the gate in its row. */
  withdraw(job: LimitedJob, gate: string | null): void {
    if (gate === "time") return;
    const counters = this.#countersOf(job.limits);
    for (const counter of counters) {
      const usage = laneUsageOf(counter, job.lane);
      // A job that has passed all other limits is parked at the last.
      if (gate === "limit" && (counter === counters.at(-1) || this.#isParked(usage, job))) return unpark(usage, job);
      usage.passed -= 1;
      if (gate === "limit") usage.beyond -= 1;
      usage.changed = true;
    }
  }

  recheck(rule: number, key: string): void {
    this.#touch(this.#counter(rule, key));
  }

  /** Ends each operation: lets parked jobs pass where slots are free, and returns what the store must write. */
  collectChanges(): LimitChanges | null {
    if (this.#touched.size === 0) return null;
    const changes: LimitChanges = {
      unparked: [],
      removed: [],
      saved: [],
      due: [],
      parked: [],
      closed: [],
      opened: [],
      timed: [],
    };
    // A job that passes here may be parked at a later limit, whose counter is then touched: the set grows while it is read.
    for (const counter of this.#touched) this.#refill(counter, changes);
    // These counters were full of jobs parked at later limits, which have passed since.
    for (const counter of this.#freed) this.#refill(counter, changes);
    for (const counter of this.#touched) this.#collectCounterChanges(counter, changes);
    changes.closed.push(...this.#closed);
    this.#touched.clear();
    this.#freed.clear();
    this.#closed.clear();
    return changes;
  }

  clear(): void {
    this.#counters.clear();
    this.#byText.clear();
    this.#touched.clear();
    this.#freed.clear();
    this.#closed.clear();
  }

  #passLimits(job: LimitedJob, counters: readonly Counter[], from: number): boolean {
    for (let i = from; i < counters.length; i++) {
      const counter = counters[i] as Counter;
      const usage = laneUsageOf(counter, job.lane);
      if (!this.#mayPass(counter, usage, job)) {
        park(usage, toParked(job, counters));
        for (const before of counters.slice(from, i)) this.#countParkedLater(before, job.lane, 1);
        return false;
      }
      addPassed(usage, job);
    }
    return true;
  }

  #mayPass(counter: Counter, usage: LaneUsage, job: JobPosition): boolean {
    const window = readyWindow(countFree(this.#rule(counter), counter, this.#now));
    if (usage.beyond >= MAX_READY_JOBS) return false;
    if (usage.parked === 0 && countReady(usage) < window) return true;
    // A job that comes before the ready ones in claim order must not wait behind them: it has a higher priority, or was
    // returned.
    if (window === 0 || usage.passed === 0 || !canJoin(countReady(usage), window)) return false;
    if (!comesBeforeLastPassed(job, usage)) return false;
    const next = this.#firstParked(usage);
    return next === undefined || byClaimOrder(job, next) < 0;
  }

  #start(counter: Counter, lane: number): boolean {
    const rule = this.#rule(counter);
    countStart(rule, counter, this.#now);
    const usage = laneUsageOf(counter, lane);
    usage.running += 1;
    usage.passed -= 1;
    usage.bucket = counter.bucket;
    usage.changed = true;
    return (
      countReady(usage) === 0 && usage.parked > 0 && usage.beyond < MAX_READY_JOBS && countFree(rule, counter, this.#now) > 0
    );
  }

  #refill(counter: Counter, changes: LimitChanges): void {
    const window = readyWindow(countFree(this.#rule(counter), counter, this.#now));
    for (const usage of counter.usages) {
      for (let joined = 0; usage.parked > 0 && usage.beyond < MAX_READY_JOBS;) {
        const full = countReady(usage) >= window;
        if (full && (joined >= window || !canJoin(countReady(usage), window))) break;
        const job = this.#firstParked(usage);
        // The job may have been parked behind ready jobs while no slot was free.
        if (job === undefined || (full && !comesBeforeLastPassed(job, usage))) break;
        if (full) joined++;
        unpark(usage, job);
        addPassed(usage, job);
        if (job.more && !this.#passLaterLimits(counter, job, usage.lane)) continue;
        this.#closed.delete(job.key);
        changes.opened.push({ key: job.key, lane: usage.lane });
      }
    }
  }

  #passLaterLimits(passed: Counter, job: ParkedJob, lane: number): boolean {
    const { key, priority, limits = this.#limitRows.limitsOf(key) } = job;
    const counters = this.#countersOf(limits);
    const at = counters.indexOf(passed);
    if (!this.#passLimits({ key, lane, priority, limits }, counters, at + 1)) {
      this.#countParkedLater(passed, lane, 1);
      return false;
    }
    for (const before of counters.slice(0, at)) this.#countParkedLater(before, lane, -1);
    return true;
  }

  #countParkedLater(counter: Counter, lane: number, by: 1 | -1): void {
    const usage = laneUsageOf(counter, lane);
    usage.beyond += by;
    usage.changed = true;
    if (by === -1 && usage.beyond === MAX_READY_JOBS - 1) this.#freed.add(counter);
  }

  #collectCounterChanges(counter: Counter, changes: LimitChanges): void {
    // Idle usages are deleted, or every key ever used would stay.
    const isOver = (usage: LaneUsage) => isIdle(usage) && usage.bucket <= this.#now;
    let over = 0;
    for (const usage of counter.usages) {
      const isNew = usage.id === null;
      if (isOver(usage)) {
        over++;
        collectParked(usage, changes);
        if (!isNew) changes.removed.push(usage);
        continue;
      }
      const dueAt = isIdle(usage) ? Math.ceil(usage.bucket) : usage.parked > 0 ? this.#opensAt(counter, usage) : null;
      if (dueAt !== usage.dueAt) {
        if (usage.dueAt === null && usage.parked > 0) changes.timed.push(usage);
        usage.dueAt = dueAt;
        if (!isNew) changes.due.push(usage);
      }
      collectParked(usage, changes);
      if (usage.changed) changes.saved.push(usage);
      markStored(usage);
    }
    if (over === 0) return;
    counter.usages = over === counter.usages.length ? [] : counter.usages.filter((usage) => !isOver(usage));
    // The rate's state is deleted too, also if the clock is then set back.
    counter.bucket = counter.usages.reduce((latest, { bucket }) => Math.max(latest, bucket), 0);
  }

  /** When the rate has a token for one more job to pass, or to join the passed jobs if it comes before them in claim order. */
  #opensAt(counter: Counter, usage: LaneUsage): number | null {
    const rule = this.#rule(counter);
    if (rule.rate === null) return null;
    const job = this.#firstParked(usage);
    const ready = countReady(usage);
    const joins = job !== undefined && usage.passed > 0 && comesBeforeLastPassed(job, usage);
    return opensAt(rule, counter, this.#now, joins ? Math.min(ready, countFree(rule, counter, this.#now)) : ready);
  }

  #firstParked(usage: LaneUsage): ParkedJob | undefined {
    const { id } = usage;
    while (usage.knownParked.length === 0 && usage.knownUpTo !== AFTER_ALL) {
      readMoreParked(usage, (after) => (id === null ? [] : this.#limitRows.parked(id, after)));
    }
    return usage.knownParked[0];
  }

  #isParked(usage: LaneUsage, job: JobPosition): boolean {
    if (usage.newlyParked?.has(job.key)) return true;
    if (usage.id === null || usage.parked === 0 || usage.unparked?.has(job.key)) return false;
    if (byClaimOrder(job, usage.knownUpTo) <= 0) return usage.knownParked.some(({ key }) => key === job.key);
    return this.#limitRows.isParked(usage.id, job);
  }

  /** The counters of a job, narrow to wide; marks them for the recheck at the end of the operation. */
  #countersOf(limits: string): readonly Counter[] {
    let counters = this.#byText.get(limits);
    if (counters === undefined) {
      counters = parseLimits(limits).map(([rule, key]) => this.#counter(rule, key));
      this.#byText.set(limits, counters);
    }
    for (const counter of counters) this.#touch(counter);
    return counters;
  }

  #touch(counter: Counter): void {
    this.#touched.add(counter);
    if (counter.bucket <= this.#now) return;
    // Stored, or the bucket would be too full again and again after the clock was set back.
    counter.bucket = capBucket(this.#rule(counter), counter.bucket, this.#now);
    lowerBuckets(counter);
  }

  #counter(rule: number, key: string): Counter {
    const name = `${rule}:${key}`;
    let counter = this.#counters.get(name);
    if (counter === undefined) {
      counter = toCounter(rule, key, this.#limitRows.usages(rule, key));
      this.#counters.set(name, counter);
    }
    return counter;
  }

  #rule(counter: Counter): LimitRule {
    return this.#limitRows.rule(counter.rule);
  }
}

export function limitsText(rules: readonly number[], keys: readonly string[]): string | null {
  return rules.length === 0 ? null : JSON.stringify(rules.map((rule, i) => [rule, keys[i] ?? ""]));
}

export function parseLimits(text: string): [rule: number, key: string][] {
  return JSON.parse(text) as [number, string][];
}

function toParked({ key, priority, limits }: LimitedJob, counters: readonly Counter[]): ParkedJob {
  return { key, priority, more: counters.length > 1, limits };
}

function collectParked(usage: LaneUsage, changes: LimitChanges): void {
  if (usage.unparked !== null) for (const job of usage.unparked.values()) changes.unparked.push({ usage, job });
  if (usage.newlyParked !== null) for (const job of usage.newlyParked.values()) changes.parked.push({ usage, job });
}
