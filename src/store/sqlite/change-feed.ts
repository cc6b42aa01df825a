import { closeSync, constants, type FSWatcher, openSync, watch, type WatchListener, writeSync } from "node:fs";
import { basename, dirname, join } from "node:path";
import { aliveFolder } from "../alive.ts";
import type { Change, ChangeOptions } from "../store.ts";
import type { Connection, Statement } from "./driver.ts";
import { createFile, modeLike } from "./faults.ts";

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

  /** Announces an own commit. It notifies other processes first, because they need longer to react. */
  committed(ready: ReadonlySet<string>, ended: Change["ended"]): void {
    this.#signal?.send();
    this.#notify({ own: true, ready, ended });
  }

  #notify(change: Change): void {
    for (const { call, ownOnly } of this.#listeners) if (change.own || !ownOnly) call(change);
  }

  incoming(): void {
    for (const { onIncoming } of this.#listeners) onIncoming?.();
  }

  close(): void {
    this.#closed = true;
    this.#signal?.close();
    this.#watchIfNeeded();
  }

  /** Watches the file only while a listener needs that, because every commit touches the file. */
  #watchIfNeeded(): void {
    const pauses = [...this.#listeners].filter(({ ownOnly }) => !ownOnly).map(({ pauseMs = 0 }) => pauseMs);
    const needed = !this.#closed && this.#path !== ":memory:" && pauses.length > 0;
    if (needed) {
      this.#watch ??= new Watch(this.#db, this.#path, () => this.#notify({ own: false, ready: null, ended: [] }));
      this.#watch.pauseBetween(Math.min(...pauses));
    } else {
      this.#watch?.close();
      this.#watch = null;
    }
  }
}

const FALLBACK_MS = 1_000;
/** The first check after a write to the -wal without a signal, and the longest pause between two checks. */
const FIRST_CHECK_MS = 2;
const LAST_CHECK_MS = 64;

/** Watches other processes' commits, which write to the signal file. A user's, or a killed process's, shows in the -wal. */
class Watch {
  readonly #version: Statement;
  readonly #path: string;
  readonly #call: () => void;
  readonly #fallback: NodeJS.Timeout;
  #watchers: (FSWatcher | null)[] = [];
  #seen: number;
  #timer: NodeJS.Timeout | undefined;
  #pauseMs = 0;
  #isPaused = false;

  constructor(db: Connection, path: string, call: () => void) {
    this.#version = db.prepare("pragma data_version");
    this.#path = path;
    this.#call = call;
    this.#seen = (this.#version.row() as [number])[0];
    this.#fallback = setInterval(() => this.#check(), FALLBACK_MS).unref();
    this.#start();
  }

  close(): void {
    this.#stop();
    clearInterval(this.#fallback);
  }

  pauseBetween(millis: number): void {
    this.#pauseMs = millis;
    if (millis === 0 && this.#isPaused) this.#resume();
  }

  #start(): void {
    const path = this.#path;
    const wal = `${basename(path)}-wal`;
    // SQLite removes the -wal and creates it again, so the folder is watched.
    const onWrite: WatchListener<string> = (_event, file) => {
      if (file === wal || file === null) this.#checkIn(FIRST_CHECK_MS);
    };
    // The commit of this signal is visible, so the checks that its write to the -wal has scheduled are not needed.
    const onSignal = () => {
      clearTimeout(this.#timer);
      this.#check();
    };
    this.#watchers = [start(dirname(path), onWrite), hasSignalFile(path) ? start(signalFile(path), onSignal) : null];
  }

  #stop(): void {
    for (const watcher of this.#watchers) watcher?.close();
    clearTimeout(this.#timer);
  }

  #pause(): void {
    this.#stop();
    this.#isPaused = true;
    this.#timer = setTimeout(() => this.#resume(), this.#pauseMs).unref();
  }

  /** Watches again before it checks, so that it misses no commit in between. */
  #resume(): void {
    clearTimeout(this.#timer);
    this.#isPaused = false;
    this.#start();
    this.#check();
  }

  /** Checks at growing intervals: the event comes when the writer writes, but its commit is visible only after its fsync. */
  #checkIn(pause: number): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.#check();
      if (2 * pause <= LAST_CHECK_MS && !this.#isPaused) this.#checkIn(2 * pause);
    }, pause).unref();
  }

  #check(): void {
    let version: number;
    try {
      [version] = this.#version.row() as [number];
    } catch {
      return;
    }
    if (version === this.#seen) return;
    this.#seen = version;
    if (this.#pauseMs > 0) this.#pause();
    this.#call();
  }
}

/** Starts a watcher. Null: the file system cannot watch, so only the interval remains. */
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

function signalFile(path: string): string {
  return join(aliveFolder(path), "commits");
}

function hasSignalFile(path: string): boolean {
  const file = openSignalFile(path);
  if (file !== null) closeSync(file);
  return file !== null;
}

/** Announces commits; ignores errors, because other processes also check by themselves. */
class CommitSignal {
  readonly #path: string;
  #file: number | null = null;

  constructor(path: string) {
    this.#path = path;
  }

  /** Called once the commit is visible. The byte is overwritten in place, so the file never grows. */
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

function openSignalFile(path: string): number | null {
  try {
    createFile(signalFile(path), modeLike(path));
    return openSync(signalFile(path), constants.O_RDWR | constants.O_CREAT);
  } catch {
    return null;
  }
}
