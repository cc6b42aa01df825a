import type { WalView } from "../core/recovery/loss.ts";
import type { Manifest, StagedBackup, StageOptions } from "./backups.ts";

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
  /** Of running jobs: those that ran out, and that nobody has taken back yet. */
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
  /** Its lease ran out and nobody took it back; it runs past its timeout; it waits, and nothing is known that it waits for. */
  why: "expired" | "overdue" | "forgotten";
  /** By how much, in milliseconds; null: for ever. */
  by: number | null;
}

/** A lease that ran out so long ago, or an attempt that is so long past its timeout, is nobody's any more. */
export const STUCK = 60_000;
/** So many are named. */
export const NAMED = 20;
