import { type FSWatcher, watch, type WatchListener } from "node:fs";
import { basename, dirname } from "node:path";
import { hasSignalFile, signalFile } from "./commit-signal.ts";
import type { Connection, Statement } from "./driver.ts";

/** Interval of the look that needs no event of the file system. */
const FALLBACK_MS = 1_000;
/** After a write to the -wal without a signal: the first look, and the longest pause between looks. */
const FIRST_LOOK_MS = 2;
const LAST_LOOK_MS = 64;

/**
 * Notices commits of other connections without polling. Holdfast's own commits write a byte to the signal file once they
 * are visible, and cost one look. A commit without a signal (a user's transaction, a process killed before the signal) is
 * found by its write to the -wal. SQLite's data_version tells whether another connection has committed.
 */
export class Watch {
  readonly #version: Statement;
  readonly #call: () => void;
  readonly #wal: FSWatcher | null;
  readonly #signal: FSWatcher | null;
  readonly #fallback: NodeJS.Timeout;
  #seen: number;
  #pause = FIRST_LOOK_MS;
  #timer: NodeJS.Timeout | null = null;

  constructor(db: Connection, path: string, call: () => void) {
    this.#version = db.prepare("pragma data_version");
    this.#call = call;
    this.#seen = this.#read();
    const wal = `${basename(path)}-wal`;
    // The folder is watched, not the -wal, which SQLite removes and creates again.
    this.#wal = start(dirname(path), (_event, file) => {
      if (file === wal || file === null) this.#lookSoon();
    });
    this.#signal = hasSignalFile(path) ? start(signalFile(path), () => this.#lookNow()) : null;
    this.#fallback = setInterval(() => this.#look(), FALLBACK_MS).unref();
  }

  close(): void {
    this.#wal?.close();
    this.#signal?.close();
    clearInterval(this.#fallback);
    this.#cancelLook();
  }

  /**
   * The event of the -wal comes when the writer writes, but its commit is visible only after its fsync. So look again, at
   * growing intervals; each event begins anew with the shortest, since it may belong to a later commit.
   */
  #lookSoon(): void {
    this.#cancelLook();
    this.#pause = FIRST_LOOK_MS;
    this.#timer = setTimeout(() => this.#lookAgain(), this.#pause).unref();
  }

  #lookAgain(): void {
    this.#look();
    this.#pause *= 2;
    this.#timer = this.#pause > LAST_LOOK_MS ? null : setTimeout(() => this.#lookAgain(), this.#pause).unref();
  }

  /** The commit of this signal is visible, so the looks that its write to the -wal has scheduled are not needed. */
  #lookNow(): void {
    this.#cancelLook();
    this.#look();
  }

  #cancelLook(): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
  }

  #look(): void {
    let version: number;
    try {
      version = this.#read();
    } catch {
      return;
    }
    if (version === this.#seen) return;
    this.#seen = version;
    this.#call();
  }

  #read(): number {
    return (this.#version.row() as [number])[0];
  }
}

/** Null where the file system cannot watch: the fallback remains. */
function start(path: string, listener: WatchListener<string>): FSWatcher | null {
  try {
    const watcher = watch(path, { persistent: false }, listener);
    watcher.on("error", () => watcher.close());
    return watcher;
  } catch {
    return null;
  }
}
