import { hash, randomBytes } from "node:crypto";
import { existsSync, readdirSync, rmdirSync, rmSync, statSync } from "node:fs";
import { join } from "node:path";
import { connect, type Connection, type DriverName } from "./sqlite/driver.ts";
import { createFile, createFolder, isBusy } from "./sqlite/faults.ts";
import { DEFAULT_FILE_MODE } from "../core/text/text.ts";

/** Files without a process row that are younger than this may belong to a process that is just starting. */
const STARTING = 60_000;
/** How long the mark of a process in its tokens is. */
const MARK = 8;

/** Where the locks of those lie who have this file open. */
export function aliveFolder(path: string): string {
  return `${path}-alive`;
}

/**
 * Proof of life. A process is alive while it holds a write transaction on a small SQLite file of its own: the kernel
 * frees that lock at the instant of death, whatever killed it, and no pid is involved that could be reused or belong to
 * another namespace. A process that wants to know tries to take the lock.
 */
export class Alive {
  readonly #folder: string;
  readonly #driver: DriverName;
  readonly #probes = new Map<string, Connection>();
  /** By token: one, but in tests that enter several processes. */
  readonly #own = new Map<string, Connection>();

  /** What the tokens of this process begin with. */
  readonly #mark: string;
  /** Of the files that it creates. */
  readonly #modeOf: () => number;

  /**
   * The folder is one that all processes of this host share which have the same database open, and no others. `identity`
   * is that of this process: whatever has taken a lock in it, with another driver too, its locks are not probed from here.
   */
  constructor(folder: string, driver: DriverName, identity = "", modeOf: () => number = () => DEFAULT_FILE_MODE) {
    this.#folder = folder;
    this.#modeOf = modeOf;
    this.#driver = driver;
    this.#mark = identity === "" ? "" : hash("sha256", identity).slice(0, MARK);
  }

  /** Takes this process's own lock; the token names its file. */
  hold(): string {
    for (;;) {
      createFolder(this.#folder, this.#modeOf());
      const token = this.#mark + randomBytes(8).toString("hex");
      const db = this.#lock(this.#file(token));
      // A process that cleans up may have removed it before it was locked; a lock on a nameless file proves nothing.
      if (db !== null && existsSync(this.#file(token))) {
        this.#own.set(token, db);
        return token;
      }
      db?.close();
    }
  }

  /** "dead" is proven; a file that is not there proves nothing. */
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

  /** Whether the process of this token is alive, or may be. One that has signed off is not. */
  isThere(token: string): boolean {
    if (!existsSync(this.#file(token))) return false;
    return this.#isOwn(token) || this.probe(token) !== "dead";
  }

  /** Whether any process proves its life here, this one too. */
  isAnybodyThere(): boolean {
    if (!existsSync(this.#folder)) return false;
    const tokens = readdirSync(this.#folder).filter((file) => file.endsWith(".lock"));
    return tokens.some((file) => this.isThere(file.slice(0, -".lock".length)));
  }

  #isOwn(token: string): boolean {
    return this.#own.has(token) || (this.#mark !== "" && token.length > 16 && token.startsWith(this.#mark));
  }

  /** The process is gone and nothing points at it any more. */
  forget(token: string): void {
    this.#probes.get(token)?.close();
    this.#probes.delete(token);
    rmSync(this.#file(token), { force: true });
  }

  /** Those who have signed off need no probing any more. */
  keepOnly(registered: ReadonlySet<string>): void {
    for (const [token, db] of this.#probes) {
      if (registered.has(token)) continue;
      db.close();
      this.#probes.delete(token);
    }
  }

  /** Files of processes that died before they were registered. */
  sweep(registered: ReadonlySet<string>): void {
    if (!existsSync(this.#folder)) return;
    for (const file of readdirSync(this.#folder)) {
      const token = file.replace(/\.lock$/, "");
      if (token === file || registered.has(token) || this.#own.has(token)) continue;
      // Its process may be signing off at this instant.
      const since = statSync(join(this.#folder, file), { throwIfNoEntry: false })?.mtimeMs ?? Date.now();
      if (Date.now() - since > STARTING && this.probe(token) === "dead") this.forget(token);
    }
  }

  close(): void {
    for (const db of this.#probes.values()) db.close();
    this.#probes.clear();
    for (const [token, db] of this.#own) {
      // Unlinked while still held: no process can find it unlocked and take its owner for dead.
      rmSync(this.#file(token), { force: true });
      db.close();
    }
    this.#own.clear();
  }

  /** The same where nothing came of it: nothing is left behind that was not there. */
  leave(): void {
    this.close();
    try {
      rmdirSync(this.#folder);
    } catch {
      // Others are there.
    }
  }

  /** Null when the folder has been removed meanwhile, or another process probes the new file at this instant. */
  #lock(file: string): Connection | null {
    let db: Connection | null = null;
    try {
      createFile(file, this.#modeOf());
      db = connect(this.#driver, file, { busyTimeout: 0 });
      db.exec("begin immediate");
      return db;
    } catch (error) {
      db?.close();
      if (isBusy(error)) rmSync(file, { force: true });
      else if (existsSync(this.#folder)) throw error;
      return null;
    }
  }

  /** Kept open: a probe is then two system calls. */
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
