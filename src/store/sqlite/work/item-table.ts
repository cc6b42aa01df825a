import type { Amount } from "../../../core/pipelines/cost.ts";
import type { BuildKey, JobKey } from "../../../core/text/ids.ts";
import { publicId } from "../../job-row.ts";
import type { NewWork } from "../../work.ts";
import type { Item, ItemRows } from "../../work/rows.ts";
import type { Connection, Statement } from "../driver.ts";

/** The rows of work items that have not ended. */
export class ItemTable implements ItemRows {
  readonly #any: Statement;
  readonly #row: Statement;
  readonly #twin: Statement;
  readonly #at: Statement;
  readonly #add: Statement;
  readonly #goOn: Statement;
  readonly #remove: Statement;
  readonly #removal: Statement;

  constructor(db: Connection) {
    this.#any = db.prepare("select 1 from holdfast_work limit 1");
    this.#row = db.prepare(
      `select build, kind, stage, segment, path, estimate_micros, estimate_tokens, cost_micros, cost_tokens, charged_micros, charged_tokens
       from holdfast_work where job = ?`,
    );
    // These by holdfast_work_target.
    this.#twin = db.prepare(
      `select job.key, created_at, id from holdfast_work as work join holdfast_jobs as job on job.key = work.job
       where build = ? and segment = ? and path = ? and stage = ? and kind = ?`,
    );
    this.#at = db.prepare("select job from holdfast_work where build = ? and segment = ? and path = ? and kind = 'stage'");
    this.#removal = db.prepare(
      "select 1 from holdfast_work where build = ? and segment = ? and path = ? and kind = 'remove' limit 1",
    );
    this.#add = db.prepare("insert into holdfast_work (job, build, kind, stage, segment, path) values (?, ?, ?, ?, ?, ?)");
    this.#goOn = db.prepare(
      `update holdfast_work set estimate_micros = 0, estimate_tokens = 0, cost_micros = 0, cost_tokens = 0,
         charged_micros = ?, charged_tokens = ?
       where job = ?`,
    );
    this.#remove = db.prepare("delete from holdfast_work where job = ?");
  }

  /** Whether there are any. */
  any(): boolean {
    return this.#any.row() !== undefined;
  }

  get(job: JobKey): Item | undefined {
    const row = this.#row.row(job);
    if (row === undefined) return undefined;
    const [build, kind, stage, segment, path] = row as [BuildKey, NewWork["kind"], string, number, string];
    const [, , , , , ...money] = row as unknown as number[];
    const amount = (at: number): Amount => ({ micros: money[at] as number, tokens: money[at + 1] as number });
    return { job, build, kind, stage, segment, path, estimate: amount(0), cost: amount(2), charged: amount(4) };
  }

  /** The id of the job that is this item already. */
  twin(work: NewWork): string | undefined {
    const { build, segment, path, stage, kind } = work;
    const row = this.#twin.row(build, segment, path, stage, kind) as [JobKey, number, string | null] | undefined;
    return row && publicId(row[2], row[1], row[0]);
  }

  /** The stage's jobs that a target has in this build: one at most. */
  at(build: BuildKey, segment: number, path: string): JobKey[] {
    return this.#at.rows(build, segment, path).map(([job]) => job as JobKey);
  }

  /** Whether something of this target is still to be removed. */
  isRemoving({ build, segment, path }: Pick<Item, "build" | "segment" | "path">): boolean {
    return this.#removal.row(build, segment, path) !== undefined;
  }

  add(job: JobKey, build: BuildKey, { kind, stage, segment, path }: NewWork): void {
    this.#add.run(job, build, kind, stage, segment, path);
  }

  goOn({ job }: Item, { micros, tokens }: Amount): void {
    this.#goOn.run(micros, tokens, job);
  }

  remove({ job }: Item): void {
    this.#remove.run(job);
  }
}
