import type { Lane } from "../core/jobs/claiming.ts";
import type { JobSelection } from "../core/jobs/filter.ts";
import { type FinishedState, isFinished, JOB_STATES, type JobState } from "../core/jobs/job.ts";
import type { ProcessId } from "../core/text/ids.ts";
import { lastMinute, type Tallied } from "./job-row.ts";
import type { Works } from "./processes.ts";
import type { QueryStore } from "./store.ts";

/** Counts of the jobs of each queue, of each lane that ever had a job, and of those that each process runs. */
export interface JobOverview {
  queues: QueueOverview[];
  lanes: LaneOverview[];
  /** Running jobs by holder; null: claimed by hand. */
  running: ReadonlyMap<ProcessId | null, number>;
}

export interface ListFilter extends JobSelection {
  /** Of creation. Default: "oldest" first. */
  order?: "newest" | "oldest";
  limit: number;
  after?: string;
}

export interface QueueOverview {
  name: string;
  paused: boolean;
  counts: Record<JobState, number>;
  /** Creation time of the oldest job that could run now. */
  oldestAt?: number;
  /** How many jobs ever ended, including those that were retried or removed since. */
  ended: number;
  lastMinute: Record<FinishedState, number>;
}

export interface LaneOverview extends Works {
  counts: Record<JobState, number>;
}

export async function countJobs(
  queries: Pick<QueryStore, "overview">,
  { queue, name }: { queue?: string; name?: string } = {},
): Promise<Record<JobState, number>> {
  const { lanes } = await queries.overview();
  const isAsked = (lane: LaneOverview) => (queue ?? lane.queue) === lane.queue && (name ?? lane.name) === lane.name;
  return sumCounts(lanes.filter(isAsked));
}

export function sumCounts(of: readonly { counts: Record<JobState, number> }[]): Record<JobState, number> {
  const sum = noJobs();
  for (const { counts } of of) for (const state of JOB_STATES) sum[state] += counts[state];
  return sum;
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

interface Counted {
  lanes: readonly Lane[];
  set: ReadonlyMap<string, { paused: boolean }>;
  counted: readonly (LaneCount & Omit<Tallied, "state">)[];
  oldest: ReadonlyMap<number, number>;
  running: ReadonlyMap<ProcessId | null, number>;
}

export function jobOverview({ lanes, set, counted, oldest, running }: Counted, now: number): JobOverview {
  const queues = new Map<string, QueueOverview>();
  const overview = (name: string): QueueOverview => {
    let queue = queues.get(name);
    if (queue === undefined) {
      const paused = set.get(name)?.paused ?? false;
      queues.set(name, (queue = { name, paused, counts: noJobs(), ended: 0, lastMinute: noneEnded() }));
    }
    return queue;
  };
  for (const name of set.keys()) overview(name);
  // Skip lanes without counts: a user's transaction that added one was rolled back, or the lane is newer than the counts.
  const byLane = Map.groupBy(counted, ({ lane }) => lane);
  const overviews = lanes.flatMap(({ id, queue: name, ...lane }): LaneOverview[] => {
    const ofLane = byLane.get(id);
    if (ofLane === undefined) return [];
    const queue = overview(name);
    const at = oldest.get(id);
    if (at !== undefined && (queue.oldestAt === undefined || at < queue.oldestAt)) queue.oldestAt = at;
    const counts = noJobs();
    for (const { state, ...tallied } of ofLane) {
      counts[state] += tallied.n;
      queue.counts[state] += tallied.n;
      if (!isFinished(state)) continue;
      queue.ended += tallied.ended;
      queue.lastMinute[state] += lastMinute({ state, ...tallied }, now);
    }
    return [{ queue: name, name: lane.name, version: lane.version, counts }];
  });
  for (const queue of queues.values()) if (queue.counts.pending === 0) delete queue.oldestAt;
  return { queues: [...queues.values()].sort((a, b) => a.name.localeCompare(b.name)), lanes: overviews, running };
}

function noneEnded(): Record<FinishedState, number> {
  return { succeeded: 0, failed: 0, cancelled: 0, quarantined: 0 };
}

function noJobs(): Record<JobState, number> {
  return Object.fromEntries(JOB_STATES.map((state) => [state, 0])) as Record<JobState, number>;
}
