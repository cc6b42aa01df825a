import type { JobState } from "../core/job.ts";

/** Copies of a whole database, made while others work in it. */
export interface BackupStore {
  /** Whether changes are written to a journal. */
  readonly journaled: boolean;
  /** The journal leads on only from backups of the same. */
  readonly epoch: number;
  /**
   * Copies what is there now into a place of its own beside `path`, and checks the copy. Nothing has its name yet: whoever
   * asked publishes it, or discards it. Refused (`BACKUP_EXISTS`) where there is something at `path` already.
   */
  stage(path: string, options: StageOptions): Promise<StagedBackup>;
  /** How much of the journal is in no file yet, and since when; null: there is none. */
  journalLag(): Promise<JournalLag | null>;
  /** Of the journal, what none of these needs is removed. */
  trimJournal(kept: readonly Manifest[]): Promise<void>;
}

export interface JournalLag {
  changes: number;
  /** When the oldest of them was committed; null: there are none, or nobody has said. */
  since: number | null;
}

export interface StageOptions {
  reason: BackupReason;
  onProgress?: OnProgress;
}

/** Who wanted it: somebody, a schedule, or Holdfast itself before it changes the schema. Only scheduled ones are ever removed. */
export type BackupReason = "asked" | "scheduled" | "migration";

/** What is under way, and how much of it is done; in bytes, or in artifacts. */
export interface Progress {
  step: "copying" | "checking" | "hashing" | "artifacts" | "replaying";
  done: number;
  total: number;
}
export type OnProgress = (progress: Progress) => void;

/** A copy that is whole and on the disk, but for its name. */
export interface StagedBackup {
  readonly facts: BackupFacts;
  /** Every artifact that the copy references, each once. */
  readonly hashes: readonly string[];
  /** A folder for artifacts that go with it; it is made by whoever puts some there. */
  readonly artifactFolder: string;
  /** Gives it its name, and the manifest beside it; from then on it is a backup. */
  publish(artifacts: BackupArtifacts): Promise<Manifest>;
  /** As if it had never been. */
  discard(): Promise<void>;
}

/** What was read in a copy. */
export interface BackupFacts {
  databaseId: string;
  /** Rises with each restore. */
  epoch: number;
  schema: number;
  /** The commit that it holds everything up to. */
  commits: number;
  /** The highest key that a job has had. */
  jobs: number;
  counts: BackupCounts;
  /** The last change that is in it, where there is a journal; null: there is none. */
  changes: number | null;
  audit: { entries: number; head: string | null };
  /** What was found wrong with it; a copy of a damaged database is as damaged. */
  findings: string[];
  /** Rows that are not as they were written: they are handed to nobody, and are that row's trouble alone. */
  rows: string[];
}

export interface BackupCounts {
  jobs: Partial<Record<JobState, number>>;
  builds: Record<string, number>;
  /** Rows of every table, also of those that are not Holdfast's. */
  tables: Record<string, number>;
}

/** `included`: their bytes are in the folder; otherwise only what they are called is known. */
export interface BackupArtifacts {
  included: boolean;
  hashes: string[];
  bytes: number;
  /** Referenced, and not there when the backup was made. */
  missing: string[];
}

/** What stands beside a backup, as JSON. */
export interface Manifest extends BackupFacts {
  holdfast: "backup";
  format: 1;
  file: string;
  size: number;
  sha256: string;
  /** Everything that was acknowledged before is in it. */
  takenAt: number;
  /** Nothing that was done later is. */
  copiedAt: number;
  reason: BackupReason;
  artifacts: BackupArtifacts;
}
