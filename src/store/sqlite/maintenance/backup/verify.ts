import { existsSync, readFileSync, statSync } from "node:fs";
import { basename, dirname, resolve } from "node:path";
import { HoldfastError } from "../../../../core/text/errors.ts";
import { type BackupFacts, type Manifest, manifestPath, type OnProgress, parseManifest } from "../../../backups.ts";
import type { DriverName } from "../../driver.ts";
import { schemaVersion } from "../../migrate.ts";
import { clearWorkshop } from "./backups.ts";
import { runTask } from "./tasks.ts";

export interface VerifiedBackup {
  path: string;
  size: number;
  sha256: string;
  facts: BackupFacts;
  /** Every artifact that it references. */
  hashes: string[];
  /** Null: there is none, so it could be compared to nothing. */
  manifest: Manifest | null;
}

/** A backup as it was made: the same bytes, whole, and of a schema that is known here. Otherwise an error that says what is wrong. */
export async function verifyBackup(backup: string, driver: DriverName, tell?: OnProgress): Promise<VerifiedBackup> {
  const path = resolve(backup);
  const manifest = readManifest(path, driver);
  refuseLive(path);
  const { size, sha256, survey } = await runTask("inspect", { driver, path, expected: manifest?.sha256 }, tell).catch(
    (error: unknown) => {
      const code = error instanceof HoldfastError ? error.code : null;
      if (code === "NOT_A_DATABASE") throw none(path);
      throw code === "DAMAGED" ? damaged(path, "SQLite cannot read it") : error;
    },
  );
  if (manifest !== null && (manifest.size !== size || manifest.sha256 !== sha256)) {
    const said = manifest.size === size ? "its bytes are others" : `it has ${size} bytes instead of ${manifest.size}`;
    // Whoever opens a database enters himself in it.
    if (existsSync(`${path}-alive`)) throw opened(path, said);
    throw damaged(path, `it is not what its manifest says: ${said}`);
  }
  if (survey === null) throw none(path);
  const { facts, hashes } = survey;
  if (facts.findings.length > 0) throw damaged(path, facts.findings.join("; "));
  refuseNewer(path, facts.schema);
  return { path, size, sha256, facts, hashes, manifest };
}

/** After whatever a killed process had left to do. Null where there is none. */
export function readManifest(path: string, driver: DriverName): Manifest | null {
  clearWorkshop(dirname(path), driver);
  if (!existsSync(path) || statSync(path).isDirectory()) {
    throw new HoldfastError(
      "NO_BACKUP",
      `There is no backup at ${path}.`,
      "Give the path of the database file that `backup` has made.",
    );
  }
  const beside = manifestPath(path);
  if (!existsSync(beside)) return null;
  const manifest = parseManifest(readFileSync(beside, "utf8"), beside);
  return manifest;
}

function none(path: string): HoldfastError {
  const hint = "Give the path of the database file that `holdfast backup` has made.";
  return new HoldfastError("NOT_A_DATABASE", `${path} is no database of Holdfast's.`, hint);
}

function opened(path: string, said: string): HoldfastError {
  return new HoldfastError(
    "BACKUP_CHANGED",
    `The backup ${path} is not what its manifest says: ${said}. Somebody has opened it as a database since it was made.`,
    `Use another copy. To go on from this one as it was left, take it without its manifest: put ${basename(manifestPath(path))} away.`,
  );
}

/** A backup is one file. What has a log beside it is a database that somebody may work in. */
function refuseLive(path: string): void {
  for (const end of ["-wal", "-journal"]) {
    if ((statSync(path + end, { throwIfNoEntry: false })?.size ?? 0) === 0) continue;
    throw new HoldfastError(
      "NOT_A_BACKUP",
      `${path} is a database with a log beside it (${basename(path)}${end}), and no backup.`,
      `Make one of it: holdfast backup --db ${path}.`,
    );
  }
}

export function refuseNewer(path: string, schema: number): void {
  if (schema <= schemaVersion()) return;
  throw new HoldfastError(
    "SCHEMA_NEWER",
    `${path} was written by a newer Holdfast (schema ${schema}; this one knows ${schemaVersion()}). It was left as it is.`,
    "Update holdfast here to the version that made it.",
  );
}

export function damaged(path: string, why: string): HoldfastError {
  return new HoldfastError(
    "BACKUP_DAMAGED",
    `The backup ${path} is damaged: ${why}.`,
    "Use another backup, or another copy of this one. What can be read of it, `holdfast salvage` reads.",
  );
}
