import type { Gap, Key, TableCopy } from "./table-copy.ts";

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

export interface LostRange {
  from: number | string;
  to: number | string | null;
}

/** What the new database still lacks of the gaps and of these rows. `highest`: no rowid beyond it was ever given out. */
export function lostOf(copy: TableCopy, keys: readonly Key[], highest: number | undefined): SalvagedTable["lost"] {
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
