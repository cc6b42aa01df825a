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

/** A job as its limits see it: `limits` is what stands in its row. */
export interface LimitedJob extends Turn {
  lane: number;
  limits: string;
}

/** What a store writes down: in this order nothing refers to what is not there yet. */
export interface Changes {
  unparked: { usage: LaneUsage; job: Turn }[];
  /** Counters that say nothing any more. */
  removed: LaneUsage[];
  /** All they say; those without an id are new, and are given one. */
  saved: LaneUsage[];
  /** Of those that were stored before, when they want to be looked at. */
  due: LaneUsage[];
  parked: { usage: LaneUsage; job: Parked }[];
  /** Jobs that stood ready and may not start. */
  shut: JobKey[];
  /** Jobs that stand ready now. */
  opened: { key: JobKey; lane: number }[];
}

/** The gate that a job stands before. */
export type Gate = "limit" | null;

/**
 * Limits over all workers. A pending job has to pass each of its limits, in the order in which they stand in its row;
 * where it cannot, it is parked there, out of the index that claims walk. Only as many jobs of a lane have passed a
 * limit as could start now, at most a window full: so a million jobs of one key neither block nor slow the others.
 * What ends, and what the rate allows again, lets the next ones pass.
 *
 * It decides, and writes nothing: after each operation a store asks for the changes. What it knows stays right as long as
 * all changes were stored, and no other process has made any.
 */
export class LimitGate {
  readonly #limitRows: LimitRows;
  #now: number;
  readonly #counters = new Map<string, Counter>();
  /** By what stands in a job's row. */
  readonly #byText = new Map<string, readonly Counter[]>();
  readonly #touched = new Set<Counter>();
  readonly #freed = new Set<Counter>();
  readonly #shut = new Set<JobKey>();

  constructor(limitRows: LimitRows, now: number) {
    this.#limitRows = limitRows;
    this.#now = now;
  }

  /** How many counters it knows. */
  get size(): number {
    return this.#counters.size;
  }

  /** Those it has looked at, as they are by now. */
  get counters(): Iterable<Counter> {
    return this.#counters.values();
  }

  at(now: number): this {
    this.#now = now;
    return this;
  }

  /** A job becomes pending: the gate it stands before, which the caller writes into its row. */
  admit(job: LimitedJob): Gate {
    return this.#pass(job, this.#countersOf(job.limits), 0) ? null : "limit";
  }

  /** A pending job that stands ready wants to start. If it may not after all, it is parked. */
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

  /** A job is running no more. One that never began gives back what it took of the rate. */
  end(lane: number, limits: string, began: boolean): void {
    for (const counter of this.#countersOf(limits)) {
      end(this.#rule(counter), counter, began);
      const usage = laneUsageOf(counter, lane);
      usage.running -= 1;
      usage.changed = true;
      if (!began) lowerBuckets(counter);
    }
  }

  /** A pending job is pending no more, and was never started. `gate` is where it stood. */
  withdraw(job: LimitedJob, gate: string | null): void {
    if (gate === "time") return;
    const counters = this.#countersOf(job.limits);
    for (const counter of counters) {
      const usage = laneUsageOf(counter, job.lane);
      // One that has passed all others is parked at the last.
      if (gate === "limit" && (counter === counters.at(-1) || this.#isParked(usage, job))) return unpark(usage, job);
      usage.passed -= 1;
      if (gate === "limit") usage.beyond -= 1;
      usage.changed = true;
    }
  }

  /** It is looked at again, because of its rate or because the limit is another one now. */
  look(rule: number, key: string): void {
    this.#touch(this.#counter(rule, key));
  }

  /** The last act of each operation: lets the next ones pass where there is room, and says what is to be stored. */
  changes(): Changes | null {
    if (this.#touched.size === 0) return null;
    const changes: Changes = { unparked: [], removed: [], saved: [], due: [], parked: [], shut: [], opened: [] };
    // Letting one pass here may bring it before another limit, which is touched in turn; the set grows as it is walked.
    for (const counter of this.#touched) this.#refill(counter, changes);
    // One that was full of those that wait elsewhere, until a moment ago.
    for (const counter of this.#freed) this.#refill(counter, changes);
    for (const counter of this.#touched) this.#sum(counter, changes);
    changes.shut.push(...this.#shut);
    this.#touched.clear();
    this.#freed.clear();
    this.#shut.clear();
    return changes;
  }

  /** After something was undone, or others have written. */
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
    // One whose turn is before that of what stands ready must not wait behind it: it ranks higher, or has come back.
    if (window === 0 || usage.passed === 0 || !mayJoin(readyOf(usage), window)) return false;
    if (!precedes(job, usage)) return false;
    const next = this.#nextOf(usage);
    return next === undefined || byTurn(job, next) < 0;
  }

  /** True when nothing of it stands ready any more, although more could start. */
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
        // While there was no room, it may have been parked behind others that stand ready.
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

  /** It has passed this one; on to the next. */
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

  /** What has become of a counter, for the store. */
  #sum(counter: Counter, changes: Changes): void {
    // A usage that says nothing is forgotten, or every key that was ever used would stay.
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
    // What it knew of the rate is over, too, also when the clock is set back to before that.
    counter.bucket = counter.usages.reduce((latest, { bucket }) => Math.max(latest, bucket), 0);
  }

  /** When the rate has room for one more to pass; or to join those that have passed already, where its turn is before theirs. */
  #opensAt(counter: Counter, usage: LaneUsage): number | null {
    const rule = this.#rule(counter);
    if (rule.rate === null) return null;
    const job = this.#nextOf(usage);
    const ready = readyOf(usage);
    const joins = job !== undefined && usage.passed > 0 && precedes(job, usage);
    return opensAt(rule, counter, this.#now, joins ? Math.min(ready, room(rule, counter, this.#now)) : ready);
  }

  /** The first of those that are parked there. */
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

  /** The counters of a job, narrow to wide. They are looked at again at the end of the operation. */
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
    // Written down, or after a clock was set back it would be found too full again and again.
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

/** What stands in the job's row: the limit's number and the job's key for it, for each of its limits. */
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
