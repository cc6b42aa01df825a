import { existsSync, fstatSync, ftruncateSync, mkdirSync, readSync, statSync, writeSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { HoldfastError } from "../../../../core/text/errors.ts";
import type { BackupFacts, OnProgress } from "../../../backups.ts";
import { passStep } from "../../../points.ts";
import { connect, type Connection, type DriverName, inTransaction } from "../../driver.ts";
import { createFile, explain, fileSize, isOfDamage, modeLike, openFile } from "../../faults.ts";
import { canonicalPath, refuseNetwork } from "../../open.ts";
import { copyFileSynced, writeSynced } from "../backup/copy.ts";
import { refuseNewer, type VerifiedBackup } from "../backup/prepare.ts";
import { openProcesses, reportPath, restoreFolder, RestoreLock, stagedPath } from "../backup/restore-lock.ts";
import { decide, finishPlan, nameForKept, refuseInUse, replaceFiles, underWay } from "../backup/restore.ts";
import { runTask } from "../backup/tasks.ts";
import { stateOf } from "../changes/journal.ts";
import { type Replay, replay, withoutRules } from "../changes/replay.ts";
import { type Change, changesFolder } from "../changes/segments.ts";
import { scanLog } from "../wal.ts";
import { knownOutside, mostSeen, readSlots } from "../witness.ts";
import type { JournalStart, Salvaged } from "./task.ts";

export interface SalvageRequest {
  path: string;
  driver: DriverName;
  by: string;
  now: number;
  /** Finds the verified backup that fills what cannot be read; null: there is none. */
  backup: (identity: Identity) => Promise<VerifiedBackup | null>;
  onProgress?: OnProgress;
}

export interface SalvagedDatabase extends Salvaged {
  path: string;
  kept: string;
  reportFile: string;
}

/**
 * Makes a new database of what SQLite can read of a copy of a damaged one, and puts it into its place. The damaged one is kept
 * unchanged. Killed before `decide`, everything is as before; after it, the next process that opens the database completes it.
 */
export async function salvage(request: SalvageRequest): Promise<SalvagedDatabase> {
  const path = canonicalPath(request.path);
  const { driver } = request;
  refuseNetwork(dirname(path));
  if (fileSize(path) === 0)
    throw new HoldfastError(
      "NO_DATABASE",
      `There is nothing to salvage at ${path}.`,
      "Give the path of the damaged database with --db.",
    );
  refuseInUse(path, openProcesses(path, driver));
  using lock = RestoreLock.take(path, driver);
  if (lock === null) throw underWay(path);
  finishPlan(lock, path);
  const log = await scanLog(path);
  mkdirSync(restoreFolder(path), { mode: 0o700 });
  try {
    return await salvageWith(lock, { ...request, path }, log?.bad?.beyond ?? 0);
  } catch (error) {
    // A decided plan is not undone: the next process completes it.
    if (lock.plan()?.phase !== "switching") lock.clear();
    throw explain(error, path);
  }
}

async function salvageWith(lock: RestoreLock, request: SalvageRequest, commitsBeyond: number): Promise<SalvagedDatabase> {
  const { path, driver, onProgress, now } = request;
  const damaged = join(restoreFolder(path), "damaged");
  const read = await runTask("identify", { driver, from: path, to: damaged });
  const identity = { ...read, databaseId: read.databaseId ?? mostSeen(readSlots(path))?.databaseId ?? null };
  if (identity.schema !== null) refuseNewer(path, identity.schema);
  const backup = await request.backup(identity);
  if (backup === null && !identity.isReadable)
    throw new HoldfastError(
      "NOTHING_TO_SALVAGE",
      `SQLite can read nothing of ${path}, and there is no backup. Nothing was changed.`,
      "Give a backup with --from. `sqlite3 FILE .recover` may find rows of your own tables.",
    );
  const kept = nameForKept(path, now, "damaged");
  const seen = knownOutside(path);
  const epoch = Math.max(lock.epoch, identity.epoch, seen.epoch, backup?.facts.epoch ?? 0) + 1;
  lock.remember(epoch);
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
  await decide(lock, path, driver, { kept, act: "salvage" });
  replaceFiles(path, { kept, act: "salvage" });
  lock.clear();
  passStep("salvage:kept");
  return { ...salvaged, path, kept, reportFile: `${kept}.report.json` };
}

/** Null: the journal was off when the backup was made, or the database was restored since and its journal leads elsewhere. */
function journalFrom(path: string, { databaseId, epoch, changes }: BackupFacts, now: number): JournalStart | null {
  return changes === null || epoch < now ? null : { folder: changesFolder(path), databaseId, epoch, after: changes };
}

const CHUNK_BYTES = 2 ** 20;
/** A disk loses at least a sector at once. */
const SECTOR_BYTES = 4_096;

/** SQLite reads nothing of a file that is shorter than its first page says: the missing end becomes zeros. */
function extend(path: string): void {
  using file = openFile(path, "r+");
  const header = Buffer.alloc(100);
  readSync(file.fd, header, 0, header.length, 0);
  const pageSize = header.readUInt16BE(16) === 1 ? 65_536 : header.readUInt16BE(16);
  const size = header.readUInt32BE(28) * pageSize;
  if (header.toString("latin1", 0, 15) === "SQLite format 3" && size > fstatSync(file.fd).size) ftruncateSync(file.fd, size);
}

function copyReadable(from: string, to: string): void {
  createFile(to, 0o600);
  using source = openFile(from, "r");
  using target = openFile(to, "r+");
  const { size } = fstatSync(source.fd);
  for (let at = 0; at < size; at += CHUNK_BYTES) {
    const bytes = Buffer.alloc(Math.min(CHUNK_BYTES, size - at));
    if (!read(source.fd, bytes, at))
      for (let offset = 0; offset < bytes.length; offset += SECTOR_BYTES) {
        const sector = bytes.subarray(offset, offset + SECTOR_BYTES);
        if (!read(source.fd, sector, at + offset)) sector.fill(0);
      }
    writeSync(target.fd, bytes, 0, bytes.length, at);
  }
}

function read(file: number, bytes: Uint8Array, at: number): boolean {
  try {
    readSync(file, bytes, 0, bytes.length, at);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "EIO") throw error;
    return false;
  }
}

interface Identity {
  isReadable: boolean;
  databaseId: string | null;
  schema: number | null;
  epoch: number;
}

export function identify({ driver, from, to }: { driver: DriverName; from: string; to: string }): Identity {
  for (const end of ["", "-wal"]) if (existsSync(from + end)) copyReadable(from + end, to + end);
  extend(to);
  const readRow = (sql: string) => readDamaged(driver, to, (db) => db.prepare(sql).row() ?? []);
  const [databaseId = null, epoch = 0] = readRow("select database_id, epoch from holdfast_database") ?? [];
  const [schema = null] = readRow("select max(version) from holdfast_migrations") ?? [];
  return {
    isReadable: readRow("select count(*) from sqlite_schema") !== null,
    databaseId: databaseId as string | null,
    schema: schema as number | null,
    epoch: Number(epoch),
  };
}

export function readDamaged<T>(driver: DriverName, path: string, read: (db: Connection) => T): T | null {
  try {
    using db = connect(driver, path, { busyTimeout: 0 });
    return read(db);
  } catch (error) {
    if (!isOfDamage(error)) throw error;
    return null;
  }
}

/** The journal of a damaged database; `active` is null if it cannot be read, `tail` has the changes that are in no file yet. */
export function readJournal(driver: DriverName, damaged: string): { active: boolean | null; tail: Change[] } {
  const state = readDamaged(driver, damaged, (db) => ({ active: stateOf(db)?.active ?? false }));
  const tail = state?.active
    ? readDamaged(driver, damaged, (db) =>
        db.prepare("select seq, kind, name, key, row, at from holdfast_changes order by seq").all<Change>(),
      )
    : [];
  return { active: state?.active ?? null, tail: tail ?? [] };
}

export function replayBackup(
  driver: DriverName,
  backup: string,
  beside: string,
  journal: Omit<Replay, "at" | "newest" | "over" | "partly">,
): { path: string; reached: number | null } {
  const path = join(dirname(beside), "source");
  copyFileSynced(backup, path);
  using db = connect(driver, path, { busyTimeout: 0, mustExist: true });
  withoutRules(db);
  try {
    const whole = { ...journal, at: Number.MAX_SAFE_INTEGER, newest: null, over: false, partly: true };
    const { reached } = inTransaction(db, () => replay(db, whole, () => {}));
    return { path, reached };
  } catch (error) {
    // The journal holds a change in an unknown form: the backup alone is used.
    if (error instanceof HoldfastError && error.code === "JOURNAL_GAP") return { path: backup, reached: null };
    throw error;
  }
}
