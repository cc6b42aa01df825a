import { damagedRow } from "../../core/errors.ts";
import { isYes } from "../flag.ts";
import type { GuardedSchedule, ScheduleGuard } from "../sql/schedules.ts";
import { isSame, rowSum } from "./row-sum.ts";

/** What a schedule's checksum covers, and the checksum. */
export const SCHEDULE = "key, cron, timezone, missed, within, overlap, template, name, sum";

export interface SummedSchedule extends GuardedSchedule {
  sum: number | null;
}

export function scheduleSum({ key, cron, timezone, missed, within, overlap, template, name }: GuardedSchedule): number {
  return rowSum(key, cron, timezone, missed, within, isYes(overlap) ? 1 : 0, template, name);
}

export const SCHEDULE_GUARD: ScheduleGuard = {
  columns: ", sum",
  check(row) {
    if (!isSame((row as SummedSchedule).sum, scheduleSum(row))) throw damagedRow(`The schedule ${row.key}`);
  },
  saved: {
    columns: ", sum",
    values: ", :sum",
    updates: ", sum = excluded.sum",
    params: (row) => ({ sum: scheduleSum(row) }),
  },
};
