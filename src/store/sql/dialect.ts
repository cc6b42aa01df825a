/** Where the SQL of the two databases differs. Everything else is written so that both understand it. */
export interface Dialect {
  /** The full name of a table. */
  table(name: string): string;
  /** Whether `value` is among the items of a parameter that is a list. */
  in(value: string, type: "bigint" | "text", list: string): string;
  /** The items of a parameter that is a list, as a table with the columns `place`, from 0 on, and `value`. */
  items(type: "bigint" | "text", list: string): string;
  /** The objects of a parameter that is a JSON array of objects, as a table with these columns. */
  rows(json: string, columns: Readonly<Record<string, "bigint" | "text">>): string;
  /**
   * A statement for `Tx.each`, which runs it for many rows that have these columns. SQLite runs it row by row, because it
   * binds a wide row four times as fast as it parses one from JSON; PostgreSQL runs it once, with a list for each column.
   */
  each(columns: Readonly<Record<string, ColumnType>>, write: (row: EachRow) => string): string;
  /** Statements that run in this order and do not read each other's changes. PostgreSQL runs them all with the last. */
  inOrder(...statements: string[]): { before: readonly string[]; last: string };
  /** A number that no earlier transaction was given, as `Tx.fence` gives it. Only in a transaction. */
  readonly fence: string;
  /** Ends a `select` whose rows stay locked until the commit. */
  readonly locking: string;
  /** The same, where only the rows of one joined table are locked. */
  lockingOf(alias: string): string;
  /** Names the index to use; PostgreSQL's planner chooses by itself. */
  indexed(index: string): string;
  /**
   * Joins, to each row before it, the first row of a table that has a `key`. `which` selects that row as `one`, from `where`
   * to `order by`; `as` is its name in the join.
   */
  firstRow(table: string, as: string, which: string): string;
  /** The greatest of two numbers, leaving out nulls. */
  greatest(a: string, b: string): string;
  /** The least of two numbers. */
  least(a: string, b: string): string;
  /** In the words that partial indexes are declared with. */
  isFalse(column: string): string;
  /** Sorts texts by their bytes, as SQLite does. */
  byBytes(text: string): string;
  /** The rows of a subquery as one JSON text, each an array of these columns. */
  jsonRows(columns: readonly string[], from: string, order: string): string;
  /** Lets an `insert` give the keys of its rows itself. */
  readonly overriding: string;
  /** Selects the next key of a table as `next`. */
  nextKey(table: "builds"): string;
  /** The running jobs: `key`, `fence`, `holder`, `lease`, `expires_at`, and `bound`, which is indexed and never later. */
  readonly running: string;
  /** The number of running jobs that the processes of a list hold. */
  heldBy(processes: string): string;
}

export type ColumnType = "bigint" | "text" | "boolean";

/** The row that a statement of `Dialect.each` runs for. */
export interface EachRow {
  /** The value of a column. */
  value(column: string): string;
  /** The values of all columns, in their order. */
  readonly values: string;
  /** The clause that the rows come from, with more tables where they are named. */
  from(tables?: string): string;
  /** The same for a `delete`. */
  readonly using: string;
  /**
   * Whether columns of a table equal those of the row, which have the same names if no other is given. On PostgreSQL the list itself is a
   * condition, too: the planner does not know how long the list is and would scan the table for a join.
   */
  is(table: string, ...columns: (string | readonly [column: string, ofRow: string])[]): string;
}

export function pairOf(column: string | readonly [string, string]): readonly [column: string, ofRow: string] {
  return typeof column === "string" ? [column, column] : column;
}
