import type { Connection } from "../driver.ts";
import { faultOf } from "../faults.ts";

/** How many pairs of tables, and rows of each, are named. */
const MOST_TABLES = 20;
const MOST_ROWS = 5;

/**
 * Rows of the user's tables whose foreign keys lead nowhere; Holdfast's own tables have no foreign keys. SQLite enforces them
 * only on connections that switch them on. A schema without foreign keys costs one look at its tables.
 */
export function checkReferences(db: Connection): string[] {
  try {
    const violated = db
      .prepare(`select "table", parent, count(*) from pragma_foreign_key_check group by 1, 2 limit ${MOST_TABLES}`)
      .rows() as [string, string, number][];
    const some = db.prepare(`select rowid from pragma_foreign_key_check(?) where parent = ? limit ${MOST_ROWS}`);
    return violated.map(([table, parent, count]) => {
      // A table without rowids has none to name.
      const rows = some.rows(table, parent).flatMap(([rowid]) => (rowid === null ? [] : [String(rowid)]));
      const named = rows.length === 0 ? "" : ` (rowid ${rows.join(", ")}${rows.length < count ? ", …" : ""})`;
      const said = count === 1 ? "1 row" : `${count} rows`;
      const [refer, what] = count === 1 ? ["refers", "a row"] : ["refer", "rows"];
      return `${said} of table "${table}" ${refer} to ${what} of "${parent}" that ${count === 1 ? "does" : "do"} not exist${named}.`;
    });
  } catch (error) {
    // A parent table without the unique column that a foreign key names, say. Damaged pages are found by the other checks.
    const fault = faultOf(error);
    if (fault === "CORRUPT") return [];
    if (fault !== "OTHER") throw error;
    return [`The foreign keys cannot be checked: ${(error as Error).message}.`];
  }
}
