import type { Reclaimed } from "../core/retry.ts";
import type { NewAuditEntry } from "./audit.ts";

/** What is kept in the audit of leases that were taken back. */
export function reclaimedBy(by: string, cause: string, { entries, quarantined, failed }: Reclaimed): NewAuditEntry {
  const after = { cause, jobs: entries, quarantined, failed };
  return { by, action: "recovery.reclaimed", subject: "leases", before: null, after };
}
