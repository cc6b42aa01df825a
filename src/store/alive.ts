import { hash, randomBytes } from "node:crypto";
import { existsSync, readdirSync, rmdirSync, rmSync, statSync } from "node:fs";
import { join } from "node:path";
import { connect, type Connection, type DriverName, lockFile } from "./sqlite/driver.ts";
import { createFolder, isBusy } from "./sqlite/faults.ts";
import { DEFAULT_FILE_MODE } from "../core/text/text.ts";

/** A lock file without a process row that is younger than this may belong to a process that is starting. */
const STARTING_MS = 60_000;
/** Tokens of one process start with this many characters of its identity's hash. */
const MARK_LENGTH = 8;

export function aliveFolder(path: string): string {
  return `${path}-alive`;
}

/** Proof of life: a process locks a SQLite file of its own, and the kernel frees the lock at its death. A pid could be reused. */
export class Alive implements Disposable {
  readonly #folder: string;
  readonly #driver: DriverName;
  readonly #probes = new Map<string, Connection>();
  readonly #own = new Map<string, Connection>();
  readonly #mark: string;
  readonly #modeOf: () => number;

  /** `identity`: locks of the same process, also those taken with another driver, are not probed: a probe would drop them. */
  constructor(folder: string, driver: DriverName, identity = "", modeOf: () => number = () => DEFAULT_FILE_MODE) {
    this.#folder = folder;
    this.#modeOf = modeOf;
    this.#driver = driver;
    this.#mark = identity === "" ? "" : hash("sha256", identity).slice(0, MARK_LENGTH);
  }

  hold(): string {
    for (;;) {
      createFolder(this.#folder, this.#modeOf());
      const token = this.#mark + randomBytes(8).toString("hex");
      const db = this.#lock(this.#file(token));
      // A process that cleans up may have removed the file before this lock: a lock on a file without a name proves nothing.
      if (db !== null && existsSync(this.#file(token))) {
        this.#own.set(token, db);
        return token;
      }
      db?.close();
    }
  }

  /** Returns "dead" only if that is proven. A missing file proves nothing. */
  probe(token: string): "alive" | "dead" | "unknown" {
    if (this.#isOwn(token)) return "alive";
    try {
      const db = this.#probeOf(token);
      if (db === null) return "unknown";
      db.exec("begin immediate");
      db.exec("rollback");
      return "dead";
    } catch (error) {
      return isBusy(error) ? "alive" : "unknown";
    }
  }

  /** Whether the process of this token is alive, or may be. A process that has closed the database is not. */
  isThere(token: string): boolean {
    if (!existsSync(this.#file(token))) return false;
    return this.#isOwn(token) || this.probe(token) !== "dead";
  }

  isAnyAlive(): boolean {
    return this.tokens().some((token) => this.isThere(token));
  }

  tokens(): string[] {
    if (!existsSync(this.#folder)) return [];
    return readdirSync(this.#folder).flatMap((file) => (file.endsWith(".lock") ? [file.slice(0, -".lock".length)] : []));
  }

  #isOwn(token: string): boolean {
    return this.#own.has(token) || (this.#mark !== "" && token.length > 16 && token.startsWith(this.#mark));
  }

  forget(token: string): void {
    this.#probes.get(token)?.close();
    this.#probes.delete(token);
    rmSync(this.#file(token), { force: true });
  }

  keepOnly(registered: ReadonlySet<string>): void {
    for (const [token, db] of this.#probes) {
      if (registered.has(token)) continue;
      db.close();
      this.#probes.delete(token);
    }
  }

  /** Removes the lock files of processes that died before they were registered. */
  sweep(registered: ReadonlySet<string>): void {
    for (const token of this.tokens()) {
      if (registered.has(token) || this.#own.has(token)) continue;
      // Without the file, the process is closing at this instant.
      const since = statSync(this.#file(token), { throwIfNoEntry: false })?.mtimeMs ?? Date.now();
      if (Date.now() - since > STARTING_MS && this.probe(token) === "dead") this.forget(token);
    }
  }

  close(): void {
    for (const db of this.#probes.values()) db.close();
    this.#probes.clear();
    for (const [token, db] of this.#own) {
      // Remove the file while it is still locked, so that no process finds it unlocked and takes its owner for dead.
      rmSync(this.#file(token), { force: true });
      db.close();
    }
    this.#own.clear();
  }

  [Symbol.dispose](): void {
    this.close();
  }

  /** Closes after a failed open, and removes the folder if it is empty. */
  leave(): void {
    this.close();
    try {
      rmdirSync(this.#folder);
    } catch {
      // The folder has locks of other processes.
    }
  }

  /** Locks a new file. Null: another process has removed the folder meanwhile, or probes the file at this instant. */
  #lock(file: string): Connection | null {
    try {
      const db = lockFile(this.#driver, file, this.#modeOf());
      if (db === null) rmSync(file, { force: true });
      return db;
    } catch (error) {
      if (existsSync(this.#folder)) throw error;
      return null;
    }
  }

  /** Keeps the connections of probes open, so that a probe is two system calls. */
  #probeOf(token: string): Connection | null {
    const known = this.#probes.get(token);
    if (known !== undefined) return known;
    if (!existsSync(this.#file(token))) return null;
    const db = connect(this.#driver, this.#file(token), { busyTimeout: 0, mustExist: true });
    this.#probes.set(token, db);
    return db;
  }

  #file(token: string): string {
    return join(this.#folder, `${token}.lock`);
  }
}
