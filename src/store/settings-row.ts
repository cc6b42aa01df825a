import type { QueueSettings } from "../core/queue.ts";
import { type SetQueue, type SetRule, SettingsView } from "../core/settings.ts";
import { type Flag, isYes } from "./flag.ts";

/** What is set for a queue, as it is read. */
export interface QueueRow {
  name: string;
  paused: Flag;
  events: Flag;
  /** JSON. */
  keep: string | null;
}

/** A limit, as it is read; `job` is "" where it is one of the whole queue. */
export interface RuleRow {
  id: number;
  queue: string;
  job: string;
  position: number;
  keyed: Flag;
  concurrency: number | null;
  starts: number | null;
  per: number | null;
}

export function toSettings(queues: readonly QueueRow[], rules: readonly RuleRow[]): SettingsView {
  return new SettingsView(queues.map(toQueue), rules.map(toRule));
}

function toQueue({ name, paused, events, keep }: QueueRow): SetQueue {
  const kept = keep === null ? {} : (JSON.parse(keep) as QueueSettings["keep"]);
  return { name, paused: isYes(paused), events: isYes(events), keep: kept };
}

function toRule({ id, queue, job, position, keyed, concurrency, starts, per }: RuleRow): SetRule {
  const rate = starts === null || per === null ? null : { starts, per };
  return { id, queue, job, rule: { of: job === "" ? "queue" : "job", position, keyed: isYes(keyed), concurrency, rate } };
}
