import { chmodSync } from "node:fs";
import { dirname } from "node:path";
import type { JobKey } from "../../../../core/text/ids.ts";
import type { OnProgress } from "../../../backups.ts";
import { publicId } from "../../../job-row.ts";
import { passStep } from "../../../points.ts";
import { type Connection, type DriverName, tablesOf } from "../../driver.ts";
import { explain, isBusy } from "../../faults.ts";
import { migrate, schemaVersion } from "../../migrate.ts";
import { syncFile, syncFolder } from "../backup/copy.ts";
import { type Preparation, prepare, type Prepared } from "../backup/prepare.ts";
import { leaveOn } from "../changes/journal.ts";
import type { Replay } from "../changes/replay.ts";
import { type BadRow, badRows, checkFile } from "../damage/check.ts";
import { mend, type Mended } from "./mend.ts";
import { BACKUP, type Gap, type Key, NewDatabase, TableCopy } from "./table-copy.ts";
import { goOn, readJournal } from "./salvage.ts";

interface SalvageInput {
  driver: DriverName;
  /** A copy of the damaged database, which is SQLite's to change. */
  damaged: string;
  mode: number;
  backup: { path: string; takenAt: number | null; schema: number; journal: JournalStart | null } | null;
  schema: number | null;
  databaseId: string | null;
  /** The highest key that a job is known to have had; null: it is not known. */
  highestJob: number | null;
  /** Commits that the log holds behind a damaged frame; SQLite does not read them. */
  commitsBeyond: number;
  preparation: Preparation;
}

/** Where the journal continues the backup; its tail is in the database itself. */
export type JournalStart = Omit<Replay, "at" | "tail" | "newest" | "over" | "partly">;

export interface Salvaged extends Prepared {
  report: SalvageReport;
  /** What a check of the new database says. */
  findings: string[];
}

/** Makes a new database of what can be read of a damaged one, and of its backup; ready to take its place. */
export function salvageInto(input: SalvageInput, onProgress: OnProgress): Salvaged {
  try {
    return make(input, onProgress);
  } catch (error) {
    // No other process knows of the new database: what is locked is the backup.
    throw explain(error, (isBusy(error) && input.backup?.path) || input.preparation.path);
  }
}

function make(input: SalvageInput, onProgress: OnProgress): Salvaged {
  const { driver, damaged, mode, backup, preparation } = input;
  const { path, now } = preparation;
  const journal = readJournal(driver, damaged);
  const source = backup && sourceOf(driver, backup, path, journal.tail);
  const report = blank(backup && { path: backup.path, takenAt: backup.takenAt, reached: source?.reached ?? null });
  {
    const schema = input.schema ?? backup?.schema ?? schemaVersion();
    using made = new NewDatabase(driver, { path, damaged, backup: source?.path ?? null }, schema, now);
    report.undefined.push(...made.define(source !== null));
    const { db } = made;
    // Without a transaction: SQLite refuses every write of one in which it has met a damaged page.
    const sequences = made.sequences();
    if (input.highestJob !== null) sequences.set("holdfast_jobs", input.highestJob);
    const copies = copyTables(made, onProgress);
    passStep("salvage:read");
    report.undefined.push(...made.finish(sequences));
    passStep("salvage:filled");
    made.detachDamaged();
    migrate(db, { path, now, actor: preparation.by, whenNew: () => {} });
    // An immediate transaction would lock the backup beside it, too.
    db.exec("begin");
    complete(db, copies, { input, report, sequences, hasBackup: source !== null });
    if (journal.active ?? (backup !== null && backup.journal !== null)) leaveOn(db);
    db.exec("commit");
    // Its own alone: the backup beside it stays as it is.
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

function blank(backup: SalvageReport["backup"]): SalvageReport {
  const jobs = { saved: 0, restored: [], damaged: [], lost: [], lostIds: [], bereft: [], nameless: [] };
  return { backup, tables: [], jobs, abandonedBuilds: [], undefined: [], notes: [] };
}

/** What fills the gaps: the backup, or where there is a journal, what became of it. */
function sourceOf(
  driver: DriverName,
  { path, journal }: NonNullable<SalvageInput["backup"]>,
  beside: string,
  tail: Replay["tail"],
): { path: string; reached: number | null } {
  return journal === null ? { path, reached: null } : goOn(driver, path, beside, { ...journal, tail });
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

interface Completion {
  input: SalvageInput;
  report: SalvageReport;
  sequences: ReadonlyMap<string, number>;
  hasBackup: boolean;
}

/** Fills from the backup what is missing or not what was written, makes the tables agree, and lists what is lost. */
function complete(db: Connection, copies: readonly TableCopy[], { input, report, sequences, hasBackup }: Completion): void {
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
    const lost = lostOf(copy, copy.refused, sequences.get(copy.table));
    report.tables.push({
      table: copy.table,
      saved: copy.saved,
      restored: restored.get(copy.table) ?? 0,
      refused: copy.refused.length,
      lost,
    });
  }
  const isHurt = copies.some(({ table, gaps, refused }) => table.startsWith("holdfast_") && gaps.length + refused.length > 0);
  const waitsLost = report.tables.some(({ table, lost }) => table === "holdfast_waits" && lost.length > 0);
  const mended = isHurt ? mend(db, { now: input.preparation.now, databaseId: input.databaseId, waitsLost }) : null;
  const added = keysOf(db).filter((key) => !before.has(key));
  reportJobs(db, report, { bad, restored: hasBackup ? added : [], mended });
}

function keysOf(db: Connection): number[] {
  return db
    .prepare("select key from holdfast_jobs order by key")
    .rows()
    .map(([key]) => key as number);
}

/** A large input stands apart from its job and never changes: where it alone is damaged, the backup's is as good. */
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
  { bad, restored, mended }: { bad: readonly BadRow[]; restored: readonly number[]; mended: Mended | null },
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
    bereft: mended?.bereft.map(name) ?? [],
    nameless: mended?.nameless ?? [],
  };
  report.abandonedBuilds = mended?.abandoned ?? [];
  report.notes.push(...(mended?.notes ?? []));
}

function auditOf({ audit }: Preparation, { tables }: SalvageReport): Preparation["audit"] {
  const sum = (what: "saved" | "restored") => tables.reduce((total, table) => total + table[what], 0);
  const lostRanges = tables.flatMap(({ lost }) => lost).length;
  return { ...audit, after: { ...audit.after, saved: sum("saved"), restored: sum("restored"), lostRanges } };
}

/** What a salvage has brought, to the row. Numbers of rows are text where they are beyond what a number can hold. */
export interface SalvageReport {
  /** Null: there is no backup that could be used. */
  backup: {
    path: string;
    takenAt: number | null;
    /** Up to when the journal has led from there; null: there is none, or nothing in it. */
    reached: number | null;
  } | null;
  tables: SalvagedTable[];
  jobs: {
    saved: number;
    /** As they were when the backup was made: those that had not ended then run again. */
    restored: string[];
    /** Read, and not what was written: they are not in the new database, unless the backup had them. */
    damaged: string[];
    /** Keys of jobs that may have been there, from and to; null: the end is not known. */
    lost: { from: number; to: number | null }[];
    /** Ids that lost jobs are known to have had; those ids stay taken. */
    lostIds: string[];
    /** They waited for others that are lost, and are in quarantine. */
    bereft: string[];
    /** Their names are lost, so no worker could run them. */
    nameless: number[];
  };
  /** Builds that had not ended: what they have finished is reused by the next. */
  abandonedBuilds: string[];
  /** Tables, indexes, views and triggers of others that could not be made anew. */
  undefined: string[];
  notes: string[];
}

export interface SalvagedTable {
  table: string;
  saved: number;
  restored: number;
  /** Rows that were read, and break a rule of their table or are not what was written. */
  refused: number;
  /** Where rows were that could neither be read nor found in the backup. */
  lost: (LostRange | { after: unknown[] | null; before: unknown[] | null })[];
}

interface LostRange {
  from: number | string;
  to: number | string | null;
}

/** What the new database still lacks of the gaps and of these rows. `highest`: no rowid beyond it was ever given out. */
function lostOf(copy: TableCopy, keys: readonly Key[], highest: number | undefined): SalvagedTable["lost"] {
  const missing = keys.filter((key) => !copy.has(key));
  if (!copy.hasRowids) return [...copy.gaps, ...missing.map((key) => ({ after: key, before: key }))].map(plainGap);
  const gaps = [...copy.gaps, ...missing.map(([rowid]) => around(rowid as bigint))];
  return merged(gaps.flatMap((gap) => open(gap, copy.rowidsIn(gap), highest === undefined ? null : BigInt(highest))));
}

function around(rowid: bigint): Gap {
  return { after: [rowid - 1n], before: [rowid + 1n] };
}

interface Range {
  from: bigint;
  to: bigint | null;
}

/** What is left of a gap when these rows are there. */
function open({ after, before }: Gap, present: readonly bigint[], highest: bigint | null): Range[] {
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

function plainGap({ after, before }: Gap): { after: unknown[] | null; before: unknown[] | null } {
  return { after: after && after.map(toPlain), before: before && before.map(toPlain) };
}

function toPlain(value: unknown): unknown {
  return value instanceof Uint8Array ? Buffer.from(value).toString("hex") : value;
}

function plain(value: bigint): number | string {
  return value <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(value) : String(value);
}
