import { connect, type Connection, type DriverName } from "../driver.ts";
import { migrate } from "../migrate.ts";

/** Tables, indexes and triggers whose text is another than this Holdfast has written. Others' own are no concern. */
export function checkSchema(db: Connection, driver: DriverName): string[] {
  const there = textsOf(db);
  const found: string[] = [];
  for (const [name, text] of fresh(driver)) {
    if (!there.has(name)) found.push(`The schema has no ${name}.`);
    else if (there.get(name) !== text) found.push(`The schema's ${name} is another than it was made.`);
  }
  return found;
}

function fresh(driver: DriverName): Map<string, string | null> {
  const db = connect(driver, ":memory:", { busyTimeout: 0 });
  try {
    migrate(db, { path: ":memory:", now: 0, actor: null, whenNew: () => {} });
    return textsOf(db);
  } finally {
    db.close();
  }
}

function textsOf(db: Connection): Map<string, string | null> {
  const rows = db.prepare("select type || ' ' || name, sql from sqlite_schema where name like 'holdfast\\_%' escape '\\'").rows();
  return new Map(rows as [string, string | null][]);
}
