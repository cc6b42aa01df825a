import { NO_ENTRY } from "../core/audit-chain.ts";
import type { AuditFault, AuditHead } from "../store/audit.ts";
import type { Store } from "../store/store.ts";

/** Entries that are looked at in one go: others of this process come in between. */
const PAGE = 1_000;

export interface AuditVerdict {
  ok: boolean;
  /** How many are whole, or were looked at until one was not. */
  entries: number;
  /** Up to here it is whole. */
  head: AuditHead;
  fault: AuditFault | null;
}

/** The whole of the audit, from the first entry on. `kept`: heads that were kept elsewhere, beside those that Holdfast keeps. */
export async function verifyAudit(
  { audit, damage }: Pick<Store, "audit" | "damage">,
  kept: readonly AuditHead[] = [],
): Promise<AuditVerdict> {
  const known = [...(await damage.auditHeads()), ...kept];
  let entries = 0;
  for (let from = NO_ENTRY; ;) {
    const check = await audit.verify({ from, limit: PAGE, known });
    entries += check.entries;
    const { head, fault } = check;
    if (!check.more) return { ok: fault === null, entries, head, fault };
    from = head;
    await new Promise((resolve) => setImmediate(resolve));
  }
}
