import type { Reclaimed } from "../../core/retry.ts";
import { LATELY, LOG_ROWS, toRecovery } from "../recovery-row.ts";
import type { RecoveryTotals } from "../healing.ts";
import type { Rows } from "./driver.ts";
import type { Events } from "./events.ts";
import type { Tx } from "./transaction.ts";

type RecoveryRow = [
  entries: number,
  locks: number,
  recoveredAt: number,
  ...([at: number, cause: string, entries: number, quarantined: number, failed: number, locks: number] | null[]),
];

/** What was healed, when and why stays on record. */
export class Healed {
  readonly #events: Events;
  readonly #sql: Record<"record" | "totals", string>;

  constructor(s: string, events: Events) {
    this.#events = events;
    this.#sql = {
      record: `
        with clock as materialized (select ${s}.clock($1) as now),
        logged as (
          insert into ${s}.recovery_log (at, cause, entries, quarantined, failed, locks)
          select now, $2, $3::integer, $4::integer, $5::integer, $6::integer from clock returning id),
        trimmed as (delete from ${s}.recovery_log using logged where recovery_log.id <= logged.id - ${LOG_ROWS})
        update ${s}.recovery_totals set entries = entries + $3::integer, locks = locks + $6::integer, recovered_at = clock.now
        from clock, logged where recovery_totals.id = 1 returning logged.id`,
      totals: `
        select totals.entries, totals.locks, totals.recovered_at, log.at, log.cause, log.entries, log.quarantined, log.failed, log.locks
        from ${s}.recovery_totals as totals
        left join (select * from ${s}.recovery_log order by id desc limit ${LATELY}) as log on true
        where totals.id = 1 order by log.id desc`,
    };
  }

  async record(tx: Tx, cause: string, healed: Reclaimed & { locks: number }): Promise<void> {
    const { entries, quarantined, failed, locks } = healed;
    const [[id]] = (await tx.rows<[number]>(this.#sql.record, tx.at, cause, entries, quarantined, failed, locks)) as [[number]];
    tx.wrote();
    await this.#events.act(tx, "recovery.reclaimed", String(id), { cause, ...healed });
  }

  /** In one statement, so that the log and the totals are of one instant. */
  async totals(rows: Rows): Promise<RecoveryTotals> {
    const found = await rows<RecoveryRow>(this.#sql.totals);
    const [entries = 0, locks = 0, recovered_at = 0] = found[0] ?? [];
    const log = found.flatMap(([, , , at, cause, entries, quarantined, failed, locks]) =>
      at === null ? [] : [{ at, cause, entries, quarantined, failed, locks } as RecoveryTotals["log"][number]],
    );
    return toRecovery({ entries, locks, recovered_at }, log);
  }
}
