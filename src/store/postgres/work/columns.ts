import { listOf } from "../connection/driver.ts";

type Cell = string | number | boolean | null;

/** What a statement takes of many rows: a list for each column. */
export function listsOf<T>(rows: readonly T[], ...columns: ((row: T) => Cell)[]): string[] {
  return columns.map((column) => listOf(rows.map(column)));
}

/** The names of columns as a statement lists them. */
export function namesOf(columns: string): string[] {
  return columns.split(",").map((column) => column.trim().replace(/^.*[. ]/s, ""));
}

/** Rows by the names of their columns. */
export function named<Row>(names: readonly string[], rows: readonly (readonly unknown[])[]): Row[] {
  return rows.map((row) => Object.fromEntries(names.map((name, i) => [name, row[i]])) as Row);
}
