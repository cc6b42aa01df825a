import type { WalView } from "../core/recovery/loss.ts";
import type { HoldfastError } from "../core/text/errors.ts";
import type { Manifest, StageOptions, StagedBackup } from "./backups.ts";

/** Looks after the storage: checkpoints, backups, its size and settings. For the engine and the operator, not for jobs. */
export interface MaintenanceStore {
  /** Whether changes are written to a journal. */
  readonly journaled: boolean;
  /** Rises with each restore: the journal leads on only from backups of the same epoch. */
  readonly epoch: number;
  /** Whether regular maintenance is overdue. */
  readonly isOverdue: boolean;
  /** Regular maintenance, for a thread in which a stall blocks no job. Answers the write-ahead log if it has grown long. */
  run(): Promise<WalView | null>;
  /** Who keeps the log short from now on: a thread that calls `run`, or each commit of this handle. */
  leaveTo(whom: "thread" | "commits"): void;
  /**
   * Copies the write-ahead log into the database, off this thread. `alone`: no other process has the file open; if one has,
   * a short log is left to it. `waitMs`: also empties the log, and waits this long for readers. A server needs none of it.
   */
  checkpoint(how: { alone: boolean } | { waitMs: number }): Promise<void>;
  /** Figures that are asked for again and again: cheap, however large the database is. `readers`: also of a short log. */
  gauge(options?: { readers?: boolean }): Promise<Gauged>;
  /** Everything `holdfast doctor` looks at. */
  diagnose(): Promise<Vitals>;
  /**
   * Copies the database, while others work in it, into a place of its own beside `path`, and checks the copy. It has no name
   * until the caller publishes it. Rejects with `BACKUP_EXISTS` if there is a file at `path` already.
   */
  stageBackup(path: string, options: StageOptions): Promise<StagedBackup>;
  /** Removes what none of these backups needs of the journal. */
  trimJournal(kept: readonly Manifest[]): Promise<void>;
}

export interface JournalLag {
  /** How many changes are in no file of the journal yet. */
  changes: number;
  /** When the oldest of them was committed; null: there are none, or it is not known. */
  since: number | null;
}

export interface Gauged {
  /** In bytes; unused: free for what comes. */
  size: { bytes: number; unused: number };
  /** Of running jobs: leases that expired and were not reclaimed yet. */
  expiredLeases: number;
  /** Null: there is none, or it is the server's own. Its readers are looked up if it is long, or on request. */
  wal: WalView | null;
}

export interface Vitals extends Pick<Gauged, "size"> {
  /** `SQLite 3.51.3 (node:sqlite)`. */
  engine: string;
  schema: { version: number; known: number };
  /** As they really are, on a connection of this store. */
  settings: Setting[];
  stuck: StuckJob[];
  /** The latest instant that is written down for something that has happened, in the store's time. */
  latest: number;
  now: number;
  /** On a server: transactions that are open for longer than a minute. They keep it from cleaning up. */
  transactions: { pid: number; program: string; since: number }[];
  /** Null: there is no journal. */
  journal: JournalLag | null;
}

export interface Setting {
  name: string;
  value: string;
  /** What it should be; null: as it likes. */
  wanted: string | null;
}

export interface StuckJob {
  id: string;
  /** Its lease expired and was not reclaimed; it runs past its timeout; it waits, and nothing is known that it waits for. */
  why: "expired" | "overdue" | "forgotten";
  /** By how much, in milliseconds; null: for ever. */
  by: number | null;
}

/** A lease that expired so long ago, or an attempt that is so long past its timeout, is stuck. */
export const STUCK = 60_000;
/** So many are named. */
export const NAMED = 20;

/**
 * What was found wrong with a database. "damage": its pages, or its log, are not what was written; it is only read from
 * then on. "loss": commits that were acknowledged are not there. "expected": the same, where the chosen durability allows
 * it. "row": a row that was put into quarantine. "unlocked": a live process has lost its locks on the files.
 */
type Severity = "damage" | "loss" | "expected" | "row" | "unlocked";

export interface Finding {
  id: string;
  at: number;
  severity: Severity;
  /** In plain words; a whole sentence. */
  what: string;
  /** How many commits are known to be gone; null: it is not known. */
  commitsMissing: number | null;
}

export type NewFinding = Pick<Finding, "severity" | "what"> & Partial<Pick<Finding, "commitsMissing">>;

/** What opening has met before SQLite touched anything. */
export interface Opening {
  /** The size of the write-ahead log, and how many of its frames were replayed. */
  walBytes: number;
  walFrames: number;
}

/** What a check has found. */
export interface Checked {
  /** Sentences; none: it is whole. */
  findings: string[];
  /** Foreign keys of the user's own tables that lead nowhere, in sentences: no damage, and no reason to stop writing. */
  references: string[];
  /** Artifacts that something refers to; whether they are there is not the store's to know. */
  artifacts: string[];
  /** Whether it has looked at all there is: only then can it clear a finding. */
  isComplete: boolean;
}

/** "quick": whether its pages are sound, half a second for a million jobs. "whole": every row and every index, too. */
export type Thoroughness = "quick" | "whole";

/** What is wrong with a store, and what is done about it. */
export interface DamageStore {
  /** Why it is only read: every write is refused with `DAMAGED`, or `DATABASE_GONE`. Null: it is whole, as far as is known. */
  readonly damaged: string | null;
  /**
   * Why results may lack what was committed: the database is damaged, or its witness has seen commits that were not there
   * when this store was opened. Null: nothing is known to be missing.
   */
  readonly incomplete: string | null;
  /**
   * What a write, or a claim, is refused with (`DAMAGED`, `DATABASE_GONE`; a claim also with `LOCKS_LOST`). Null: it is not
   * refused. `again`: looks whether another process has found damage, or cleared it, since, the files were replaced, or the
   * locks of this process on them vanished.
   */
  refusal(of: "write" | "claim", again?: boolean): HoldfastError | null;
  /** Null: there was no log, or others had it open. */
  readonly opening: Opening | null;
  /** Looks off the main thread, while others work. Damage that it finds is kept, and the store is only read from then on. */
  check(how: Thoroughness): Promise<Checked>;
  /**
   * Clears findings of damage, by their ids, after a complete check has found nothing: null. The answer is why not where the
   * log, or the number of commits, still disagrees. All processes write again from then on; those that opened the database
   * while it was read-only have to open it again.
   */
  clear(ids: readonly string[]): Promise<string | null>;
  /** What was found so far, by any process, and stands in no report yet; damage stays until a check clears it, or a restore. */
  findings(): Promise<Finding[]>;
  /** Called when writes, or claims, are refused from now on; with null, when they are not any more. */
  onDamaged(call: (error: HoldfastError | null) => void): () => void;
}
