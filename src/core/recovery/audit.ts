import { hash } from "node:crypto";
import type { JobState } from "../jobs/job.ts";
import { type Budget, fromBudget } from "../pipelines/budget.ts";
import type { BuildReason, BuildState } from "../pipelines/build.ts";

export const RECOVERY_ACTOR = "recovery";
export const JOURNAL_ACTOR = "journal";
export const UNKNOWN_ACTOR = "unknown";

export interface Actor {
  program: string;
  pid: number;
  host: string;
  user?: string;
}

export function actorText({ program, pid, host, user }: Actor): string {
  return `${program} (pid ${pid} on ${host}${user === undefined ? "" : `, by ${user}`})`;
}

/** Returns the subject of an audit entry. `lock.broken` has the subject `lock:NAME`; builds are their ids. */
export function subjectOf(action: string, name: string): string {
  return `${action.slice(0, action.indexOf("."))}:${name}`;
}

/** Returns what the audit keeps of a build: what an action may change, and no secret. */
export function auditedBuild(build: AuditedBuild): object {
  const { state, reason, note, seq, budget, approved } = build;
  return { state, reason, note, seq, budget: fromBudget(budget), approved };
}

export interface AuditedBuild {
  state: BuildState;
  reason: BuildReason;
  note: string | null;
  seq: number;
  budget: Budget;
  approved: boolean;
}

/** Returns what the audit keeps of a job: no input, output or errors, which belong to the user. */
export function auditedJob({ name, queue }: { name: string; queue: string }, state: JobState): object {
  return { name, queue, state };
}

/** A stored audit entry. `before` and `after` are JSON, byte for byte as written. */
export interface AuditRecord {
  seq: number;
  at: number;
  by: string;
  action: string;
  subject: string;
  before: string | null;
  after: string | null;
}

/** Number and hash of the last entry, which prove all entries before it. */
export interface AuditHead {
  seq: number;
  hash: string;
}

export const NO_ENTRY: AuditHead = { seq: 0, hash: "0".repeat(64) };

/** Hashes the entry and the hash before it. Parts are elements of one JSON array, so that no two entries have the same text. */
export function auditHash(previous: string, record: AuditRecord): string {
  const { seq, at, by, action, subject, before, after } = record;
  return hash("sha256", JSON.stringify(["holdfast.audit.1", previous, seq, at, by, action, subject, before, after]));
}

export function appendToHead(head: AuditHead, record: AuditRecord): AuditHead {
  return { seq: record.seq, hash: auditHash(head.hash, record) };
}

export interface AuditFault {
  kind: "altered" | "removed" | "added" | "cut" | "unguarded";
  seq: number;
  message: string;
}

export interface AuditPage {
  from: AuditHead;
  rows: readonly (AuditRecord & { hash: string | null })[];
  isLast: boolean;
  head: AuditHead | null;
  known: readonly AuditHead[];
}

export function followAudit({ from, rows, isLast, head, known }: AuditPage): { head: AuditHead; fault: AuditFault | null } {
  let last = from;
  const stopped = (fault: AuditFault) => ({ head: last, fault });
  for (const row of rows) {
    const next = appendToHead(last, row);
    if (row.seq <= last.seq) return stopped(added(row.seq));
    if (row.hash !== next.hash) return stopped(row.seq > last.seq + 1 ? removed(last.seq + 1, row.seq - 1) : altered(row.seq));
    // If entries were removed, a known head may lie between two remaining ones.
    const passed = known.find(({ seq }) => seq > last.seq && seq < row.seq);
    if (passed !== undefined) return stopped(removed(last.seq + 1, row.seq - 1));
    if (known.some(({ seq, hash }) => seq === row.seq && hash !== row.hash)) return stopped(rewritten(row.seq));
    last = next;
  }
  if (!isLast) return { head: last, fault: null };
  if (head === null) return stopped({ kind: "removed", seq: last.seq, message: "The head of the audit was removed." });
  const furthest = Math.max(head.seq, ...known.map(({ seq }) => seq));
  if (furthest > last.seq) return stopped(cut(last.seq + 1, furthest));
  if (head.seq < last.seq) return stopped(added(head.seq + 1));
  return head.hash === last.hash ? { head: last, fault: null } : stopped(rewritten(head.seq));
}

function altered(seq: number): AuditFault {
  const message = `Entry ${seq} is not as it was written, or the one before it is not: its hash does not follow.`;
  return { kind: "altered", seq, message };
}

function rewritten(seq: number): AuditFault {
  const message = `Entry ${seq}, or one before it, was written anew: its hash is not the one that is known.`;
  return { kind: "altered", seq, message };
}

function removed(from: number, to: number): AuditFault {
  return { kind: "removed", seq: from, message: `${entries(from, to)} removed.` };
}

function added(seq: number): AuditFault {
  return { kind: "added", seq, message: `Entry ${seq} was put in past the chain.` };
}

function cut(from: number, to: number): AuditFault {
  return { kind: "cut", seq: from, message: `${entries(from, to)} cut off: the audit ends before its head.` };
}

export function unguarded(seq: number, guards: readonly string[]): AuditFault {
  const message = `The entries follow each other, but nothing keeps them from being changed: without ${guards.join(", ")}.`;
  return { kind: "unguarded", seq, message };
}

function entries(from: number, to: number): string {
  return from === to ? `Entry ${from} was` : `Entries ${from} to ${to} were`;
}
