import { type AuditHead, type AuditRecord, linked } from "../core/audit-chain.ts";
import { HoldfastError } from "../core/errors.ts";
import { storable } from "../core/text.ts";
import type { AuditEntry, NewAuditEntry } from "./audit.ts";

export function toAuditEntry({ before, after, ...rest }: AuditRecord): AuditEntry {
  return { ...rest, before: parsed(before), after: parsed(after) };
}

/** An entry with its hash, and the head beside it; all columns of the entry are null where there is none. */
export type CheckedRow = { headSeq: number | null; headHash: string | null } & (HashedRecord | { seq: null });
type HashedRecord = AuditRecord & { hash: string | null };

/** At most `limit` entries; one more was read to see whether there is more. */
export function toChecked(
  rows: readonly CheckedRow[],
  limit: number,
): { entries: HashedRecord[]; head: AuditHead | null; more: boolean } {
  const { headSeq: seq = null, headHash: hash = null } = rows[0] ?? {};
  const entries = rows.filter((row) => row.seq !== null);
  return {
    entries: entries.slice(0, limit),
    head: seq === null || hash === null ? null : { seq, hash },
    more: entries.length > limit,
  };
}

/** The next in the chain: how it is written, and the head with it. What cannot be stored would not come back as it was hashed. */
export function nextRecord(head: AuditHead, entry: NewAuditEntry, at: number, actor: string): [AuditRecord, AuditHead] {
  const { by = actor, action, subject, before, after } = entry;
  const texts = { before: json(before), after: json(after) };
  const record = { seq: head.seq + 1, at, by: storable(by), action, subject: storable(subject), ...texts };
  return [record, linked(head, record)];
}

/** Nobody can remove it who has not removed what keeps it. */
export function headless(): HoldfastError {
  return new HoldfastError(
    "DAMAGED",
    "The head of the audit was removed, so nothing that is written down can be done.",
    "See what else was done to it with `holdfast audit verify`, and restore a backup.",
  );
}

function json(value: unknown): string | null {
  return value === null || value === undefined ? null : JSON.stringify(value);
}

function parsed(text: string | null): unknown {
  return text === null ? null : JSON.parse(text);
}
