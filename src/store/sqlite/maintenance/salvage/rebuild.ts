import { chmodSync, existsSync, fstatSync, ftruncateSync, readSync, writeSync } from "node:fs";
import { dirname } from "node:path";
import type { JobKey } from "../../../../core/text/ids.ts";
import type { OnProgress } from "../../../backups.ts";
import { publicId } from "../../../job-row.ts";
import { passStep } from "../../../points.ts";
import { column, connect, type Connection, type DriverName, quoted, scalar, withoutGuard } from "../../driver.ts";
import { createFile, explain, isBusy, isOfDamage, isOfDisk, openFile } from "../../faults.ts";
import { migrate, schemaVersion } from "../../migrate.ts";
import { syncFile, syncFolder } from "../backup/copy.ts";
import { type Preparation, prepare, type Prepared } from "../backup/restore.ts";
import { leaveOn, stateOf } from "../changes/journal.ts";
import { tableShapes, withoutTriggers } from "../changes/replay.ts";
import { type BadRow, badRows, checkFile } from "../damage/check.ts";
import { makeConsistent } from "./make-consistent.ts";
import { type SalvagedTable, TableCopy } from "./table-copy.ts";

export interface Identity {
  isReadable: boolean;
  databaseId: string | null;
  schema: number | null;
  epoch: number;
}

/** Copies a damaged database, and finds out from the copy which database it is. */
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

/** Bytes to read at once, because a disk loses at least a sector. */
const SECTOR_BYTES = 4_096;

/** Copies a file. Sectors that cannot be read become zeros. */
function copyReadable(from: string, to: string): void {
  createFile(to, 0o600);
  using source = openFile(from, "r");
  using target = openFile(to, "r+");
  const { size } = fstatSync(source.fd);
  for (let at = 0; at < size; at += SECTOR_BYTES) {
    const sector = Buffer.alloc(Math.min(SECTOR_BYTES, size - at));
    try {
      readSync(source.fd, sector, 0, sector.length, at);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== "EIO") throw error;
    }
    writeSync(target.fd, sector, 0, sector.length, at);
  }
}

/** Fills a missing end with zeros, because SQLite reads nothing of a file that is shorter than its first page says. */
function extend(path: string): void {
  using file = openFile(path, "r+");
  const header = Buffer.alloc(100);
  readSync(file.fd, header, 0, header.length, 0);
  const pageSize = header.readUInt16BE(16) === 1 ? 65_536 : header.readUInt16BE(16);
  const size = header.readUInt32BE(28) * pageSize;
  if (header.toString("latin1", 0, 15) === "SQLite format 3" && size > fstatSync(file.fd).size) ftruncateSync(file.fd, size);
}

/** Returns what `read` reads of a damaged database. Null: that part is damaged. */
function readDamaged<T>(driver: DriverName, path: string, read: (db: Connection) => T): T | null {
  try {
    using db = connect(driver, path, { busyTimeout: 0 });
    return read(db);
  } catch (error) {
    if (!isOfDamage(error)) throw error;
    return null;
  }
}

interface SalvageInput {
  driver: DriverName;
  /** A copy of the damaged database, which SQLite may change. */
  damaged: string;
  mode: number;
  backup: { path: string; takenAt: number | null; schema: number; isJournaled: boolean } | null;
  schema: number | null;
  databaseId: string | null;
  /** Number of commits in the log behind a damaged frame, which SQLite does not read. */
  commitsBeyond: number;
  preparation: Preparation;
}

export interface Salvaged extends Prepared {
  report: SalvageReport;
  findings: string[];
}

export interface SalvageReport {
  backup: { path: string; takenAt: number | null } | null;
  tables: SalvagedTable[];
  jobs: {
    saved: number;
    /** Jobs as they are in the backup. Those that had not ended then run again. */
    restored: string[];
    /** Jobs with a wrong checksum, which are not in the new database unless the backup had them. */
    damaged: string[];
    /** Ids of lost jobs that callers chose. They stay taken. */
    lostIds: string[];
    /** Jobs that were quarantined, because jobs that they waited for are lost. */
    quarantined: string[];
  };
  abandonedBuilds: string[];
  notes: string[];
}

export function salvageInto(input: SalvageInput, onProgress: OnProgress): Salvaged {
  try {
    return rebuild(input, onProgress);
  } catch (error) {
    // A busy error is about the backup, because no other process knows of the new database.
    throw explain(error, (isBusy(error) && input.backup?.path) || input.preparation.path);
  }
}

function rebuild(input: SalvageInput, onProgress: OnProgress): Salvaged {
  const { driver, damaged, mode, backup, preparation } = input;
  const { path } = preparation;
  const report: SalvageReport = {
    backup: backup && { path: backup.path, takenAt: backup.takenAt },
    tables: [],
    jobs: { saved: 0, restored: [], damaged: [], lostIds: [], quarantined: [] },
    abandonedBuilds: [],
    notes: [],
  };
  {
    using db = connect(driver, path, { busyTimeout: BUSY_TIMEOUT_MS });
    const create = makeSchema(db, input, report);
    // Triggers would act on rows again. There is no transaction: one that has met a damaged page rejects every write.
    const copies = withoutTriggers(db, () => copyTables(db, onProgress));
    passStep("salvage:read");
    for (const type of ["index", "view"]) create(type);
    copySequences(db);
    attempt(() => db.exec("detach database damaged"));
    passStep("salvage:filled");
    migrate(db, { path, now: preparation.now, actor: preparation.by, whenNew: () => {} });
    // Do not begin `immediate`, which would lock the attached backup, too.
    db.exec("begin");
    withoutTriggers(db, () => fillGaps(db, copies, input, report));
    create("trigger");
    const isJournaled = readDamaged(driver, damaged, (from) => stateOf(from)?.active ?? false);
    if (isJournaled ?? backup?.isJournaled) leaveOn(db);
    db.exec("commit");
    // Switch only `main`, so that the backup stays as it is.
    db.exec("pragma main.journal_mode = delete");
  }
  if (input.commitsBeyond > 0)
    report.notes.push(
      `The log holds ${input.commitsBeyond} commits behind a damaged part, which are lost unless the backup has them.`,
    );
  const prepared = prepare({ ...preparation, audit: auditOf(preparation, report) });
  chmodSync(path, mode);
  onProgress({ step: "checking", done: 0, total: 0 });
  const { findings } = checkFile({ driver, path, how: "whole" });
  syncFile(path);
  syncFolder(dirname(path));
  passStep("salvage:prepared");
  return { ...prepared, report, findings };
}

function auditOf({ audit }: Preparation, { tables }: SalvageReport): Preparation["audit"] {
  const sum = (what: "saved" | "restored") => tables.reduce((total, table) => total + table[what], 0);
  const lostFrom = tables.filter(({ lost }) => lost.length > 0).map(({ table }) => table);
  return { ...audit, after: { ...audit.after, saved: sum("saved"), restored: sum("restored"), lostFrom } };
}

const BUSY_TIMEOUT_MS = 5_000;
/** Settings of a file, which must be set before its first table is made. */
const SETTINGS = ["page_size", "encoding", "user_version", "application_id"];

interface Definition {
  type: string;
  name: string;
  sql: string;
}

/** Makes Holdfast's and the user's tables, empty. Returns a function that makes the user's indexes, views or triggers. */
function makeSchema(
  db: Connection,
  { driver, damaged, schema, backup, preparation }: SalvageInput,
  report: SalvageReport,
): (type: string) => void {
  withoutGuard(driver, db);
  for (const name of SETTINGS) {
    const value = readDamaged(driver, damaged, (from) => scalar<string | number>(from, `pragma ${name}`));
    if (value !== null) db.exec(`pragma ${name} = ${typeof value === "string" ? quoted(value) : value}`);
  }
  // The new file is synced as a whole when it is complete.
  db.exec("pragma journal_mode = memory; pragma synchronous = off; pragma foreign_keys = off");
  const upTo = schema ?? backup?.schema ?? schemaVersion();
  migrate(db, { path: preparation.path, now: preparation.now, actor: null, whenNew: () => {}, upTo });
  if (backup !== null) db.prepare("attach database ? as backup").run(backup.path);
  const isReadable = attachDamaged(db, damaged);
  if (!isReadable) report.notes.push("The schema could not be read: everything comes from the backup.");
  const create = createIn(db, [...(isReadable ? ["damaged"] : []), ...(backup === null ? [] : ["backup"])], report);
  create("table");
  return create;
}

function copyTables(db: Connection, onProgress: OnProgress): TableCopy[] {
  const shapes = tableShapes(db).filter(({ name, type }) => type !== "virtual" && name !== "holdfast_migrations");
  return shapes.map((shape, done) => {
    onProgress({ step: "copying", done, total: shapes.length });
    // Delete rows that a new table has already: Holdfast's single rows, and those of a virtual table.
    db.exec(`delete from ${quoted(shape.name)}`);
    const copy = new TableCopy(db, shape);
    copy.run();
    return copy;
  });
}

/** Attaches the damaged database. False: nothing of it can be read, and an empty database takes its place. */
function attachDamaged(db: Connection, damaged: string): boolean {
  // Let SQLite skip a definition that it cannot read.
  db.exec("pragma writable_schema = on");
  const isReadable = attempt(() => {
    db.prepare("attach database ? as damaged").run(damaged);
    db.prepare("select count(*) from damaged.sqlite_schema").row();
  });
  db.exec("pragma writable_schema = off");
  if (isReadable) return true;
  attempt(() => db.exec("detach database damaged"));
  db.exec("attach database ':memory:' as damaged");
  return false;
}

/** Creates the user's tables, indexes, views and triggers, as the first of these databases that has one defines it. */
function createIn(db: Connection, from: readonly string[], report: SalvageReport): (type: string) => void {
  // A virtual table comes first: it creates its shadow tables itself.
  const definitions = `select type, name, sql from SCHEMA.sqlite_schema
    where sql is not null and name not like 'holdfast\\_%' escape '\\' and name not like 'sqlite\\_%' escape '\\'
    order by type = 'table' and rootpage = 0 desc`;
  const found = from.flatMap((schema) => db.prepare(definitions.replace("SCHEMA", schema)).all<Definition>());
  return (wanted) => {
    for (const { type, name, sql } of found) {
      if (type !== wanted || scalar(db, "select 1 from main.sqlite_schema where name = ?", name) !== undefined) continue;
      if (!attempt(() => db.exec(sql))) report.notes.push(`The ${type} ${name} could not be made again.`);
    }
  };
}

function copySequences(db: Connection): void {
  const isAutoincrement =
    "exists (select 1 from main.sqlite_schema as own where own.name = one.name and own.sql like '%autoincrement%')";
  attempt(() =>
    db.exec(
      `update main.sqlite_sequence set seq = max(sqlite_sequence.seq, one.seq) from damaged.sqlite_sequence as one where one.name = sqlite_sequence.name;
       insert into main.sqlite_sequence (name, seq) select name, seq from damaged.sqlite_sequence as one
         where name not in (select name from main.sqlite_sequence) and ${isAutoincrement}`,
    ),
  );
}

function attempt(run: () => void): boolean {
  try {
    run();
    return true;
  } catch (error) {
    if (isOfDisk(error)) throw error;
    return false;
  }
}

/** Takes from the backup what is missing or has a wrong checksum, makes the tables agree, and lists what is lost. */
function fillGaps(db: Connection, copies: readonly TableCopy[], input: SalvageInput, report: SalvageReport): void {
  const keys = () => column<number>(db, "select key from holdfast_jobs order by key");
  const read = new Set(keys());
  const byName = new Map(copies.map((copy) => [copy.table, copy]));
  const fill = () => input.backup !== null && copies.forEach((copy) => copy.fill());
  fill();
  if (input.backup !== null) replaceInputs(db, badRows(db), byName.get("holdfast_inputs") as TableCopy);
  const bad = badRows(db);
  for (const { table, key } of bad) {
    (byName.get(table) as TableCopy).reject(key);
    if (table === "holdfast_jobs") read.delete(key[0] as number);
  }
  fill();
  report.tables = copies.map((copy) => copy.result());
  if (copies.some(({ table, isWhole }) => table.startsWith("holdfast_") && !isWhole)) {
    const waitsLost = report.tables.some(({ table, lost }) => table === "holdfast_waits" && lost.length > 0);
    const options = { now: input.preparation.now, databaseId: input.databaseId, waitsLost };
    const { quarantined, abandonedBuilds, notes } = makeConsistent(db, options);
    report.jobs.quarantined = namesOf(db, quarantined);
    report.abandonedBuilds = abandonedBuilds;
    report.notes.push(...notes);
  }
  report.jobs.saved = byName.get("holdfast_jobs")?.saved ?? 0;
  report.jobs.restored = namesOf(db, input.backup === null ? [] : keys().filter((key) => !read.has(key)));
  report.jobs.damaged = bad.filter(({ table }) => table === "holdfast_jobs").map(({ name }) => name);
  report.jobs.lostIds = column(
    db,
    "select id from holdfast_ids where ended is null and job not in (select key from holdfast_jobs) order by job",
  );
}

/** Replaces damaged large inputs by the backup's, which are as good: such an input has its own row and never changes. */
function replaceInputs(db: Connection, bad: readonly BadRow[], inputs: TableCopy): void {
  const replace = db.prepare(
    `update main.holdfast_inputs set body = one.body from backup.holdfast_inputs as one
     where holdfast_inputs.job = ? and one.job = holdfast_inputs.job and one.body <> holdfast_inputs.body`,
  );
  for (const { table, key } of bad) if (table === "holdfast_jobs") inputs.restored += replace.run(key[0] as number);
}

function namesOf(db: Connection, keys: readonly number[]): string[] {
  const find = db.prepare("select id, created_at from holdfast_jobs where key = ?");
  return keys.map((key) => {
    const [id, createdAt] = (find.row(key) ?? [null, 0]) as [string | null, number];
    return publicId(id, createdAt, key as JobKey);
  });
}
