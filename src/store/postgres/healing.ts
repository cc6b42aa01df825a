import { RECOVERY } from "../../core/audit.ts";
import type { Fence, JobKey, ProcessId } from "../../core/ids.ts";
import type { StaleLease } from "../../core/lease.ts";
import { type Reclaimed, reclaimedOf } from "../../core/retry.ts";
import { reclaimedBy } from "../recovery-row.ts";
import type { HealingStore, Judgement, RecoveryTotals } from "../healing.ts";
import { runAsync } from "../sql/script.ts";
import type { Access } from "./access.ts";
import type { Audit } from "../sql/audit.ts";
import { listOf } from "./driver.ts";
import type { RecoveryLog } from "../sql/recovery-log.ts";
import type { Tx } from "./transaction.ts";
import { held } from "./leases.ts";
import { boundSql } from "./running.ts";
import type { Settle } from "./settle.ts";

type LeaseRow = [job: JobKey, fence: Fence, holder: ProcessId | null, expiresAt: number, lease: number, left: number];

/** Finding leases that may have to be taken back, and taking them back. */
export class Healing implements HealingStore {
  readonly #access: Access;
  readonly #settle: Settle;
  readonly #recoveryLog: RecoveryLog;
  readonly #audit: Audit;
  readonly #sql: Record<"expired" | "stale" | "cut", string>;

  constructor(s: string, parts: { settle: Settle; recoveryLog: RecoveryLog; audit: Audit }, access: Access) {
    this.#access = access;
    this.#settle = parts.settle;
    this.#recoveryLog = parts.recoveryLog;
    this.#audit = parts.audit;
    const now = `(select ${s}.clock($1))`;
    const lease = `select key, fence, holder, expires_at, lease, expires_at - ${now} from ${s}.running`;
    this.#sql = {
      // By claims_expiring; with nothing expired it reads one index page.
      expired: `${lease} where bound <= ${now} and expires_at <= ${now} order by expires_at, key limit $2`,
      // Every running job is looked at.
      stale: `
        ${lease} where (expires_at <= ${now} or ($3 and expires_at > ${now} + lease) or holder = any($4::bigint[]))
        order by expires_at, key limit $2`,
      cut: `
        with clock as materialized (select ${s}.clock($1) as now),
        held as materialized (${held(s, "unnest($2::bigint[], $3::bigint[], $4::bigint[]) as asked (key, fence, expires_at)")} skip locked),
        cut as (
          update ${s}.jobs as job set expires_at = clock.now + job.lease
          from held, clock where job.key = held.key and job.expires_at = held.expires_at returning job.fence, job.expires_at),
        ${boundSql(s, "cut")}
        select 1 from cut`,
    };
  }

  async stale(query: { dead: readonly ProcessId[]; skewed: boolean; limit: number }): Promise<StaleLease[]> {
    const { dead, skewed, limit } = query;
    const { read: rows, at } = this.#access;
    const found =
      skewed || dead.length > 0
        ? await rows<LeaseRow>(this.#sql.stale, at(), limit, skewed, listOf(dead))
        : await rows<LeaseRow>(this.#sql.expired, at(), limit);
    return found.map(([job, fence, holder, expiresAt, lease, left]) => ({ job, fence, holder, expiresAt, lease, left }));
  }

  reclaim(judgements: readonly Judgement[], cause: string, by = RECOVERY): Promise<Reclaimed> {
    return this.#access.write("reclaim", async (tx) => {
      await this.#cut(
        tx,
        judgements.filter(({ verdict }) => verdict === "cut"),
      );
      const endings = judgements.flatMap(({ job, fence, expiresAt, verdict }) =>
        verdict === "cut" ? [] : [{ job, fence, expiresAt, outcome: { kind: verdict } }],
      );
      const ended = await this.#settle.end(tx, endings);
      // Null: it is no longer the lease that was judged.
      const nexts = ended.flatMap((one) => (one === null ? [] : [one.next]));
      for (const [i, { job, fence }] of endings.entries()) if (ended[i] !== null) tx.ended(job, fence);
      const reclaimed = reclaimedOf(nexts);
      if (reclaimed.entries > 0) {
        await runAsync(this.#recoveryLog.record(tx, cause, { ...reclaimed, locks: 0 }));
        await runAsync(this.#audit.add(tx, reclaimedBy(by, cause, reclaimed)));
      }
      return reclaimed;
    });
  }

  totals(): Promise<RecoveryTotals> {
    return this.#recoveryLog.totals();
  }

  async #cut(tx: Tx, judgements: readonly Judgement[]): Promise<void> {
    if (judgements.length === 0) return;
    const cut = await tx.rows(
      this.#sql.cut,
      tx.at,
      listOf(judgements.map(({ job }) => job)),
      listOf(judgements.map(({ fence }) => fence)),
      listOf(judgements.map(({ expiresAt }) => expiresAt)),
    );
    if (cut.length > 0) tx.wrote();
  }
}
