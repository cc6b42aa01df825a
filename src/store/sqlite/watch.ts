import { type FSWatcher, watch } from "node:fs";
import { basename, dirname } from "node:path";
import type { Connection, Statement } from "./driver.ts";

/** Looked at this often even if the file system says nothing. */
const FALLBACK = 1_000;
/** After a sign of writing: the first look, and the longest pause between looks, in milliseconds. */
const FIRST_LOOK = 1;
const LAST_LOOK = 64;

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
  #pause = FIRST_LOOK;
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

  /**
   * The event comes when the writer writes, but its commit can be seen only after its fsync; so look again for a while,
   * even after a find: the event of the next commit may have come before it. Events during that while (this process's own commits raise them, too) prolong it, and start nothing more.
   */
  #soon(): void {
    this.#pause = FIRST_LOOK;
    this.#timer ??= setTimeout(() => this.#lookAgain(), this.#pause).unref();
  }

  #lookAgain(): void {
    this.#look();
    this.#pause *= 2;
    this.#timer = this.#pause > LAST_LOOK ? null : setTimeout(() => this.#lookAgain(), this.#pause).unref();
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
