import type { Lane } from "../core/jobs/claiming.ts";
import { type FinishedState, type Job, JOB_STATES, type JobState } from "../core/jobs/job.ts";
import { lastMinute, type Tallied } from "./job-row.ts";
import type { Works } from "./processes.ts";

export interface QueryStore {
  get(id: string): Promise<Job | null>;
  list(filter: ListFilter): Promise<{ items: Job[]; next?: string }>;
  counts(filter: { queue?: string; name?: string }): Promise<Record<JobState, number>>;
  queues(): Promise<QueueOverview[]>;
  lanes(): Promise<LaneOverview[]>;
}

export interface ListFilter {
  queue?: string;
  name?: string;
  state?: JobState;
  limit: number;
  after?: string;
}

export interface QueueOverview {
  name: string;
  paused: boolean;
  counts: Record<JobState, number>;
  /** When the oldest job that could run now was made. */
  oldestAt?: number;
  /** How many ever ended, also those that were retried or removed since. */
  ended: number;
  lastMinute: Record<FinishedState, number>;
}

export interface LaneOverview extends Works {
  pending: number;
}

export interface LaneCount {
  lane: number;
  state: JobState;
  n: number;
}

export function lanesOf(lanes: Iterable<Lane>, filter: { queue?: string; name?: string }): Lane[] | null {
  const { queue, name } = filter;
  if (queue === undefined && name === undefined) return null;
  return [...lanes].filter((lane) => (queue ?? lane.queue) === lane.queue && (name ?? lane.name) === lane.name);
}

export function countsOf(counted: Iterable<LaneCount>, lanes: readonly Lane[] | null): Record<JobState, number> {
  const wanted = lanes && new Set(lanes.map(({ id }) => id));
  const counts = none();
  for (const { lane, state, n } of counted) if (wanted === null || wanted.has(lane)) counts[state] += n;
  return counts;
}

interface Counted {
  lanes: Iterable<Lane>;
  set: ReadonlyMap<string, { paused: boolean }>;
  unfinished: Iterable<LaneCount>;
  finished: Iterable<Tallied>;
  /** By lane: when the oldest job that could run now was made. */
  oldest: ReadonlyMap<number, number>;
}

export function queueOverviews({ lanes, set, unfinished, finished, oldest }: Counted, now: number): QueueOverview[] {
  const queues = new Map<string, QueueOverview>();
  const overview = (name: string): QueueOverview => {
    let queue = queues.get(name);
    if (queue === undefined) {
      const paused = set.get(name)?.paused ?? false;
      queues.set(name, (queue = { name, paused, counts: none(), ended: 0, lastMinute: noneEnded() }));
    }
    return queue;
  };
  for (const name of set.keys()) overview(name);
  const ofLane = new Map<number, QueueOverview>();
  for (const lane of lanes) {
    const queue = overview(lane.queue);
    ofLane.set(lane.id, queue);
    const at = oldest.get(lane.id);
    if (at !== undefined && (queue.oldestAt === undefined || at < queue.oldestAt)) queue.oldestAt = at;
  }
  // A lane that was made after the lanes were read is counted next time.
  for (const { lane, state, n } of unfinished) {
    const queue = ofLane.get(lane);
    if (queue !== undefined) queue.counts[state] += n;
  }
  for (const tallied of finished) {
    const queue = ofLane.get(tallied.lane);
    if (queue === undefined) continue;
    queue.counts[tallied.state] += tallied.n;
    queue.ended += tallied.ended;
    queue.lastMinute[tallied.state] += lastMinute(tallied, now);
  }
  for (const queue of queues.values()) if (queue.counts.pending === 0) delete queue.oldestAt;
  return [...queues.values()].sort((a, b) => a.name.localeCompare(b.name));
}

export function laneOverviews(lanes: Iterable<Lane>, unfinished: Iterable<LaneCount>): LaneOverview[] {
  const pending = new Map<number, number>();
  for (const { lane, state, n } of unfinished) {
    if (state !== "running") pending.set(lane, (pending.get(lane) ?? 0) + n);
  }
  return [...lanes].map(({ id, queue, name, version }) => ({ queue, name, version, pending: pending.get(id) ?? 0 }));
}

function noneEnded(): Record<FinishedState, number> {
  return { succeeded: 0, failed: 0, cancelled: 0, quarantined: 0 };
}

function none(): Record<JobState, number> {
  return Object.fromEntries(JOB_STATES.map((state) => [state, 0])) as Record<JobState, number>;
}
