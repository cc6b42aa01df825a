import type { QueueMinute } from "../core/jobs/minutes.ts";

/** Counts of ended attempts by queue and minute. Each worker adds what it counted, once a minute. */
export interface MinuteStore {
  /** Adds to the minutes, and to the total of each queue; removes minutes before `keepFrom`. */
  add(minutes: readonly QueueMinute[], keepFrom: number): Promise<void>;
  /** From this minute on, by minute and queue; or the totals of each queue. */
  read(query: MinutesQuery | "totals"): Promise<QueueMinute[]>;
}

export interface MinutesQuery {
  from: number;
  queue?: string;
  /** How many minutes are added up; a sum has the first of them. Default: 1. */
  step?: number;
}
