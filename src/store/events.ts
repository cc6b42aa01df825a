import { dedupeKey, type Event } from "../core/jobs/event.ts";
import type { Fence, ProcessId } from "../core/text/ids.ts";

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

/** Sinks and durable subscribers: how far each has got with what happened, and who delivers it. */
export interface SinkStore {
  /** Enters a sink or durable subscriber, for what happens from now on; one that is known keeps its place. Answers where it stands. */
  open(name: string, kind: string): Promise<number>;
  /** Takes the right to deliver, or, by its token, keeps it. It is free if it has no holder, its time is over, or its holder is dead. Null: no such sink. */
  hold(name: string, by: { holder: ProcessId; ttl: number; token: Fence | null }): Promise<SinkHold | null>;
  /** Records what became of a delivery. False, and nothing changes, if the token is not the sink's any more. */
  update(name: string, token: Fence, delivery: Delivery): Promise<boolean>;
  /** Forgets a sink and its place: an operator's act. */
  drop(name: string): Promise<boolean>;
  list(): Promise<SinkView[]>;
}

/**
 * Everything up to `seq` is delivered, or a delivery failed: both keep the right to deliver for `ttl`. Null gives the right
 * up.
 */
export type Delivery = { seq: number; ttl: number } | { error: string; ttl: number } | null;

/** `token` is null while another process delivers; `cursor` is how far it is, either way. */
export interface SinkHold {
  token: Fence | null;
  cursor: number;
}

export interface SinkView {
  name: string;
  /** "webhook", "subscriber", … */
  kind: string;
  /** Everything up to here is delivered. */
  cursor: number;
  /** How many events are still to be delivered, and when the oldest of them happened. */
  behind: number;
  oldestAt: number | null;
  /** Who delivers, or did last. */
  holder: ProcessId | null;
  /** In a row, with the last error. */
  failures: number;
  failedAt: number | null;
  error: string | null;
  deliveredAt: number | null;
  createdAt: number;
}
