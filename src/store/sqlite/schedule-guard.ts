import { damagedRow } from "../../core/errors.ts";
import { isYes } from "../flag.ts";
import type { GuardedSchedule, ScheduleGuard } from "../sql/schedules.ts";
import { rowChecksum } from "./checksum.ts";

function checksumOf(row: GuardedSchedule): number {
  return rowChecksum("holdfast_schedules", { ...row, overlap: isYes(row.overlap) ? 1 : 0 });
}

export const SCHEDULE_GUARD: ScheduleGuard = {
  columns: ", checksum",
  check(row) {
    if ((row as { checksum?: number | null }).checksum !== checksumOf(row)) throw damagedRow(`The schedule ${row.key}`);
  },
  saved: {
    columns: ", checksum",
    values: ", :checksum",
    updates: ", checksum = excluded.checksum",
    params: (row) => ({ checksum: checksumOf(row) }),
  },
};
