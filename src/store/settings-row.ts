import type { QueueSettings } from "../core/queue.ts";
import { type SetQueue, type SetRule, SettingsView } from "../core/settings.ts";

/** Databases without booleans hold 0 or 1. */
type Bool = boolean | 0 | 1;

/** What is set for a queue, as it is read. */
export interface QueueRow {
  name: string;
  paused: Bool;
  events: Bool;
  /** JSON. */
  keep: string | null;
}

/** A limit, as it is read; `job` is "" where it is one of the whole queue. */
export interface RuleRow {
  id: number;
  queue: string;
  job: string;
  position: number;
  keyed: Bool;
  concurrency: number | null;
  starts: number | null;
  per: number | null;
}

export function toSettings(queues: readonly QueueRow[], rules: readonly RuleRow[]): SettingsView {
  return new SettingsView(queues.map(toQueue), rules.map(toRule));
}

function toQueue({ name, paused, events, keep }: QueueRow): SetQueue {
  const kept = keep === null ? {} : (JSON.parse(keep) as QueueSettings["keep"]);
  return { name, paused: isTrue(paused), events: isTrue(events), keep: kept };
}

function toRule({ id, queue, job, position, keyed, concurrency, starts, per }: RuleRow): SetRule {
  const rate = starts === null || per === null ? null : { starts, per };
  return { id, queue, job, rule: { of: job === "" ? "queue" : "job", position, keyed: isTrue(keyed), concurrency, rate } };
}

function isTrue(value: Bool): boolean {
  return value === true || value === 1;
}
