import { closeSync, existsSync, fstatSync, ftruncateSync, mkdirSync, openSync, readSync, statSync, writeSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { HoldfastError } from "../../../../core/text/errors.ts";
import type { BackupFacts, OnProgress } from "../../../backups.ts";
import { passStep } from "../../../points.ts";
import { connect, type Connection, type DriverName } from "../../driver.ts";
import { createFile, explain, isOfDamage, modeLike } from "../../faults.ts";
import { canonicalPath, refuseNetwork } from "../../open.ts";
import { copyFileSynced, writeSynced } from "../backup/copy.ts";
import { refuseNewer, type VerifiedBackup } from "../backup/prepare.ts";
import { decide, keptName, refuseLiving, settleWith, switchOver, underWay } from "../backup/restore.ts";
import { living, reportPath, restoreFolder, Right, stagedPath } from "../backup/right.ts";
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
    "Give a backup with --from. `sqlite3 FILE .recover` may find rows of your own tables.",
  );
}

function nothing(path: string): HoldfastError {
  return new HoldfastError(
    "NO_DATABASE",
    `There is nothing to salvage at ${path}.`,
    "Give the path of the damaged database with --db.",
  );
}

const CHUNK = 2 ** 20;
/** What a disk loses at once is at least a sector. */
const SECTOR = 4_096;

/** Copies a database and its log, and puts zeros where the disk gives back nothing. The copy is SQLite's to change. */
function copyDamaged(from: string, to: string): void {
  for (const end of ["", "-wal"]) if (existsSync(from + end)) copyFile(from + end, to + end);
  extend(to);
}

/** SQLite reads nothing of a file that is shorter than its first page says: what was cut off becomes zeros. */
function extend(path: string): void {
  const file = openSync(path, "r+");
  try {
    const header = Buffer.alloc(100);
    readSync(file, header, 0, header.length, 0);
    const pageSize = header.readUInt16BE(16) === 1 ? 65_536 : header.readUInt16BE(16);
    const size = header.readUInt32BE(28) * pageSize;
    if (header.toString("latin1", 0, 15) === "SQLite format 3" && size > fstatSync(file).size) ftruncateSync(file, size);
  } finally {
    closeSync(file);
  }
}

function copyFile(from: string, to: string): void {
  createFile(to, 0o600);
  const [source, target] = [openSync(from, "r"), openSync(to, "r+")];
  try {
    const { size } = fstatSync(source);
    for (let at = 0; at < size; at += CHUNK) {
      const bytes = Buffer.alloc(Math.min(CHUNK, size - at));
      if (!read(source, bytes, at))
        for (let within = 0; within < bytes.length; within += SECTOR)
          if (!read(source, bytes.subarray(within, within + SECTOR), at + within)) bytes.fill(0, within, within + SECTOR);
      writeSync(target, bytes, 0, bytes.length, at);
    }
  } finally {
    closeSync(source);
    closeSync(target);
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
  /** Whether SQLite can read the definitions of its tables. */
  isReadable: boolean;
  databaseId: string | null;
  /** Null: it cannot be read. */
  schema: number | null;
  /** 0: it cannot be read. */
  epoch: number;
}

/** Copies a damaged database, and says which it is as far as that can be read. */
export function identify({ driver, from, to }: { driver: DriverName; from: string; to: string }): Identity {
  copyDamaged(from, to);
  const [row] = readDamaged(driver, to, (db) => db.prepare("select database_id, epoch from holdfast_database").rows()) ?? [];
  const [found] = readDamaged(driver, to, (db) => db.prepare("select max(version) from holdfast_migrations").rows()) ?? [];
  return {
    isReadable: readDamaged(driver, to, (db) => db.prepare("select count(*) from sqlite_schema").row()) !== null,
    databaseId: (row?.[0] ?? null) as string | null,
    schema: (found?.[0] ?? null) as number | null,
    epoch: Number(row?.[1] ?? 0),
  };
}

/** Null: what it asks for cannot be read. */
export function readDamaged<T>(driver: DriverName, path: string, read: (db: Connection) => T): T | null {
  let db: Connection | null = null;
  try {
    db = connect(driver, path, { busyTimeout: 0 });
    return read(db);
  } catch (error) {
    if (!isOfDamage(error)) throw error;
    return null;
  } finally {
    db?.close();
  }
}

/** What a damaged database knows of its journal of changes. */
interface FoundJournal {
  /** Null: that cannot be read. */
  active: boolean | null;
  /** What was not in a file yet. */
  tail: Change[];
}

export function readJournal(driver: DriverName, damaged: string): FoundJournal {
  const state = readDamaged(driver, damaged, (db) => ({ active: stateOf(db)?.active ?? false }));
  const tail = state?.active
    ? readDamaged(driver, damaged, (db) =>
        db.prepare("select seq, kind, name, key, row, at from holdfast_changes order by seq").all<Change>(),
      )
    : [];
  return { active: state?.active ?? null, tail: tail ?? [] };
}

/** The backup, and what was done after it as far as the journal leads: a copy of it, beside the new database. */
export function goOn(
  driver: DriverName,
  backup: string,
  beside: string,
  journal: Omit<Replay, "at" | "newest" | "over" | "partly">,
): { path: string; reached: number | null } {
  const path = join(dirname(beside), "source");
  copyFileSynced(backup, path);
  const db = connect(driver, path, { busyTimeout: 0, mustExist: true });
  try {
    withoutRules(db);
    db.exec("begin immediate");
    const { reached } = replay(
      db,
      { ...journal, at: Number.MAX_SAFE_INTEGER, newest: null, over: false, partly: true },
      () => {},
    );
    db.exec("commit");
    return { path, reached };
  } catch (error) {
    // A change that is not written as changes are: the backup alone has to do.
    if (error instanceof HoldfastError && error.code === "JOURNAL_GAP") return { path: backup, reached: null };
    throw error;
  } finally {
    db.close();
  }
}
