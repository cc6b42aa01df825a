import { existsSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { Alive, aliveFolder } from "../../../alive.ts";
import { connect, type Connection, type DriverName } from "../../driver.ts";
import { createFile, createFolder, isBusy, modeLike } from "../../faults.ts";
import { locksOn } from "../open-files.ts";
import { syncFolder, writeSynced } from "./copy.ts";

export interface Plan {
  /** "ready": no file was moved, so the plan is discarded. "switching": some may have been, so it is completed. */
  phase: "ready" | "switching";
  kept: string;
  act: "restore" | "salvage";
}

export function restoreFolder(path: string): string {
  return `${path}-restore`;
}

function planPath(path: string): string {
  return join(restoreFolder(path), "plan.json");
}

export function stagedPath(path: string): string {
  return join(restoreFolder(path), "database");
}

export function reportPath(path: string): string {
  return join(restoreFolder(path), "report.json");
}

export function hasPlan(path: string): boolean {
  return existsSync(planPath(path));
}

/** The right to replace the files of a database: one process's at a time, freed by the kernel when it dies. */
export class RestoreLock implements Disposable {
  readonly #path: string;
  readonly #db: Connection;

  /** Null: another process holds it. */
  static take(path: string, driver: DriverName): RestoreLock | null {
    const folder = aliveFolder(path);
    createFolder(folder, modeLike(path));
    createFile(join(folder, "restore"), modeLike(path));
    const db = connect(driver, join(folder, "restore"), { busyTimeout: 0 });
    try {
      db.exec("begin immediate");
      return new RestoreLock(path, db);
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

  /** The highest epoch that was given out here, whatever becomes of the database. */
  get epoch(): number {
    return existsSync(this.#epochPath) ? Number(readFileSync(this.#epochPath, "utf8")) : 0;
  }

  remember(epoch: number): void {
    writeSynced(this.#epochPath, String(epoch), modeLike(this.#path));
  }

  get #epochPath(): string {
    return join(aliveFolder(this.#path), "restore-epoch");
  }

  plan(): Plan | null {
    return hasPlan(this.#path) ? (JSON.parse(readFileSync(planPath(this.#path), "utf8")) as Plan) : null;
  }

  write(plan: Plan): void {
    writeSynced(planPath(this.#path), JSON.stringify(plan), modeLike(this.#path));
  }

  /** The plan first: processes that wait may continue. */
  clear(): void {
    const folder = restoreFolder(this.#path);
    rmSync(planPath(this.#path), { force: true });
    if (existsSync(folder)) syncFolder(folder);
    rmSync(folder, { recursive: true, force: true });
    syncFolder(dirname(this.#path));
  }

  [Symbol.dispose](): void {
    this.#db.close();
  }
}

/** A process that has the database open; null where it is not registered. */
export interface OpenProcess {
  pid: number | null;
  program: string | null;
}

/** SQLite's lock bytes are beyond this offset of a file. */
const LOCK_BYTES = 0x4000_0000;

/** The other processes that have this database open. Writes nothing, and takes no lock. */
export function openProcesses(path: string, driver: DriverName): OpenProcess[] {
  const known = holdfastProcesses(path, driver);
  const pids = new Set(locksOn(path).flatMap(({ pid, from }) => (from < LOCK_BYTES || pid === process.pid ? [] : [pid])));
  const others = [...pids].filter((pid) => !known.some((one) => one.pid === pid));
  return [...known, ...others.map((pid) => ({ pid, program: null }))];
}

function holdfastProcesses(path: string, driver: DriverName): OpenProcess[] {
  const folder = aliveFolder(path);
  if (!existsSync(folder)) return [];
  using alive = new Alive(folder, driver);
  const tokens = readdirSync(folder).flatMap((file) => (file.endsWith(".lock") ? [file.slice(0, -".lock".length)] : []));
  const held = tokens.filter((token) => alive.probe(token) === "alive");
  if (held.length === 0) return [];
  const registered = registeredProcesses(path, driver);
  return held.map((token) => registered.get(token) ?? { pid: null, program: null });
}

function registeredProcesses(path: string, driver: DriverName): Map<string, OpenProcess> {
  try {
    using db = connect(driver, path, { busyTimeout: 100, readOnly: true });
    const rows = db.prepare("select alive, pid, program from holdfast_processes").rows() as [string, number, string][];
    return new Map(rows.map(([token, pid, program]) => [token, { pid, program }]));
  } catch {
    return new Map();
  }
}
