import {
  addPassed,
  AFTER_ALL,
  type Counter,
  type LimitRows,
  isIdle,
  lowerBuckets,
  park,
  type Parked,
  precedes,
  readOn,
  readyOf,
  type LaneUsage,
  laneUsageOf,
  stored,
  toCounter,
  type Turn,
  unpark,
} from "./lane-usage.ts";
import type { JobKey } from "../text/ids.ts";
import type { Start } from "../jobs/claiming.ts";
import { byTurn } from "../jobs/job.ts";
import { capped, end, type LimitRule, mayJoin, opensAt, room, start, WINDOW, windowOf } from "./limit.ts";

/** `limits` is the text in the job's row. */
export interface LimitedJob extends Turn {
  lane: number;
  limits: string;
}

/** What a store writes, in this order: then no row refers to a missing one. */
export interface Changes {
  unparked: { usage: LaneUsage; job: Turn }[];
  /** Idle usages, which are deleted. */
  removed: LaneUsage[];
  /** Usages to insert (those without an id) or update. */
  saved: LaneUsage[];
  /** Stored usages with a new due time. */
  due: LaneUsage[];
  parked: { usage: LaneUsage; job: Parked }[];
  /** Jobs that were ready and may not start. */
  shut: JobKey[];
  opened: { key: JobKey; lane: number }[];
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
  readonly #shut = new Set<JobKey>();

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

  at(now: number): this {
    this.#now = now;
    return this;
  }

  /** Admits a job that becomes pending. The caller writes the returned gate into the job's row. */
  admit(job: LimitedJob): Gate {
    return this.#pass(job, this.#countersOf(job.limits), 0) ? null : "limit";
  }

  /** Starts a ready job, or parks it if a limit has no free slot. */
  take(job: LimitedJob): Start {
    const counters = this.#countersOf(job.limits);
    const blocked = counters.findIndex((counter) => room(this.#rule(counter), counter, this.#now) < 1);
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
    this.#shut.add(job.key);
    return "held";
  }

  /** `began`: false returns the job's token to the rate. */
  end(lane: number, limits: string, began: boolean): void {
    for (const counter of this.#countersOf(limits)) {
      end(this.#rule(counter), counter, began);
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

  /** Rechecks a counter: its rate has tokens again, or its rule changed. */
  look(rule: number, key: string): void {
    this.#touch(this.#counter(rule, key));
  }

  /** Ends each operation: lets parked jobs pass where slots are free, and returns what the store must write. */
  changes(): Changes | null {
    if (this.#touched.size === 0) return null;
    const changes: Changes = { unparked: [], removed: [], saved: [], due: [], parked: [], shut: [], opened: [] };
    // A job that passes here may be parked at a later limit, whose counter is then touched: the set grows while it is read.
    for (const counter of this.#touched) this.#refill(counter, changes);
    // These counters were full of jobs parked at later limits, which have passed since.
    for (const counter of this.#freed) this.#refill(counter, changes);
    for (const counter of this.#touched) this.#sum(counter, changes);
    changes.shut.push(...this.#shut);
    this.#touched.clear();
    this.#freed.clear();
    this.#shut.clear();
    return changes;
  }

  forget(): void {
    this.#counters.clear();
    this.#byText.clear();
    this.#touched.clear();
    this.#freed.clear();
    this.#shut.clear();
  }

  #pass(job: LimitedJob, counters: readonly Counter[], from: number): boolean {
    for (let i = from; i < counters.length; i++) {
      const counter = counters[i] as Counter;
      const usage = laneUsageOf(counter, job.lane);
      if (!this.#mayPass(counter, usage, job)) {
        park(usage, toParked(job, counters));
        for (const before of counters.slice(from, i)) this.#beyond(before, job.lane, 1);
        return false;
      }
      addPassed(usage, job);
    }
    return true;
  }

  #mayPass(counter: Counter, usage: LaneUsage, job: Turn): boolean {
    const window = windowOf(room(this.#rule(counter), counter, this.#now));
    if (usage.beyond >= WINDOW) return false;
    if (usage.parked === 0 && readyOf(usage) < window) return true;
    // A job that comes before the ready ones in claim order must not wait behind them: it has a higher priority, or was
    // returned.
    if (window === 0 || usage.passed === 0 || !mayJoin(readyOf(usage), window)) return false;
    if (!precedes(job, usage)) return false;
    const next = this.#nextOf(usage);
    return next === undefined || byTurn(job, next) < 0;
  }

  /** Returns true if no job of the counter is ready any more although more could start. */
  #start(counter: Counter, lane: number): boolean {
    const rule = this.#rule(counter);
    start(rule, counter, this.#now);
    const usage = laneUsageOf(counter, lane);
    usage.running += 1;
    usage.passed -= 1;
    usage.bucket = counter.bucket;
    usage.changed = true;
    return readyOf(usage) === 0 && usage.parked > 0 && usage.beyond < WINDOW && room(rule, counter, this.#now) > 0;
  }

  #refill(counter: Counter, changes: Changes): void {
    const window = windowOf(room(this.#rule(counter), counter, this.#now));
    for (const usage of counter.usages) {
      for (let joined = 0; usage.parked > 0 && usage.beyond < WINDOW;) {
        const full = readyOf(usage) >= window;
        if (full && (joined >= window || !mayJoin(readyOf(usage), window))) break;
        const job = this.#nextOf(usage);
        // The job may have been parked behind ready jobs while no slot was free.
        if (job === undefined || (full && !precedes(job, usage))) break;
        if (full) joined++;
        unpark(usage, job);
        addPassed(usage, job);
        if (job.more && !this.#goOn(counter, job, usage.lane)) continue;
        this.#shut.delete(job.key);
        changes.opened.push({ key: job.key, lane: usage.lane });
      }
    }
  }

  #goOn(passed: Counter, job: Parked, lane: number): boolean {
    const { key, priority, limits = this.#limitRows.limitsOf(key) } = job;
    const counters = this.#countersOf(limits);
    const at = counters.indexOf(passed);
    if (!this.#pass({ key, lane, priority, limits }, counters, at + 1)) {
      this.#beyond(passed, lane, 1);
      return false;
    }
    for (const before of counters.slice(0, at)) this.#beyond(before, lane, -1);
    return true;
  }

  #beyond(counter: Counter, lane: number, by: 1 | -1): void {
    const usage = laneUsageOf(counter, lane);
    usage.beyond += by;
    usage.changed = true;
    if (by === -1 && usage.beyond === WINDOW - 1) this.#freed.add(counter);
  }

  #sum(counter: Counter, changes: Changes): void {
    // Idle usages are deleted, or every key ever used would stay.
    const isOver = (usage: LaneUsage) => isIdle(usage) && usage.bucket <= this.#now;
    let over = 0;
    for (const usage of counter.usages) {
      const isNew = usage.id === null;
      if (isOver(usage)) {
        over++;
        noteParked(usage, changes);
        if (!isNew) changes.removed.push(usage);
        continue;
      }
      const dueAt = isIdle(usage) ? Math.ceil(usage.bucket) : usage.parked > 0 ? this.#opensAt(counter, usage) : null;
      if (dueAt !== usage.dueAt) {
        usage.dueAt = dueAt;
        if (!isNew) changes.due.push(usage);
      }
      noteParked(usage, changes);
      if (usage.changed) changes.saved.push(usage);
      stored(usage);
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
    const job = this.#nextOf(usage);
    const ready = readyOf(usage);
    const joins = job !== undefined && usage.passed > 0 && precedes(job, usage);
    return opensAt(rule, counter, this.#now, joins ? Math.min(ready, room(rule, counter, this.#now)) : ready);
  }

  #nextOf(usage: LaneUsage): Parked | undefined {
    const { id } = usage;
    while (usage.ahead.length === 0 && usage.upTo !== AFTER_ALL) {
      readOn(usage, (after) => (id === null ? [] : this.#limitRows.parked(id, after)));
    }
    return usage.ahead[0];
  }

  #isParked(usage: LaneUsage, job: Turn): boolean {
    if (usage.joined?.has(job.key)) return true;
    if (usage.id === null || usage.parked === 0 || usage.left?.has(job.key)) return false;
    if (byTurn(job, usage.upTo) <= 0) return usage.ahead.some(({ key }) => key === job.key);
    return this.#limitRows.isParked(usage.id, job);
  }

  /** The counters of a job, narrow to wide; marks them for the recheck at the end of the operation. */
  #countersOf(limits: string): readonly Counter[] {
    let counters = this.#byText.get(limits);
    if (counters === undefined) {
      counters = limitsIn(limits).map(([rule, key]) => this.#counter(rule, key));
      this.#byText.set(limits, counters);
    }
    for (const counter of counters) this.#touch(counter);
    return counters;
  }

  #touch(counter: Counter): void {
    this.#touched.add(counter);
    if (counter.bucket <= this.#now) return;
    // Stored, or the bucket would be too full again and again after the clock was set back.
    counter.bucket = capped(this.#rule(counter), counter.bucket, this.#now);
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

/** The text in the job's row: for each limit its rule's number and the job's key. */
export function limitsText(rules: readonly number[], keys: readonly string[]): string | null {
  return rules.length === 0 ? null : JSON.stringify(rules.map((rule, i) => [rule, keys[i] ?? ""]));
}

export function limitsIn(text: string): [rule: number, key: string][] {
  return JSON.parse(text) as [number, string][];
}

function toParked({ key, priority, limits }: LimitedJob, counters: readonly Counter[]): Parked {
  return { key, priority, more: counters.length > 1, limits };
}

function noteParked(usage: LaneUsage, changes: Changes): void {
  if (usage.left !== null) for (const job of usage.left.values()) changes.unparked.push({ usage, job });
  if (usage.joined !== null) for (const job of usage.joined.values()) changes.parked.push({ usage, job });
}
