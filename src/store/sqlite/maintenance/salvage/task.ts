import { chmodSync } from "node:fs";
import { dirname } from "node:path";
import type { JobKey } from "../../../../core/text/ids.ts";
import type { OnProgress } from "../../../backups.ts";
import { publicId } from "../../../job-row.ts";
import { passStep } from "../../../points.ts";
import { column, type Connection, type DriverName, tablesOf } from "../../driver.ts";
import { explain, isBusy } from "../../faults.ts";
import { migrate, schemaVersion } from "../../migrate.ts";
import { syncFile, syncFolder } from "../backup/copy.ts";
import { type Preparation, prepare, type Prepared } from "../backup/prepare.ts";
import { leaveOn } from "../changes/journal.ts";
import type { Replay } from "../changes/replay.ts";
import { type BadRow, badRows, checkFile } from "../damage/check.ts";
import { type Adjustments, makeConsistent } from "./make-consistent.ts";
import { BACKUP, type Gap, type Key, NewDatabase, TableCopy } from "./table-copy.ts";
import { readJournal, replayBackup } from "./salvage.ts";

interface SalvageInput {
  driver: DriverName;
  /** A copy of the damaged database, which SQLite may change. */
  damaged: string;
  mode: number;
  backup: { path: string; takenAt: number | null; schema: number; journal: JournalStart | null } | null;
  schema: number | null;
  databaseId: string | null;
  highestJob: number | null;
  /** Commits of the log behind a damaged frame, which SQLite does not read. */
  commitsBeyond: number;
  preparation: Preparation;
}

/** Where the journal continues the backup; its last changes are in the database itself. */
export type JournalStart = Omit<Replay, "at" | "tail" | "newest" | "over" | "partly">;

export interface Salvaged extends Prepared {
  report: SalvageReport;
  findings: string[];
}

export function salvageInto(input: SalvageInput, onProgress: OnProgress): Salvaged {
  try {
    return make(input, onProgress);
  } catch (error) {
    // No other process knows of the new database: a busy error is about the backup.
    throw explain(error, (isBusy(error) && input.backup?.path) || input.preparation.path);
  }
}

function make(input: SalvageInput, onProgress: OnProgress): Salvaged {
  const { driver, damaged, mode, backup, preparation } = input;
  const { path, now } = preparation;
  const journal = readJournal(driver, damaged);
  // The backup fills the gaps, or, with a journal, what the changes after it made of it.
  const source =
    backup &&
    (backup.journal === null
      ? { path: backup.path, reached: null }
      : replayBackup(driver, backup.path, path, { ...backup.journal, tail: journal.tail }));
  const report = emptyReport(backup && { path: backup.path, takenAt: backup.takenAt, reached: source?.reached ?? null });
  {
    const schema = input.schema ?? backup?.schema ?? schemaVersion();
    using made = new NewDatabase(driver, { path, damaged, backup: source?.path ?? null }, schema, now);
    report.undefined.push(...made.define(source !== null));
    const { db } = made;
    // Without a transaction: SQLite rejects every write of a transaction in which it has met a damaged page.
    const sequences = made.sequences();
    if (input.highestJob !== null) sequences.set("holdfast_jobs", input.highestJob);
    const copies = copyTables(made, onProgress);
    passStep("salvage:read");
    report.undefined.push(...made.finish(sequences));
    passStep("salvage:filled");
    made.detachDamaged();
    migrate(db, { path, now, actor: preparation.by, whenNew: () => {} });
    // Not `immediate`: that would lock the attached backup, too.
    db.exec("begin");
    fillGaps(db, copies, input, report, { sequences, hasBackup: source !== null });
    if (journal.active ?? (backup !== null && backup.journal !== null)) leaveOn(db);
    db.exec("commit");
    // Of `main` only: the backup stays as it is.
    db.exec("pragma main.journal_mode = delete");
    if (!made.hasDamaged) report.notes.push("The schema could not be read: everything comes from the backup.");
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

function emptyReport(backup: SalvageReport["backup"]): SalvageReport {
  const jobs = { saved: 0, restored: [], damaged: [], lost: [], lostIds: [], bereft: [], nameless: [] };
  return { backup, tables: [], jobs, abandonedBuilds: [], undefined: [], notes: [] };
}

function copyTables(made: NewDatabase, onProgress: OnProgress): TableCopy[] {
  const tables = tablesOf(made.db).filter((table) => table !== "holdfast_migrations");
  return tables.map((table, done) => {
    onProgress({ step: "copying", done, total: tables.length });
    const copy = new TableCopy(made.db, table);
    if (made.has(table)) copy.run();
    else copy.gaps.push({ after: null, before: null });
    return copy;
  });
}

/** Takes from the backup what is missing or has a wrong checksum, makes the tables agree, and lists what is lost. */
function fillGaps(
  db: Connection,
  copies: readonly TableCopy[],
  input: SalvageInput,
  report: SalvageReport,
  { sequences, hasBackup }: { sequences: ReadonlyMap<string, number>; hasBackup: boolean },
): void {
  const before = new Set(keysOf(db));
  const restored = new Map(copies.map((copy) => [copy.table, hasBackup ? copy.restore() : 0]));
  const byTable = new Map(copies.map((copy) => [copy.table, copy]));
  if (hasBackup) restored.set("holdfast_inputs", (restored.get("holdfast_inputs") ?? 0) + replaceInputs(db, badRows(db)));
  const bad = badRows(db);
  for (const { table, key } of bad) {
    const copy = byTable.get(table) as TableCopy;
    const one: Key = copy.hasRowids ? [BigInt(key[0] as number)] : key;
    copy.remove(one);
    copy.saved--;
    copy.refused.push(one);
    before.delete(key[0] as number);
    if (hasBackup) restored.set(table, (restored.get(table) ?? 0) + copy.restore([one], []));
  }
  for (const copy of copies) {
    const { table, saved, refused } = copy;
    const lost = lostOf(copy, sequences.get(table));
    report.tables.push({ table, saved, restored: restored.get(table) ?? 0, refused: refused.length, lost });
  }
  const hasLosses = copies.some(({ table, gaps, refused }) => table.startsWith("holdfast_") && gaps.length + refused.length > 0);
  const waitsLost = report.tables.some(({ table, lost }) => table === "holdfast_waits" && lost.length > 0);
  const { databaseId, preparation } = input;
  const adjusted = hasLosses ? makeConsistent(db, { now: preparation.now, databaseId, waitsLost }) : null;
  const added = keysOf(db).filter((key) => !before.has(key));
  reportJobs(db, report, { bad, restored: hasBackup ? added : [], adjusted });
}

function keysOf(db: Connection): number[] {
  return column(db, "select key from holdfast_jobs order by key");
}

/** A large input has its own row and never changes: if it alone is damaged, the backup's input is as good. */
function replaceInputs(db: Connection, bad: readonly BadRow[]): number {
  const replace = db.prepare(
    `insert or replace into main.holdfast_inputs (job, body) select job, body from ${BACKUP}.holdfast_inputs
     where job = ? and exists (select 1 from main.holdfast_inputs as own where own.job = holdfast_inputs.job and own.body <> holdfast_inputs.body)`,
  );
  return bad.filter(({ table }) => table === "holdfast_jobs").reduce((sum, { key }) => sum + replace.run(key[0] as number), 0);
}

function reportJobs(
  db: Connection,
  report: SalvageReport,
  { bad, restored, adjusted }: { bad: readonly BadRow[]; restored: readonly number[]; adjusted: Adjustments | null },
): void {
  const idOf = db.prepare("select id, created_at from holdfast_jobs where key = ?");
  const name = (key: number) => {
    const [id, createdAt] = (idOf.row(key) ?? [null, 0]) as [string | null, number];
    return publicId(id, createdAt, key as JobKey);
  };
  const table = report.tables.find((one) => one.table === "holdfast_jobs");
  const lost = (table?.lost ?? []) as { from: number; to: number | null }[];
  const known = db.prepare(
    `select id from holdfast_ids where job >= ? and job <= ? and ended is null and job not in (select key from holdfast_jobs) order by job`,
  );
  report.jobs = {
    saved: table?.saved ?? 0,
    restored: restored.map(name),
    damaged: bad.filter((row) => row.table === "holdfast_jobs").map((row) => row.name),
    lost,
    lostIds: lost.flatMap(({ from, to }) => known.rows(from, to ?? Number.MAX_SAFE_INTEGER).map(([id]) => id as string)),
    bereft: adjusted?.bereft.map(name) ?? [],
    nameless: adjusted?.nameless ?? [],
  };
  report.abandonedBuilds = adjusted?.abandoned ?? [];
  report.notes.push(...(adjusted?.notes ?? []));
}

function auditOf({ audit }: Preparation, { tables }: SalvageReport): Preparation["audit"] {
  const sum = (what: "saved" | "restored") => tables.reduce((total, table) => total + table[what], 0);
  const lostRanges = tables.flatMap(({ lost }) => lost).length;
  return { ...audit, after: { ...audit.after, saved: sum("saved"), restored: sum("restored"), lostRanges } };
}

/** The result of a salvage, by row. Numbers beyond `Number.MAX_SAFE_INTEGER` are texts. */
export interface SalvageReport {
  backup: {
    path: string;
    takenAt: number | null;
    /** The instant up to which the journal continued the backup; null: no journal, or nothing in it. */
    reached: number | null;
  } | null;
  tables: SalvagedTable[];
  jobs: {
    saved: number;
    /** As of the backup: those that had not ended then run again. */
    restored: string[];
    /** Read with a wrong checksum; they are not in the new database unless the backup had them. */
    damaged: string[];
    /** Ranges of keys that jobs may have had; `to` is null if the end is unknown. */
    lost: { from: number; to: number | null }[];
    /** Ids of lost jobs; they stay taken. */
    lostIds: string[];
    /** Quarantined, because jobs that they waited for are lost. */
    bereft: string[];
    nameless: number[];
  };
  abandonedBuilds: string[];
  undefined: string[];
  notes: string[];
}

export interface SalvagedTable {
  table: string;
  saved: number;
  restored: number;
  /** Rows that were read, but break a constraint or have a wrong checksum. */
  refused: number;
  /** Where rows were that could neither be read nor found in the backup. */
  lost: (LostRange | { after: unknown[] | null; before: unknown[] | null })[];
}

interface LostRange {
  from: number | string;
  to: number | string | null;
}

/** What the new database lacks of the gaps and of the refused rows. `highest`: the highest rowid that was given out. */
function lostOf(copy: TableCopy, highest: number | undefined): SalvagedTable["lost"] {
  const missing = copy.refused.filter((key) => !copy.has(key));
  if (!copy.hasRowids) return [...copy.gaps, ...missing.map((key) => ({ after: key, before: key }))].map(toPlainGap);
  const single = missing.map(([rowid]) => ({ after: [(rowid as bigint) - 1n], before: [(rowid as bigint) + 1n] }));
  const gaps: Gap[] = [...copy.gaps, ...single];
  return merged(gaps.flatMap((gap) => rangesIn(gap, copy.rowidsIn(gap), highest === undefined ? null : BigInt(highest))));
}

interface Range {
  from: bigint;
  to: bigint | null;
}

function rangesIn({ after, before }: Gap, present: readonly bigint[], highest: bigint | null): Range[] {
  const left: Range[] = [];
  let from = ((after?.[0] ?? 0n) as bigint) + 1n;
  for (const rowid of present) {
    if (rowid > from) left.push({ from, to: rowid - 1n });
    from = rowid + 1n;
  }
  const to = before === null ? highest : (before[0] as bigint) - 1n;
  if (to === null || to >= from) left.push({ from, to });
  return left;
}

function merged(ranges: Range[]): LostRange[] {
  const all: Range[] = [];
  for (const range of ranges.toSorted((a, b) => (a.from < b.from ? -1 : 1))) {
    const last = all.at(-1);
    if (last === undefined || (last.to !== null && range.from > last.to + 1n)) all.push({ ...range });
    else if (last.to !== null && (range.to === null || range.to > last.to)) last.to = range.to;
  }
  return all.map(({ from, to }) => ({ from: plain(from), to: to === null ? null : plain(to) }));
}

function toPlainGap({ after, before }: Gap): { after: unknown[] | null; before: unknown[] | null } {
  return { after: after && after.map(toPlain), before: before && before.map(toPlain) };
}

function toPlain(value: unknown): unknown {
  return value instanceof Uint8Array ? Buffer.from(value).toString("hex") : value;
}

function plain(value: bigint): number | string {
  return value <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(value) : String(value);
}
