import { existsSync } from "node:fs";
import { join } from "node:path";
import { HoldfastError } from "../core/errors.ts";
import { backupsFolder, backupsIn } from "../store/backup-folder.ts";
import type { OnProgress } from "../store/backups.ts";
import { verifyBackup, type VerifiedBackup } from "../store/sqlite/backup/verify.ts";
import type { DriverName } from "../store/sqlite/driver.ts";
import { canonicalPath } from "../store/sqlite/open.ts";
import { salvage, type SalvagedDatabase, type SalvageRequest } from "../store/sqlite/salvage/salvage.ts";

export interface SalvageOptions extends Omit<SalvageRequest, "backup"> {
  /** The backup that fills what cannot be read; null: none; left out: the newest that is whole. */
  backup?: string | null;
  /** Where to look for one, beside the usual folder. */
  folder?: string;
}

/** Makes a new database of what can be read of a damaged one, and of its newest backup. */
export function salvageWhole({ backup, folder, ...request }: SalvageOptions): Promise<SalvagedDatabase> {
  const { driver, onProgress } = request;
  return salvage({
    ...request,
    backup: async ({ databaseId }) => {
      if (backup === null) return null;
      if (backup === undefined) return await newest(request.path, folder, databaseId, driver, onProgress);
      const verified = await verifyBackup(backup, driver, onProgress);
      if (databaseId !== null && verified.facts.databaseId !== databaseId) throw other(verified.path, request.path);
      return verified;
    },
  });
}

/** One that is damaged, too, is passed over. */
async function newest(
  path: string,
  given: string | undefined,
  databaseId: string | null,
  driver: DriverName,
  tell: OnProgress | undefined,
): Promise<VerifiedBackup | null> {
  const folders = new Set([backupsFolder(canonicalPath(path)), ...(given === undefined ? [] : [given])]);
  const found = [...folders]
    .flatMap((folder) => backupsIn(folder, databaseId).map((manifest) => ({ manifest, path: join(folder, manifest.file) })))
    .filter((one) => existsSync(one.path))
    // Not by clocks; and one of before a restore has what was done away with by it.
    .sort(({ manifest: a }, { manifest: b }) => b.epoch - a.epoch || b.commits - a.commits || b.takenAt - a.takenAt);
  for (const one of found) {
    try {
      return await verifyBackup(one.path, driver, tell);
    } catch (error) {
      if (!(error instanceof HoldfastError)) throw error;
    }
  }
  return null;
}

function other(backup: string, path: string): HoldfastError {
  return new HoldfastError(
    "OTHER_DATABASE",
    `${backup} is a backup of another database than the one at ${path}. Nothing was changed.`,
    "Give a backup of this database, or --no-backup to do without one.",
  );
}
