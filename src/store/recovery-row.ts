import type { Reclaimed } from "../core/retry.ts";
import type { NewAuditEntry } from "./audit.ts";
import type { RecoveryTotals } from "./healing.ts";

/** So many entries of the log are kept. */
export const LOG_ROWS = 1_000;
/** And so many are shown. */
export const LATELY = 50;

/** The sums of all that was ever healed, as they are read. */
export interface TotalsRow {
  entries: number;
  locks: number;
  recovered_at: number;
}

export function toRecovery(totals: TotalsRow | undefined, log: readonly RecoveryTotals["log"][number][]): RecoveryTotals {
  return {
    locksCleaned: totals?.locks ?? 0,
    entriesReclaimed: totals?.entries ?? 0,
    recoveredAt: totals?.recovered_at ?? 0,
    log: log.map((row) => Object.assign({}, row)),
  };
}

/** What is kept in the audit of leases that were taken back. */
export function reclaimedBy(by: string, cause: string, { entries, quarantined, failed }: Reclaimed): NewAuditEntry {
  const after = { cause, jobs: entries, quarantined, failed };
  return { by, action: "recovery.reclaimed", subject: "leases", before: null, after };
}
