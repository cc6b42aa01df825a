import type { WalView } from "../core/recovery/loss.ts";
import type { HoldfastError } from "../core/text/errors.ts";
import type { BackUpOptions, Manifest } from "./backups.ts";

export interface MaintenanceStore {
  readonly journaled: boolean;
  /** Rises with each restore: a journal continues only backups of the same epoch. */
  readonly epoch: number;
  readonly isOverdue: boolean;
  /** Who keeps the log short: a thread that calls `run`, or, by default, each commit of this handle. */
  keptBy: "thread" | "commits";
  /** Regular maintenance, for a thread in which a stall blocks no job. Returns the write-ahead log if it is long. */
  run(): Promise<WalView | null>;
  /**
   * Copies the write-ahead log into the database, off this thread. `alone`: no other process has the file open; otherwise a short
   * log is left to it. `waitMs`: also empties the log, and waits this long for readers. Does nothing on a server.
   */
  checkpoint(how: { alone: boolean } | { waitMs: number }): Promise<void>;
  /** Cheap, whatever the size of the database. `readers`: also of a short log. */
  gauge(options?: { readers?: boolean }): Promise<Gauged>;
  diagnose(): Promise<Vitals>;
  /** A checked copy at one instant, which gets its name only when it is whole. Rejects with `BACKUP_EXISTS`. */
  backUp(path: string, options: BackUpOptions): Promise<Manifest>;
}

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

/**
 * "damage": pages or the log are damaged; the database is read-only. "loss": acknowledged commits are missing. "expected": a loss
 * that the chosen durability allows. "row": a quarantined row. "unlocked": a live process has lost its locks on the files.
 */
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

export interface DamageStore {
  /** Why every write is rejected with `DAMAGED` or `DATABASE_GONE`; null: no damage is known. */
  readonly damaged: string | null;
  /** Why reads may lack committed rows: damage, or commits that were missing at opening. Null: nothing is known to be missing. */
  readonly incomplete: string | null;
  /**
   * The error for a write or a claim (`DAMAGED`, `DATABASE_GONE`; for a claim also `LOCKS_LOST`); null: it is accepted. `again`:
   * checks the findings of other processes, the files, and this process's locks first.
   */
  refusal(of: "write" | "claim", again?: boolean): HoldfastError | null;
  /**
   * Checks off the main thread. Damage is stored, and the store is read-only from then on. `clears`: findings that are cleared if
   * the check is complete and has none. Processes that opened the database read-only must open it again.
   */
  check(how: Thoroughness, clears?: readonly string[]): Promise<Checked>;
  /** Findings of all processes that no report has recorded yet; damage stays until a check or a restore clears it. */
  findings(): Promise<Finding[]>;
}
