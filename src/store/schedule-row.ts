import { isDeepStrictEqual } from "node:util";
import { parseGeneratedId, type JobKey } from "../core/ids.ts";
import type { Act } from "./audit.ts";
import { type Flag, isYes } from "./flag.ts";
import type { StoredSchedule } from "./schedules.ts";
import type { Enqueued, NewJob } from "./store.ts";

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

/** What is kept of it in the audit: not the input of its jobs. */
export function auditedSchedule(schedule: StoredSchedule): object {
  const { job, cron, timezone, missed, within, overlap, paused, nextAt } = schedule;
  return { job, cron, timezone, missed, within, overlap, paused, nextAt };
}

/** Null: it was saved as it is, as at every start of a program. That its jobs are made otherwise is said, and not how. */
export function scheduleSaved(
  before: { schedule: StoredSchedule; template: string } | null,
  after: { schedule: StoredSchedule; template: string },
): Act | null {
  const { key } = after.schedule;
  const now = auditedSchedule(after.schedule);
  if (before === null) return { action: "schedule.saved", name: key, before: null, after: now };
  const was = auditedSchedule(before.schedule);
  const sameJobs = before.template === after.template;
  if (sameJobs && isDeepStrictEqual(was, now)) return null;
  return { action: "schedule.saved", name: key, before: was, after: sameJobs ? now : { ...now, template: "changed" } };
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
