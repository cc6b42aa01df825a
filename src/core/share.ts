import type { JobKey } from "./ids.ts";
import { byTurn } from "./job.ts";
import type { Usage } from "./limit.ts";

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
export interface Heads {
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

/** Goes on after `upTo`, with what the store gives: some of its parked jobs, or none when it has no more. */
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
export function headsOf({ ahead, upTo }: Share): Heads | null {
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
