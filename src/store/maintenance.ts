import type { WalView } from "../core/recovery/loss.ts";

export interface JournalLag {
  changes: number;
  since: number | null;
}

export interface Gauged {
  size: { bytes: number; unused: number };
  expiredLeases: number;
  /** Null: there is none, or it is the server's. Readers are looked up if it is long, or on request. */
  wal: WalView | null;
}

export interface Vitals extends Pick<Gauged, "size"> {
  engine: string;
  schema: { version: number; known: number };
  settings: Setting[];
  stuck: StuckJob[];
  latest: number;
  now: number;
  /** On a server: transactions that have been open for more than a minute. */
  transactions: { pid: number; program: string; since: number }[];
  journal: JournalLag | null;
}

export interface Setting {
  name: string;
  value: string;
  wanted: string | null;
}

export interface StuckJob {
  id: string;
  /** "expired": its lease was not reclaimed. "overdue": it runs past its timeout. "forgotten": it waits for nothing. */
  why: "expired" | "overdue" | "forgotten";
  by: number | null;
}

export const STUCK = 60_000;
export const NAMED = 20;

// "damage": pages or the log; the database is read-only. "loss": acknowledged commits are missing; "expected": the durability
// allows that. "row": a quarantined row. "unlocked": a live process has lost its locks on the files.
type Severity = "damage" | "loss" | "expected" | "row" | "unlocked";

export interface Finding {
  id: string;
  at: number;
  severity: Severity;
  what: string;
  commitsMissing: number | null;
}

export type NewFinding = Pick<Finding, "severity" | "what"> & Partial<Pick<Finding, "commitsMissing">>;

export interface Checked {
  findings: string[];
  /** Violated foreign keys of the user's tables, in sentences; they are not damage. */
  references: string[];
  /** Referenced artifacts; the store does not know whether they exist. */
  artifacts: string[];
  /** Whether everything was checked: only then can it clear a finding. */
  isComplete: boolean;
  /** If it was to clear findings and has none: null, or why they stay: the log, or the number of commits, still disagrees. */
  stays?: string | null;
}

/** "quick": only pages, half a second for a million jobs. "whole": also every row and index. */
export type Thoroughness = "quick" | "whole";
