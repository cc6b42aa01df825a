import type { Connection } from "../driver.ts";
import type { Datum } from "./cells.ts";

type Affinity = "integer" | "text" | "blob" | "real" | "numeric";

export interface Column {
  name: string;
  affinity: Affinity;
  notNull: boolean;
  /** False: SQLite works it out by itself. */
  insertable: boolean;
}

/** How the rows of a table stand on its pages. */
export interface Shape {
  table: string;
  /** In the order of the values in a row. */
  columns: Column[];
  /** The column that is the rowid itself; its value stands there as null. */
  alias: number | null;
  /** A name by which the rowid can be given where it is no column. */
  rowid: string | null;
  /** Of a table without rowids: so many columns at the front are its key. */
  keys: number | null;
  /** Keys are in an order that only SQLite knows. */
  odd: boolean;
}

/** Null: it has no rows of its own. */
export function shapeOf(db: Connection, table: string): Shape | null {
  const [kind, without] =
    db.prepare("select type, wr from pragma_table_list where schema = 'main' and name = ?").row(table) ?? [];
  if (kind !== "table" && kind !== "shadow") return null;
  const infos = db.prepare('select name, type, "notnull", pk, hidden from pragma_table_xinfo(?)').rows(table) as [
    string,
    string,
    number,
    number,
    number,
  ][];
  // What is generated when it is read stands nowhere.
  const stored = infos.filter(([, , , , hidden]) => hidden === 0 || hidden === 3);
  const key = stored.filter(([, , , pk]) => pk > 0).sort((a, b) => a[3] - b[3]);
  const toColumn = ([name, type, notNull, pk, hidden]: (typeof infos)[number]): Column => ({
    name,
    affinity: affinityOf(type),
    notNull: notNull === 1 || (without === 1 && pk > 0),
    insertable: hidden === 0,
  });
  if (without === 1) {
    const columns = [...key, ...stored.filter(([, , , pk]) => pk === 0)].map(toColumn);
    return { table, columns, alias: null, rowid: null, keys: key.length, odd: isOdd(db, table) };
  }
  const columns = stored.map(toColumn);
  const alias = isAlias(db, table, key) ? stored.findIndex(([, , , pk]) => pk > 0) : null;
  const taken = new Set(infos.map(([name]) => name.toLowerCase()));
  const rowid = alias === null ? (["rowid", "_rowid_", "oid"].find((name) => !taken.has(name)) ?? null) : null;
  return { table, columns, alias, rowid, keys: null, odd: false };
}

/** An integer that is the key of its table, and needs no index for that, is the rowid. */
function isAlias(db: Connection, table: string, key: readonly [string, string, number, number, number][]): boolean {
  const [only] = key;
  if (key.length !== 1 || only?.[1].toUpperCase() !== "INTEGER") return false;
  return db.prepare("select 1 from pragma_index_list(?) where origin = 'pk'").row(table) === undefined;
}

function isOdd(db: Connection, table: string): boolean {
  return (
    db
      .prepare(
        `select 1 from pragma_index_list(:t) as list, pragma_index_xinfo(list.name) as info
         where list.origin = 'pk' and info.key = 1 and (info.desc = 1 or info.coll <> 'BINARY')`,
      )
      .get({ t: table }) !== undefined
  );
}

/** What stands in each row of an index; null: whatever an expression has given. */
export interface IndexShape {
  name: string;
  columns: (Affinity | null)[];
}

export function indexesOf(db: Connection): IndexShape[] {
  const rows = db
    .prepare(
      `select entry.name, info.cid, column.type from sqlite_schema as entry
         join pragma_index_xinfo(entry.name) as info
         left join pragma_table_xinfo(entry.tbl_name) as column on column.cid = info.cid
       where entry.type = 'index' order by entry.name, info.seqno`,
    )
    .rows() as [string, number, string | null][];
  return [...Map.groupBy(rows, ([name]) => name)].map(([name, columns]) => ({
    name,
    columns: columns.map(([, cid, type]) => (cid === -1 ? "integer" : type === null ? null : affinityOf(type))),
  }));
}

export function fitsIndex({ columns }: IndexShape, values: readonly Datum[]): boolean {
  if (values.length !== columns.length) return false;
  return values.every((value, i) => {
    const affinity = columns[i] as Affinity | null;
    return value === null || affinity === null || isOf(affinity, value);
  });
}

/** Whether values could be a row of this table. `strictly`: as they are, not only as SQLite would take them. */
export function fits({ columns, alias }: Shape, values: readonly Datum[], strictly: boolean): boolean {
  if (values.length > columns.length || values.length === 0) return false;
  return values.every((value, i) => {
    const { affinity, notNull } = columns[i] as Column;
    if (i === alias) return value === null;
    if (value === null) return !notNull;
    return !strictly || isOf(affinity, value);
  });
}

function isOf(affinity: Affinity, value: Exclude<Datum, null>): boolean {
  switch (affinity) {
    case "integer":
      return typeof value === "bigint";
    case "real":
      return typeof value === "bigint" || typeof value === "number";
    case "text":
      return typeof value === "string";
    case "blob":
    case "numeric":
      return true;
  }
}

/** As SQLite reads a declared type. */
function affinityOf(type: string): Affinity {
  const said = type.toUpperCase();
  if (said.includes("INT")) return "integer";
  if (/CHAR|CLOB|TEXT/.test(said)) return "text";
  if (said === "" || said.includes("BLOB")) return "blob";
  return /REAL|FLOA|DOUB/.test(said) ? "real" : "numeric";
}
