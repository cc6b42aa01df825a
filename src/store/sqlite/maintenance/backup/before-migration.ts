import { existsSync } from "node:fs";
import { basename, extname, join } from "node:path";
import { HoldfastError } from "../../../../core/text/errors.ts";
import { backupsFolder } from "../../../backups.ts";
import type { Connection, DriverName } from "../../driver.ts";
import { versionOf } from "../../migrate.ts";
import { createFolder, modeLike } from "../../modes.ts";
import { Backups, clearWorkshop } from "./backups.ts";

/**
 * Before a newer Holdfast changes the schema: whoever wants to go back to the older one has what it could read. Of several
 * processes that open it at once, one makes it; it is named after what is in it, so the others find it there.
 */
export async function backUpBeforeMigration(
  db: Connection,
  { path, driver, now }: { path: string; driver: DriverName; now: () => number },
): Promise<void> {
  const folder = backupsFolder(path);
  const to = join(folder, nameOf(db, path));
  clearWorkshop(folder, driver);
  if (existsSync(to)) return;
  createFolder(folder, modeLike(path));
  try {
    const staged = await new Backups(db, { path, driver, clock: { now } }).stage(to, { reason: "migration" });
    await staged.publish({ included: false, hashes: [...staged.hashes], bytes: 0, missing: [] }).catch(async (error: unknown) => {
      await staged.discard();
      throw error;
    });
  } catch (error) {
    if (error instanceof HoldfastError && error.code === "BACKUP_EXISTS") return;
    throw error instanceof HoldfastError ? unmade(path, error) : error;
  }
}

function nameOf(db: Connection, path: string): string {
  const [commits, jobs] = db
    .prepare("select commits, max(jobs, coalesce((select max(key) from holdfast_jobs), 0)) from holdfast_counter where id = 1")
    .row() as [number, number];
  return `${basename(path, extname(path))}-schema-${versionOf(db)}-at-${commits}-${jobs}.db`;
}

function unmade(path: string, cause: HoldfastError): HoldfastError {
  return new HoldfastError(
    cause.code,
    `${path} is of an older schema, and the backup before it is changed could not be made. Nothing was changed: ${cause.message}`,
    `${cause.hint} Or open it without one: backups: { beforeMigration: false }.`,
    { cause },
  );
}
