import { type AuditHead, type AuditRecord, linked } from "../core/audit-chain.ts";
import { HoldfastError } from "../core/errors.ts";
import { storable } from "../core/text.ts";
import type { AuditEntry, NewAuditEntry } from "./audit.ts";

/** What is read of an entry; `actor` is `by`, which is a word of SQL. */
export const ENTRY = "seq, at, actor, action, subject, before, after";

/** In the order of `ENTRY`. */
export type EntryRow = [
  seq: number,
  at: number,
  by: string,
  action: string,
  subject: string,
  before: string | null,
  after: string | null,
];

export function toRecord([seq, at, by, action, subject, before, after]: EntryRow): AuditRecord {
  return { seq, at, by, action, subject, before, after };
}

export function toAuditEntry(row: EntryRow): AuditEntry {
  const { before, after, ...rest } = toRecord(row);
  return { ...rest, before: parsed(before), after: parsed(after) };
}

/**
 * Entries with their hashes, and the head beside each: one statement, hence of one instant, since others may write between
 * two. There is always at least one row, where there are no entries, too.
 */
export const CHECKED = (of: { entries: string; head: string; after: string; limit: string }): string => `
  select head.seq, head.hash, entry.* from (select 1 as one) as always left join ${of.head} as head on head.id = 1
  left join (select ${ENTRY}, hash from ${of.entries} where seq > ${of.after} order by seq limit ${of.limit}) as entry on true
  order by entry.seq`;

export type CheckedRow = [headSeq: number | null, headHash: string | null, ...(HashedRow | null[])];
type HashedRow = [...EntryRow, hash: string | null];

/** At most `limit` entries; one more was read to see whether there is more. */
export function toChecked(
  rows: readonly CheckedRow[],
  limit: number,
): { entries: (AuditRecord & { hash: string | null })[]; head: AuditHead | null; more: boolean } {
  const [seq = null, hash = null] = rows[0] ?? [];
  const entries = rows.flatMap(([, , ...row]) => (isEntry(row) ? [row] : []));
  return {
    entries: entries.slice(0, limit).map((row) => Object.assign(toRecord(row.slice(0, -1) as EntryRow), { hash: row[7] })),
    head: seq === null || hash === null ? null : { seq, hash },
    more: entries.length > limit,
  };
}

function isEntry(row: HashedRow | null[]): row is HashedRow {
  return row[0] !== null;
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
