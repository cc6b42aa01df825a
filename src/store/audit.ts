import type { EventType } from "../core/jobs/event.ts";
import { type AuditFault, type AuditHead, type AuditRecord, appendToHead } from "../core/recovery/audit.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { toStorable } from "../core/text/text.ts";

export type { AuditFault, AuditHead };

export interface AuditEntry {
  seq: number;
  at: number;
  by: string;
  action: string;
  /** A build's id, `job:ID`, `queue:NAME`, … */
  subject: string;
  before: unknown;
  after: unknown;
}

/** An entry to be written. Default of `by`: the actor that has the store open. */
export interface NewAuditEntry extends Omit<AuditEntry, "seq" | "at" | "by"> {
  by?: string;
}

/** An action to be recorded. The subject of `backup.made` with the name `/x` is `backup:/x`. */
export interface Act {
  action: EventType;
  name: string;
  build?: string;
  before?: unknown;
  after?: unknown;
}

export interface AuditQuery {
  after: number;
  limit: number;
  subject?: string;
  last?: boolean;
}

export interface AuditVerification {
  from?: AuditHead;
  limit: number;
  /** Heads that the caller kept outside the database: they reveal an audit that was cut off with its head, or rewritten. */
  known?: readonly AuditHead[];
}

export interface AuditCheck {
  head: AuditHead;
  entries: number;
  more: boolean;
  fault: AuditFault | null;
}

export function toAuditEntry({ before, after, ...rest }: AuditRecord): AuditEntry {
  return { ...rest, before: parsed(before), after: parsed(after) };
}

/** An entry with the head beside it; if there is no entry, its columns are null. */
export type CheckedRow = { headSeq: number | null; headHash: string | null } & (HashedRecord | { seq: null });
type HashedRecord = AuditRecord & { hash: string | null };

/** Turns rows into a page of entries and their head. `rows` has one more than `limit` if there are more entries. */
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

/** Returns the next entry and the new head, with storable texts: other texts would not come back as they were hashed. */
export function nextRecord(head: AuditHead, entry: NewAuditEntry, at: number, actor: string): [AuditRecord, AuditHead] {
  const { by = actor, action, subject, before, after } = entry;
  const texts = { before: json(before), after: json(after) };
  const record = { seq: head.seq + 1, at, by: toStorable(by), action, subject: toStorable(subject), ...texts };
  return [record, appendToHead(head, record)];
}

export function headless(): HoldfastError {
  return new HoldfastError(
    "DAMAGED",
    "The head of the audit log was removed, so no audited action is possible.",
    "Run `holdfast audit verify` to see what else was changed, and restore a backup.",
  );
}

function json(value: unknown): string | null {
  return value === null || value === undefined ? null : JSON.stringify(value);
}

function parsed(text: string | null): unknown {
  return text === null ? null : JSON.parse(text);
}
