import { createHash } from "node:crypto";
import { fchmodSync, fsyncSync, readSync, renameSync, rmSync, statfsSync, statSync, writeFileSync, writeSync } from "node:fs";
import { dirname } from "node:path";
import { HoldfastError } from "../../../../core/text/errors.ts";
import { DEFAULT_FILE_MODE } from "../../../../core/text/text.ts";
import type { BackupFacts, OnProgress } from "../../../backups.ts";
import { passStep } from "../../../points.ts";
import { connect, type Connection, copyPages, type DriverName, quoted, scalar, tablesOf } from "../../driver.ts";
import { createFile, explain, explaining, faultOf, fileSize, modeLike, openFile } from "../../faults.ts";
import { schemaVersion, versionOf } from "../../migrate.ts";
import { stateOf } from "../changes/journal.ts";
import { checkDatabase } from "../damage/check.ts";

const BUSY_TIMEOUT_MS = 5_000;

export interface Copied extends Survey {
  size: number;
  sha256: string;
  took: number;
}

export async function copyTo(
  { driver, from, to, isCopied }: { driver: DriverName; from: string; to: string; isCopied: boolean },
  onProgress: OnProgress,
): Promise<Copied> {
  const since = performance.now();
  if (!isCopied) await copyDatabase(driver, from, to);
  const took = Math.ceil(performance.now() - since);
  passStep("backup:copied");
  syncFile(to);
  passStep("backup:synced");
  const { survey: found, size, sha256 } = inspect({ driver, path: to }, onProgress);
  passStep("backup:checked");
  if (found === null) throw new Error("the copy is not what was copied");
  return { ...found, size, sha256, took };
}

/** Hashes a file that no process has open, and surveys it unless the hash is another than the expected one. */
export function inspect(
  { driver, path, expected }: { driver: DriverName; path: string; expected?: string | undefined },
  onProgress: OnProgress,
): { size: number; sha256: string; survey: Survey | null } {
  const { size } = statSync(path);
  const sha256 = digestFile(path, (done) => onProgress({ step: "hashing", done, total: size }));
  if (expected !== undefined && expected !== sha256) return { size, sha256, survey: null };
  onProgress({ step: "checking", done: 0, total: size });
  return { size, sha256, survey: explaining(path, () => survey(driver, path)) };
}

/** Copies a database by `vacuum into`, which reads one snapshot and blocks no writer, or page by page if it is too damaged. */
async function copyDatabase(driver: DriverName, from: string, to: string): Promise<void> {
  try {
    using db = connect(driver, from, { busyTimeout: BUSY_TIMEOUT_MS, readOnly: true });
    return copyFrom(db, from, to, modeLike(from));
  } catch (error) {
    if (!(error instanceof HoldfastError) || error.code !== "DAMAGED") throw error;
  }
  rmSync(to, { force: true });
  createFile(to, modeLike(from));
  await copyPages(driver, from, to);
}

export function copyFrom(db: Connection, from: string, to: string, mode = DEFAULT_FILE_MODE): void {
  try {
    refuseFull(sizeOf(db), to);
    // Create the file first, so that the copy has the database's mode from its first byte.
    createFile(to, mode);
    db.prepare("vacuum into ?").run(to);
  } catch (error) {
    // Only reading finds damage, so every other error is about the written file.
    throw explain(error, faultOf(error) === "CORRUPT" ? from : to);
  }
}

export function sizeOf(db: Connection): number {
  const [pages, free, size] = ["page_count", "freelist_count", "page_size"].map((name) =>
    scalar<number>(db, `pragma ${name}`),
  ) as [number, number, number];
  return (pages - free) * size;
}

/** Rejects a copy for which the disk has no room: a full disk is worse than no backup, because the database may be on it. */
function refuseFull(size: number, to: string): void {
  const { bavail, bsize } = statfsSync(dirname(to));
  if (bavail * bsize + fileSize(to) >= size) return;
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

export function survey(driver: DriverName, path: string): Survey | null {
  // The connection is not read-only, because SQLite would skip every CHECK then. Nothing is written.
  using db = connect(driver, path, { busyTimeout: BUSY_TIMEOUT_MS, mustExist: true });
  const schema = versionOf(db);
  if (schema === 0) return null;
  // Rows of an older schema may lack checksums.
  const checked = checkDatabase(db, driver, schema === schemaVersion() ? "whole" : "quick");
  const [findings, rows] = checked.structural ? [checked.findings, []] : [[], checked.findings];
  const [databaseId, epoch] = db.prepare("select database_id, epoch from holdfast_database where id = 1").row() as [
    string,
    number,
  ];
  const [commits, counted] = db.prepare("select commits, jobs from holdfast_counter where id = 1").row() as [number, number];
  const newestKey = () => scalar<number>(db, "select coalesce(max(key), 0) from holdfast_jobs");
  const jobs = readable(findings, counted, () => Math.max(counted, newestKey()));
  const counts = readable(findings, { jobs: {}, builds: {}, tables: {} }, () => ({
    jobs: byState(db, "holdfast_jobs"),
    builds: byState(db, "holdfast_builds"),
    tables: rowsOf(db),
  }));
  const changes = readable(findings, null, () => changesOf(db));
  const audit = readable(findings, { entries: 0, head: null }, () => auditOf(db));
  const facts = { databaseId, epoch, schema, commits, jobs, counts, changes, audit, findings, rows };
  return { facts, hashes: checked.artifacts };
}

function readable<T>(findings: string[], without: T, read: () => T): T {
  try {
    return read();
  } catch (error) {
    if (faultOf(error) !== "CORRUPT") throw error;
    findings.push(String((error as Error).message));
    return without;
  }
}

function byState(db: Connection, table: string): Record<string, number> {
  return Object.fromEntries(db.prepare(`select state, count(*) from ${table} group by state order by state`).rows());
}

function rowsOf(db: Connection): Record<string, number> {
  const count = (table: string) => scalar<number>(db, `select count(*) from ${quoted(table)}`);
  return Object.fromEntries(tablesOf(db).map((table) => [table, count(table)]));
}

function changesOf(db: Connection): number | null {
  if (!stateOf(db)?.active) return null;
  return scalar<number | undefined>(db, "select seq from sqlite_sequence where name = 'holdfast_changes'") ?? 0;
}

function auditOf(db: Connection): BackupFacts["audit"] {
  const sql = "select count(*), (select hash from holdfast_audit order by seq desc limit 1) from holdfast_audit";
  const [entries, head] = db.prepare(sql).row() as [number, string | null];
  return { entries, head };
}

const CHUNK_BYTES = 1024 * 1024;

/** Returns a file's sha-256; `copy` gets its bytes. Not for an open database: closing the file would drop the process's locks. */
export function digestFile(path: string, onProgress: (done: number) => void = () => {}, copy?: (chunk: Buffer) => void): string {
  const digest = createHash("sha256");
  const chunk = Buffer.allocUnsafe(CHUNK_BYTES);
  using file = openFile(path, "r");
  for (let done = 0; ;) {
    const read = readSync(file.fd, chunk, 0, CHUNK_BYTES, null);
    if (read === 0) return digest.digest("hex");
    const bytes = chunk.subarray(0, read);
    digest.update(bytes);
    copy?.(bytes);
    onProgress((done += read));
  }
}

export function copyFileSynced(from: string, to: string, onProgress?: (done: number) => void): string {
  using file = openFile(to, "wx", 0o600);
  const sha256 = digestFile(from, onProgress, (chunk) => {
    for (let at = 0; at < chunk.length;) at += writeSync(file.fd, chunk, at);
  });
  fsyncSync(file.fd);
  return sha256;
}

export function syncFile(path: string): void {
  using file = openFile(path, "r+");
  fsyncSync(file.fd);
}

/** Syncs a folder. Windows cannot sync a folder, and does not need to. */
export function syncFolder(path: string): void {
  if (process.platform === "win32") return;
  using folder = openFile(path, "r");
  fsyncSync(folder.fd);
}

/** Writes a file and syncs it under its name: after a crash the file is complete, or as it was before. */
export function writeSynced(path: string, text: string, mode: number): void {
  const part = `${path}.part`;
  {
    using file = openFile(part, "w", mode);
    fchmodSync(file.fd, mode);
    writeFileSync(file.fd, text);
    fsyncSync(file.fd);
  }
  renameSync(part, path);
  syncFolder(dirname(path));
}
