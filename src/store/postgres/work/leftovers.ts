import type { BuildKey, JobKey } from "../../../core/ids.ts";
import type { Clearing } from "../../work.ts";
import { listOf, type Rows } from "../driver.ts";

/** Builds that have ended and still have work items: from one build that has any to the next, by work_target. */
export function endedWithWork(s: string): string {
  return `
    with recursive open (build) as (
      (select build from ${s}.work order by build limit 1)
      union all
      select (select build from ${s}.work where work.build > open.build order by build limit 1) from open
      where open.build is not null)
    select key, pipeline, queue from open join ${s}.builds on key = open.build
    where state in ('SUCCESS', 'FAILED', 'ABANDONED')`;
}

/** Work items of builds that have ended. */
export class Leftovers {
  readonly #sql: Record<"any" | "builds", string>;
  readonly #jobs: Record<Clearing["which"], string>;

  constructor(s: string) {
    const ended = `from (${endedWithWork(s)}) as ended`;
    this.#sql = {
      any: `select 1 ${ended} where pipeline = $1 limit 1`,
      builds: `select key, queue ${ended} where $1::text is null or pipeline = $1 order by key`,
    };
    const jobs = (also: string) => `
      select job.key, job.lane from ${s}.work as work join ${s}.jobs as job on job.key = work.job
      where work.build = any($1::bigint[]) ${also} order by job.key limit $2`;
    this.#jobs = { all: jobs(""), idle: jobs("and (job.state <> 'running' or work.kind = 'listing')") };
  }

  async any(rows: Rows, pipeline: string): Promise<boolean> {
    return (await rows(this.#sql.any, pipeline)).length > 0;
  }

  async builds(rows: Rows, { pipeline }: Clearing): Promise<{ key: BuildKey; queue: string }[]> {
    const found = await rows<[BuildKey, string]>(this.#sql.builds, pipeline ?? null);
    return found.map(([key, queue]) => ({ key, queue }));
  }

  async jobs(rows: Rows, builds: readonly BuildKey[], { which, limit }: Clearing): Promise<{ job: JobKey; lane: number }[]> {
    const found = await rows<[JobKey, number]>(this.#jobs[which], listOf(builds), limit);
    return found.map(([job, lane]) => ({ job, lane }));
  }
}
