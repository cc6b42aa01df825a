import type { BuildKey, JobKey } from "../../../core/ids.ts";
import type { Clearing } from "../../work.ts";
import type { Connection, Statement } from "../driver.ts";

/** Builds that have ended and still have work items: from one build that has any to the next, by holdfast_work_target. */
export const ENDED_WITH_WORK = `
  with recursive open (build) as (
    select min(build) from holdfast_work
    union all
    select (select min(build) from holdfast_work where build > open.build) from open where build is not null)
  select key, pipeline from open join holdfast_builds on key = open.build
  where state in ('SUCCESS', 'FAILED', 'ABANDONED')`;

/** Work items of builds that have ended. */
export class Leftovers {
  readonly #any: Statement;
  readonly #builds: Statement;
  readonly #jobs: Record<Clearing["which"], Statement>;

  constructor(db: Connection) {
    this.#any = db.prepare(`select 1 from (${ENDED_WITH_WORK}) where pipeline = ? limit 1`);
    this.#builds = db.prepare(`select key from (${ENDED_WITH_WORK}) where :pipeline is null or pipeline = :pipeline`);
    this.#jobs = {
      all: db.prepare("select job from holdfast_work where build = ? limit ?"),
      idle: db.prepare(
        `select job from holdfast_work as work join holdfast_jobs as job on job.key = work.job
         where build = ? and (state <> 'running' or kind = 'listing') limit ?`,
      ),
    };
  }

  any(pipeline: string): boolean {
    return this.#any.row(pipeline) !== undefined;
  }

  /** Null: of all pipelines. */
  jobs(pipeline: string | null, which: Clearing["which"], limit: number): JobKey[] {
    const jobs: JobKey[] = [];
    for (const { key } of this.#builds.all<{ key: BuildKey }>({ pipeline })) {
      for (const [job] of this.#jobs[which].rows(key, limit - jobs.length)) jobs.push(job as JobKey);
    }
    return jobs;
  }
}
