import { statSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { HoldfastError } from "../../../../core/text/errors.ts";
import type { OnProgress } from "../../../backups.ts";
import type { DriverName } from "../../driver.ts";
import { fileSize, modeLike } from "../../faults.ts";
import { refuseNewer } from "../../migrate.ts";
import { canonicalPath, refuseNetwork } from "../../open.ts";
import { writeSynced } from "../backup/copy.ts";
import { knownOf, type VerifiedBackup } from "../backup/backups.ts";
import { nameForKept, replaceDatabase, reportPath, restoreFolder, stagedPath } from "../backup/replace.ts";
import { runTask } from "../backup/tasks.ts";
import { highestOf } from "../epoch.ts";
import { scanLog } from "../wal.ts";
import { knownOutside, mostSeen, readSlots } from "../witness.ts";
import type { Identity, Salvaged } from "./rebuild.ts";

export interface SalvageRequest {
  path: string;
  driver: DriverName;
  by: string;
  now: number;
  /** Finds the verified backup that replaces what cannot be read. Null: there is none. */
  backup: (identity: Identity) => Promise<VerifiedBackup | null>;
  onProgress?: OnProgress;
}

export interface SalvagedDatabase extends Salvaged {
  path: string;
  kept: string;
  reportFile: string;
}

/** Salvages a database, and keeps the damaged one. A kill before `decide` changes nothing; later, the next opener completes. */
export async function salvage(request: SalvageRequest): Promise<SalvagedDatabase> {
  const path = canonicalPath(request.path);
  refuseNetwork(dirname(path));
  if (fileSize(path) === 0)
    throw new HoldfastError(
      "NO_DATABASE",
      `There is nothing to salvage at ${path}.`,
      "Give the path of the damaged database with --db.",
    );
  return await replaceDatabase(path, request.driver, "salvage", () => stageSalvaged({ ...request, path }));
}

async function stageSalvaged(request: SalvageRequest): Promise<SalvagedDatabase> {
  const { path, driver, onProgress, now } = request;
  const commitsBeyond = (await scanLog(path))?.bad?.beyond ?? 0;
  const damaged = join(restoreFolder(path), "damaged");
  const found = await runTask("identify", { driver, from: path, to: damaged });
  const identity = { ...found, databaseId: found.databaseId ?? mostSeen(readSlots(path))?.databaseId ?? null };
  if (identity.schema !== null) refuseNewer(identity.schema, path);
  const backup = await request.backup(identity);
  if (backup === null && !identity.isReadable)
    throw new HoldfastError(
      "NOTHING_TO_SALVAGE",
      `SQLite can read nothing of ${path}, and there is no backup. Nothing was changed.`,
      "Give a backup with --from. `sqlite3 FILE .recover` may find rows of your own tables.",
    );
  const kept = nameForKept(path, now, "damaged");
  const read = { epoch: identity.epoch, commits: 0, key: 0 };
  const known = highestOf([read, knownOutside(path), ...(backup === null ? [] : [knownOf(backup.facts)])]);
  const after = { backup: backup === null ? null : basename(backup.path) };
  const audit = { action: "database.salvaged", name: basename(kept), after } as const;
  const salvaged = await runTask(
    "salvage",
    {
      driver,
      damaged,
      commitsBeyond,
      mode: statSync(path).mode & 0o777,
      backup: backup && {
        path: backup.path,
        takenAt: backup.manifest?.takenAt ?? null,
        schema: backup.facts.schema,
        isJournaled: backup.facts.changes !== null,
      },
      schema: identity.schema,
      databaseId: identity.databaseId,
      preparation: { driver, path: stagedPath(path), now, known, by: request.by, audit },
    },
    onProgress,
  );
  const { report, findings } = salvaged;
  writeSynced(reportPath(path), `${JSON.stringify({ ...report, findings }, null, 2)}\n`, modeLike(path));
  return { ...salvaged, path, kept, reportFile: `${kept}.report.json` };
}
