import { existsSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { basename, extname, join } from "node:path";
import { HoldfastError } from "../core/text/errors.ts";
import type { JobState } from "../core/jobs/job.ts";
import { newestFirst } from "../core/recovery/backup-plan.ts";

export interface BackUpOptions {
  reason: BackupReason;
  onProgress: OnProgress;
  /** Called with the hashes of the artifacts that the copy refers to, and with a folder for copies of them. */
  collect: (hashes: string[], folder: string) => Promise<BackupArtifacts>;
}

/** Why a backup was made. Only scheduled backups are ever removed. */
export type BackupReason = "asked" | "scheduled" | "migration";

export interface Progress {
  step: "copying" | "checking" | "hashing" | "artifacts" | "replaying";
  done: number;
  total: number;
}
export type OnProgress = (progress: Progress) => void;

export interface BackupFacts {
  databaseId: string;
  epoch: number;
  schema: number;
  commits: number;
  jobs: number;
  counts: BackupCounts;
  /** The last change of the journal in the copy; null: there is no journal. */
  changes: number | null;
  audit: { entries: number; head: string | null };
  /** Damage beyond single rows: a copy of a damaged database is as damaged. */
  findings: string[];
  /** Rows with a wrong checksum, which the store does not hand out. */
  rows: string[];
}

interface BackupCounts {
  jobs: Partial<Record<JobState, number>>;
  builds: Record<string, number>;
  tables: Record<string, number>;
}

/** `included`: the folder has their bytes; otherwise only their hashes are known. */
export interface BackupArtifacts {
  included: boolean;
  hashes: string[];
  bytes: number;
  missing: string[];
}

export interface Manifest extends BackupFacts {
  holdfast: "backup";
  format: 1;
  file: string;
  size: number;
  sha256: string;
  /** The backup has everything that was acknowledged before this instant. */
  takenAt: number;
  copiedAt: number;
  reason: BackupReason;
  artifacts: BackupArtifacts;
}

export function backupsFolder(path: string): string {
  return `${path}-backups`;
}

export function backupName(source: string, now: number): string {
  const stamp = new Date(now).toISOString().replaceAll(":", "-");
  return `${basename(source, extname(source))}-${stamp}.db`;
}

/** Lists the backups of one database, or of all, in a folder, the newest first, without those whose manifest is unreadable. */
export function backupsIn(folder: string, databaseId: string | null): Manifest[] {
  if (!existsSync(folder)) return [];
  const found = readdirSync(folder).flatMap((name) => {
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
  return found.sort(newestFirst);
}

/** Removes a backup, its manifest last: as long as files are left, the manifest names them. */
export function removeBackup(folder: string, file: string): void {
  const path = join(folder, file);
  for (const one of [path, artifactsPath(path), manifestPath(path)]) rmSync(one, { recursive: true, force: true });
}

export function manifestPath(backup: string): string {
  return `${backup}.json`;
}

export function artifactsPath(backup: string): string {
  return `${backup}-artifacts`;
}

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
  const { size, sha256, databaseId, takenAt, commits, epoch, schema, artifacts, findings } = manifest;
  const isWhole =
    [size, takenAt, commits, epoch, schema].every(Number.isSafeInteger) &&
    typeof sha256 === "string" &&
    /^[0-9a-f]{64}$/.test(sha256) &&
    typeof databaseId === "string" &&
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
