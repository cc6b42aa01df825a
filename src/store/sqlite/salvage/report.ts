import type { Datum } from "./cells.ts";
import type { LostKeys, LostRowids } from "./trees.ts";

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
    /** Keys of jobs that may have been there, from and to; null: nobody knows up to where. */
    lost: { from: number; to: number | null }[];
    /** Ids that lost jobs are known to have had; those ids stay taken. */
    lostIds: string[];
    /** They waited for others that are lost, and are in quarantine. */
    bereft: string[];
    /** Their names are lost, so nobody could run them. */
    nameless: number[];
  };
  /** Builds that had not ended: what they have finished is reused by the next. */
  abandonedBuilds: string[];
  /** Indexes that were damaged; nothing is lost with them. */
  indexes: string[];
  /** Tables, indexes, views and triggers of others that could not be made anew. */
  undefined: string[];
  log: { damagedFrames: number; commitsBeyond: number } | null;
  strayPages: number;
  notes: string[];
}

export interface SalvagedTable {
  table: string;
  saved: number;
  /** From a page whose newer image is damaged, or whose own account of itself is: they may be older than what was acknowledged. */
  outdated: number;
  restored: number;
  /** Rows that were read, and were none, or not what was written. */
  refused: number;
  /** Where rows were that could not be read, nor found in the backup. */
  lost: (LostRange | { after: unknown[] | null; before: unknown[] | null })[];
}

export interface LostRange {
  from: number | string;
  to: number | string | null;
}

/** What is left of the gaps, when these rows are there; neighbours are one. */
export function rangesOf(
  gaps: readonly LostRowids[],
  present: (gap: LostRowids) => Iterable<bigint>,
  highest: bigint | null,
): LostRange[] {
  const open = gaps.flatMap((gap) => {
    const left: { from: bigint; to: bigint | null }[] = [];
    // Rowids below 1 are not given by themselves.
    let from = gap.after === null ? 1n : gap.after + 1n;
    for (const key of present(gap)) {
      if (key > from) left.push({ from, to: key - 1n });
      from = key + 1n;
    }
    const to = gap.before === null ? highest : gap.before - 1n;
    if (to === null || to >= from) left.push({ from, to });
    return left;
  });
  open.sort((a, b) => (a.from < b.from ? -1 : a.from > b.from ? 1 : 0));
  const merged: typeof open = [];
  for (const range of open) {
    const last = merged.at(-1);
    if (last === undefined || (last.to !== null && range.from > last.to + 1n)) merged.push({ ...range });
    else if (last.to !== null && (range.to === null || range.to > last.to)) last.to = range.to;
  }
  return merged.map(({ from, to }) => ({ from: plain(from), to: to === null ? null : plain(to) }));
}

export function keyRanges(gaps: readonly LostKeys[]): { after: unknown[] | null; before: unknown[] | null }[] {
  return gaps.map(({ after, before }) => ({ after: after && after.map(plainly), before: before && before.map(plainly) }));
}

function plainly(value: Datum): unknown {
  if (typeof value === "bigint") return plain(value);
  return Buffer.isBuffer(value) ? value.toString("hex") : value;
}

function plain(value: bigint): number | string {
  return value <= BigInt(Number.MAX_SAFE_INTEGER) && value >= BigInt(Number.MIN_SAFE_INTEGER) ? Number(value) : String(value);
}
