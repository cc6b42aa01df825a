import type { Event } from "../core/event.ts";

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
