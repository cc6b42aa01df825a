import type { WalView } from "../core/recovery/loss.ts";

export interface JournalLag {
  changes: number;
  since: number | null;
}

export interface Gauged {
  size: { bytes: number; unused: number };
  expiredLeases: number;
  /** The write-ahead log, with readers if it is long or they were asked for. Null: there is none, or it is the server's. */
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

// "damage": pages or the log are damaged, so the database is read-only. "loss": acknowledged commits are missing. "expected":
// they are missing, and the durability allows it. "row": a row is quarantined. "unlocked": a live process has lost its locks.
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
  /** Set if a clean check was to clear findings. Null: it did; else why they stay: the log or the commits still disagree. */
  stays?: string | null;
}

/** How much a check reads. "quick": only pages, half a second for a million jobs. "whole": also every row and index. */
export type Thoroughness = "quick" | "whole";
