import { byClaimOrder } from "../jobs/job.ts";
import type { JobKey } from "../text/ids.ts";
import type { Usage } from "./limit.ts";

const MAX_KNOWN_PARKED = 32;

export interface JobPosition {
  priority: number;
  key: JobKey;
}

/** A row of `counters`: the use of one limit under one key by the jobs of one lane. */
export interface UsageRow {
  /** 0 until the store assigns an id, before it writes the row. */
  id: number;
  readonly rule: number;
  readonly key: string;
  readonly lane: number;
  running: number;
  /** Pending jobs that have passed this limit. */
  passed: number;
  /** Passed jobs that are parked at a later limit; the other passed jobs are ready. */
  beyond: number;
  parked: number;
  /** Bounds of the passed jobs: none has a lower priority than `lowest` or a higher key than `last`. */
  lowest: number;
  last: number;
  bucket: number;
  /** When the rate lets a parked job pass, or the row can be deleted. */
  due_at: number | null;
}

/** A row of `parked`. `limits` has all limits of the job if it has more than this one. */
export interface ParkedRow {
  counter: number;
  priority: number;
  job: JobKey;
  limits: string | null;
}

export interface ParkedJob extends JobPosition {
  limits: string | null;
}

export interface LaneUsage extends UsageRow {
  readonly counter: Counter;
  isStored: boolean;
  isChanged: boolean;
  /** The first parked jobs in claim order. If `parked` is greater than their number, there are others. */
  first: ParkedJob[];
}

/** The use of one limit under one key, over all lanes. */
export interface Counter extends Usage {
  readonly rule: number;
  readonly key: string;
  usages: LaneUsage[];
}

export function isIdle({ running, passed, parked }: UsageRow): boolean {
  return running + passed + parked === 0;
}

export function countReady({ passed, beyond }: UsageRow): number {
  return passed - beyond;
}

export function comesBeforeLastPassed({ key, priority }: JobPosition, { lowest, last }: UsageRow): boolean {
  return priority > lowest || (priority === lowest && key < last);
}

export function addPassed(usage: LaneUsage, { key, priority }: JobPosition): void {
  const isFirst = usage.passed === 0;
  usage.lowest = isFirst ? priority : Math.min(usage.lowest, priority);
  usage.last = isFirst ? key : Math.max(usage.last, key);
  usage.passed += 1;
  usage.isChanged = true;
}

export function lowerBuckets(counter: Counter): void {
  for (const usage of counter.usages) {
    if (usage.bucket <= counter.bucket) continue;
    usage.bucket = counter.bucket;
    usage.isChanged = true;
  }
}

export function addParked(usage: LaneUsage, job: ParkedJob): void {
  const { first } = usage;
  let at = first.length;
  const isKnown = at === usage.parked || (at > 0 && byClaimOrder(job, first[at - 1] as ParkedJob) < 0);
  usage.parked += 1;
  usage.isChanged = true;
  if (!isKnown) return;
  while (at > 0 && byClaimOrder(job, first[at - 1] as ParkedJob) < 0) at--;
  if (at === first.length) first.push(job);
  else first.splice(at, 0, job);
}

export function removeParked(usage: LaneUsage, job: JobPosition): void {
  usage.parked -= 1;
  usage.isChanged = true;
  const at = usage.first.findIndex(({ key }) => key === job.key);
  if (at === 0) usage.first.shift();
  else if (at > 0) usage.first.splice(at, 1);
}

export function markStored(usage: LaneUsage): void {
  usage.isChanged = false;
  usage.isStored = true;
  if (usage.first.length > MAX_KNOWN_PARKED) usage.first.length = MAX_KNOWN_PARKED;
}

export function parkedRow({ id }: LaneUsage, { key, priority, limits }: ParkedJob): ParkedRow {
  return { counter: id, priority, job: key, limits };
}
