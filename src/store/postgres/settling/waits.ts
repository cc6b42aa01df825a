import type { Wait } from "../../../core/jobs/admission.ts";
import type { JobKey } from "../../../core/text/ids.ts";
import { listOf } from "../connection/driver.ts";
import type { Tx } from "../transactions/transaction.ts";

/** A job that comes after others. */
export class Waits {
  readonly #sql: Record<"add" | "areAny" | "behind" | "lock" | "removeBehind" | "removeOf" | "free", string>;

  constructor(s: string) {
    this.#sql = {
      add: `insert into ${s}.waits (job, upstream) select * from unnest($1::bigint[], $2::bigint[]) on conflict do nothing`,
      areAny: `select exists (select 1 from ${s}.waits where upstream = any($1::bigint[]))`,
      behind: `select job, upstream from ${s}.waits where upstream = any($1::bigint[]) order by job`,
      // What two upstreams free at once is freed by the second: it waits here for the first, and then sees what it did.
      lock: `select 1 from ${s}.jobs where key = any($1::bigint[]) order by key for update`,
      removeBehind: `delete from ${s}.waits where upstream = any($1::bigint[])`,
      removeOf: `delete from ${s}.waits where job = any($1::bigint[])`,
      free: `
        select key from unnest($1::bigint[]) as one (key)
        where not exists (select 1 from ${s}.waits where job = one.key) order by key`,
    };
  }

  async add(tx: Tx, waits: readonly Wait[]): Promise<void> {
    if (waits.length === 0) return;
    await tx.rows(this.#sql.add, listOf(waits.map(({ job }) => job)), listOf(waits.map(({ upstream }) => upstream)));
  }

  /** Whether anybody waits for one of these. */
  async areAny(tx: Tx, upstreams: readonly JobKey[]): Promise<boolean> {
    const [row] = await tx.rows<[boolean]>(this.#sql.areAny, listOf(upstreams));
    return (row as [boolean])[0];
  }

  /** Those that wait for one of these, in the order in which they were made; nobody else can change them now. */
  async behind(tx: Tx, ended: readonly JobKey[]): Promise<Wait[]> {
    const waits = await tx.rows<[JobKey, JobKey]>(this.#sql.behind, listOf(ended));
    if (waits.length === 0) return [];
    await tx.rows(this.#sql.lock, listOf([...new Set(waits.map(([job]) => job))]));
    return waits.map(([job, upstream]) => ({ job, upstream }));
  }

  /** These have ended, and those wait no longer for whatever it is. */
  async over(tx: Tx, upstreams: readonly JobKey[], jobs: readonly JobKey[]): Promise<void> {
    await tx.rows(this.#sql.removeBehind, listOf(upstreams));
    if (jobs.length > 0) await tx.rows(this.#sql.removeOf, listOf(jobs));
  }

  /** Those of them that wait for nothing any more. */
  async free(tx: Tx, jobs: readonly JobKey[]): Promise<JobKey[]> {
    if (jobs.length === 0) return [];
    return (await tx.rows<[JobKey]>(this.#sql.free, listOf(jobs))).map(([job]) => job);
  }

  async forget(tx: Tx, job: JobKey): Promise<void> {
    await tx.rows(this.#sql.removeOf, listOf([job]));
  }
}
