import type { AuditFault, AuditHead } from "../core/audit-chain.ts";

export type { AuditFault, AuditHead };

/**
 * Who did what, and how it was before and after it: what operators do, what recovery does, and every act on a build. An
 * entry is written in the transaction of its act. Entries are never changed or removed, and the database refuses to; each
 * has a hash that covers the one before it, so that it shows if somebody does it all the same. What is secret, and what
 * jobs are about, is in none of them.
 */
export interface AuditStore {
  /** In their order, those after a number; with `last` the newest of them. */
  page(query: AuditQuery): Promise<AuditEntry[]>;
  /** The newest entry's number and hash. One row is read. */
  head(): Promise<AuditHead>;
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

/** As it is written. `by`: where it is somebody else than whoever has the store open. */
export interface NewAuditEntry extends Omit<AuditEntry, "seq" | "at" | "by"> {
  by?: string;
}

/** What was done to what: the subject of `backup.made` with the name `/x` is `backup:/x`. */
export interface Act {
  action: string;
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
  /** Heads that were kept elsewhere: what was cut off with the database's own, or written anew as a whole, shows by them. */
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
