import { existsSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { basename, extname, join } from "node:path";
import { artifactsPath, manifestPath, parseManifest } from "./backup-manifest.ts";
import type { Manifest } from "./backups.ts";

/** Where backups of a file go, where nobody says otherwise. */
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

/** The manifest last: as long as it is there, somebody finds what is left of the rest. */
export function removeBackup(folder: string, file: string): void {
  const path = join(folder, file);
  for (const one of [path, artifactsPath(path), manifestPath(path)]) rmSync(one, { recursive: true, force: true });
}
