import type { BuildGuard } from "../sql/builds/runs.ts";
import type { ScheduleGuard } from "../sql/schedules.ts";

/** The server looks after its pages itself. */
export const BUILD_GUARD: BuildGuard = {
  columns: "",
  check: () => {},
  inserted: { columns: "", values: "", params: () => ({}) },
};

export const SCHEDULE_GUARD: ScheduleGuard = {
  columns: "",
  check: () => {},
  saved: { columns: "", values: "", updates: "", params: () => ({}) },
};
