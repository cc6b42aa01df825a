import type { Connection, Value } from "../driver.ts";
import { eachPage, SUMMED_TABLES } from "./summed.ts";

/** Gives each row that has no sum the one that fits what is there. */
export function fillSums(db: Connection): void {
  for (const summed of SUMMED_TABLES) {
    const { table, key, sumOf } = summed;
    const where = key.map((name) => `${name} = ?`).join(" and ");
    const set = db.prepare(`update ${table} set sum = ? where ${where}`);
    const fill = (rows: Record<string, Value>[]) => {
      for (const row of rows) set.run(sumOf(row as never), ...key.map((name) => row[name] as Value));
    };
    eachPage(db, summed, fill, true);
  }
}
