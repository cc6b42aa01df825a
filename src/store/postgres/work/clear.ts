import type { BuildKey, JobKey } from "../../../core/ids.ts";
import type { Cancel } from "../cancel.ts";
import { listOf } from "../driver.ts";
import type { Limits } from "../limits.ts";
import type { Settings } from "../settings.ts";
import type { Tx } from "../transaction.ts";
import type { Sheets } from "./sheets.ts";

/** Does away with work that nobody wants any more. */
export class Clear {
  readonly #settings: Settings;
  readonly #limits: Limits;
  readonly #cancel: Cancel;
  readonly #sheets: Sheets;
  readonly #sql: Record<"builds" | "jobs", string>;

  constructor(s: string, parts: { settings: Settings; limits: Limits; cancel: Cancel; sheets: Sheets }) {
    this.#settings = parts.settings;
    this.#limits = parts.limits;
    this.#cancel = parts.cancel;
    this.#sheets = parts.sheets;
    this.#sql = {
      // From one build that has open work to the next, by work_target: those are few, whatever was before.
      builds: `
        with recursive open (build) as (
          (select build from ${s}.work order by build limit 1)
          union all
          select (select build from ${s}.work where work.build > open.build order by build limit 1) from open
          where open.build is not null)
        select key, queue from open join ${s}.builds on key = open.build
        where pipeline = $1 and state in ('SUCCESS', 'FAILED', 'ABANDONED') order by key`,
      jobs: `
        select job.key, job.lane from ${s}.work as work join ${s}.jobs as job on job.key = work.job
        where work.build = any($1::bigint[]) order by job.key limit $2`,
    };
  }

  async run(tx: Tx, pipeline: string, limit: number): Promise<number> {
    const builds = await tx.rows<[BuildKey, string]>(this.#sql.builds, pipeline);
    if (builds.length === 0) return 0;
    await this.#settings.at(tx);
    await this.#limits.lock(
      tx,
      builds.map(([, queue]) => queue),
    );
    const jobs = await tx.rows<[JobKey, number]>(this.#sql.jobs, listOf(builds.map(([key]) => key)), limit);
    const lanes = jobs.map(([, lane]) => lane);
    await this.#sheets.knowLanes(tx, lanes);
    const sheet = await this.#sheets.ending(
      tx,
      jobs.map(([job, lane]) => ({ job, lane })),
    );
    if (sheet === null) return 0;
    for (const [job, was] of await this.#cancel.quietly(
      tx,
      jobs.map(([job]) => job),
    ))
      sheet.items.dropped(job, was);
    await sheet.close(tx);
    return jobs.length;
  }
}
