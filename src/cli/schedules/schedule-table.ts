import { age, ahead } from "../../core/age.ts";
import type { Schedule } from "../../core/schedule.ts";
import { type Column, paint, table } from "../render/table.ts";

/** The schedules, for people. */
export function scheduleTable(schedules: readonly Schedule[], now: number): string {
  if (schedules.length === 0) return paint("dim", "No schedules.");
  const columns: Column<Schedule>[] = [
    { title: "KEY", value: ({ key }) => key, least: 8 },
    { title: "CRON", value: ({ cron }) => cron, least: 11 },
    { title: "ZONE", value: ({ timezone }) => timezone, least: 8 },
    { title: "LAST", right: true, value: ({ lastAt }) => (lastAt === undefined ? "never" : `${age(now - lastAt)} ago`) },
    { title: "NEXT", value: (schedule) => next(schedule, now), style: ({ paused }) => (paused ? "yellow" : null) },
  ];
  // Most schedules are called like their job.
  if (schedules.some(({ key, job }) => key !== job)) columns.splice(1, 0, { title: "JOB", value: ({ job }) => job, least: 8 });
  return table(columns, schedules);
}

/** `2026-03-29 03:00:00 (in 7h)`, as a clock in its time zone will show. */
function next({ paused, nextAt, timezone }: Schedule, now: number): string {
  if (paused) return "paused";
  const when = nextAt > now ? `in ${ahead(nextAt - now)}` : `due since ${age(now - nextAt)}`;
  return `${clockTime(nextAt, timezone)} (${when})`;
}

function clockTime(at: number, timezone: string): string {
  try {
    // Swedish has the order of ISO 8601.
    return new Intl.DateTimeFormat("sv-SE", { timeZone: timezone, dateStyle: "short", timeStyle: "medium" }).format(at);
  } catch {
    return new Date(at).toISOString();
  }
}
