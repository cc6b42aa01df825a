import type { EventType } from "../core/jobs/event.ts";
import { type AuditFault, type AuditHead, type AuditRecord, linked } from "../core/recovery/audit.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { storable } from "../core/text/text.ts";

export type { AuditFault, AuditHead };

/**
 * Who did what, and how it was before and after it: what operators do, what recovery does, and every act on a build. An
 * entry is written in the transaction of its act. Entries are never changed or removed, and the database refuses to; each
 * has a hash that covers the one before it, so that a change shows all the same. What is secret, and what
 * jobs are about, is in none of them.
 */
export interface AuditStore {
  /** In their order, those after a number; with `last` the newest of them. */
  page(query: AuditQuery): Promise<AuditEntry[]>;
  /** Looks at some entries after `from`, up to where it has been found whole, or from the first on. */
  verify(query: AuditVerification): Promise<AuditCheck>;
  /** An act that changes nothing else in this database, such as a backup: its entry, and an event of the same name. The answer is when both are there. */
  record(act: Act): Promise<void>;
}

export interface AuditEntry {
  /** One after the other, without gaps. */
  seq: number;
  at: number;
  by: string;
  /** `build.started`, `queue.paused`, … */
  action: string;
  /** A build's id, or what else it is about: `job:ID`, `queue:NAME`, … */
  subject: string;
  before: unknown;
  after: unknown;
}

/** As it is written. `by`: if it is not the actor that has the store open. */
export interface NewAuditEntry extends Omit<AuditEntry, "seq" | "at" | "by"> {
  by?: string;
}

/** What was done to what: the subject of `backup.made` with the name `/x` is `backup:/x`. */
export interface Act {
  action: EventType;
  name: string;
  /** The id of the build that it is about, which is then its subject. */
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
  /** Heads that the caller kept, beside those that the store keeps outside the database: what was cut off with the database's own, or written anew as a whole, shows by them. */
  known?: readonly AuditHead[];
}

export interface AuditCheck {
  /** Up to here it is whole. */
  head: AuditHead;
  /** How many entries were looked at. */
  entries: number;
  more: boolean;
  fault: AuditFault | null;
}

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

/** The head cannot be removed without removing the trigger that keeps it. */
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
