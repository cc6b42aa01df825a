import { HoldfastError } from "../core/errors.ts";
import type { Manifest } from "./backups.ts";

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
    throw invalid(`${path} is no JSON: it was cut off, or something else was written there.`, cause);
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
  if (!isWhole) throw invalid(`${path} lacks what a manifest says.`);
  return manifest as Manifest;
}

function invalid(message: string, cause?: unknown): HoldfastError {
  return new HoldfastError(
    "BACKUP_INVALID",
    message,
    "Use another backup; or move the manifest away, and the file is taken for what it is, without being compared to anything.",
    { cause },
  );
}
