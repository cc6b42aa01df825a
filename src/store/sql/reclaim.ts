import { RECOVERY } from "../../core/recovery/audit.ts";
import type { ProcessId } from "../../core/text/ids.ts";
import type { LeaseRef, StaleLease } from "../../core/jobs/lease.ts";
import { type Reclaimed, reclaimedOf } from "../../core/jobs/retry.ts";
import type { HealingStore, Judgement, RecoveryTotals } from "../healing.ts";
import { reclaimedBy } from "../recoveries.ts";
import type { Access, Tx } from "./access.ts";
import type { Audit } from "./audit.ts";
import type { Dialect } from "./dialect.ts";
import type { ReclaimedLease, Settle } from "./parts.ts";
import type { RecoveryLog } from "./recovery-log.ts";
import { type Answer, type Script, wait } from "./script.ts";

interface Parts {
  settle: Settle;
  leases: { cut(tx: Tx, leases: readonly Judgement[]): Answer<void> };
  recoveryLog: RecoveryLog;
  audit: Audit;
}

/** Ends leases, each only if it is still the given one, and tells their holders. Answers those that it ended. */
export function* endLeases(
  tx: Tx,
  settle: Settle,
  leases: readonly ReclaimedLease[],
): Script<{ ended: LeaseRef[]; reclaimed: Reclaimed }> {
  const nexts = yield* wait(settle.reclaim(tx, leases));
  const ended = leases.filter((_, i) => nexts[i] !== null);
  for (const { job, fence } of ended) tx.ended(job, fence);
  return { ended, reclaimed: reclaimedOf(nexts.filter((next) => next !== null)) };
}

/** Finds leases whose holders may be dead, and ends those that were judged so. */
export class Reclaim implements HealingStore {
  readonly #access: Access;
  readonly #parts: Parts;
  readonly #sql: ReturnType<typeof statements>;

  constructor(dialect: Dialect, parts: Parts, access: Access) {
    this.#access = access;
    this.#parts = parts;
    this.#sql = statements(dialect);
  }

  async stale({ dead, skewed, limit }: { dead: readonly ProcessId[]; skewed: boolean; limit: number }): Promise<StaleLease[]> {
    const sql = skewed || dead.length > 0 ? this.#sql.stale : this.#sql.expired;
    const leases = await this.#access.read((db) => db.all<StaleLease>(sql, { dead, skewed, limit }));
    return leases.map((lease) => Object.assign({}, lease));
  }

  reclaim(judgements: readonly Judgement[], cause: string, by = RECOVERY): Promise<Reclaimed> {
    return this.#access.write("reclaim", (tx) => this.#reclaim(tx, judgements, cause, by));
  }

  *#reclaim(tx: Tx, judgements: readonly Judgement[], cause: string, by: string): Script<Reclaimed> {
    const { settle, leases, recoveryLog, audit } = this.#parts;
    const cut = judgements.filter(({ verdict }) => verdict === "cut");
    if (cut.length > 0) yield* wait(leases.cut(tx, cut));
    const over = judgements.flatMap(({ verdict, ...lease }) => (verdict === "cut" ? [] : [{ ...lease, kind: verdict }]));
    const { reclaimed } = yield* endLeases(tx, settle, over);
    if (reclaimed.entries > 0) {
      yield* recoveryLog.record(tx, cause, { ...reclaimed, locks: 0 });
      yield* audit.add(tx, reclaimedBy(by, cause, reclaimed));
    }
    return reclaimed;
  }

  totals(): Promise<RecoveryTotals> {
    return this.#parts.recoveryLog.totals();
  }
}

function statements(dialect: Dialect) {
  const lease = `
    select key as job, fence, holder, expires_at as "expiresAt", lease, expires_at - :now as "left" from ${dialect.running} as running`;
  return {
    // By an index on the earliest expiry; with nothing expired it reads one index page.
    expired: `${lease} where bound <= :now and expires_at <= :now order by expires_at, key limit :limit`,
    // Reads all running jobs.
    stale: `
      ${lease} where expires_at <= :now or (:skewed and expires_at > :now + lease) or ${dialect.in("holder", "bigint", ":dead")}
      order by expires_at, key limit :limit`,
  };
}
