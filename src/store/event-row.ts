import { dedupeKey } from "../core/dedupe-key.ts";
import type { Event } from "../core/event.ts";

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
