import type { BuildKey, JobKey } from "../../../core/ids.ts";
import type { Cancel } from "../cancel.ts";
import type { Connection, Statement } from "../driver.ts";
import type { Endings } from "../endings.ts";
import type { Tx } from "../group-commit.ts";

/** Does away with work that nobody wants any more. */
export class Clear {
  readonly #cancel: Cancel;
  readonly #endings: Endings;
  readonly #builds: Statement;
  readonly #jobs: Statement;

  constructor(db: Connection, parts: { cancel: Cancel; endings: Endings }) {
    this.#cancel = parts.cancel;
    this.#endings = parts.endings;
    // From one build that has open work to the next, by holdfast_work_target: those are few, whatever was before.
    this.#builds = db.prepare(
      `with recursive open (build) as (
         select min(build) from holdfast_work
         union all
         select (select min(build) from holdfast_work where build > open.build) from open where build is not null)
       select key from open join holdfast_builds on key = open.build
       where pipeline = ? and state in ('SUCCESS', 'FAILED', 'ABANDONED')`,
    );
    this.#jobs = db.prepare("select job from holdfast_work where build = ? limit ?");
  }

  run(tx: Tx, pipeline: string, limit: number): number {
    let cleared = 0;
    for (const [build] of this.#builds.rows(pipeline)) {
      for (const [job] of this.#jobs.rows(build as BuildKey, limit - cleared)) {
        this.#cancel.quietly(tx, job as JobKey);
        cleared++;
      }
    }
    this.#endings.write(tx);
    return cleared;
  }
}
