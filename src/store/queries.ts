import type { Lane } from "../core/jobs/claiming.ts";
import { type FinishedState, type Job, JOB_STATES, type JobState } from "../core/jobs/job.ts";
import { lastMinute, type Tallied } from "./job-row.ts";
import type { Works } from "./processes.ts";

/** Reading, for people and programs. */
export interface QueryStore {
  get(id: string): Promise<Job | null>;
  list(filter: ListFilter): Promise<{ items: Job[]; next?: string }>;
  counts(filter: { queue?: string; name?: string }): Promise<Record<JobState, number>>;
  queues(): Promise<QueueOverview[]>;
  /** What can be claimed or not claimed as a whole, with how much of it is pending. */
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
  /** How many have ended so far: those that were retried or forgotten since are in it, so it never falls. */
  ended: number;
  /** How many ended in the last minute, about. */
  lastMinute: Record<FinishedState, number>;
}

export interface LaneOverview extends Works {
  /** Waiting and pending. */
  pending: number;
}

/** How many jobs of a lane are in a state. */
export interface LaneCount {
  lane: number;
  state: JobState;
  n: number;
}

/** The lanes of a queue or a name; null for all of them. */
export function lanesOf(lanes: Iterable<Lane>, filter: { queue?: string; name?: string }): Lane[] | null {
  const { queue, name } = filter;
  if (queue === undefined && name === undefined) return null;
  return [...lanes].filter((lane) => (queue ?? lane.queue) === lane.queue && (name ?? lane.name) === lane.name);
}

/** All of them, or those of some lanes. */
export function countsOf(counted: Iterable<LaneCount>, lanes: readonly Lane[] | null): Record<JobState, number> {
  const wanted = lanes && new Set(lanes.map(({ id }) => id));
  const counts = none();
  for (const { lane, state, n } of counted) if (wanted === null || wanted.has(lane)) counts[state] += n;
  return counts;
}

/** What it takes to say how it stands with queues. */
interface Counted {
  lanes: Iterable<Lane>;
  /** What is set for queues, by name. */
  set: ReadonlyMap<string, { paused: boolean }>;
  unfinished: Iterable<LaneCount>;
  finished: Iterable<Tallied>;
  /** When the oldest job of a lane was made that could run now. */
  oldest: ReadonlyMap<number, number>;
}

/** By name: queues that have jobs, had some, or have something set. */
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
  // A lane that was made since the lanes were read is counted next time.
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
  // What is unwanted by now is not counted.
  for (const queue of queues.values()) if (queue.counts.pending === 0) delete queue.oldestAt;
  return [...queues.values()].sort((a, b) => a.name.localeCompare(b.name));
}

/** What waits and what is pending, lane by lane. */
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
