import type { AuditGuards } from "../sql/audit.ts";
import type { BuildGuard } from "../sql/builds/runs.ts";
import type { EventGuard } from "../sql/event-log.ts";
import type { ScheduleGuard } from "../sql/schedules.ts";
import type { ResultGuard } from "../sql/work/results.ts";
import type { TargetGuard } from "../sql/work/targets.ts";
import { GUARDS } from "./schema/audit.ts";

/** Triggers can be disabled without being dropped. */
export function auditGuards(s: string): AuditGuards {
  return {
    sql: `
      select name from unnest(cast(:guards as text[])) with ordinality as guard (name, place)
      where not exists (
        select 1 from pg_trigger
        where tgrelid in (cast('${s}.audit' as regclass), cast('${s}.audit_head' as regclass))
          and tgname = name and tgenabled in ('O', 'A') and not tgisinternal)
      order by place`,
    params: { guards: GUARDS },
  };
}

/** The server looks after its pages itself. */
export const BUILD_GUARD: BuildGuard = {
  columns: "",
  check: () => {},
  inserted: { columns: "", values: "", params: () => ({}) },
};

export const EVENT_GUARD: EventGuard = { columns: "", check: () => {} };

export const SCHEDULE_GUARD: ScheduleGuard = {
  columns: "",
  check: () => {},
  saved: { columns: "", values: "", updates: "", params: () => ({}) },
};

export const TARGET_GUARD: TargetGuard = { columns: "", check: () => {} };

export const RESULT_GUARD: ResultGuard = {
  columns: "",
  found: "result.output_hash, result.output_text, result.output_file, result.output_size",
  isIntact: () => true,
  check: () => {},
};
