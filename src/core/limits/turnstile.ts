import {
  addPassed,
  AFTER_ALL,
  type Counter,
  type Facts,
  isIdle,
  lowerBuckets,
  park,
  type Parked,
  precedes,
  readOn,
  readyOf,
  type Share,
  shareOf,
  stored,
  toCounter,
  type Turn,
  unpark,
} from "./share.ts";
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
  unparked: { share: Share; job: Turn }[];
  /** Counters that say nothing any more. */
  removed: Share[];
  /** All they say; those without an id are new, and are given one. */
  saved: Share[];
  /** Of those that were stored before, when they want to be looked at. */
  due: Share[];
  parked: { share: Share; job: Parked }[];
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
export class Turnstile {
  readonly #facts: Facts;
  #now: number;
  readonly #counters = new Map<string, Counter>();
  /** By what stands in a job's row. */
  readonly #byText = new Map<string, readonly Counter[]>();
  readonly #touched = new Set<Counter>();
  readonly #freed = new Set<Counter>();
  readonly #shut = new Set<JobKey>();

  constructor(facts: Facts, now: number) {
    this.#facts = facts;
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
      const share = shareOf(counter, job.lane);
      if (i < blocked) share.beyond += 1;
      else share.passed -= 1;
      share.changed = true;
    }
    park(shareOf(counters[blocked] as Counter, job.lane), toParked(job, counters));
    this.#shut.add(job.key);
    return "held";
  }

  /** A job is running no more. One that never began gives back what it took of the rate. */
  end(lane: number, limits: string, began: boolean): void {
    for (const counter of this.#countersOf(limits)) {
      end(this.#rule(counter), counter, began);
      const share = shareOf(counter, lane);
      share.running -= 1;
      share.changed = true;
      if (!began) lowerBuckets(counter);
    }
  }

  /** A pending job is pending no more, and was never started. `gate` is where it stood. */
  withdraw(job: LimitedJob, gate: string | null): void {
    if (gate === "time") return;
    const counters = this.#countersOf(job.limits);
    for (const counter of counters) {
      const share = shareOf(counter, job.lane);
      // One that has passed all others is parked at the last.
      if (gate === "limit" && (counter === counters.at(-1) || this.#isParked(share, job))) return unpark(share, job);
      share.passed -= 1;
      if (gate === "limit") share.beyond -= 1;
      share.changed = true;
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
      const share = shareOf(counter, job.lane);
      if (!this.#mayPass(counter, share, job)) {
        park(share, toParked(job, counters));
        for (const before of counters.slice(from, i)) this.#beyond(before, job.lane, 1);
        return false;
      }
      addPassed(share, job);
    }
    return true;
  }

  #mayPass(counter: Counter, share: Share, job: Turn): boolean {
    const window = windowOf(room(this.#rule(counter), counter, this.#now));
    if (share.beyond >= WINDOW) return false;
    if (share.parked === 0 && readyOf(share) < window) return true;
    // One whose turn is before that of what stands ready must not wait behind it: it ranks higher, or has come back.
    if (window === 0 || share.passed === 0 || !mayJoin(readyOf(share), window)) return false;
    if (!precedes(job, share)) return false;
    const next = this.#nextOf(share);
    return next === undefined || byTurn(job, next) < 0;
  }

  /** True when nothing of it stands ready any more, although more could start. */
  #start(counter: Counter, lane: number): boolean {
    const rule = this.#rule(counter);
    start(rule, counter, this.#now);
    const share = shareOf(counter, lane);
    share.running += 1;
    share.passed -= 1;
    share.bucket = counter.bucket;
    share.changed = true;
    return readyOf(share) === 0 && share.parked > 0 && share.beyond < WINDOW && room(rule, counter, this.#now) > 0;
  }

  #refill(counter: Counter, changes: Changes): void {
    const window = windowOf(room(this.#rule(counter), counter, this.#now));
    for (const share of counter.shares) {
      for (let joined = 0; share.parked > 0 && share.beyond < WINDOW;) {
        const full = readyOf(share) >= window;
        if (full && (joined >= window || !mayJoin(readyOf(share), window))) break;
        const job = this.#nextOf(share);
        // While there was no room, it may have been parked behind others that stand ready.
        if (job === undefined || (full && !precedes(job, share))) break;
        if (full) joined++;
        unpark(share, job);
        addPassed(share, job);
        if (job.more && !this.#goOn(counter, job, share.lane)) continue;
        this.#shut.delete(job.key);
        changes.opened.push({ key: job.key, lane: share.lane });
      }
    }
  }

  /** It has passed this one; on to the next. */
  #goOn(passed: Counter, job: Parked, lane: number): boolean {
    const { key, priority, limits = this.#facts.limitsOf(key) } = job;
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
    const share = shareOf(counter, lane);
    share.beyond += by;
    share.changed = true;
    if (by === -1 && share.beyond === WINDOW - 1) this.#freed.add(counter);
  }

  /** What has become of a counter, for the store. */
  #sum(counter: Counter, changes: Changes): void {
    // A share that says nothing is forgotten, or every key that was ever used would stay.
    const isOver = (share: Share) => isIdle(share) && share.bucket <= this.#now;
    let over = 0;
    for (const share of counter.shares) {
      const isNew = share.id === null;
      if (isOver(share)) {
        over++;
        noteParked(share, changes);
        if (!isNew) changes.removed.push(share);
        continue;
      }
      const dueAt = isIdle(share) ? Math.ceil(share.bucket) : share.parked > 0 ? this.#opensAt(counter, share) : null;
      if (dueAt !== share.dueAt) {
        share.dueAt = dueAt;
        if (!isNew) changes.due.push(share);
      }
      noteParked(share, changes);
      if (share.changed) changes.saved.push(share);
      stored(share);
    }
    if (over === 0) return;
    counter.shares = over === counter.shares.length ? [] : counter.shares.filter((share) => !isOver(share));
    // What it knew of the rate is over, too, also when the clock is set back to before that.
    counter.bucket = counter.shares.reduce((latest, { bucket }) => Math.max(latest, bucket), 0);
  }

  /** When the rate has room for one more to pass; or to join those that have passed already, where its turn is before theirs. */
  #opensAt(counter: Counter, share: Share): number | null {
    const rule = this.#rule(counter);
    if (rule.rate === null) return null;
    const job = this.#nextOf(share);
    const ready = readyOf(share);
    const joins = job !== undefined && share.passed > 0 && precedes(job, share);
    return opensAt(rule, counter, this.#now, joins ? Math.min(ready, room(rule, counter, this.#now)) : ready);
  }

  /** The first of those that are parked there. */
  #nextOf(share: Share): Parked | undefined {
    const { id } = share;
    while (share.ahead.length === 0 && share.upTo !== AFTER_ALL) {
      readOn(share, (after) => (id === null ? [] : this.#facts.parked(id, after)));
    }
    return share.ahead[0];
  }

  #isParked(share: Share, job: Turn): boolean {
    if (share.joined?.has(job.key)) return true;
    if (share.id === null || share.parked === 0 || share.left?.has(job.key)) return false;
    if (byTurn(job, share.upTo) <= 0) return share.ahead.some(({ key }) => key === job.key);
    return this.#facts.isParked(share.id, job);
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
      counter = toCounter(rule, key, this.#facts.shares(rule, key));
      this.#counters.set(name, counter);
    }
    return counter;
  }

  #rule(counter: Counter): LimitRule {
    return this.#facts.rule(counter.rule);
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

function noteParked(share: Share, changes: Changes): void {
  if (share.left !== null) for (const job of share.left.values()) changes.unparked.push({ share, job });
  if (share.joined !== null) for (const job of share.joined.values()) changes.parked.push({ share, job });
}
