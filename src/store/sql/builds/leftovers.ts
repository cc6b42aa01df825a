import type { Dialect } from "../script.ts";

/** Builds that have ended and still have work items. Uses the index work_target to go from one build that has any to the next. */
export function endedWithWork({ table }: Dialect): string {
  const work = table("work");
  return `
    with recursive open (build) as (
      select min(build) from ${work}
      union all
      select (select min(work.build) from ${work} as work where work.build > open.build) from open
      where open.build is not null)
    select key, pipeline, queue from open join ${table("builds")} on key = open.build
    where state in ('SUCCESS', 'FAILED', 'ABANDONED')`;
}
