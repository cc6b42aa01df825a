import { type Cell, type Datum, orNull, type Page, pageOf, valuesOf } from "./cells.ts";
import { KIND, type Pages } from "./pages.ts";

/** What a page of a tree holds, as far as it can be read. */
export interface FoundRow {
  rowid: bigint | null;
  values: Datum[];
  /** It stands on a page whose newer image is damaged, or which is not what it says of itself: it may have been given up. */
  outdated: boolean;
}

/** Rows that could not be read: those after one and before another; null: no row is known there. */
export interface LostRowids {
  after: bigint | null;
  before: bigint | null;
}
export interface LostKeys {
  after: Datum[] | null;
  before: Datum[] | null;
}

/** Deeper than any tree can be. */
const DEPTH = 40;

/** The rows of a table, in the order of their numbers, and what is missing between them. */
export function readTable(pages: Pages, root: number, found: (row: FoundRow) => void, lost: (gap: LostRowids) => void): void {
  const go = (number: number, after: bigint | null, before: bigint | null, depth: number): void => {
    const page = enter(pages, number, depth, [KIND.leafTable, KIND.innerTable]);
    if (page === null) return lost({ after, before });
    const outdated = isOutdated(pages, page);
    // What its newer image had besides, nobody knows.
    if (outdated) lost({ after, before });
    let last = after;
    let gap = false;
    for (const cell of page.cells) {
      const rowid = cell?.rowid ?? null;
      if (cell === null || rowid === null || isOutside(rowid, last, before, page.kind)) {
        gap = true;
        continue;
      }
      if (page.kind === KIND.innerTable) {
        // An inner page says up to which row its child goes, that one included.
        if (gap) lost({ after: last, before: rowid + 1n });
        else go(cell.child as number, last, rowid + 1n, depth + 1);
      } else {
        if (gap) lost({ after: last, before: rowid });
        const values = readValues(pages, cell);
        if (values === null) lost({ after: rowid - 1n, before: rowid + 1n });
        else found({ rowid, values, outdated });
      }
      last = rowid;
      gap = false;
    }
    if (page.right !== null && !gap) go(page.right, last, before, depth + 1);
    else if (gap) lost({ after: last, before });
  };
  go(root, null, null, 0);
}

/** The rows of a table without rowids, or of an index: inner pages hold some, too. */
export function readIndex(
  pages: Pages,
  root: number,
  keyColumns: number,
  found: (row: FoundRow) => void,
  lost: (gap: LostKeys) => void,
): void {
  let last: Datum[] | null = null;
  /** Something before the next row that can be read is missing. */
  let gap = false;
  const go = (number: number, depth: number): void => {
    const page = enter(pages, number, depth, [KIND.leafIndex, KIND.innerIndex]);
    if (page === null) return void (gap = true);
    const outdated = isOutdated(pages, page);
    if (outdated) gap = true;
    for (const cell of page.cells) {
      if (cell?.child) go(cell.child, depth + 1);
      const values = cell === null ? null : readValues(pages, cell);
      if (values === null || values.length < keyColumns) {
        gap = true;
        continue;
      }
      const key = values.slice(0, keyColumns);
      if (gap) lost({ after: last, before: key });
      gap = outdated;
      last = key;
      found({ rowid: null, values, outdated });
    }
    if (page.right !== null) go(page.right, depth + 1);
  };
  go(root, 0);
  if (gap) lost({ after: last, before: null });
}

/** Of a page that no tree leads to. */
export function rowsOn(pages: Pages, page: Page): FoundRow[] {
  const outdated = isOutdated(pages, page);
  return page.cells.flatMap((cell) => {
    const values = cell === null ? null : readValues(pages, cell);
    return values === null ? [] : [{ rowid: cell?.rowid ?? null, values, outdated }];
  });
}

function isOutdated(pages: Pages, page: Page): boolean {
  return pages.isOutdated(page.number) || !page.sound;
}

function enter(pages: Pages, number: number, depth: number, kinds: readonly number[]): Page | null {
  if (depth > DEPTH || number < 1 || (number > 1 && pages.isClaimed(number))) return null;
  const page = pageOf(pages, number);
  if (page === null || !kinds.includes(page.kind)) return null;
  pages.claim(number);
  return page;
}

function readValues(pages: Pages, { payload }: Cell): Datum[] | null {
  return payload === null ? null : orNull(() => valuesOf(payload(), pages.encoding));
}

/** Rows are in order, and within what their page's place says; what a tree before had there is none. */
function isOutside(rowid: bigint, last: bigint | null, before: bigint | null, kind: number): boolean {
  if (last !== null && rowid <= last) return true;
  return before !== null && (kind === KIND.innerTable ? rowid > before : rowid >= before);
}
