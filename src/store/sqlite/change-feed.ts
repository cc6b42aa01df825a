import { closeSync, constants, type FSWatcher, openSync, watch, type WatchListener, writeSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { aliveFolder } from "../alive.ts";
import type { Change, ChangeOptions } from "../store.ts";
import type { Connection, Statement } from "./driver.ts";
import { createFile, modeLike } from "./faults.ts";

/** Calls listeners after commits: this handle's own and, by watching the file, those of other processes. */
export class ChangeFeed {
  readonly #db: Connection;
  readonly #path: string;
  readonly #listeners = new Set<ChangeOptions & { call: (change: Change) => void }>();
  readonly #signal: CommitSignal | null;
  #watch: Watch | null = null;
  #closed = false;

  constructor(db: Connection, path: string) {
    this.#db = db;
    this.#path = path;
    this.#signal = path === ":memory:" ? null : new CommitSignal(path);
  }

  onChange(call: (change: Change) => void, options: ChangeOptions): () => void {
    const listener = { call, ...options };
    this.#listeners.add(listener);
    this.#watchIfNeeded();
    return () => {
      this.#listeners.delete(listener);
      this.#watchIfNeeded();
    };
  }

  /** This handle has committed. Other processes hear of it first: they need longer to react. */
  committed(ready: ReadonlySet<string>, ended: Change["ended"]): void {
    this.#signal?.send();
    this.#tell({ own: true, ready, ended });
  }

  #tell(change: Change): void {
    for (const { call, ownOnly } of this.#listeners) if (change.own || !ownOnly) call(change);
  }

  /** Jobs were handed in, and are not committed yet. */
  incoming(): void {
    for (const { onIncoming } of this.#listeners) onIncoming?.();
  }

  close(): void {
    this.#closed = true;
    this.#signal?.close();
    this.#watchIfNeeded();
  }

  /** Every commit touches the watched file, so it is only watched by handles that need to. */
  #watchIfNeeded(): void {
    const needed = !this.#closed && this.#path !== ":memory:" && [...this.#listeners].some(({ ownOnly }) => !ownOnly);
    if (needed) this.#watch ??= new Watch(this.#db, this.#path, () => this.#tell({ own: false, ready: null, ended: [] }));
    else {
      this.#watch?.close();
      this.#watch = null;
    }
  }
}

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
class Watch {
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

const BYTE = Buffer.from("\n");

/** The file that each commit writes a byte to, so that processes which watch it wake up. It lies in `-alive`. */
function signalFile(path: string): string {
  return join(aliveFolder(path), "commits");
}

/** Creates the file where it is missing, so that it can be watched. */
function hasSignalFile(path: string): boolean {
  const file = openSignalFile(path);
  if (file !== null) closeSync(file);
  return file !== null;
}

/** Announces commits to the processes that watch the signal file. Errors are ignored: those processes also look by themselves. */
class CommitSignal {
  readonly #path: string;
  #file: number | null = null;

  constructor(path: string) {
    this.#path = path;
  }

  /** Call it once the commit is visible to other connections. The byte is overwritten in place, so the file never grows. */
  send(): void {
    this.#file ??= openSignalFile(this.#path);
    if (this.#file === null) return;
    try {
      writeSync(this.#file, BYTE, 0, 1, 0);
    } catch {
      this.close();
    }
  }

  close(): void {
    if (this.#file === null) return;
    closeSync(this.#file);
    this.#file = null;
  }
}

/** Null where the file cannot be opened, e.g. because `-alive` was removed. It has the mode of the database. */
function openSignalFile(path: string): number | null {
  try {
    createFile(signalFile(path), modeLike(path));
    return openSync(signalFile(path), constants.O_RDWR | constants.O_CREAT);
  } catch {
    return null;
  }
}
