import { dedupeKey, type Event } from "../core/jobs/event.ts";

/** What happened, for as long as it is kept. */
export interface EventStore {
  /** In the order it was committed. */
  page(query: EventQuery): Promise<Event[]>;
  /** The `seq` of the newest event there ever was; 0 before the first. */
  newest(): Promise<number>;
  /** Removes the oldest events, at most `limit`, that every sink has passed and that are older than this. */
  trim(what: { olderThan: number; limit: number }): Promise<number>;
}

export interface EventQuery {
  /** Only those with a higher `seq`. */
  after: number;
  limit: number;
  /** As they are written, or all that begin with what is before a `*`. */
  types?: readonly string[];
  job?: string;
  build?: string;
  /** The newest `limit` of them, not the oldest. */
  last?: boolean;
}

/** What is read of an event. */
export const EVENT = "seq, type, at, transition, job, build, data";
export interface EventRow {
  seq: number;
  type: string;
  at: number;
  transition: string;
  job: string | null;
  build: string | null;
  data: string;
}

/** Dedupe keys are made when events are read: most are read once, and many never. */
export function toEvent({ seq, type, at, transition, job, build, data }: EventRow, databaseId: string): Event {
  const event: Event = { seq, type, at, dedupeKey: dedupeKey(databaseId, transition), data: JSON.parse(data) as unknown };
  if (job !== null) event.job = job;
  if (build !== null) event.build = build;
  return event;
}
