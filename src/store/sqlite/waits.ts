import type { JobKey } from "../../core/ids.ts";
import type { Wait } from "../../core/dependency.ts";
import type { JobState } from "../../core/job.ts";
import type { Connection, Statement } from "./driver.ts";

const FEW = 32;

/** A job that comes after others. */
export class Waits {
  readonly #any: Statement;
  readonly #add: Statement;
  readonly #waiting: Statement;
  readonly #upstreams: Statement;
  readonly #removeBehind: Statement;
  readonly #removeOf: Statement;
  readonly #free: Statement;
  readonly #removeAll: Statement;
  readonly #state: Statement;
  readonly #remembered: Statement;

  constructor(db: Connection) {
    this.#any = db.prepare("select 1 from holdfast_waits limit 1");
    this.#add = db.prepare("insert into holdfast_waits (job, upstream) values (?, ?) on conflict do nothing");
    // By holdfast_waits_upstream.
    this.#waiting = db.prepare(
      `select wait.job, wait.upstream from json_each(?) as ended
       cross join holdfast_waits as wait on wait.upstream = ended.value order by wait.job`,
    );
    // From one to the next by holdfast_waits_upstream: `distinct` would walk all that wait for each.
    this.#upstreams = db.prepare(
      `with recursive awaited (job) as (
         select min(upstream) from holdfast_waits
         union all
         select (select min(upstream) from holdfast_waits where upstream > awaited.job) from awaited where job is not null)
       select job from awaited where job is not null limit ${FEW}`,
    );
    this.#removeBehind = db.prepare("delete from holdfast_waits where upstream in (select value from json_each(?))");
    this.#removeOf = db.prepare("delete from holdfast_waits where job in (select value from json_each(?))");
    this.#free = db.prepare(
      "select value from json_each(?) as one where not exists (select 1 from holdfast_waits where job = one.value)",
    );
    this.#removeAll = db.prepare("delete from holdfast_waits where job = ?");
    this.#state = db.prepare("select state from holdfast_jobs where key = ?");
    this.#remembered = db.prepare("select ended from holdfast_ids where id = ? and ended is not null");
  }

  /** Whether any job waits for another. */
  any(): boolean {
    return this.#any.row() !== undefined;
  }

  add(job: JobKey, upstream: JobKey): void {
    this.#add.run(job, upstream);
  }

  /** How an upstream job stands; a pruned one is remembered by the id that its caller chose. Null: nobody knows it. */
  stateOf(id: string, key: JobKey | null): JobState | null {
    const row = (key === null ? undefined : this.#state.row(key)) ?? this.#remembered.row(id);
    return (row?.[0] ?? null) as JobState | null;
  }

  /** Those that wait for one of these, in the order in which they were made. */
  behind(ended: readonly JobKey[]): Wait[] {
    const upstreams = this.#awaited(ended);
    if (upstreams.length === 0) return [];
    return this.#waiting.rows(JSON.stringify(upstreams)).map(([job, upstream]) => {
      return { job: job as JobKey, upstream: upstream as JobKey };
    });
  }

  /** Those that somebody may wait for. Where few are waited for at all, that is told without asking for each that ended. */
  #awaited(ended: readonly JobKey[]): readonly JobKey[] {
    if (ended.length < FEW) return ended;
    const all = this.#upstreams.rows();
    if (all.length === FEW) return ended;
    const awaited = new Set(all.map(([upstream]) => upstream as JobKey));
    return ended.filter((job) => awaited.has(job));
  }

  /** These have ended, and those wait no longer for whatever it is. */
  over(upstreams: readonly JobKey[], jobs: readonly JobKey[]): void {
    this.#removeBehind.run(JSON.stringify(upstreams));
    if (jobs.length > 0) this.#removeOf.run(JSON.stringify(jobs));
  }

  /** Those of them that wait for nothing any more. */
  free(jobs: readonly JobKey[]): JobKey[] {
    if (jobs.length === 0) return [];
    return this.#free.rows(JSON.stringify(jobs)).map(([job]) => job as JobKey);
  }

  forget(job: JobKey): void {
    this.#removeAll.run(job);
  }
}
