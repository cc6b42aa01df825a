import { RECOVERY } from "../../core/audit.ts";
import type { Fence, JobKey, ProcessId } from "../../core/ids.ts";
import type { StaleLease } from "../../core/lease.ts";
import { type Next, type Reclaimed, reclaimedOf } from "../../core/retry.ts";
import { reclaimedBy } from "../recovery-row.ts";
import type { HealingStore, Judgement, RecoveryTotals } from "../healing.ts";
import { runSync } from "../sql/script.ts";
import type { Access } from "./access.ts";
import type { Audit } from "../sql/audit.ts";
import type { Connection, Statement, Value } from "./driver.ts";
import type { Endings } from "./endings.ts";
import type { RecoveryLog } from "../sql/recovery-log.ts";
import type { Settle } from "./settle.ts";

const LEASE = "select key, fence, holder, expires_at, lease from holdfast_jobs where state = 'running'";

/** Finding leases that may have to be taken back, and taking them back. */
export class Healing implements HealingStore {
  readonly #access: Access;
  readonly #settle: Settle;
  readonly #endings: Endings;
  readonly #recoveryLog: RecoveryLog;
  readonly #audit: Audit;
  readonly #expired: Statement;
  readonly #skewed: Statement;
  readonly #heldBy: Statement;
  readonly #cut: Statement;

  constructor(
    db: Connection,
    parts: { settle: Settle; endings: Endings; recoveryLog: RecoveryLog; audit: Audit },
    access: Access,
  ) {
    this.#access = access;
    this.#settle = parts.settle;
    this.#endings = parts.endings;
    this.#recoveryLog = parts.recoveryLog;
    this.#audit = parts.audit;
    // By holdfast_jobs_running; with nothing expired it reads one index page.
    this.#expired = db.prepare(`${LEASE} and expires_at <= ? order by expires_at limit ?`);
    this.#skewed = db.prepare(`${LEASE} and expires_at > ? + lease limit ?`);
    this.#heldBy = db.prepare(`${LEASE} and holder = ? limit ?`);
    this.#cut = db.prepare(
      `update holdfast_jobs set expires_at = ? + lease
       where key = ? and fence = ? and expires_at = ? and state = 'running'`,
    );
  }

  stale(query: { dead: readonly ProcessId[]; skewed: boolean; limit: number }): Promise<StaleLease[]> {
    return this.#access.read(() => {
      const now = this.#access.now();
      const rows = this.#expired.rows(now, query.limit);
      if (query.skewed) rows.push(...this.#skewed.rows(now, query.limit));
      for (const holder of query.dead) rows.push(...this.#heldBy.rows(holder, query.limit));
      const seen = new Map<Value, StaleLease>();
      for (const row of rows) if (seen.size < query.limit) seen.set(row[0] as number, toLease(row, now));
      return [...seen.values()];
    });
  }

  reclaim(judgements: readonly Judgement[], cause: string, by = RECOVERY): Promise<Reclaimed> {
    return this.#access.write("reclaim", (tx) => {
      const nexts: Next[] = [];
      for (const judgement of judgements) {
        const { job, fence, expiresAt, verdict } = judgement;
        if (verdict === "cut") {
          if (this.#cut.run(tx.now, job, fence, expiresAt) > 0) tx.wrote();
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
        runSync(this.#recoveryLog.record(tx, cause, { ...reclaimed, locks: 0 }));
        runSync(this.#audit.add(tx, reclaimedBy(by, cause, reclaimed)));
      }
      return reclaimed;
    });
  }

  totals(): Promise<RecoveryTotals> {
    return this.#recoveryLog.totals();
  }
}

function toLease(row: Value[], now: number): StaleLease {
  const [job, fence, holder, expiresAt, lease] = row as [JobKey, Fence, ProcessId | null, number, number];
  return { job, fence, holder, expiresAt, lease, left: expiresAt - now };
}
