import type { JobKey } from "../../../core/ids.ts";
import { publicId } from "../../job-row.ts";
import { type BadRow, badRows } from "../damage/rows.ts";
import type { Connection } from "../driver.ts";
import { isOurs } from "./draft.ts";
import { Source } from "./fill.ts";
import { type Gathered, type Harvest, hasLost } from "./gather.ts";
import { mend, type Mended } from "./mend.ts";
import type { SalvagedTable, SalvageReport } from "./report.ts";
import { quoted } from "../tables.ts";

export interface Agreement {
  backup: { path: string; schema: number } | null;
  now: number;
  databaseId: string | null;
  report: SalvageReport;
  /** Keys of jobs that came from the backup. */
  restored: Set<number>;
}

/** With the newest schema: what is not as it was written goes, and what is left is made to agree. The report says it. */
export function agree(db: Connection, { tables }: Harvest, { backup, now, databaseId, report, restored }: Agreement): void {
  using source = backup === null ? null : new Source(db, backup);
  // An immediate one would lock the backup beside it, too, from which others may be filling theirs.
  db.exec("begin");
  const bad = replaceInputs(db, tables, badRows(db), { source, restored, said: saidOf(report, "holdfast_inputs") });
  for (const [table, rows] of Map.groupBy(bad, (row) => row.table)) {
    replace(db, tables.get(table) as Gathered, rows, { source, restored, said: saidOf(report, table) });
  }
  const isHurt = [...tables.values()].some((one) => isOurs(one.shape.table) && (hasLost(one) || one.outdated + one.refused > 0));
  const waitsLost = saidOf(report, "holdfast_waits").lost.length > 0;
  const mended = isHurt || bad.length > 0 ? mend(db, { now, databaseId, waitsLost }) : null;
  tellOfJobs(db, report, {
    bad: bad.filter(({ table }) => table === "holdfast_jobs").map(({ name }) => name),
    restored,
    mended,
  });
  db.exec("commit");
}

/** A large input stands apart from its job, and never changes: where it alone was damaged, the backup's is as good. */
function replaceInputs(
  db: Connection,
  tables: Harvest["tables"],
  bad: BadRow[],
  means: { source: Source | null; restored: Set<number>; said: SalvagedTable },
): BadRow[] {
  const has = db.prepare("select 1 from holdfast_inputs where job = ?");
  const apart = bad.filter(({ table, key }) => table === "holdfast_jobs" && has.row(key[0] as number) !== undefined);
  if (apart.length === 0) return bad;
  replace(db, tables.get("holdfast_inputs") as Gathered, apart, means);
  return badRows(db);
}

/** Rows that are not what was written give way to what the backup has in their place, or to nothing. */
function replace(
  db: Connection,
  gathered: Gathered,
  rows: readonly BadRow[],
  { source, restored, said }: { source: Source | null; restored: Set<number>; said: SalvagedTable },
): void {
  const { table, keys, columns } = gathered.shape;
  const named = columns.slice(0, keys ?? 0).map(({ name }) => `${quoted(name)} = ?`);
  const where = named.length === 0 ? "rowid = ?" : named.join(" and ");
  const remove = db.prepare(`delete from ${quoted(table)} where ${where}`);
  for (const { key } of rows) remove.run(...key);
  const only: Gathered = { ...gathered, lostRowids: [], lostKeys: [], bad: rows.map(({ key }) => key) };
  said.restored += source?.fill(only, table === "holdfast_jobs" ? (key) => restored.add(key) : undefined) ?? 0;
  said.saved -= rows.length;
  said.refused += rows.length;
  const isThere = db.prepare(`select 1 from ${quoted(table)} where ${where}`);
  for (const { key } of rows) {
    if (isThere.row(...key) !== undefined) continue;
    said.lost.push(keys === null ? { from: key[0] as number, to: key[0] as number } : { after: key, before: key });
  }
}

function saidOf({ tables }: SalvageReport, table: string): SalvagedTable {
  return tables.find((one) => one.table === table) as SalvagedTable;
}

function tellOfJobs(
  db: Connection,
  report: SalvageReport,
  { bad, restored, mended }: { bad: string[]; restored: ReadonlySet<number>; mended: Mended | null },
): void {
  const idOf = db.prepare("select id, created_at from holdfast_jobs where key = ?");
  const name = (key: number) => {
    const [id, createdAt] = (idOf.row(key) ?? [null, 0]) as [string | null, number];
    return publicId(id, createdAt, key as JobKey);
  };
  const there = [...restored].filter((key) => idOf.row(key) !== undefined).sort((a, b) => a - b);
  const table = report.tables.find((one) => one.table === "holdfast_jobs");
  const lost = (table?.lost ?? []) as { from: number; to: number | null }[];
  const known = db.prepare(
    `select id from holdfast_ids where job >= ? and job <= ? and ended is null and job not in (select key from holdfast_jobs) order by job`,
  );
  report.jobs = {
    saved: table?.saved ?? 0,
    restored: there.map(name),
    damaged: bad,
    lost,
    lostIds: lost.flatMap(({ from, to }) => known.rows(from, to ?? Number.MAX_SAFE_INTEGER).map(([id]) => id as string)),
    bereft: mended?.bereft.map(name) ?? [],
    nameless: mended?.nameless ?? [],
  };
  report.abandonedBuilds = mended?.abandoned ?? [];
  report.notes.push(...(mended?.notes ?? []));
}
