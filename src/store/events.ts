import { dedupeKey, type Event } from "../core/jobs/event.ts";
import type { Fence, ProcessId } from "../core/text/ids.ts";

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

/** Turns a row into an event. The dedupe key is computed here and not stored, because many events are never read. */
export function toEvent({ seq, type, at, transition, job, build, data }: EventRow, databaseId: string): Event {
  const event: Event = { seq, type, at, dedupeKey: dedupeKey(databaseId, transition), data: JSON.parse(data) as unknown };
  if (job !== null) event.job = job;
  if (build !== null) event.build = build;
  return event;
}

/** Outcome of a delivery: delivered up to `seq`, or failed. Both keep the right to deliver for `ttl`; null gives it up. */
export type Delivery = { seq: number; ttl: number } | { error: string; ttl: number } | null;

/** A relay's hold of a sink. `token` is null while another process delivers. */
export interface SinkHold {
  token: Fence | null;
  cursor: number;
}

export interface SinkView {
  name: string;
  kind: string;
  cursor: number;
  /** Number of undelivered events. `oldestAt` is when the oldest of them happened. */
  behind: number;
  oldestAt: number | null;
  holder: ProcessId | null;
  failures: number;
  failedAt: number | null;
  error: string | null;
  deliveredAt: number | null;
  createdAt: number;
}
