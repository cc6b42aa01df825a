import type { BuildKey, JobKey } from "../../../core/ids.ts";
import type { Clearing } from "../../work.ts";
import { endedWithWork } from "../../sql/builds/leftovers.ts";
import { dialectOf } from "../dialect.ts";
import { listOf, type Rows } from "../driver.ts";

/** Work items of builds that have ended. */
export class Leftovers {
  readonly #sql: Record<"builds", string>;
  readonly #jobs: Record<Clearing["which"], string>;

  constructor(s: string) {
    const ended = `from (${endedWithWork(dialectOf(s))}) as ended`;
    this.#sql = {
      builds: `select key, queue ${ended} where $1::text is null or pipeline = $1 order by key`,
    };
    const jobs = (also: string) => `
      select job.key, job.lane from ${s}.work as work join ${s}.jobs as job on job.key = work.job
      where work.build = any($1::bigint[]) ${also} order by job.key limit $2`;
    this.#jobs = { all: jobs(""), idle: jobs("and (job.state <> 'running' or work.kind = 'listing')") };
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
