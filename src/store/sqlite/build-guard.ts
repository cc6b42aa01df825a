import { damagedRow } from "../../core/text/errors.ts";
import type { BuildColumns } from "../builds.ts";
import { isYes } from "../job-row.ts";
import type { BuildGuard } from "../sql/builds/runs.ts";
import type { GuardedSchedule, ScheduleGuard } from "../sql/schedules.ts";
import { isIntact, rowChecksum } from "./checksum.ts";

/** A checksum of what never changes in a build's row. */
export const BUILD_GUARD: BuildGuard = {
  columns: ", checksum",
  check(row) {
    if (!isIntact("holdfast_builds", row as BuildColumns & { checksum: number | null })) throw damagedRow(`Build ${row.id}`);
  },
  inserted: {
    columns: ", checksum",
    values: ", :checksum",
    params: (row) => ({ checksum: rowChecksum("holdfast_builds", row) }),
  },
};

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
