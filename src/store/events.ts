import { dedupeKey, type Event } from "../core/jobs/event.ts";
import type { Fence, ProcessId } from "../core/text/ids.ts";

/** Events, and the positions of sinks and named subscribers among them. */
export interface EventStore {
  page(query: EventQuery): Promise<Event[]>;
  /** Removes at most `limit` of the oldest events that every sink has passed. */
  trim(what: { olderThan: number; limit: number }): Promise<number>;
  /** The number of the newest event. `sink`: where that sink continues; an unknown one is added, and starts from now. */
  position(sink?: { name: string; kind: string }): Promise<number>;
  /** Takes or, by its token, keeps the right to deliver. It is free without a holder, after its `ttl`, or if its holder is dead. */
  hold(sink: string, by: { holder: ProcessId; ttl: number; token: Fence | null }): Promise<SinkHold | null>;
  /** Records a delivery. False: the sink has another token, and nothing changes. */
  deliver(sink: string, token: Fence, delivery: Delivery): Promise<boolean>;
  sinks(): Promise<SinkView[]>;
  dropSink(name: string): Promise<boolean>;
}

export interface EventQuery {
  after: number;
  limit: number;
  /** Exact types, or prefixes that end in `*`. */
  types?: readonly string[];
  job?: string;
  build?: string;
  last?: boolean;
}

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

/** Dedupe keys are computed when events are read: many never are. */
export function toEvent({ seq, type, at, transition, job, build, data }: EventRow, databaseId: string): Event {
  const event: Event = { seq, type, at, dedupeKey: dedupeKey(databaseId, transition), data: JSON.parse(data) as unknown };
  if (job !== null) event.job = job;
  if (build !== null) event.build = build;
  return event;
}

/** Delivered up to `seq`, or failed: both keep the right for `ttl`. Null gives it up. */
export type Delivery = { seq: number; ttl: number } | { error: string; ttl: number } | null;

/** `token`: null while another process delivers. */
export interface SinkHold {
  token: Fence | null;
  cursor: number;
}

export interface SinkView {
  name: string;
  kind: string;
  cursor: number;
  /** Undelivered events, and when the oldest of them happened. */
  behind: number;
  oldestAt: number | null;
  holder: ProcessId | null;
  failures: number;
  failedAt: number | null;
  error: string | null;
  deliveredAt: number | null;
  createdAt: number;
}
