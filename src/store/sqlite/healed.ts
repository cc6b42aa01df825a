import type { Reclaimed } from "../../core/retry.ts";
import { LATELY, LOG_ROWS, toRecovery, type TotalsRow } from "../recovery-row.ts";
import type { RecoveryTotals } from "../healing.ts";
import type { Connection, Statement } from "./driver.ts";
import type { Events } from "./events.ts";
import type { Tx } from "./group-commit.ts";

/** What was healed, when and why stays on record. */
export class Healed {
  readonly #events: Events;
  readonly #sum: Statement;
  readonly #log: Statement;
  readonly #trim: Statement;
  readonly #totals: Statement;
  readonly #lately: Statement;

  constructor(db: Connection, events: Events) {
    this.#events = events;
    this.#sum = db.prepare(
      "update holdfast_recovery_totals set entries = entries + :entries, locks = locks + :locks, recovered_at = :at where id = 1",
    );
    this.#log = db.prepare(
      `insert into holdfast_recovery_log (at, cause, entries, quarantined, failed, locks)
       values (:at, :cause, :entries, :quarantined, :failed, :locks) returning id`,
    );
    this.#trim = db.prepare("delete from holdfast_recovery_log where id <= :before");
    this.#totals = db.prepare("select entries, locks, recovered_at from holdfast_recovery_totals where id = 1");
    this.#lately = db.prepare(
      `select at, cause, entries, quarantined, failed, locks from holdfast_recovery_log order by id desc limit ${LATELY}`,
    );
  }

  record(tx: Tx, cause: string, healed: Reclaimed & { locks: number }): void {
    this.#sum.runNamed({ entries: healed.entries, locks: healed.locks, at: tx.now });
    const { id } = this.#log.get<{ id: number }>({ at: tx.now, cause, ...healed }) as { id: number };
    this.#trim.runNamed({ before: id - LOG_ROWS });
    this.#events.act(tx, "recovery.reclaimed", String(id), { cause, ...healed });
    tx.wrote();
  }

  totals(): RecoveryTotals {
    return toRecovery(this.#totals.get<TotalsRow>(), this.#lately.all<RecoveryTotals["log"][number]>());
  }
}
