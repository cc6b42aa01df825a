import type { BuildKey, JobKey } from "../../../core/ids.ts";
import type { Clearing } from "../../work.ts";
import { endedWithWork } from "../../sql/builds/leftovers.ts";
import { DIALECT } from "../dialect.ts";
import type { Connection, Statement } from "../driver.ts";

const ENDED_WITH_WORK = endedWithWork(DIALECT);

/** Work items of builds that have ended. */
export class Leftovers {
  readonly #builds: Statement;
  readonly #jobs: Record<Clearing["which"], Statement>;

  constructor(db: Connection) {
    this.#builds = db.prepare(`select key from (${ENDED_WITH_WORK}) where :pipeline is null or pipeline = :pipeline`);
    this.#jobs = {
      all: db.prepare("select job from holdfast_work where build = ? limit ?"),
      idle: db.prepare(
        `select job from holdfast_work as work join holdfast_jobs as job on job.key = work.job
         where build = ? and (state <> 'running' or kind = 'listing') limit ?`,
      ),
    };
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
