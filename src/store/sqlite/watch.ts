import { type FSWatcher, watch } from "node:fs";
import { basename, dirname } from "node:path";
import type { Connection, Statement } from "./driver.ts";

/** Looked at this often even if the file system says nothing. */
const FALLBACK = 500;
/** Looks are at least this far apart, in milliseconds. */
const BURST = 1;

/**
 * Notices commits of other processes within milliseconds and without polling: their writes touch the -wal file, the
 * file system tells, and SQLite's data_version says whether it was somebody else's commit.
 */
export class Watch {
  readonly #version: Statement;
  readonly #call: () => void;
  readonly #watcher: FSWatcher | null;
  readonly #fallback: NodeJS.Timeout;
  #seen: number;
  #lookedAt = 0;
  #timer: NodeJS.Timeout | null = null;

  constructor(db: Connection, path: string, call: () => void) {
    this.#version = db.prepare("pragma data_version");
    this.#call = call;
    this.#seen = this.#read();
    this.#watcher = this.#start(path);
    this.#fallback = setInterval(() => this.#look(), FALLBACK).unref();
  }

  close(): void {
    this.#watcher?.close();
    clearInterval(this.#fallback);
    if (this.#timer !== null) clearTimeout(this.#timer);
  }

  /** The folder is watched, not the -wal: that comes and goes. */
  #start(path: string): FSWatcher | null {
    const wal = `${basename(path)}-wal`;
    try {
      const watcher = watch(dirname(path), { persistent: false }, (_event, file) => {
        if (file === wal || file === null) this.#soon();
      });
      watcher.on("error", () => watcher.close());
      return watcher;
    } catch {
      return null;
    }
  }

  /** A burst of events is one look at once and one at its end: this process's own commits raise events, too. */
  #soon(): void {
    if (this.#timer !== null) return;
    const rest = BURST - (performance.now() - this.#lookedAt);
    if (rest <= 0) return this.#look();
    this.#timer = setTimeout(() => {
      this.#timer = null;
      this.#look();
    }, rest).unref();
  }

  #look(): void {
    this.#lookedAt = performance.now();
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
