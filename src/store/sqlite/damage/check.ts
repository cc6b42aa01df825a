import type { Checked, Thoroughness } from "../../findings.ts";
import { connect, type Connection, type DriverName } from "../driver.ts";
import { explain, faultOf } from "../faults.ts";
import { checkReferences } from "./references.ts";
import { checkRows } from "./rows.ts";
import { checkSchema } from "./schema.ts";

/** How many findings of SQLite's own are told; a page that is torn makes thousands. */
const MOST = 20;
/** On a thread of its own it may wait for somebody who is just opening the file. */
const PATIENCE = 5_000;

export interface CheckedPages extends Checked {
  /** Some of it is more than a row: pages, indexes, the schema. */
  structural: boolean;
  /** Every page, row and constraint was looked at. A quick check is not complete, nor one on a connection that may only read. */
  isComplete: boolean;
}

export interface CheckRequest {
  driver: DriverName;
  path: string;
  how: Thoroughness;
  /** It is known to be, so it is only read; default false. */
  damaged?: boolean;
}

/** In a thread: it blocks for as long as a disk takes. */
export function checkFile({ driver, path, how, damaged }: CheckRequest): CheckedPages {
  try {
    // On a connection that may only read, SQLite passes over every CHECK. One that may write would, as the last to leave,
    // copy the log of a damaged database back.
    const db = connect(driver, path, { busyTimeout: PATIENCE, ...(damaged ? { readOnly: true } : { mustExist: true }) });
    try {
      const checked = checkDatabase(db, driver, how);
      return damaged ? { ...checked, isComplete: false } : checked;
    } finally {
      db.close();
    }
  } catch (error) {
    const fault = faultOf(error);
    if (fault !== "CORRUPT" && fault !== "NOTADB") throw explain(error, path);
    return { findings: [(error as Error).message], structural: true, isComplete: false, references: [], artifacts: [] };
  }
}

/** On whatever is open: the live file for a quick look, a copy of it for all. */
export function checkDatabase(db: Connection, driver: DriverName, how: Thoroughness): CheckedPages {
  const pages = readable(() => pragma(db, how === "quick" ? "quick_check" : "integrity_check"));
  const others = { references: checkReferences(db), artifacts: artifactsOf(db) };
  if (how === "quick") return { findings: pages, structural: pages.length > 0, isComplete: false, ...others };
  const schema = readable(() => checkSchema(db, driver));
  const rows = readable(() => checkRows(db));
  const structural = pages.length + schema.length > 0;
  return { findings: [...pages, ...schema, ...rows], structural, isComplete: true, ...others };
}

function pragma(db: Connection, name: string): string[] {
  const lines = db.prepare(`pragma ${name}(${MOST})`).rows();
  // One answer may have many lines, the first of which only says which database it is about.
  const said = lines.flatMap(([line]) => String(line).split("\n"));
  return said.filter((line) => line !== "ok" && !line.startsWith("*** in database")).slice(0, MOST);
}

function readable(look: () => string[]): string[] {
  try {
    return look();
  } catch (error) {
    if (faultOf(error) !== "CORRUPT") throw error;
    return [(error as Error).message];
  }
}

/** An older schema, as it is before a migration, knows nothing of them. */
function artifactsOf(db: Connection): string[] {
  if (db.prepare("select 1 from pragma_table_info('holdfast_artifacts')").row() === undefined) return [];
  const referred = db.prepare(
    `select hash from holdfast_artifacts
     union select output_file from holdfast_results where output_file is not null
     union select value_file from holdfast_targets where value_file is not null`,
  );
  try {
    return referred.rows().map(([hash]) => hash as string);
  } catch (error) {
    // What the pages have to do with it was found with them.
    if (faultOf(error) !== "CORRUPT") throw error;
    return [];
  }
}
