import { existsSync, readdirSync } from "node:fs";
import { Alive, aliveFolder } from "../../alive.ts";
import { connect, type DriverName } from "../driver.ts";
import { locksOn } from "../proc-locks.ts";

/** Somebody who has a database open; of those who have not said more, only that much is known. */
export interface Living {
  pid: number | null;
  program: string | null;
}

/** Where SQLite's locks are in a file: beyond everything that could be data. */
const LOCK_BYTES = 0x4000_0000;

/** Who has this database open, in this instant, but for whoever asks. Nothing is written, and no lock is taken. */
export function living(path: string, driver: DriverName): Living[] {
  const known = ours(path, driver);
  return [...known, ...others(path).filter(({ pid }) => !known.some((one) => one.pid === pid))];
}

/** Processes of Holdfast's: each holds a lock of its own. */
function ours(path: string, driver: DriverName): Living[] {
  const folder = aliveFolder(path);
  if (!existsSync(folder)) return [];
  const alive = new Alive(folder, driver);
  try {
    const tokens = readdirSync(folder).flatMap((file) => (file.endsWith(".lock") ? [file.slice(0, -".lock".length)] : []));
    const held = tokens.filter((token) => alive.probe(token) === "alive");
    if (held.length === 0) return [];
    const registered = namesOf(path, driver);
    return held.map((token) => registered.get(token) ?? { pid: null, program: null });
  } finally {
    alive.close();
  }
}

function namesOf(path: string, driver: DriverName): Map<string, Living> {
  try {
    const db = connect(driver, path, { busyTimeout: 100, readOnly: true });
    try {
      const rows = db.prepare("select alive, pid, program from holdfast_processes").rows() as [string, number, string][];
      return new Map(rows.map(([token, pid, program]) => [token, { pid, program }]));
    } finally {
      db.close();
    }
  } catch {
    // It may be damaged, or not there: they live all the same.
    return new Map();
  }
}

/** Programs that have it open without Holdfast. */
function others(path: string): Living[] {
  const pids = new Set(locksOn(path).flatMap(({ pid, from }) => (from < LOCK_BYTES || pid === process.pid ? [] : [pid])));
  return [...pids].map((pid) => ({ pid, program: null }));
}
