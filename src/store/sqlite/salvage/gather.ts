import { tablesOf } from "../tables.ts";
import { type Datum, pageOf } from "./cells.ts";
import type { Definition } from "./definitions.ts";
import { type Draft, isOurs } from "./draft.ts";
import { KIND, type Pages } from "./pages.ts";
import { fits, fitsIndex, type IndexShape, type Shape } from "./shape.ts";
import { type FoundRow, type LostKeys, type LostRowids, readIndex, readTable, rowsOn } from "./trees.ts";

/** What came of one table. */
export interface Gathered {
  shape: Shape;
  /** Read, and put into the new database. */
  saved: number;
  /** Of these, so many stood on a page whose newer image is damaged. */
  outdated: number;
  /** Rows that were read, and are none of this table's. */
  refused: number;
  lostRowids: LostRowids[];
  lostKeys: LostKeys[];
  /** Keys of rows that are there, and are not what was written. */
  bad: Datum[][];
}

export interface Harvest {
  tables: Map<string, Gathered>;
  /** Indexes that were damaged; they are made anew. */
  indexes: string[];
  sequences: Map<string, number>;
  /** Pages with rows of which nobody can tell whose they are, and pages that cannot be read at all. */
  stray: { pages: number; rows: number };
}

/** Reads every tree, and then what no tree leads to any more, into the new database. */
export function gather(pages: Pages, definitions: readonly Definition[], draft: Draft, tell: (page: number) => void): Harvest {
  const harvest: Harvest = { tables: new Map(), indexes: [], sequences: new Map(), stray: { pages: 0, rows: 0 } };
  let seen = 0;
  const rootOf = new Map(definitions.filter(({ type }) => type === "table").map(({ name, root }) => [name, root]));
  for (const table of tablesOf(draft.db)) {
    const shape = draft.shape(table);
    if (shape === null) continue;
    const gathered: Gathered = { shape, saved: 0, outdated: 0, refused: 0, lostRowids: [], lostKeys: [], bad: [] };
    harvest.tables.set(table, gathered);
    const found = (row: FoundRow) => {
      take(draft, gathered, row, isOurs(table));
      if (++seen % 1_000 === 0) tell(seen);
    };
    const root = rootOf.get(table) ?? 0;
    if (shape.keys === null) readTable(pages, root, found, (gap) => gathered.lostRowids.push(gap));
    else readIndex(pages, root, shape.keys, found, (gap) => gathered.lostKeys.push(gap));
  }
  readOthers(pages, definitions, harvest);
  const known = new Set(definitions.filter(({ root }) => root > 0).map(({ name }) => name));
  const indexes = draft.indexes().filter(({ name }) => !known.has(name) || harvest.indexes.includes(name));
  gatherStrays(pages, draft, harvest, indexes);
  return harvest;
}

export function hasLost({ lostRowids, lostKeys, bad }: Gathered): boolean {
  return lostRowids.length + lostKeys.length + bad.length > 0;
}

function take(draft: Draft, gathered: Gathered, row: FoundRow, strictly: boolean): void {
  const { shape } = gathered;
  if (fits(shape, row.values, strictly) && draft.insert(shape, row)) {
    gathered.saved++;
    if (row.outdated) gathered.outdated++;
    return;
  }
  gathered.refused++;
  if (shape.keys !== null) gathered.bad.push(row.values.slice(0, shape.keys));
  else if (row.rowid !== null) gathered.lostRowids.push({ after: row.rowid - 1n, before: row.rowid + 1n });
}

/** What is no table of rows: indexes, so that their pages are known for what they are, and SQLite's own counts. */
function readOthers(pages: Pages, definitions: readonly Definition[], harvest: Harvest): void {
  for (const { type, name, root } of definitions) {
    if (root === 0) continue;
    if (type === "index") {
      let whole = true;
      readIndex(
        pages,
        root,
        1,
        () => {},
        () => (whole = false),
      );
      if (!whole) harvest.indexes.push(name);
    } else if (name.startsWith("sqlite_")) {
      readTable(
        pages,
        root,
        ({ values: [table, seq] }) => {
          if (name === "sqlite_sequence" && typeof table === "string") harvest.sequences.set(table, Number(seq ?? 0));
        },
        () => {},
      );
    }
  }
}

/** Where an inner page is damaged, those below it are there and nothing leads to them. What they hold tells whose they are. */
function gatherStrays(pages: Pages, draft: Draft, { tables, stray }: Harvest, indexes: readonly IndexShape[]): void {
  const lacking = [...tables.values()].filter(hasLost);
  for (const number of pages.unclaimed()) {
    const page = pageOf(pages, number);
    if (page === null || page.kind === KIND.innerTable || page.cells.length === 0) continue;
    const rows = rowsOn(pages, page);
    const isTable = page.kind === KIND.leafTable;
    const owners =
      rows.length === 0 ? [] : lacking.filter((one) => (one.shape.keys === null) === isTable && couldHave(one, rows));
    const [owner] = owners;
    const isOfIndex = !isTable && indexes.some((index) => rows.every(({ values }) => fitsIndex(index, values)));
    if (owner === undefined || owners.length > 1 || isOfIndex) {
      // What an index holds is in its table, too.
      if (rows.length === 0 || (isOfIndex && owner === undefined)) continue;
      stray.pages++;
      stray.rows += rows.length;
      continue;
    }
    pages.claim(number);
    for (const row of rows) if (draft.insert(owner.shape, row)) owner.saved++;
  }
}

function couldHave({ shape, lostRowids }: Gathered, rows: readonly FoundRow[]): boolean {
  const fitting = rows.every(({ values }) => values.length >= leastOf(shape) && fits(shape, values, true));
  if (!fitting) return false;
  return shape.keys !== null || rows.every(({ rowid }) => lostRowids.some((gap) => rowid !== null && isIn(gap, rowid)));
}

/** Columns were added to some tables; the first have always been there. */
function leastOf({ columns }: Shape): number {
  return columns.length - 2;
}

function isIn({ after, before }: LostRowids, rowid: bigint): boolean {
  return (after === null || rowid > after) && (before === null || rowid < before);
}
