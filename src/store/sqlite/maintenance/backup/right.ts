import { existsSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { Alive, aliveFolder } from "../../../alive.ts";
import { connect, type Connection, type DriverName } from "../../driver.ts";
import { createFile, createFolder, isBusy, modeLike } from "../../faults.ts";
import { locksOn } from "../open-files.ts";
import { syncFolder, writeSynced } from "./copy.ts";

/** What is going to be done with the files of a database, for the process that has to finish it. */
export interface Plan {
  /** "ready": nothing was moved, so it is forgotten. "switching": something may have been, so it is brought to its end. */
  phase: "ready" | "switching";
  /** What the files that were there are called afterwards. */
  kept: string;
  act: Act;
}

/** What puts another database into its place. */
type Act = "restore" | "salvage";

/** Where a restore works, beside the database. */
export function restoreFolder(path: string): string {
  return `${path}-restore`;
}

function planPath(path: string): string {
  return join(restoreFolder(path), "plan.json");
}

/** The database that is to take the place of the one that is there. */
export function stagedPath(path: string): string {
  return join(restoreFolder(path), "database");
}

/** What is said of it, for people; it stays beside what was kept. */
export function reportPath(path: string): string {
  return join(restoreFolder(path), "report.json");
}

/** A process that is about to open the database waits while there is one. */
export function hasPlan(path: string): boolean {
  return existsSync(planPath(path));
}

/**
 * The right to change the files of a database as a whole: one process's at a time, freed by the kernel when it dies. Its
 * file stays, and remembers the highest epoch that was given out here, whatever becomes of the database.
 */
export class Right implements Disposable {
  readonly #path: string;
  readonly #db: Connection;

  /** Null: another process has it. */
  static take(path: string, driver: DriverName): Right | null {
    const folder = aliveFolder(path);
    createFolder(folder, modeLike(path));
    createFile(join(folder, "restore"), modeLike(path));
    const db = connect(driver, join(folder, "restore"), { busyTimeout: 0 });
    try {
      db.exec("begin immediate");
      return new Right(path, db);
    } catch (error) {
      db.close();
      if (isBusy(error)) return null;
      throw error;
    }
  }

  private constructor(path: string, db: Connection) {
    this.#path = path;
    this.#db = db;
  }

  /** The highest that was remembered; 0: none. */
  get epoch(): number {
    return (this.#db.prepare("pragma user_version").row() as [number])[0];
  }

  /** Before anything is staged: the right is let go for an instant, in which another process may look for what was left behind. */
  remember(epoch: number): void {
    this.#db.exec(`pragma user_version = ${epoch}`);
    this.#db.exec("commit");
    this.#db.exec("pragma busy_timeout = 2000");
    this.#db.exec("begin immediate");
  }

  plan(): Plan | null {
    return hasPlan(this.#path) ? (JSON.parse(readFileSync(planPath(this.#path), "utf8")) as Plan) : null;
  }

  write(plan: Plan): void {
    writeSynced(planPath(this.#path), JSON.stringify(plan), modeLike(this.#path));
  }

  /** Processes that wait may continue. */
  forget(): void {
    rmSync(planPath(this.#path), { force: true });
    if (existsSync(restoreFolder(this.#path))) syncFolder(restoreFolder(this.#path));
  }

  /** Nothing of the work is left. */
  clear(): void {
    this.forget();
    rmSync(restoreFolder(this.#path), { recursive: true, force: true });
    syncFolder(dirname(this.#path));
  }

  [Symbol.dispose](): void {
    this.#db.close();
  }
}

/** A process that has a database open; of those that have not written more, only that much is known. */
export interface Living {
  pid: number | null;
  program: string | null;
}

/** Where SQLite's locks are in a file: beyond everything that could be data. */
const LOCK_BYTES = 0x4000_0000;

/** The processes that have this database open, in this instant, but for the caller. Nothing is written, and no lock is taken. */
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
