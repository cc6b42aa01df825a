import { existsSync } from "node:fs";
import { join } from "node:path";
import { Artifacts } from "../artifacts/artifacts.ts";
import { newestFirst } from "../core/recovery/backup-plan.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { verifyArtifacts } from "../engine/maintenance/backups.ts";
import { Alive } from "../store/alive.ts";
import { artifactsPath, backupsFolder, backupsIn, type OnProgress } from "../store/backups.ts";
import { databaseAt, restore, type Restored, type RestoreRequest } from "../store/sqlite/maintenance/backup/restore.ts";
import { damaged, type VerifiedBackup, verifyBackup } from "../store/sqlite/maintenance/backup/backups.ts";
import type { DriverName } from "../store/sqlite/driver.ts";
import { modeLike } from "../store/sqlite/faults.ts";
import { canonicalPath } from "../store/sqlite/open.ts";
import { salvage, type SalvagedDatabase, type SalvageRequest } from "../store/sqlite/maintenance/salvage/salvage.ts";

export { databaseAt };

export interface RestoredDatabase extends Restored {
  artifacts: {
    restored: number;
    /** Artifacts that are referenced, but exist in neither place. */
    missing: string[];
  };
}

/** Restores the artifacts before the database, because they do no harm if the rest fails. */
export async function restoreWhole(request: RestoreRequest & { artifacts?: string }): Promise<RestoredDatabase> {
  let artifacts: RestoredDatabase["artifacts"] = { restored: 0, missing: [] };
  const restored = await restore(request, async (found) => {
    artifacts = await restoreArtifacts(found, request);
  });
  return { ...restored, artifacts };
}

async function restoreArtifacts(
  { hashes, backup, manifest, path }: Restored,
  { artifacts: given, driver, onProgress = () => {} }: RestoreRequest & { artifacts?: string },
): Promise<RestoredDatabase["artifacts"]> {
  await verifyArtifacts(backup, manifest, onProgress);
  if (hashes.length === 0) return { restored: 0, missing: [] };
  const folder = given ?? `${path}-artifacts`;
  const included = manifest?.artifacts.included === true;
  if (!included && !existsSync(folder)) return { restored: 0, missing: hashes };
  const opened = await Artifacts.open(folder, { alive: (place) => new Alive(place, driver), mode: modeLike(path) });
  try {
    const gone = opened.missing(hashes);
    const missing: string[] = [];
    for (const [i, hash] of gone.entries()) {
      const file = join(artifactsPath(backup), hash.slice(0, 2), hash.slice(2));
      if (!included || !existsSync(file)) missing.push(hash);
      else if ((await opened.put({ path: file })).hash !== hash) throw damaged(backup, `its artifact ${hash} has other bytes`);
      onProgress({ step: "artifacts", done: i + 1, total: gone.length });
    }
    return { restored: gone.length - missing.length, missing };
  } finally {
    opened.close();
  }
}

export interface SalvageOptions extends Omit<SalvageRequest, "backup"> {
  /** Backup that fills what cannot be read: null for none; absent for the newest whole one. */
  backup?: string | null;
  folder?: string;
}

export function salvageWhole({ backup, folder, ...request }: SalvageOptions): Promise<SalvagedDatabase> {
  const { driver, onProgress } = request;
  return salvage({
    ...request,
    backup: async ({ databaseId }) => {
      if (backup === null) return null;
      if (backup === undefined) return await newestWholeBackup(request.path, folder, databaseId, driver, onProgress);
      const verified = await verifyBackup(backup, driver, onProgress);
      if (databaseId !== null && verified.facts.databaseId !== databaseId) throw otherDatabase(verified.path, request.path);
      return verified;
    },
  });
}

async function newestWholeBackup(
  path: string,
  given: string | undefined,
  databaseId: string | null,
  driver: DriverName,
  onProgress: OnProgress | undefined,
): Promise<VerifiedBackup | null> {
  const beside = backupsFolder(canonicalPath(path));
  const folders = [...new Set([beside, given ?? beside])];
  const found = folders.flatMap((folder) => backupsIn(folder, databaseId).map((manifest) => ({ folder, manifest })));
  for (const { folder, manifest } of found.toSorted((a, b) => newestFirst(a.manifest, b.manifest))) {
    try {
      return await verifyBackup(join(folder, manifest.file), driver, onProgress);
    } catch (error) {
      if (!(error instanceof HoldfastError)) throw error;
    }
  }
  return null;
}

function otherDatabase(backup: string, path: string): HoldfastError {
  return new HoldfastError(
    "OTHER_DATABASE",
    `${backup} is a backup of another database than the one at ${path}. Nothing was changed.`,
    "Give a backup of this database, or --no-backup to use none.",
  );
}
