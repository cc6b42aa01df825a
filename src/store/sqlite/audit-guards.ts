import type { AuditGuards } from "../sql/audit.ts";
import { GUARDS } from "./schema/audit.ts";

/** Each trigger is compared with the text that created it. */
export const AUDIT_GUARDS: AuditGuards = {
  sql: `
    select guard.value ->> 'name' as name from json_each(:guards) as guard
    where not exists (
      select 1 from sqlite_master
      where type = 'trigger' and name = guard.value ->> 'name' and sql = guard.value ->> 'sql')
    order by guard.key`,
  params: { guards: JSON.stringify(GUARDS) },
};
