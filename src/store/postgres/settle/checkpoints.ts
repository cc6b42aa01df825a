import type { LeaseRef } from "../../../core/jobs/lease.ts";
import type { JobKey } from "../../../core/text/ids.ts";
import type { LeaseState, ProgressReport } from "../../store.ts";
import { held } from "../claims/leases.ts";
import { listOf, lists, type Rows } from "../connection/driver.ts";
import type { Tx } from "../transactions/transaction.ts";
import type { Settle } from "./settle.ts";

/**
 * Checkpoints and progress, beside the job's row so that saving them does not rewrite its input. The job's row is locked first,
 * so that the end of the attempt comes before or after.
 */
export class Checkpoints {
  readonly #settle: Settle;
  readonly #sql: Record<"checkpoint" | "progress" | "load", string>;

  constructor(s: string, settle: Settle) {
    this.#settle = settle;
    this.#sql = {
      checkpoint: `
        with held as materialized (${held(s, "(values ($1::bigint, $2::bigint)) as asked (key, fence)")})
        insert into ${s}.notes (job, checkpoint) select key, $3 from held
        on conflict (job) do update set checkpoint = excluded.checkpoint
        returning job`,
      progress: `
        with held as materialized (${held(
          s,
          `unnest($1::bigint[], $2::bigint[], $3::double precision[], $4::text[])
             with ordinality as asked (key, fence, fraction, message, turn)`,
        )})
        insert into ${s}.notes (job, fraction, message)
        select distinct on (key) key, fraction, message from held order by key, turn desc
        on conflict (job) do update set fraction = excluded.fraction, message = excluded.message
        returning job`,
      load: `select checkpoint from ${s}.notes where job = $1`,
    };
  }

  async saveCheckpoint(tx: Tx, { job, fence }: LeaseRef, value: string | null): Promise<LeaseState> {
    const rows = await tx.rows<[JobKey]>(this.#sql.checkpoint, job, fence, value);
    const [fate] = await this.#fates(tx, [{ job, fence }], rows);
    return fate as LeaseState;
  }

  async saveProgress(tx: Tx, reports: readonly ProgressReport[]): Promise<LeaseState[]> {
    if (reports.length === 0) return [];
    const rows = await tx.rows<[JobKey]>(
      this.#sql.progress,
      ...lists(reports, "job", "fence", "fraction"),
      // PostgreSQL cannot store a NUL, and one in a message must not reject all the other reports.
      listOf(reports.map(({ message }) => message?.replaceAll("\0", "\uFFFD") ?? null)),
    );
    return this.#fates(tx, reports, rows);
  }

  async checkpoint(rows: Rows, job: JobKey): Promise<string | null> {
    const [row] = await rows<[string | null]>(this.#sql.load, job);
    return row?.[0] ?? null;
  }

  async #fates(tx: Tx, leases: readonly LeaseRef[], saved: readonly [JobKey][]): Promise<LeaseState[]> {
    if (saved.length > 0) tx.wrote();
    return saved.length === leases.length ? leases.map(() => "held") : this.#settle.fates(tx.rows, leases);
  }
}
