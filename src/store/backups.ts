import { existsSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { basename, extname, join } from "node:path";
import { HoldfastError } from "../core/text/errors.ts";
import type { JobState } from "../core/jobs/job.ts";

export interface StageOptions {
  reason: BackupReason;
  onProgress?: OnProgress;
}

/** What wanted it: an operator, a schedule, or Holdfast itself before it changes the schema. Only scheduled ones are ever removed. */
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
  /** A folder for artifacts that go with it; the caller that puts some there makes it. */
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
  /** Rows that are not as they were written: they are not handed out, and are that row's trouble alone. */
  rows: string[];
}

interface BackupCounts {
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

/** The default folder for backups of a file. */
export function backupsFolder(path: string): string {
  return `${path}-backups`;
}

/** They sort by their time. */
export function backupName(source: string, now: number): string {
  const stamp = new Date(now).toISOString().replaceAll(":", "-");
  return `${basename(source, extname(source))}-${stamp}.db`;
}

/** The backups of one database, or of whichever, in a folder, as their manifests say; what has none, or one that cannot be read, is left alone. */
export function backupsIn(folder: string, databaseId: string | null): Manifest[] {
  if (!existsSync(folder)) return [];
  return readdirSync(folder).flatMap((name) => {
    const file = name.slice(0, -".json".length);
    if (!name.endsWith(".json") || file === "") return [];
    try {
      const manifest = parseManifest(readFileSync(join(folder, name), "utf8"), name);
      const isOf = databaseId === null || manifest.databaseId === databaseId;
      return isOf && manifest.file === file ? [manifest] : [];
    } catch {
      return [];
    }
  });
}

/** The manifest last: as long as it is there, what is left of the rest can be found. */
export function removeBackup(folder: string, file: string): void {
  const path = join(folder, file);
  for (const one of [path, artifactsPath(path), manifestPath(path)]) rmSync(one, { recursive: true, force: true });
}

/** Where the manifest of a backup is, and the artifacts that are included. */
export function manifestPath(backup: string): string {
  return `${backup}.json`;
}

export function artifactsPath(backup: string): string {
  return `${backup}-artifacts`;
}

export function manifestText(manifest: Manifest): string {
  return `${JSON.stringify(manifest, null, 2)}\n`;
}

/** Refused is what is no manifest, and what a newer Holdfast may have meant otherwise. */
export function parseManifest(text: string, path: string): Manifest {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    throw invalid(`${path} is not valid JSON.`, cause);
  }
  const manifest = value as Partial<Manifest> | null;
  if (typeof manifest !== "object" || manifest?.holdfast !== "backup") throw invalid(`${path} is not the manifest of a backup.`);
  if (manifest.format !== 1) {
    throw new HoldfastError(
      "BACKUP_NEWER",
      `${path} was written by a newer Holdfast (format ${String(manifest.format)}).`,
      "Update holdfast here to the version that made the backup.",
    );
  }
  const { size, sha256, databaseId, takenAt, artifacts, findings } = manifest;
  const isWhole =
    Number.isSafeInteger(size) &&
    typeof sha256 === "string" &&
    /^[0-9a-f]{64}$/.test(sha256) &&
    typeof databaseId === "string" &&
    Number.isSafeInteger(takenAt) &&
    Number.isSafeInteger(manifest.commits) &&
    Number.isSafeInteger(manifest.epoch) &&
    Number.isSafeInteger(manifest.schema) &&
    Array.isArray(findings) &&
    Array.isArray(artifacts?.hashes);
  if (!isWhole) throw invalid(`${path} lacks fields of a manifest.`);
  return manifest as Manifest;
}

function invalid(message: string, cause?: unknown): HoldfastError {
  return new HoldfastError(
    "BACKUP_INVALID",
    message,
    "Use another backup; or move the manifest away to restore the file without comparing it to the manifest.",
    { cause },
  );
}
