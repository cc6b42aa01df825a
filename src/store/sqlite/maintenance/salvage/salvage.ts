import { existsSync, mkdirSync, statSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { HoldfastError } from "../../../../core/text/errors.ts";
import type { BackupFacts, OnProgress } from "../../../backups.ts";
import { passStep } from "../../../points.ts";
import { changesFolder } from "../changes/segments.ts";
import type { DriverName } from "../../driver.ts";
import { explain, modeLike } from "../../faults.ts";
import { canonicalPath, refuseNetwork } from "../../open.ts";
import type { JournalStart, Salvaged } from "./task.ts";
import { scanLog } from "../wal.ts";
import { knownOutside, mostSeen, readSlots } from "../witness.ts";
import { writeSynced } from "../backup/copy.ts";
import { decide, keptName, refuseLiving, settleWith, switchOver, underWay } from "../backup/restore.ts";
import { living, reportPath, restoreFolder, Right, stagedPath } from "../backup/right.ts";
import { runTask } from "../backup/tasks.ts";
import { refuseNewer, type VerifiedBackup } from "../backup/prepare.ts";
import type { Identity } from "./damaged-copy.ts";

export interface SalvageRequest {
  path: string;
  driver: DriverName;
  /** For the audit. */
  by: string;
  now: number;
  /** The backup that fills what cannot be read, whole and of this database; null: there is none. */
  backup: (identity: Identity) => Promise<VerifiedBackup | null>;
  onProgress?: OnProgress;
}

export interface SalvagedDatabase extends Salvaged {
  path: string;
  /** What the damaged database is called now; its log is beside it, and so is the report. */
  kept: string;
  reportFile: string;
}

/**
 * Makes a new database of what SQLite can still read of a copy of a damaged one, and puts it into its place. The damaged one
 * is kept as it was. Like a restore: killed before it is decided, everything is as before; after it, the process that opens
 * the database next brings it to its end.
 */
export async function salvage(request: SalvageRequest): Promise<SalvagedDatabase> {
  const path = canonicalPath(request.path);
  const { driver } = request;
  refuseNetwork(dirname(path));
  if (!existsSync(path) || statSync(path).size === 0) throw nothing(path);
  refuseLiving(path, living(path, driver));
  using right = Right.take(path, driver);
  if (right === null) throw underWay(path);
  settleWith(right, path);
  const log = await scanLog(path);
  mkdirSync(restoreFolder(path), { mode: 0o700 });
  try {
    return await salvageBy(right, { ...request, path }, log?.bad?.beyond ?? 0);
  } catch (error) {
    // What was decided is not taken back: it is as good as done.
    if (right.plan()?.phase !== "switching") right.clear();
    throw explain(error, path);
  }
}

async function salvageBy(right: Right, request: SalvageRequest, commitsBeyond: number): Promise<SalvagedDatabase> {
  const { path, driver, onProgress, now } = request;
  const damaged = join(restoreFolder(path), "damaged");
  const read = await runTask("identify", { driver, from: path, to: damaged });
  // The processes that had it open have written down beside it which it is.
  const identity = { ...read, databaseId: read.databaseId ?? mostSeen(readSlots(path))?.databaseId ?? null };
  if (identity.schema !== null) refuseNewer(path, identity.schema);
  const backup = await request.backup(identity);
  if (backup === null && !identity.isReadable) throw unreadable(path);
  const kept = keptName(path, now, "damaged");
  // The epoch of what is there may be unreadable: this is beyond all that were given out here, and beyond the backup's.
  const seen = knownOutside(path);
  const epoch = Math.max(right.epoch, identity.epoch, seen.epoch, backup?.facts.epoch ?? 0) + 1;
  right.remember(epoch);
  const known = {
    epoch: epoch - 1,
    commits: Math.max(seen.commits, backup?.facts.commits ?? 0),
    key: Math.max(seen.key, backup?.facts.jobs ?? 0),
  };
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
        journal: journalFrom(path, backup.facts, epoch - 1),
      },
      schema: identity.schema,
      databaseId: identity.databaseId,
      highestJob: seen.key > 0 ? seen.key : null,
      preparation: {
        driver,
        path: stagedPath(path),
        now,
        known,
        by: request.by,
        audit: {
          action: "database.salvaged",
          name: basename(kept),
          after: { backup: backup === null ? null : basename(backup.path) },
        },
      },
    },
    onProgress,
  );
  const { report, findings } = salvaged;
  writeSynced(reportPath(path), `${JSON.stringify({ ...report, findings }, null, 2)}\n`, modeLike(path));
  await decide(right, path, driver, { kept, act: "salvage" });
  switchOver(path, { kept, act: "salvage" });
  right.clear();
  passStep("salvage:kept");
  return { ...salvaged, path, kept, reportFile: `${kept}.report.json` };
}

/** Null: there was none when the backup was made; or the database was restored since, and that one's leads elsewhere. */
function journalFrom(path: string, { databaseId, epoch, changes }: BackupFacts, now: number): JournalStart | null {
  return changes === null || epoch < now ? null : { folder: changesFolder(path), databaseId, epoch, after: changes };
}

function unreadable(path: string): HoldfastError {
  return new HoldfastError(
    "NOTHING_TO_SALVAGE",
    `SQLite can read nothing of ${path}, and there is no backup. Nothing was changed.`,
    "Give a backup with --from; `sqlite3 FILE .recover` may still find rows of your own tables.",
  );
}

function nothing(path: string): HoldfastError {
  return new HoldfastError(
    "NO_DATABASE",
    `There is nothing to salvage at ${path}.`,
    "Give the path of the damaged database with --db.",
  );
}
