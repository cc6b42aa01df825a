import { RECOVERY } from "../../core/audit.ts";
import type { Fence, JobKey, ProcessId } from "../../core/ids.ts";
import type { StaleLease } from "../../core/lease.ts";
import { type Next, type Reclaimed, reclaimedOf } from "../../core/retry.ts";
import { LATELY, LOG_ROWS, reclaimedBy, toRecovery, type TotalsRow } from "../recovery-row.ts";
import type { Judgement, RecoveryTotals } from "../store.ts";
import type { Audit } from "./audit.ts";
import type { Connection, Statement, Value } from "./driver.ts";
import type { Endings } from "./endings.ts";
import type { Events } from "./events.ts";
import type { Tx } from "./group-commit.ts";
import { summing } from "./row-sum.ts";
import type { Settle } from "./settle.ts";

const LEASE = "select key, fence, holder, expires_at, lease from holdfast_jobs where state = 'running'";

/** Finding leases that may have to be taken back, and taking them back. */
export class Healing {
  readonly #settle: Settle;
  readonly #endings: Endings;
  readonly #events: Events;
  readonly #audit: Audit;
  readonly #expired: Statement;
  readonly #skewed: Statement;
  readonly #heldBy: Statement;
  readonly #cut: Statement;
  readonly #sum: Statement;
  readonly #log: Statement;
  readonly #trim: Statement;
  readonly #totals: Statement;
  readonly #lately: Statement;

  constructor(db: Connection, parts: { settle: Settle; endings: Endings; events: Events; audit: Audit }) {
    this.#settle = parts.settle;
    this.#endings = parts.endings;
    this.#events = parts.events;
    this.#audit = parts.audit;
    // By holdfast_jobs_running; with nothing expired it reads one index page.
    this.#expired = db.prepare(`${LEASE} and expires_at <= ? order by expires_at limit ?`);
    this.#skewed = db.prepare(`${LEASE} and expires_at > ? + lease limit ?`);
    this.#heldBy = db.prepare(`${LEASE} and holder = ? limit ?`);
    this.#cut = db.prepare(
      `update holdfast_jobs set expires_at = ? + lease, ${summing({ sets: ["expires_at"], total: "? + lease" })}
       where key = ? and fence = ? and expires_at = ? and state = 'running'`,
    );
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

  stale(query: { dead: readonly ProcessId[]; skewed: boolean; limit: number }, now: number): StaleLease[] {
    const rows = this.#expired.rows(now, query.limit);
    if (query.skewed) rows.push(...this.#skewed.rows(now, query.limit));
    for (const holder of query.dead) rows.push(...this.#heldBy.rows(holder, query.limit));
    const seen = new Map<Value, StaleLease>();
    for (const row of rows) if (seen.size < query.limit) seen.set(row[0] as number, toLease(row, now));
    return [...seen.values()];
  }

  reclaim(tx: Tx, judgements: readonly Judgement[], cause: string, by = RECOVERY): Reclaimed {
    const nexts: Next[] = [];
    for (const judgement of judgements) {
      const { job, fence, expiresAt, verdict } = judgement;
      if (verdict === "cut") {
        if (this.#cut.run(tx.now, tx.now, job, fence, expiresAt) > 0) tx.wrote();
        continue;
      }
      // Null: it is no longer the lease that was judged.
      const next = this.#settle.reclaim(tx, judgement, { kind: verdict });
      if (next === null) continue;
      tx.ended(job, fence);
      nexts.push(next);
    }
    this.#endings.write(tx);
    const reclaimed = reclaimedOf(nexts);
    if (reclaimed.entries > 0) {
      this.record(tx, cause, { ...reclaimed, locks: 0 });
      this.#audit.add(tx, reclaimedBy(by, cause, reclaimed));
    }
    return reclaimed;
  }

  /** What was healed, when and why stays on record. */
  record(tx: Tx, cause: string, healed: Reclaimed & { locks: number }): void {
    this.#sum.runNamed({ entries: healed.entries, locks: healed.locks, at: tx.now });
    const { id } = this.#log.get<{ id: number }>({ at: tx.now, cause, ...healed }) as { id: number };
    this.#trim.runNamed({ before: id - LOG_ROWS });
    this.#events.act(tx, "recovery.reclaimed", String(id), { cause, ...healed });
    tx.wrote();
  }

  recovery(): RecoveryTotals {
    return toRecovery(this.#totals.get<TotalsRow>(), this.#lately.all<RecoveryTotals["log"][number]>());
  }
}

function toLease(row: Value[], now: number): StaleLease {
  const [job, fence, holder, expiresAt, lease] = row as [JobKey, Fence, ProcessId | null, number, number];
  return { job, fence, holder, expiresAt, lease, left: expiresAt - now };
}
