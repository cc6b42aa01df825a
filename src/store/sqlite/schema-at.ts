import { connect, type DriverName } from "./driver.ts";
import { faultOf } from "./faults.ts";
import { schemaVersion, versionOf } from "./migrate.ts";

/** The schema of a file that may be an older Holdfast's, without bringing it up to date; null: that cannot be read. */
export function schemaAt(path: string, driver: DriverName): { version: number; known: number } | null {
  try {
    const db = connect(driver, path, { busyTimeout: 100, readOnly: true });
    try {
      return { version: versionOf(db), known: schemaVersion() };
    } finally {
      db.close();
    }
  } catch (error) {
    if (faultOf(error) === null) throw error;
    return null;
  }
}
