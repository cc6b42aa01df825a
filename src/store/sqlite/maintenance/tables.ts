import type { Connection } from "../driver.ts";

/** By name: not those of SQLite itself, nor what only looks like a table. */
export function tablesOf(db: Connection): string[] {
  return db
    .prepare(
      "select name from sqlite_schema where type = 'table' and rootpage > 0 and name not like 'sqlite\\_%' escape '\\' order by name",
    )
    .rows()
    .map(([name]) => name as string);
}

/** As it is written in a statement. */
export function quoted(name: string): string {
  return `"${name.replaceAll('"', '""')}"`;
}
