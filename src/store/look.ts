import type { FinishedState, Job, JobState } from "../core/job.ts";
import type { Works } from "./processes.ts";

/** Reading, for people and programs. */
export interface LookStore {
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
