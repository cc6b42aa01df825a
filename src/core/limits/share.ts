import type { JobKey } from "../text/ids.ts";
import { byTurn } from "../jobs/job.ts";
import type { LimitRule, Usage } from "./limit.ts";
import type { Changes } from "./turnstile.ts";

/** So many parked jobs of a share are remembered from one operation to the next. */
const REMEMBERED = 32;

/** Where a job stands in the order. */
export interface Turn {
  priority: number;
  key: JobKey;
}

/** A job that waits at a counter; `more`: it has other limits, too. `limits` is what stands in its row, where that is known. */
export interface Parked extends Turn {
  more: boolean;
  limits?: string;
}

/** Parked jobs of a share, the first ones in turn; `whole`: there are no more. */
interface Heads {
  readonly jobs: readonly Parked[];
  readonly whole: boolean;
}

/** What one lane has of a counter. */
export interface ShareState {
  readonly lane: number;
  running: number;
  passed: number;
  /** Of those that have passed, so many are parked before a later limit; the others stand ready. */
  beyond: number;
  parked: number;
  /** Of those that have passed, none has a lower priority than this, and none a higher key than the next. */
  lowest: number;
  last: number;
  bucket: number;
  /** When it wants to be looked at. */
  dueAt: number | null;
}

/** As it is stored. */
export type Stored = Readonly<ShareState> & { readonly id: number };

/** As it is worked with. */
export interface Share extends ShareState {
  readonly counter: Counter;
  /** What the store calls it; null until it is stored. */
  id: number | null;
  changed: boolean;
  /** Of its parked jobs those whose turn is not after `upTo`, in turn. */
  ahead: Parked[];
  upTo: Turn;
  /** Parked, and no longer parked, since it was stored. */
  joined: Map<JobKey, Parked> | null;
  left: Map<JobKey, Turn> | null;
}

/** The use of one limit under one key, over all lanes. */
export interface Counter extends Usage {
  readonly rule: number;
  readonly key: string;
  shares: Share[];
}

const BEFORE_ALL: Turn = { priority: Number.POSITIVE_INFINITY, key: 0 as JobKey };
export const AFTER_ALL: Turn = { priority: Number.NEGATIVE_INFINITY, key: 0 as JobKey };

export function toCounter(rule: number, key: string, shares: readonly Stored[]): Counter {
  const counter: Counter = { rule, key, shares: [], running: 0, bucket: 0 };
  for (const one of shares) {
    const upTo = one.parked > 0 ? BEFORE_ALL : AFTER_ALL;
    counter.shares.push({ ...one, counter, changed: false, ahead: [], upTo, joined: null, left: null });
    counter.running += one.running;
    counter.bucket = Math.max(counter.bucket, one.bucket);
  }
  return counter;
}

export function shareOf(counter: Counter, lane: number): Share {
  for (const share of counter.shares) if (share.lane === lane) return share;
  const none = { running: 0, passed: 0, beyond: 0, parked: 0, lowest: 0, last: 0, bucket: 0, dueAt: null };
  const share: Share = { id: null, lane, ...none, counter, changed: true, ahead: [], upTo: AFTER_ALL, joined: null, left: null };
  counter.shares.push(share);
  return share;
}

/** Nothing runs, and nothing waits. */
export function isIdle({ running, passed, parked }: ShareState): boolean {
  return running + passed + parked === 0;
}

export function readyOf({ passed, beyond }: ShareState): number {
  return passed - beyond;
}

/** Whether its turn is before that of the last of those that have passed. */
export function precedes({ key, priority }: Turn, { lowest, last }: ShareState): boolean {
  return priority > lowest || (priority === lowest && key < last);
}

export function addPassed(share: Share, { key, priority }: Turn): void {
  const first = share.passed === 0;
  share.lowest = first ? priority : Math.min(share.lowest, priority);
  share.last = first ? key : Math.max(share.last, key);
  share.passed += 1;
  share.changed = true;
}

export function park(share: Share, job: Parked): void {
  const { key } = job;
  if (!share.left?.delete(key)) (share.joined ??= new Map()).set(key, job);
  share.parked += 1;
  share.changed = true;
  if (byTurn(job, share.upTo) > 0) return;
  const { ahead } = share;
  // Most come last.
  let at = ahead.length;
  while (at > 0 && byTurn(job, ahead[at - 1] as Parked) < 0) at--;
  if (at === ahead.length) ahead.push(job);
  else ahead.splice(at, 0, job);
}

export function unpark(share: Share, { key, priority }: Turn): void {
  if (!share.joined?.delete(key)) (share.left ??= new Map()).set(key, { key, priority });
  share.parked -= 1;
  share.changed = true;
  const { ahead } = share;
  if (ahead[0]?.key === key) return void ahead.shift();
  const at = ahead.findIndex((one) => one.key === key);
  if (at !== -1) ahead.splice(at, 1);
}

/** Reads on after `upTo`: the store gives some of the parked jobs, or none if there are no more. */
export function readOn(share: Share, read: (after: Turn | null) => readonly Parked[]): void {
  const { left, upTo } = share;
  const late = share.joined === null ? [] : [...share.joined.values()].filter((job) => byTurn(job, upTo) > 0);
  const others = share.parked - late.length;
  const found = others === 0 ? [] : read(upTo === BEFORE_ALL ? null : upTo);
  const still = left === null ? found.slice() : found.filter(({ key }) => !left.has(key));
  share.upTo = still.length === others ? AFTER_ALL : (found.at(-1) ?? AFTER_ALL);
  share.ahead = late.length === 0 ? still : [...still, ...late.filter((job) => byTurn(job, share.upTo) < 0)].sort(byTurn);
}

export function lowerBuckets(counter: Counter): void {
  for (const share of counter.shares) {
    if (share.bucket <= counter.bucket) continue;
    share.bucket = counter.bucket;
    share.changed = true;
  }
}

/** Those of its parked jobs that it knows, once all is stored; null when it has not looked. */
function headsOf({ ahead, upTo }: Share): Heads | null {
  return upTo === BEFORE_ALL ? null : { jobs: ahead, whole: upTo === AFTER_ALL };
}

/** From now on its parked jobs are in the store, and only the first of them here. */
export function stored(share: Share): void {
  share.changed = false;
  share.joined = null;
  share.left = null;
  const { ahead } = share;
  if (share.parked === 0) share.upTo = AFTER_ALL;
  if (ahead.length <= REMEMBERED) return;
  ahead.length = REMEMBERED;
  share.upTo = ahead.at(-1) as Parked;
}

/** What a store knows, as it was when changes were last stored. Each may throw `Missing`. */
export interface Facts {
  rule(id: number): LimitRule;
  shares(rule: number, key: string): readonly Stored[];
  /** The next jobs that are parked at a share, in turn, after that one: some of them, and none only when there are none. */
  parked(share: number, after: Turn | null): readonly Parked[];
  isParked(share: number, job: Turn): boolean;
  /** What stands in the row of a parked job. */
  limitsOf(job: JobKey): string;
}

/** What a store may have to fetch first. */
export type Fact =
  | { what: "shares"; rule: number; key: string }
  | { what: "parked"; share: number; after: Turn | null }
  | { what: "isParked"; share: number; job: Turn }
  | { what: "limitsOf"; job: JobKey };

/** Thrown by a store that has to fetch a fact first: it does, and has everything decided anew, by another turnstile. */
export class Missing extends Error {
  override readonly name = "Missing";
  readonly fact: Fact;
  constructor(fact: Fact) {
    super(`It is not known yet: ${JSON.stringify(fact)}.`);
    this.fact = fact;
  }
}

/** The facts that were fetched so far; any other is missing. Reading does not change them. */
export class Fetched implements Facts {
  readonly #ruleOf: (id: number) => LimitRule;
  readonly #shares = new Map<string, readonly Stored[]>();
  readonly #parked = new Map<number, Heads>();
  readonly #isParked = new Map<string, boolean>();
  readonly #limits = new Map<JobKey, string>();

  constructor(ruleOf: (id: number) => LimitRule) {
    this.#ruleOf = ruleOf;
  }

  addShares(rule: number, key: string, shares: readonly Stored[]): void {
    this.#shares.set(`${rule}:${key}`, shares);
  }

  /** All that was known of a counter when changes were last stored. */
  recall(rule: number, key: string, known: readonly KnownShare[]): void {
    this.addShares(
      rule,
      key,
      known.map(({ share }) => share),
    );
    for (const { share, heads } of known) if (heads !== null) this.setParked(share.id, heads);
  }

  hasShares(rule: number, key: string): boolean {
    return this.#shares.has(`${rule}:${key}`);
  }

  /** Of the known shares at which jobs are parked, those of whose jobs none is known. */
  unread(): number[] {
    const shares = [...this.#shares.values()].flat();
    return shares.filter(({ id, parked }) => parked > 0 && !this.#parked.has(id)).map(({ id }) => id);
  }

  /** The next ones, after those that were added before; `whole`: there are no more. */
  addParked(share: number, jobs: readonly Parked[], whole: boolean): void {
    const known = this.#parked.get(share);
    this.#parked.set(share, { jobs: [...(known?.jobs ?? []), ...jobs], whole });
  }

  /** The first ones, whatever was known before. */
  setParked(share: number, heads: Heads): void {
    this.#parked.set(share, heads);
  }

  /** Null: none of them is known. */
  heads(share: number): Heads | null {
    return this.#parked.get(share) ?? null;
  }

  addIsParked(share: number, job: Turn, isParked: boolean): void {
    this.#isParked.set(`${share}:${job.key}`, isParked);
  }

  addLimits(job: JobKey, limits: string): void {
    this.#limits.set(job, limits);
  }

  rule(id: number): LimitRule {
    return this.#ruleOf(id);
  }

  shares(rule: number, key: string): readonly Stored[] {
    const shares = this.#shares.get(`${rule}:${key}`);
    if (shares === undefined) throw new Missing({ what: "shares", rule, key });
    return shares;
  }

  parked(share: number, after: Turn | null): readonly Parked[] {
    const { jobs, whole } = this.#parked.get(share) ?? { jobs: [], whole: false };
    const next = after === null ? jobs : jobs.filter((job) => byTurn(job, after) > 0);
    if (next.length === 0 && !whole) throw new Missing({ what: "parked", share, after: jobs.at(-1) ?? null });
    return next;
  }

  isParked(share: number, job: Turn): boolean {
    const { jobs, whole } = this.#parked.get(share) ?? { jobs: [], whole: false };
    const last = jobs.at(-1);
    if (whole || (last !== undefined && byTurn(job, last) <= 0)) return jobs.some(({ key }) => key === job.key);
    const isParked = this.#isParked.get(`${share}:${job.key}`);
    if (isParked === undefined) throw new Missing({ what: "isParked", share, job });
    return isParked;
  }

  limitsOf(job: JobKey): string {
    const limits = this.#limits.get(job);
    if (limits === undefined) throw new Missing({ what: "limitsOf", job });
    return limits;
  }
}

/** Beyond this many counters, what is known of them is forgotten. */
const MOST = 20_000;

/** What one lane has of a counter; null: none of what is parked there is known. */
export interface KnownShare {
  share: Stored;
  heads: Heads | null;
}

/**
 * Counters as they were when changes were last stored, for the next decision: right as long as no other process has
 * changed them. Facts that are needed once are not in it.
 */
export class Remembered {
  /** Another process decides about these counters, too: what is known now will soon be outdated. */
  isShared = false;
  readonly #counters = new Map<string, readonly KnownShare[]>();

  /** Undefined: nothing is known of it. */
  counter(rule: number, key: string): readonly KnownShare[] | undefined {
    return this.#counters.get(`${rule}:${key}`);
  }

  /** As a turnstile has left them, with these changes, which were all stored; `facts`: what it knew before. */
  keep(counters: Iterable<Counter>, changes: Changes, facts: Fetched): void {
    if (this.#counters.size > MOST) this.#counters.clear();
    const moved = new Set([...changes.parked, ...changes.unparked].map(({ share }) => share));
    for (const counter of counters) this.#keep(counter, moved, facts);
  }

  forget(): void {
    this.#counters.clear();
  }

  #keep({ rule, key, shares }: Counter, moved: ReadonlySet<Share>, facts: Fetched): void {
    const known: KnownShare[] = [];
    for (const share of shares) {
      const { id, lane, running, passed, beyond, parked, lowest, last, bucket, dueAt } = share;
      // Only the store knows what it is called.
      if (id === null) return void this.#counters.delete(`${rule}:${key}`);
      // Those that it did not need to look at are as they were, if none came or went.
      const heads = headsOf(share) ?? (moved.has(share) ? null : facts.heads(id));
      known.push({ share: { id, lane, running, passed, beyond, parked, lowest, last, bucket, dueAt }, heads });
    }
    this.#counters.set(`${rule}:${key}`, known);
  }
}
