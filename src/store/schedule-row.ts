import { parseGeneratedId, type JobKey } from "../core/ids.ts";
import { type Flag, isYes } from "./flag.ts";
import type { Enqueued, NewJob, StoredSchedule } from "./store.ts";

/** A schedule as it is read. */
export interface ScheduleRow extends Omit<StoredSchedule, "paused" | "overlap" | "lastAt"> {
  paused: Flag;
  overlap: Flag;
  lastAt: number | null;
}

export function toSchedule({ paused, overlap, lastAt, ...row }: ScheduleRow): StoredSchedule {
  const schedule: StoredSchedule = { ...row, paused: isYes(paused), overlap: isYes(overlap) };
  return lastAt === null ? schedule : { ...schedule, lastAt };
}

/** What is kept in the audit of one that is removed: not the input of its jobs. */
export function auditedSchedule(schedule: StoredSchedule): object {
  const { job, cron, timezone, missed, within, overlap, paused, nextAt } = schedule;
  return { job, cron, timezone, missed, within, overlap, paused, nextAt };
}

/** The jobs of some ticks. The template is the row's own, read in this transaction: what was saved last counts. */
export function jobsOf(template: string, ticks: readonly number[]): NewJob[] {
  const job = JSON.parse(template) as NewJob;
  return ticks.map((tick) => ({ ...job, scheduledFor: tick, runAt: tick }));
}

/** The key of the job that was made last; null: it was a duplicate of one whose id somebody chose. */
export function madeLast(answers: readonly Enqueued[]): JobKey | null {
  const last = answers.at(-1);
  return last === undefined ? null : (parseGeneratedId(last.id)?.key ?? null);
}
