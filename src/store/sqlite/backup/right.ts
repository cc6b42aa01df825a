import { existsSync, readFileSync, rmSync } from "node:fs";
import { dirname, join } from "node:path";
import { aliveFolder } from "../../alive.ts";
import { connect, type Connection, type DriverName } from "../driver.ts";
import { isBusy } from "../faults.ts";
import { syncFolder, writeSynced } from "./files.ts";
import { createFile, createFolder, modeLike } from "../modes.ts";

/** What is going to be done with the files of a database, for whoever has to finish it. */
export interface Plan {
  /** "ready": nothing was moved, so it is forgotten. "switching": something may have been, so it is brought to its end. */
  phase: "ready" | "switching";
  /** What the files that were there are called afterwards. */
  kept: string;
  act: Act;
}

/** What puts another database into its place. */
export type Act = "restore" | "salvage";

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

/** Whoever is about to open the database waits while there is one. */
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

  /** Null: somebody else has it. */
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

  /** Before anything is staged: the right is let go for an instant, in which somebody may look for what was left behind. */
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

  /** Whoever waits may go on. */
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
