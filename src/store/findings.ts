import type { HoldfastError } from "../core/text/errors.ts";

/**
 * What was found wrong with a database. "damage": its pages, or its log, are not what was written; it is only read from
 * then on. "loss": commits that were acknowledged are not there. "expected": the same, where the chosen durability allows
 * it. "row": a row that was put into quarantine. "unlocked": a live process has lost its locks on the files.
 */
export type Severity = "damage" | "loss" | "expected" | "row" | "unlocked";

export interface Finding {
  id: string;
  at: number;
  severity: Severity;
  /** In plain words; a whole sentence. */
  what: string;
  /** How many commits are known to be gone; null: nobody can tell. */
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
