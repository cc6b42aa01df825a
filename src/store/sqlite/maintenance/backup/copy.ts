import { createHash } from "node:crypto";
import {
  closeSync,
  fchmodSync,
  fsyncSync,
  openSync,
  readSync,
  renameSync,
  rmSync,
  statfsSync,
  statSync,
  writeFileSync,
  writeSync,
} from "node:fs";
import { dirname } from "node:path";
import { HoldfastError } from "../../../../core/text/errors.ts";
import { DEFAULT_FILE_MODE } from "../../../../core/text/text.ts";
import type { BackupFacts } from "../../../backups.ts";
import { connect, type Connection, copyPages, type DriverName, quoted, tablesOf } from "../../driver.ts";
import { createFile, explain, faultOf, modeLike } from "../../faults.ts";
import { schemaVersion, versionOf } from "../../migrate.ts";
import { stateOf } from "../changes/journal.ts";
import { checkDatabase } from "../damage/check.ts";

/** On a thread of its own it may wait for a process that is just opening the file. */
const PATIENCE = 5_000;

/**
 * A copy of a database as it is at one instant, in a file that is not there yet. `vacuum into` reads one snapshot, so it
 * ends however much others write meanwhile, and hinders none of them; it keeps rowids, and carries no free page along.
 *
 * What is too damaged to be read row by row is copied page by page, damage and all.
 */
export async function copyDatabase(driver: DriverName, from: string, to: string): Promise<{ whole: boolean }> {
  const db = connect(driver, from, { busyTimeout: PATIENCE, readOnly: true });
  try {
    copyFrom(db, from, to, modeLike(from));
    return { whole: true };
  } catch (error) {
    if (!(error instanceof HoldfastError) || error.code !== "DAMAGED") throw error;
  } finally {
    db.close();
  }
  rmSync(to, { force: true });
  createFile(to, modeLike(from));
  await copyPages(driver, from, to);
  return { whole: false };
}

/** The same on a connection that is there already: no other connection can reach what is in memory. */
export function copyFrom(db: Connection, from: string, to: string, mode = DEFAULT_FILE_MODE): void {
  try {
    refuseFull(sizeOf(db), to);
    // Who may not read the database may not read its backup, nor what there is of it while it is written.
    createFile(to, mode);
    db.prepare("vacuum into ?").run(to);
  } catch (error) {
    // Only what is read can be damaged; everything else is about what is written.
    throw explain(error, faultOf(error) === "CORRUPT" ? from : to);
  }
}

/** How large a copy will be, at most. */
export function sizeOf(db: Connection): number {
  const [pages, free, size] = ["page_count", "freelist_count", "page_size"].map(
    (name) => (db.prepare(`pragma ${name}`).row() as [number])[0],
  ) as [number, number, number];
  return (pages - free) * size;
}

/** To fill a disk is worse than to make no backup: the database may be on it, too. */
function refuseFull(size: number, to: string): void {
  const { bavail, bsize } = statfsSync(dirname(to));
  const there = statSync(to, { throwIfNoEntry: false })?.size ?? 0;
  if (bavail * bsize + there >= size) return;
  throw new HoldfastError(
    "DISK_FULL",
    `The disk has no room for ${size} bytes at ${dirname(to)}, so nothing was written.`,
    "Free space on that disk, or write to another.",
  );
}

export interface Survey {
  facts: BackupFacts;
  hashes: string[];
}

/** Looks at a copy that no process writes to: whether it is whole, and what is in it. Null: it is not a Holdfast database. */
export function survey(driver: DriverName, path: string): Survey | null {
  // On a connection that may only read, SQLite passes over every CHECK. Nothing is written.
  const db = connect(driver, path, { busyTimeout: PATIENCE, mustExist: true });
  try {
    return versionOf(db) === 0 ? null : surveyOf(db, driver);
  } finally {
    db.close();
  }
}

function surveyOf(db: Connection, driver: DriverName): Survey {
  const schema = versionOf(db);
  const { findings, rows, artifacts } = check(db, driver, schema);
  const hasEpoch = columnsOf(db, "holdfast_database").has("epoch");
  const [databaseId, epoch] = db
    .prepare(`select database_id, ${hasEpoch ? "epoch" : "0"} from holdfast_database where id = 1`)
    .row() as [string, number];
  const [commits, counted] = db.prepare("select commits, jobs from holdfast_counter where id = 1").row() as [number, number];
  const jobs = readable(findings, counted, () => Math.max(counted, newestKey(db)));
  const has = (table: string) => columnsOf(db, table).size > 0;
  const counts = readable(findings, { jobs: {}, builds: {}, tables: {} }, () => ({
    jobs: byState(db, "holdfast_jobs"),
    builds: has("holdfast_builds") ? byState(db, "holdfast_builds") : {},
    tables: rowsOf(db),
  }));
  const changes = readable(findings, null, () => changesOf(db));
  const audit = readable(findings, { entries: 0, head: null }, () => auditOf(db));
  return { facts: { databaseId, epoch, schema, commits, jobs, counts, changes, audit, findings, rows }, hashes: artifacts };
}

/** What is wrong with more than a row, with rows, and which artifacts there have to be. */
function check(db: Connection, driver: DriverName, schema: number): { findings: string[]; rows: string[]; artifacts: string[] } {
  // What a schema of before has no checksums for cannot be compared to any.
  const { findings, structural, artifacts } = checkDatabase(db, driver, schema === schemaVersion() ? "whole" : "quick");
  return structural ? { findings, rows: [], artifacts } : { findings: [], rows: findings, artifacts };
}

/** Of a damaged copy, what cannot be read is left out, and said. */
function readable<T>(findings: string[], without: T, read: () => T): T {
  try {
    return read();
  } catch (error) {
    if (faultOf(error) !== "CORRUPT") throw error;
    findings.push(String((error as Error).message));
    return without;
  }
}

function newestKey(db: Connection): number {
  return (db.prepare("select coalesce(max(key), 0) from holdfast_jobs").row() as [number])[0];
}

function byState(db: Connection, table: string): Record<string, number> {
  return Object.fromEntries(db.prepare(`select state, count(*) from ${table} group by state order by state`).rows());
}

function rowsOf(db: Connection): Record<string, number> {
  const count = (table: string) => (db.prepare(`select count(*) from ${quoted(table)}`).row() as [number])[0];
  return Object.fromEntries(tablesOf(db).map((table) => [table, count(table)]));
}

/** Where the journal continues. */
function changesOf(db: Connection): number | null {
  if (!stateOf(db)?.active) return null;
  const row = db.prepare("select seq from sqlite_sequence where name = 'holdfast_changes'").row() as [number] | undefined;
  return row?.[0] ?? 0;
}

/** The head of the chain, where entries are chained. */
function auditOf(db: Connection): BackupFacts["audit"] {
  const columns = columnsOf(db, "holdfast_audit");
  if (columns.size === 0) return { entries: 0, head: null };
  const head = columns.has("hash") ? "(select hash from holdfast_audit order by seq desc limit 1)" : "null";
  const [entries, hash] = db.prepare(`select count(*), ${head} from holdfast_audit`).row() as [number, string | null];
  return { entries, head: hash };
}

function columnsOf(db: Connection, table: string): Set<string> {
  return new Set(
    db
      .prepare("select name from pragma_table_info(?)")
      .rows(table)
      .map(([name]) => name as string),
  );
}

const PIECE = 1024 * 1024;

/** The sha-256 of a file, and of what a copy of it was given. No database that is open may be read like this: it would lose its locks. */
export function digestFile(path: string, tell: (done: number) => void = () => {}, copy?: (piece: Buffer) => void): string {
  const digest = createHash("sha256");
  const piece = Buffer.allocUnsafe(PIECE);
  const fd = openSync(path, "r");
  try {
    for (let done = 0; ;) {
      const read = readSync(fd, piece, 0, PIECE, null);
      if (read === 0) return digest.digest("hex");
      const bytes = piece.subarray(0, read);
      digest.update(bytes);
      copy?.(bytes);
      tell((done += read));
    }
  } finally {
    closeSync(fd);
  }
}

/** A copy of it, synced; the answer is the sha-256 of the bytes that were copied. */
export function copyFileSynced(from: string, to: string, tell?: (done: number) => void): string {
  const fd = openSync(to, "wx", 0o600);
  try {
    const sha256 = digestFile(from, tell, (piece) => {
      for (let at = 0; at < piece.length;) at += writeSync(fd, piece, at);
    });
    fsyncSync(fd);
    return sha256;
  } finally {
    closeSync(fd);
  }
}

/** What was written to it is on the disk. */
export function syncFile(path: string): void {
  const fd = openSync(path, "r+");
  try {
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
}

/** The names in it are on the disk. Windows cannot sync a folder, and needs not. */
export function syncFolder(path: string): void {
  if (process.platform === "win32") return;
  const fd = openSync(path, "r");
  try {
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
}

/** Whole, under its name, on the disk; or not at all. */
export function writeSynced(path: string, text: string, mode: number): void {
  const part = `${path}.part`;
  const fd = openSync(part, "w", mode);
  try {
    fchmodSync(fd, mode);
    writeFileSync(fd, text);
    fsyncSync(fd);
  } finally {
    closeSync(fd);
  }
  renameSync(part, path);
  syncFolder(dirname(path));
}
