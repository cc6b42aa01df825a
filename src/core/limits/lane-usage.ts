import type { JobKey } from "../text/ids.ts";
import { byClaimOrder } from "../jobs/job.ts";
import type { LimitRule, Usage } from "./limit.ts";
import type { LimitChanges } from "./limit-gate.ts";

const MAX_CACHED_PARKED_JOBS = 32;

export interface JobPosition {
  priority: number;
  key: JobKey;
}

/** A job parked at a counter. `more`: it has other limits too. `limits`: its row's text, where known. */
export interface ParkedJob extends JobPosition {
  more: boolean;
  limits?: string;
}

/** The first parked jobs of a usage in claim order; `whole`: there are no others. */
interface FirstParked {
  readonly jobs: readonly ParkedJob[];
  readonly whole: boolean;
}

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
  dueAt: number | null;
}

export type StoredLaneUsage = Readonly<LaneUsageState> & { readonly id: number };

export interface LaneUsage extends LaneUsageState {
  readonly counter: Counter;
  id: number | null;
  changed: boolean;
  knownParked: ParkedJob[];
  knownUpTo: JobPosition;
  newlyParked: Map<JobKey, ParkedJob> | null;
  unparked: Map<JobKey, JobPosition> | null;
}

/** The use of one limit under one key, over all lanes. */
export interface Counter extends Usage {
  readonly rule: number;
  readonly key: string;
  usages: LaneUsage[];
}

const BEFORE_ALL: JobPosition = { priority: Number.POSITIVE_INFINITY, key: 0 as JobKey };
export const AFTER_ALL: JobPosition = { priority: Number.NEGATIVE_INFINITY, key: 0 as JobKey };

export function toCounter(rule: number, key: string, usages: readonly StoredLaneUsage[]): Counter {
  const counter: Counter = { rule, key, usages: [], running: 0, bucket: 0 };
  for (const one of usages) {
    const upTo = one.parked > 0 ? BEFORE_ALL : AFTER_ALL;
    counter.usages.push({ ...one, counter, changed: false, knownParked: [], knownUpTo: upTo, newlyParked: null, unparked: null });
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
    knownParked: [],
    knownUpTo: AFTER_ALL,
    newlyParked: null,
    unparked: null,
  };
  counter.usages.push(usage);
  return usage;
}

export function isIdle({ running, passed, parked }: LaneUsageState): boolean {
  return running + passed + parked === 0;
}

export function countReady({ passed, beyond }: LaneUsageState): number {
  return passed - beyond;
}

export function comesBeforeLastPassed({ key, priority }: JobPosition, { lowest, last }: LaneUsageState): boolean {
  return priority > lowest || (priority === lowest && key < last);
}

export function addPassed(usage: LaneUsage, { key, priority }: JobPosition): void {
  const first = usage.passed === 0;
  usage.lowest = first ? priority : Math.min(usage.lowest, priority);
  usage.last = first ? key : Math.max(usage.last, key);
  usage.passed += 1;
  usage.changed = true;
}

export function park(usage: LaneUsage, job: ParkedJob): void {
  const { key } = job;
  if (!usage.unparked?.delete(key)) (usage.newlyParked ??= new Map()).set(key, job);
  usage.parked += 1;
  usage.changed = true;
  if (byClaimOrder(job, usage.knownUpTo) > 0) return;
  const { knownParked } = usage;
  let at = knownParked.length;
  while (at > 0 && byClaimOrder(job, knownParked[at - 1] as ParkedJob) < 0) at--;
  if (at === knownParked.length) knownParked.push(job);
  else knownParked.splice(at, 0, job);
}

export function unpark(usage: LaneUsage, { key, priority }: JobPosition): void {
  if (!usage.newlyParked?.delete(key)) (usage.unparked ??= new Map()).set(key, { key, priority });
  usage.parked -= 1;
  usage.changed = true;
  const { knownParked } = usage;
  if (knownParked[0]?.key === key) return void knownParked.shift();
  const at = knownParked.findIndex((one) => one.key === key);
  if (at !== -1) knownParked.splice(at, 1);
}

export function readMoreParked(usage: LaneUsage, read: (after: JobPosition | null) => readonly ParkedJob[]): void {
  const { unparked, knownUpTo } = usage;
  const late =
    usage.newlyParked === null ? [] : [...usage.newlyParked.values()].filter((job) => byClaimOrder(job, knownUpTo) > 0);
  const others = usage.parked - late.length;
  const found = others === 0 ? [] : read(knownUpTo === BEFORE_ALL ? null : knownUpTo);
  const still = unparked === null ? found.slice() : found.filter(({ key }) => !unparked.has(key));
  usage.knownUpTo = still.length === others ? AFTER_ALL : (found.at(-1) ?? AFTER_ALL);
  usage.knownParked =
    late.length === 0 ? still : [...still, ...late.filter((job) => byClaimOrder(job, usage.knownUpTo) < 0)].sort(byClaimOrder);
}

export function lowerBuckets(counter: Counter): void {
  for (const usage of counter.usages) {
    if (usage.bucket <= counter.bucket) continue;
    usage.bucket = counter.bucket;
    usage.changed = true;
  }
}

function firstParkedOf({ knownParked, knownUpTo }: LaneUsage): FirstParked | null {
  return knownUpTo === BEFORE_ALL ? null : { jobs: knownParked, whole: knownUpTo === AFTER_ALL };
}

export function markStored(usage: LaneUsage): void {
  usage.changed = false;
  usage.newlyParked = null;
  usage.unparked = null;
  const { knownParked } = usage;
  if (usage.parked === 0) usage.knownUpTo = AFTER_ALL;
  if (knownParked.length <= MAX_CACHED_PARKED_JOBS) return;
  knownParked.length = MAX_CACHED_PARKED_JOBS;
  usage.knownUpTo = knownParked.at(-1) as ParkedJob;
}

/** The rows of a store as of the last stored change. Each method may throw `RowMissing`. */
export interface LimitRows {
  rule(id: number): LimitRule;
  usages(rule: number, key: string): readonly StoredLaneUsage[];
  /** The next parked jobs after a position. Empty only if there are none. */
  parked(usage: number, after: JobPosition | null): readonly ParkedJob[];
  isParked(usage: number, job: JobPosition): boolean;
  limitsOf(job: JobKey): string;
}

export type MissingRow =
  | { what: "usages"; rule: number; key: string }
  | { what: "parked"; usage: number; after: JobPosition | null }
  | { what: "isParked"; usage: number; job: JobPosition }
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

export class FetchedRows implements LimitRows {
  readonly #ruleOf: (id: number) => LimitRule;
  readonly #usages = new Map<string, readonly StoredLaneUsage[]>();
  readonly #parked = new Map<number, FirstParked>();
  readonly #isParked = new Map<string, boolean>();
  readonly #limits = new Map<JobKey, string>();

  constructor(ruleOf: (id: number) => LimitRule) {
    this.#ruleOf = ruleOf;
  }

  addUsages(rule: number, key: string, usages: readonly StoredLaneUsage[]): void {
    this.#usages.set(`${rule}:${key}`, usages);
  }

  addKnownUsages(rule: number, key: string, known: readonly KnownUsage[]): void {
    this.addUsages(
      rule,
      key,
      known.map(({ usage }) => usage),
    );
    for (const { usage, firstParked } of known) if (firstParked !== null) this.setParked(usage.id, firstParked);
  }

  hasUsages(rule: number, key: string): boolean {
    return this.#usages.has(`${rule}:${key}`);
  }

  usagesWithoutParked(): number[] {
    const usages = [...this.#usages.values()].flat();
    return usages.filter(({ id, parked }) => parked > 0 && !this.#parked.has(id)).map(({ id }) => id);
  }

  addParked(usage: number, jobs: readonly ParkedJob[], whole: boolean): void {
    const known = this.#parked.get(usage);
    this.#parked.set(usage, { jobs: [...(known?.jobs ?? []), ...jobs], whole });
  }

  setParked(usage: number, heads: FirstParked): void {
    this.#parked.set(usage, heads);
  }

  firstParked(usage: number): FirstParked | null {
    return this.#parked.get(usage) ?? null;
  }

  addIsParked(usage: number, job: JobPosition, isParked: boolean): void {
    this.#isParked.set(`${usage}:${job.key}`, isParked);
  }

  addLimits(job: JobKey, limits: string): void {
    this.#limits.set(job, limits);
  }

  rule(id: number): LimitRule {
    return this.#ruleOf(id);
  }

  usages(rule: number, key: string): readonly StoredLaneUsage[] {
    const usages = this.#usages.get(`${rule}:${key}`);
    if (usages === undefined) throw new RowMissing({ what: "usages", rule, key });
    return usages;
  }

  parked(usage: number, after: JobPosition | null): readonly ParkedJob[] {
    const { jobs, whole } = this.#parked.get(usage) ?? { jobs: [], whole: false };
    const next = after === null ? jobs : jobs.filter((job) => byClaimOrder(job, after) > 0);
    if (next.length === 0 && !whole) throw new RowMissing({ what: "parked", usage, after: jobs.at(-1) ?? null });
    return next;
  }

  isParked(usage: number, job: JobPosition): boolean {
    const { jobs, whole } = this.#parked.get(usage) ?? { jobs: [], whole: false };
    const last = jobs.at(-1);
    if (whole || (last !== undefined && byClaimOrder(job, last) <= 0)) return jobs.some(({ key }) => key === job.key);
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

const MAX_CACHED_COUNTERS = 20_000;

export interface KnownUsage {
  usage: StoredLaneUsage;
  firstParked: FirstParked | null;
}

/** Counters as of the last stored change, for the next decision. Valid until another process changes them. */
export class CounterCache {
  readonly #counters = new Map<string, readonly KnownUsage[]>();

  counter(rule: number, key: string): readonly KnownUsage[] | undefined {
    return this.#counters.get(`${rule}:${key}`);
  }

  update(counters: Iterable<Counter>, changes: LimitChanges, limitRows: FetchedRows): void {
    if (this.#counters.size > MAX_CACHED_COUNTERS) this.#counters.clear();
    const moved = new Set([...changes.parked, ...changes.unparked].map(({ usage }) => usage));
    for (const counter of counters) this.#updateCounter(counter, moved, limitRows);
  }

  clear(): void {
    this.#counters.clear();
  }

  #updateCounter({ rule, key, usages }: Counter, moved: ReadonlySet<LaneUsage>, limitRows: FetchedRows): void {
    const known: KnownUsage[] = [];
    for (const usage of usages) {
      const { id, lane, running, passed, beyond, parked, lowest, last, bucket, dueAt } = usage;
      if (id === null) return void this.#counters.delete(`${rule}:${key}`);
      // Parked jobs that the gate did not read are unchanged if no job came or went.
      const heads = firstParkedOf(usage) ?? (moved.has(usage) ? null : limitRows.firstParked(id));
      known.push({ usage: { id, lane, running, passed, beyond, parked, lowest, last, bucket, dueAt }, firstParked: heads });
    }
    this.#counters.set(`${rule}:${key}`, known);
  }
}
