import { chmodSync } from "node:fs";
import { dirname } from "node:path";
import type { OnProgress } from "../../backups.ts";
import { passStep } from "../../points.ts";
import { syncFile, syncFolder } from "../backup/files.ts";
import { type Preparation, prepare, type Prepared } from "../backup/prepare.ts";
import { checkFile } from "../damage/check.ts";
import { leaveOn } from "../changes/journal.ts";
import type { Replay } from "../changes/replay.ts";
import type { Change } from "../changes/segments.ts";
import { connect, type Connection, type DriverName } from "../driver.ts";
import { explain, isBusy } from "../faults.ts";
import { migrate, SCHEMA_VERSION } from "../migrate.ts";
import { agree } from "./agree.ts";
import { type Definition, readDefinitions } from "./definitions.ts";
import { Draft, PATIENCE } from "./draft.ts";
import { Source } from "./fill.ts";
import { gather, type Gathered, type Harvest, hasLost } from "./gather.ts";
import { goOn, readJournal } from "./journal.ts";
import { Pages } from "./pages.ts";
import { keyRanges, rangesOf, type SalvageReport } from "./report.ts";
import type { Shape } from "./shape.ts";
import { quoted } from "../tables.ts";
import type { Datum } from "./cells.ts";
import { type FoundRow, type LostKeys, type LostRowids, readTable } from "./trees.ts";

export interface Identity {
  databaseId: string | null;
  /** Null: it is not to be read. */
  schema: number | null;
  /** 0: it is not to be read, or it has none. */
  epoch: number;
}

/** Which database it is, as far as that can be read. */
export function identify({ path }: { path: string }): Identity {
  using pages = new Pages(path);
  const { definitions } = readDefinitions(pages);
  const rootOf = (table: string) => definitions.find(({ name, type }) => type === "table" && name === table)?.root ?? 0;
  let databaseId: string | null = null;
  let schema: number | null = null;
  let epoch = 0;
  const take = ({ values }: FoundRow) => {
    databaseId = String(values[1]);
    epoch = Number(values[4] ?? 0);
  };
  readTable(pages, rootOf("holdfast_database"), take, () => {});
  readTable(
    pages,
    rootOf("holdfast_migrations"),
    ({ rowid }) => (schema = Math.max(schema ?? 0, Number(rowid))),
    () => {},
  );
  return { databaseId, schema, epoch };
}

export interface SalvageInput {
  driver: DriverName;
  /** Nobody has it open; it is only read. */
  from: string;
  mode: number;
  backup: { path: string; takenAt: number | null; schema: number; journal: JournalStart | null } | null;
  schema: number | null;
  databaseId: string | null;
  /** The highest key that a job is known to have had; null: nobody knows. */
  highestJob: number | null;
  preparation: Preparation;
}

/** From where on the journal goes on from the backup; its tail is in the database itself. */
export type JournalStart = Omit<Replay, "at" | "tail" | "newest" | "over" | "partly">;

export interface Salvaged extends Prepared {
  report: SalvageReport;
  /** What a check of the new database says. */
  findings: string[];
}

/** Makes a new database of what can be read of a damaged one, and of its backup; ready to take its place. */
export function salvageInto(input: SalvageInput, tell: OnProgress): Salvaged {
  try {
    return make(input, tell);
  } catch (error) {
    // Nobody else knows of the new database: what is locked is the backup.
    throw explain(error, (isBusy(error) && input.backup?.path) || input.preparation.path);
  }
}

function make(input: SalvageInput, tell: OnProgress): Salvaged {
  const { driver, from, mode, backup, schema, preparation } = input;
  const { path, now } = preparation;
  using pages = new Pages(from);
  const { definitions, whole } = readDefinitions(pages);
  const total = pages.count;
  const journal = readJournal(pages, definitions);
  const filler = backup && fillerOf(driver, backup, path, journal.tail);
  const report = blank(pages, whole, backup && { path: backup.path, takenAt: backup.takenAt, reached: filler?.reached ?? null });
  const restored = new Set<number>();
  let harvest: Harvest;
  {
    const { size: pageSize, encoding, marks } = pages;
    using draft = new Draft({ driver, path, now, schema: schema ?? backup?.schema ?? SCHEMA_VERSION, pageSize, encoding, marks });
    using source = filler === null ? null : new Source(draft.db, filler);
    draft.begin();
    const known: Definition[] = whole ? definitions : [...definitions, ...missingFrom(definitions, source?.definitions() ?? [])];
    report.undefined.push(...draft.define(known));
    harvest = gather(pages, definitions, draft, (rows) => tell({ step: "copying", done: Math.min(rows, total), total }));
    passStep("salvage:read");
    if (input.highestJob !== null) harvest.sequences.set("holdfast_jobs", input.highestJob);
    for (const gathered of harvest.tables.values()) report.tables.push(fillTable(draft.db, gathered, source, restored, harvest));
    report.undefined.push(...draft.finish(harvest.sequences));
    passStep("salvage:filled");
  }
  const db = connect(driver, path, { busyTimeout: PATIENCE, mustExist: true });
  try {
    db.exec("pragma journal_mode = memory");
    migrate(db, { path, now, actor: preparation.by, whenNew: () => {} });
    agree(db, harvest, { backup: filler, now, databaseId: input.databaseId, report, restored });
    // Where nobody can tell, the backup can.
    if (journal.active ?? (backup !== null && backup.journal !== null)) leaveOn(db);
    db.exec("pragma journal_mode = delete");
  } finally {
    db.close();
  }
  report.indexes = harvest.indexes;
  report.strayPages = harvest.stray.pages;
  if (harvest.stray.rows > 0) {
    report.notes.push(`${harvest.stray.rows} rows on ${harvest.stray.pages} pages could not be told whose they are.`);
  }
  const counts = { saved: sum(report, "saved"), restored: sum(report, "restored") };
  const audit = {
    ...preparation.audit,
    after: { ...preparation.audit.after, ...counts, lostRanges: report.tables.flatMap(({ lost }) => lost).length },
  };
  const prepared = prepare({ ...preparation, audit });
  chmodSync(path, mode);
  tell({ step: "checking", done: 0, total: 0 });
  const { findings } = checkFile({ driver, path, how: "whole" });
  syncFile(path);
  syncFolder(dirname(path));
  passStep("salvage:prepared");
  return { ...prepared, report, findings };
}

function blank(pages: Pages, whole: boolean, backup: SalvageReport["backup"]): SalvageReport {
  return {
    backup,
    tables: [],
    jobs: { saved: 0, restored: [], damaged: [], lost: [], lostIds: [], bereft: [], nameless: [] },
    abandonedBuilds: [],
    indexes: [],
    undefined: [],
    log: pages.log === null ? null : { damagedFrames: pages.log.damaged, commitsBeyond: pages.log.beyond },
    strayPages: 0,
    notes: whole ? [] : ["The schema was damaged: tables of others may be missing that nothing is known of any more."],
  };
}

/** What fills the gaps: the backup, or where there is a journal, what became of it. */
function fillerOf(
  driver: DriverName,
  { path, schema, journal }: NonNullable<SalvageInput["backup"]>,
  beside: string,
  tail: readonly Change[],
): { path: string; schema: number; reached: number | null } {
  return { schema, ...(journal === null ? { path, reached: null } : goOn(driver, path, beside, { ...journal, tail })) };
}

/** Tables of others of which only the backup knows. */
function missingFrom(here: readonly Definition[], there: readonly Definition[]): Definition[] {
  const names = new Set(here.map(({ name }) => name));
  return there.filter(({ name }) => !names.has(name)).map((one) => Object.assign({}, one, { root: 0 }));
}

function fillTable(
  db: Connection,
  gathered: Gathered,
  source: Source | null,
  jobs: Set<number>,
  { sequences }: Harvest,
): SalvageReport["tables"][number] {
  const { shape, saved, outdated, refused, lostRowids, lostKeys, bad } = gathered;
  const isJobs = shape.table === "holdfast_jobs";
  const restored = source === null || !hasLost(gathered) ? 0 : source.fill(gathered, isJobs ? (key) => jobs.add(key) : undefined);
  const highest = sequences.get(shape.table);
  const lost =
    shape.keys === null
      ? rangesOf(lostRowids, (gap) => rowidsIn(db, shape, gap), highest === undefined ? null : BigInt(highest))
      : keyRanges([...lostKeys, ...missing(db, shape, bad)]);
  return { table: shape.table, saved, outdated, restored, refused, lost };
}

/** Of rows that are known by their keys, those that are not there. */
function missing(db: Connection, { table, columns, keys }: Shape, bad: readonly Datum[][]): LostKeys[] {
  const named = columns.slice(0, keys ?? 0).map(({ name }) => `${quoted(name)} is ?`);
  const isThere = db.prepare(`select 1 from ${quoted(table)} where ${named.join(" and ")}`);
  return bad.filter((key) => isThere.row(...(key as never[])) === undefined).map((key) => ({ after: key, before: key }));
}

function* rowidsIn(db: Connection, { table }: Shape, { after, before }: LostRowids): Generator<bigint> {
  const next = db.prepare(
    `select cast(rowid as text) from ${quoted(table)} where rowid > ? and rowid < ? order by rowid limit 10000`,
  );
  const end = before ?? 2n ** 63n - 1n;
  for (let from = after ?? 0n; ;) {
    const rows = next.rows(from as never, end as never) as [string][];
    for (const [rowid] of rows) yield (from = BigInt(rowid));
    if (rows.length === 0) return;
  }
}

function sum({ tables }: SalvageReport, what: "saved" | "restored"): number {
  return tables.reduce((total, table) => total + table[what], 0);
}
