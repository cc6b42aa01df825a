import { RECOVERY } from "../../core/audit.ts";
import type { Fence, JobKey, ProcessId } from "../../core/ids.ts";
import type { StaleLease } from "../../core/lease.ts";
import { type Reclaimed, reclaimedOf } from "../../core/retry.ts";
import { LATELY, LOG_ROWS, reclaimedBy, toRecovery } from "../recovery-row.ts";
import type { Judgement, RecoveryTotals } from "../store.ts";
import type { Audit } from "./audit.ts";
import { listOf, type Rows } from "./driver.ts";
import type { Events } from "./events.ts";
import type { Tx } from "./transaction.ts";
import { held } from "./leases.ts";
import { boundSql } from "./running.ts";
import type { Settle } from "./settle.ts";

type LeaseRow = [job: JobKey, fence: Fence, holder: ProcessId | null, expiresAt: number, lease: number, left: number];
type RecoveryRow = [
  entries: number,
  locks: number,
  recoveredAt: number,
  ...([at: number, cause: string, entries: number, quarantined: number, failed: number, locks: number] | null[]),
];

/** Finding leases that may have to be taken back, and taking them back. */
export class Healing {
  readonly #settle: Settle;
  readonly #events: Events;
  readonly #audit: Audit;
  readonly #sql: Record<"expired" | "stale" | "cut" | "record" | "recovery", string>;

  constructor(s: string, parts: { settle: Settle; events: Events; audit: Audit }) {
    this.#settle = parts.settle;
    this.#events = parts.events;
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
      record: `
        with clock as materialized (select ${s}.clock($1) as now),
        logged as (
          insert into ${s}.recovery_log (at, cause, entries, quarantined, failed, locks)
          select now, $2, $3::integer, $4::integer, $5::integer, $6::integer from clock returning id),
        trimmed as (delete from ${s}.recovery_log using logged where recovery_log.id <= logged.id - ${LOG_ROWS})
        update ${s}.recovery_totals set entries = entries + $3::integer, locks = locks + $6::integer, recovered_at = clock.now
        from clock, logged where recovery_totals.id = 1 returning logged.id`,
      recovery: `
        select totals.entries, totals.locks, totals.recovered_at, log.at, log.cause, log.entries, log.quarantined, log.failed, log.locks
        from ${s}.recovery_totals as totals
        left join (select * from ${s}.recovery_log order by id desc limit ${LATELY}) as log on true
        where totals.id = 1 order by log.id desc`,
    };
  }

  async stale(
    rows: Rows,
    at: number | null,
    { dead, skewed, limit }: { dead: readonly ProcessId[]; skewed: boolean; limit: number },
  ): Promise<StaleLease[]> {
    const found =
      skewed || dead.length > 0
        ? await rows<LeaseRow>(this.#sql.stale, at, limit, skewed, listOf(dead))
        : await rows<LeaseRow>(this.#sql.expired, at, limit);
    return found.map(([job, fence, holder, expiresAt, lease, left]) => ({ job, fence, holder, expiresAt, lease, left }));
  }

  async reclaim(tx: Tx, judgements: readonly Judgement[], cause: string, by = RECOVERY): Promise<Reclaimed> {
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
      await this.record(tx, cause, { ...reclaimed, locks: 0 });
      await this.#audit.add(tx, reclaimedBy(by, cause, reclaimed));
    }
    return reclaimed;
  }

  /** What was healed, when and why stays on record. */
  async record(tx: Tx, cause: string, healed: Reclaimed & { locks: number }): Promise<void> {
    const { entries, quarantined, failed, locks } = healed;
    const [[id]] = (await tx.rows<[number]>(this.#sql.record, tx.at, cause, entries, quarantined, failed, locks)) as [[number]];
    tx.wrote();
    await this.#events.act(tx, "recovery.reclaimed", String(id), { cause, ...healed });
  }

  /** In one statement, so that the log and the totals are of one instant. */
  async recovery(rows: Rows): Promise<RecoveryTotals> {
    const found = await rows<RecoveryRow>(this.#sql.recovery);
    const [entries = 0, locks = 0, recovered_at = 0] = found[0] ?? [];
    const log = found.flatMap(([, , , at, cause, entries, quarantined, failed, locks]) =>
      at === null ? [] : [{ at, cause, entries, quarantined, failed, locks } as RecoveryTotals["log"][number]],
    );
    return toRecovery({ entries, locks, recovered_at }, log);
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
