import type { Reclaimed } from "../../core/jobs/retry.ts";
import type { ReclaimTotals } from "../recoveries.ts";
import { type Dialect, type Events, type Reads, type Script, type Tx, wait } from "./script.ts";

const KEPT_ROWS = 1_000;
const SHOWN_ROWS = 50;

type Logged = ReclaimTotals["log"][number];
interface TotalsRow extends Omit<Logged, "at"> {
  at: number | null;
  allEntries: number;
  allLocks: number;
  recoveredAt: number;
}

/** Records what recovery reclaimed, when and why: a bounded log, totals, and an event. */
export class RecoveryLog {
  readonly #events: Events;
  readonly #sql: ReturnType<typeof statements>;

  constructor(dialect: Dialect, events: Events) {
    this.#events = events;
    this.#sql = statements(dialect);
  }

  *record(tx: Tx, cause: string, reclaimed: Reclaimed & { locks: number }): Script<void> {
    const { entries, quarantined, failed, locks } = reclaimed;
    const row = { cause, entries, quarantined, failed, locks };
    for (const sql of this.#sql.record.before) yield* tx.run(sql, row);
    const [logged] = yield* tx.returning<{ id: number }>(this.#sql.record.last, row);
    const { id } = logged as { id: number };
    yield* wait(this.#events.act(tx, "recovery.reclaimed", String(id), { cause, ...reclaimed }));
  }

  *totals(db: Reads): Script<ReclaimTotals> {
    const rows = yield* db.all<TotalsRow>(this.#sql.totals);
    const log = rows.flatMap(({ at, cause, entries, quarantined, failed, locks }) =>
      at === null ? [] : [{ at, cause, entries, quarantined, failed, locks }],
    );
    const { allEntries = 0, allLocks = 0, recoveredAt = 0 } = rows[0] ?? {};
    return { locksCleaned: allLocks, entriesReclaimed: allEntries, recoveredAt, log };
  }
}

function statements({ table, inOrder }: Dialect) {
  const log = table("recovery_log");
  const totals = table("recovery_totals");
  return {
    record: inOrder(
      `delete from ${log} where id <= (select max(id) from ${log}) - ${KEPT_ROWS - 1}`,
      `update ${totals} set entries = entries + cast(:entries as integer), locks = locks + cast(:locks as integer),
        recovered_at = :now where id = 1`,
      `insert into ${log} (at, cause, entries, quarantined, failed, locks)
       values (:now, :cause, cast(:entries as integer), :quarantined, :failed, cast(:locks as integer)) returning id`,
    ),
    // One statement, so that the log and the totals are of one instant.
    totals: `
      select totals.entries as "allEntries", totals.locks as "allLocks", totals.recovered_at as "recoveredAt",
        log.at, log.cause, log.entries, log.quarantined, log.failed, log.locks
      from ${totals} as totals left join (select * from ${log} order by id desc limit ${SHOWN_ROWS}) as log on true
      where totals.id = 1 order by log.id desc`,
  };
}
