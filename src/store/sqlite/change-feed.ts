import { type FSWatcher, watch, type WatchListener } from "node:fs";
import { basename, dirname } from "node:path";
import type { Change, ChangeOptions } from "../store.ts";
import type { Connection, Statement } from "./driver.ts";
import { createFolder, modeLike } from "./faults.ts";
import { witnessFolder } from "./maintenance/witness.ts";

export class ChangeFeed {
  readonly #db: Connection;
  readonly #path: string;
  readonly #ownSlot: () => string | null;
  readonly #subscribers = new Set<ChangeOptions & { call: (change: Change) => void }>();
  #watch: Watch | null = null;
  #closed = false;

  /** `ownSlot`: name of the file in which this handle records its commits, once it has one. */
  constructor(db: Connection, path: string, ownSlot: () => string | null) {
    this.#db = db;
    this.#path = path;
    this.#ownSlot = ownSlot;
  }

  onChange(call: (change: Change) => void, options: ChangeOptions): () => void {
    const subscriber = { call, ...options };
    this.#subscribers.add(subscriber);
    this.#watchIfNeeded();
    return () => {
      this.#subscribers.delete(subscriber);
      this.#watchIfNeeded();
    };
  }

  /** Announces an own commit to this handle. Other processes hear of it from the witness, which has recorded it by now. */
  committed(ready: ReadonlySet<string>, ended: Change["ended"]): void {
    this.#publish({ own: true, ready, ended });
  }

  #publish(change: Change): void {
    for (const { call, ownOnly } of this.#subscribers) if (change.own || !ownOnly) call(change);
  }

  incoming(): void {
    for (const { onIncoming } of this.#subscribers) onIncoming?.();
  }

  close(): void {
    this.#closed = true;
    this.#watchIfNeeded();
  }

  /** Watches the file only while a subscriber needs that, because every commit touches the file. */
  #watchIfNeeded(): void {
    const pauses = [...this.#subscribers].filter(({ ownOnly }) => !ownOnly).map(({ pauseMs = 0 }) => pauseMs);
    const needed = !this.#closed && this.#path !== ":memory:" && pauses.length > 0;
    if (needed) {
      const call = () => this.#publish({ own: false, ready: null, ended: [] });
      this.#watch ??= new Watch(this.#db, { path: this.#path, ownSlot: this.#ownSlot, call });
      this.#watch.pauseBetween(Math.min(...pauses));
    } else {
      this.#watch?.close();
      this.#watch = null;
    }
  }
}

const FALLBACK_MS = 1_000;
/** The first check after a write to the -wal, and the longest pause between two checks. */
const FIRST_CHECK_MS = 2;
const LAST_CHECK_MS = 64;

interface WatchParts {
  path: string;
  ownSlot: () => string | null;
  call: () => void;
}

// Watches other processes' commits. Each store records its own with the witness; a user's, or one whose process was killed before
// it recorded it, shows in the -wal.
class Watch {
  readonly #version: Statement;
  readonly #parts: WatchParts;
  readonly #fallback: NodeJS.Timeout;
  #watchers: (FSWatcher | null)[] = [];
  #seen: number;
  #timer: NodeJS.Timeout | undefined;
  #pauseMs = 0;
  #isPaused = false;

  constructor(db: Connection, parts: WatchParts) {
    this.#version = db.prepare("pragma data_version");
    this.#parts = parts;
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
    const { path, ownSlot } = this.#parts;
    const wal = `${basename(path)}-wal`;
    // SQLite removes the -wal and creates it again, so the folder is watched.
    const onWrite: WatchListener<string> = (_event, file) => {
      if (file === wal || file === null) this.#checkIn(FIRST_CHECK_MS);
    };
    // A recorded commit is visible, so the checks that its write to the -wal has scheduled are not needed.
    const onRecord: WatchListener<string> = (_event, slot) => {
      if (slot !== null && slot === ownSlot()) return;
      clearTimeout(this.#timer);
      this.#check();
    };
    this.#watchers = [watchFolder(dirname(path), onWrite), watchFolder(witnessFolder(path), onRecord, modeLike(path))];
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
    this.#parts.call();
  }
}

/** Returns a watcher of a folder. Null: the file system cannot watch, so only the interval remains. */
function watchFolder(path: string, listener: WatchListener<string>, mode?: number): FSWatcher | null {
  try {
    if (mode !== undefined) createFolder(path, mode);
    const watcher = watch(path, { persistent: false }, listener);
    watcher.on("error", () => watcher.close());
    return watcher;
  } catch {
    return null;
  }
}
