import { closeSync, existsSync, fstatSync, ftruncateSync, openSync, readSync, writeSync } from "node:fs";
import { dirname, join } from "node:path";
import { HoldfastError } from "../../../../core/text/errors.ts";
import { connect, type Connection, type DriverName } from "../../driver.ts";
import { createFile, isOfDamage } from "../../faults.ts";
import { copyFileSynced } from "../backup/copy.ts";
import { stateOf } from "../changes/journal.ts";
import { type Replay, replay, withoutRules } from "../changes/replay.ts";
import type { Change } from "../changes/segments.ts";

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

export interface Identity {
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
