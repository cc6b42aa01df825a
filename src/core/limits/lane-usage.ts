import type { JobKey } from "../text/ids.ts";
import { byTurn } from "../jobs/job.ts";
import type { LimitRule, Usage } from "./limit.ts";
import type { Changes } from "./limit-gate.ts";

const REMEMBERED = 32;

export interface Turn {
  priority: number;
  key: JobKey;
}

/** A job parked at a counter. `more`: it has other limits too. `limits`: its row's text, where known. */
export interface Parked extends Turn {
  more: boolean;
  limits?: string;
}

/** The first parked jobs of a usage in claim order; `whole`: there are no others. */
interface Heads {
  readonly jobs: readonly Parked[];
  readonly whole: boolean;
}

/** One lane's part of a counter. */
export interface LaneUsageState {
  readonly lane: number;
  running: number;
  passed: number;
  /** Passed jobs that are parked at a later limit; the other passed jobs are ready. */
  beyond: number;
  parked: number;
  /** Bounds of the passed jobs: none has a lower priority than `lowest` or a higher key than `last`. */
  lowest: number;
  last: number;
  bucket: number;
  /** When the gate must recheck this usage. */
  dueAt: number | null;
}

export type Stored = Readonly<LaneUsageState> & { readonly id: number };

export interface LaneUsage extends LaneUsageState {
  readonly counter: Counter;
  /** Null until the usage is stored. */
  id: number | null;
  changed: boolean;
  /** The parked jobs up to `knownUpTo`, in claim order. */
  ahead: Parked[];
  upTo: Turn;
  /** Changes since the usage was stored. */
  joined: Map<JobKey, Parked> | null;
  left: Map<JobKey, Turn> | null;
}

/** The use of one limit under one key, over all lanes. */
export interface Counter extends Usage {
  readonly rule: number;
  readonly key: string;
  usages: LaneUsage[];
}

const BEFORE_ALL: Turn = { priority: Number.POSITIVE_INFINITY, key: 0 as JobKey };
export const AFTER_ALL: Turn = { priority: Number.NEGATIVE_INFINITY, key: 0 as JobKey };

export function toCounter(rule: number, key: string, usages: readonly Stored[]): Counter {
  const counter: Counter = { rule, key, usages: [], running: 0, bucket: 0 };
  for (const one of usages) {
    const upTo = one.parked > 0 ? BEFORE_ALL : AFTER_ALL;
    counter.usages.push({ ...one, counter, changed: false, ahead: [], upTo, joined: null, left: null });
    counter.running += one.running;
    counter.bucket = Math.max(counter.bucket, one.bucket);
  }
  return counter;
}

export function laneUsageOf(counter: Counter, lane: number): LaneUsage {
  for (const usage of counter.usages) if (usage.lane === lane) return usage;
  const none = { running: 0, passed: 0, beyond: 0, parked: 0, lowest: 0, last: 0, bucket: 0, dueAt: null };
  const usage: LaneUsage = {
    id: null,
    lane,
    ...none,
    counter,
    changed: true,
    ahead: [],
    upTo: AFTER_ALL,
    joined: null,
    left: null,
  };
  counter.usages.push(usage);
  return usage;
}

export function isIdle({ running, passed, parked }: LaneUsageState): boolean {
  return running + passed + parked === 0;
}

export function readyOf({ passed, beyond }: LaneUsageState): number {
  return passed - beyond;
}

/** Whether the job comes before the last of the passed jobs in claim order. */
export function precedes({ key, priority }: Turn, { lowest, last }: LaneUsageState): boolean {
  return priority > lowest || (priority === lowest && key < last);
}

export function addPassed(usage: LaneUsage, { key, priority }: Turn): void {
  const first = usage.passed === 0;
  usage.lowest = first ? priority : Math.min(usage.lowest, priority);
  usage.last = first ? key : Math.max(usage.last, key);
  usage.passed += 1;
  usage.changed = true;
}

export function park(usage: LaneUsage, job: Parked): void {
  const { key } = job;
  if (!usage.left?.delete(key)) (usage.joined ??= new Map()).set(key, job);
  usage.parked += 1;
  usage.changed = true;
  if (byTurn(job, usage.upTo) > 0) return;
  const { ahead } = usage;
  let at = ahead.length;
  while (at > 0 && byTurn(job, ahead[at - 1] as Parked) < 0) at--;
  if (at === ahead.length) ahead.push(job);
  else ahead.splice(at, 0, job);
}

export function unpark(usage: LaneUsage, { key, priority }: Turn): void {
  if (!usage.joined?.delete(key)) (usage.left ??= new Map()).set(key, { key, priority });
  usage.parked -= 1;
  usage.changed = true;
  const { ahead } = usage;
  if (ahead[0]?.key === key) return void ahead.shift();
  const at = ahead.findIndex((one) => one.key === key);
  if (at !== -1) ahead.splice(at, 1);
}

/** Reads the parked jobs after `knownUpTo` from the store. */
export function readOn(usage: LaneUsage, read: (after: Turn | null) => readonly Parked[]): void {
  const { left, upTo } = usage;
  const late = usage.joined === null ? [] : [...usage.joined.values()].filter((job) => byTurn(job, upTo) > 0);
  const others = usage.parked - late.length;
  const found = others === 0 ? [] : read(upTo === BEFORE_ALL ? null : upTo);
  const still = left === null ? found.slice() : found.filter(({ key }) => !left.has(key));
  usage.upTo = still.length === others ? AFTER_ALL : (found.at(-1) ?? AFTER_ALL);
  usage.ahead = late.length === 0 ? still : [...still, ...late.filter((job) => byTurn(job, usage.upTo) < 0)].sort(byTurn);
}

export function lowerBuckets(counter: Counter): void {
  for (const usage of counter.usages) {
    if (usage.bucket <= counter.bucket) continue;
    usage.bucket = counter.bucket;
    usage.changed = true;
  }
}

/** Null: no parked job was read. */
function headsOf({ ahead, upTo }: LaneUsage): Heads | null {
  return upTo === BEFORE_ALL ? null : { jobs: ahead, whole: upTo === AFTER_ALL };
}

export function stored(usage: LaneUsage): void {
  usage.changed = false;
  usage.joined = null;
  usage.left = null;
  const { ahead } = usage;
  if (usage.parked === 0) usage.upTo = AFTER_ALL;
  if (ahead.length <= REMEMBERED) return;
  ahead.length = REMEMBERED;
  usage.upTo = ahead.at(-1) as Parked;
}

/** The rows of a store as of the last stored change. Each method may throw `RowMissing`. */
export interface LimitRows {
  rule(id: number): LimitRule;
  usages(rule: number, key: string): readonly Stored[];
  /** The next parked jobs after a position. Empty only if there are none. */
  parked(usage: number, after: Turn | null): readonly Parked[];
  isParked(usage: number, job: Turn): boolean;
  limitsOf(job: JobKey): string;
}

export type MissingRow =
  | { what: "usages"; rule: number; key: string }
  | { what: "parked"; usage: number; after: Turn | null }
  | { what: "isParked"; usage: number; job: Turn }
  | { what: "limitsOf"; job: JobKey };

/** Thrown when a row was not fetched yet. The store fetches it and starts the whole decision again with a new LimitGate. */
export class RowMissing extends Error {
  override readonly name = "RowMissing";
  readonly missing: MissingRow;
  constructor(missing: MissingRow) {
    super(`It is not known yet: ${JSON.stringify(missing)}.`);
    this.missing = missing;
  }
}

/** The rows fetched so far; reading does not change them. */
export class FetchedRows implements LimitRows {
  readonly #ruleOf: (id: number) => LimitRule;
  readonly #usages = new Map<string, readonly Stored[]>();
  readonly #parked = new Map<number, Heads>();
  readonly #isParked = new Map<string, boolean>();
  readonly #limits = new Map<JobKey, string>();

  constructor(ruleOf: (id: number) => LimitRule) {
    this.#ruleOf = ruleOf;
  }

  addUsages(rule: number, key: string, usages: readonly Stored[]): void {
    this.#usages.set(`${rule}:${key}`, usages);
  }

  recall(rule: number, key: string, known: readonly KnownUsage[]): void {
    this.addUsages(
      rule,
      key,
      known.map(({ usage }) => usage),
    );
    for (const { usage, heads } of known) if (heads !== null) this.setParked(usage.id, heads);
  }

  hasUsages(rule: number, key: string): boolean {
    return this.#usages.has(`${rule}:${key}`);
  }

  /** Usages with parked jobs of which none was fetched. */
  unread(): number[] {
    const usages = [...this.#usages.values()].flat();
    return usages.filter(({ id, parked }) => parked > 0 && !this.#parked.has(id)).map(({ id }) => id);
  }

  /** Appends jobs behind those added before. */
  addParked(usage: number, jobs: readonly Parked[], whole: boolean): void {
    const known = this.#parked.get(usage);
    this.#parked.set(usage, { jobs: [...(known?.jobs ?? []), ...jobs], whole });
  }

  setParked(usage: number, heads: Heads): void {
    this.#parked.set(usage, heads);
  }

  heads(usage: number): Heads | null {
    return this.#parked.get(usage) ?? null;
  }

  addIsParked(usage: number, job: Turn, isParked: boolean): void {
    this.#isParked.set(`${usage}:${job.key}`, isParked);
  }

  addLimits(job: JobKey, limits: string): void {
    this.#limits.set(job, limits);
  }

  rule(id: number): LimitRule {
    return this.#ruleOf(id);
  }

  usages(rule: number, key: string): readonly Stored[] {
    const usages = this.#usages.get(`${rule}:${key}`);
    if (usages === undefined) throw new RowMissing({ what: "usages", rule, key });
    return usages;
  }

  parked(usage: number, after: Turn | null): readonly Parked[] {
    const { jobs, whole } = this.#parked.get(usage) ?? { jobs: [], whole: false };
    const next = after === null ? jobs : jobs.filter((job) => byTurn(job, after) > 0);
    if (next.length === 0 && !whole) throw new RowMissing({ what: "parked", usage, after: jobs.at(-1) ?? null });
    return next;
  }

  isParked(usage: number, job: Turn): boolean {
    const { jobs, whole } = this.#parked.get(usage) ?? { jobs: [], whole: false };
    const last = jobs.at(-1);
    if (whole || (last !== undefined && byTurn(job, last) <= 0)) return jobs.some(({ key }) => key === job.key);
    const isParked = this.#isParked.get(`${usage}:${job.key}`);
    if (isParked === undefined) throw new RowMissing({ what: "isParked", usage, job });
    return isParked;
  }

  limitsOf(job: JobKey): string {
    const limits = this.#limits.get(job);
    if (limits === undefined) throw new RowMissing({ what: "limitsOf", job });
    return limits;
  }
}

const MOST = 20_000;

export interface KnownUsage {
  usage: Stored;
  heads: Heads | null;
}

/** Counters as of the last stored change, for the next decision. Valid until another process changes them. */
export class CounterCache {
  /** Another process writes these counters too, so that cached ones are soon outdated. */
  isShared = false;
  readonly #counters = new Map<string, readonly KnownUsage[]>();

  counter(rule: number, key: string): readonly KnownUsage[] | undefined {
    return this.#counters.get(`${rule}:${key}`);
  }

  keep(counters: Iterable<Counter>, changes: Changes, limitRows: FetchedRows): void {
    if (this.#counters.size > MOST) this.#counters.clear();
    const moved = new Set([...changes.parked, ...changes.unparked].map(({ usage }) => usage));
    for (const counter of counters) this.#keep(counter, moved, limitRows);
  }

  forget(): void {
    this.#counters.clear();
  }

  #keep({ rule, key, usages }: Counter, moved: ReadonlySet<LaneUsage>, limitRows: FetchedRows): void {
    const known: KnownUsage[] = [];
    for (const usage of usages) {
      const { id, lane, running, passed, beyond, parked, lowest, last, bucket, dueAt } = usage;
      // The store has not assigned the id yet.
      if (id === null) return void this.#counters.delete(`${rule}:${key}`);
      // Parked jobs that the gate did not read are unchanged if no job came or went.
      const heads = headsOf(usage) ?? (moved.has(usage) ? null : limitRows.heads(id));
      known.push({ usage: { id, lane, running, passed, beyond, parked, lowest, last, bucket, dueAt }, heads });
    }
    this.#counters.set(`${rule}:${key}`, known);
  }
}
