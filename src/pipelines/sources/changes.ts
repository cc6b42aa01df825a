import { createHash } from "node:crypto";
import { type FSWatcher, watch } from "node:fs";
import { join } from "node:path";
import type { Clock } from "../../core/text/duration.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import type { SourceDefinition } from "../../core/pipelines/source.ts";
import { type Log, describeError } from "../../engine/log.ts";
import { listFiles } from "./files.ts";
import { listItems } from "./items.ts";

/** After the last news of a burst. */
const QUIET = 100;
/** However long a burst lasts. */
const LATEST = 2_000;
/** Where every folder is watched it is looked again all the same: news can get lost. */
const RESCAN = 30_000;
/** Where changes cannot be watched: items, or more folders than the system watches. */
const POLL = 3_000;

export interface ChangesParts {
  source: SourceDefinition;
  /** What a root is relative to, and what is no target. */
  folders: { cwd: string; skip: readonly string[] };
  clock: Clock;
  log: Log;
}

/**
 * Whether a source is still as it was. What the system tells of folders is only a reason to look: what counts is what a
 * listing would find, so that the database, what is ignored, and what a stage writes beside its files start no build.
 */
export class SourceChanges implements Disposable {
  readonly #parts: ChangesParts;
  readonly #skip: ReadonlySet<string>;
  readonly #watched = new Map<string, FSWatcher>();
  #unwatchable = false;
  /** It could not be listed, so no event says when it can be again. */
  #blind = false;
  #marked: string | null = null;
  #news: (() => void) | null = null;
  /** Something was told since the last look. */
  #told = false;

  constructor(parts: ChangesParts) {
    this.#parts = parts;
    this.#skip = new Set(parts.folders.skip);
  }

  /** Takes the current files as known; a build calls this before it lists them. */
  async mark(): Promise<void> {
    this.#marked = await this.#look();
  }

  /** Resolves when it is not as it was marked. False: the signal was aborted first. */
  async next(signal: AbortSignal, patience = Number.POSITIVE_INFINITY): Promise<boolean> {
    // Watchers and timers let a process end; a caller that waits does not.
    const stayAlive = setInterval(() => {}, 2 ** 30);
    const until = this.#parts.clock.monotonic() + patience;
    try {
      while (!signal.aborted) {
        if ((await this.#look()) !== this.#marked) return !signal.aborted;
        if (this.#parts.clock.monotonic() >= until) return true;
        await this.#wake(signal, until);
      }
      return false;
    } finally {
      clearInterval(stayAlive);
    }
  }

  [Symbol.dispose](): void {
    for (const watcher of this.#watched.values()) watcher.close();
    this.#watched.clear();
  }

  async #wake(signal: AbortSignal, until: number): Promise<void> {
    const { clock, source } = this.#parts;
    const { promise, resolve } = Promise.withResolvers<void>();
    const rest = source.kind === "items" || this.#unwatchable || this.#blind ? POLL : RESCAN;
    const timers = [clock.after(Math.min(rest, until - clock.monotonic()), resolve)];
    let quiet: (() => void) | null = null;
    this.#news = () => {
      if (quiet === null) timers.push(clock.after(LATEST, resolve));
      quiet?.();
      quiet = clock.after(QUIET, resolve);
    };
    if (this.#told) this.#news();
    const over = (): void => resolve();
    signal.addEventListener("abort", over, { once: true });
    // It may have been aborted while this looked.
    if (signal.aborted) resolve();
    await promise;
    signal.removeEventListener("abort", over);
    this.#news = null;
    for (const cancel of [...timers, quiet as (() => void) | null]) cancel?.();
  }

  /** All that a listing would find, in one hash. A source that cannot be listed is another than one that can. */
  async #look(): Promise<string> {
    this.#told = false;
    this.#blind = false;
    const hash = createHash("sha256");
    const { source, folders } = this.#parts;
    const seen = new Set<string>();
    try {
      if (source.kind === "items") {
        for await (const { id, hash: content } of listItems(source)) hash.update(`${JSON.stringify(id)} ${content}\n`);
        return hash.digest("hex");
      }
      const onFolder = (path: string): void => {
        seen.add(path);
        this.#watch(path);
      };
      for await (const { id, stat } of listFiles(source, { ...folders, onFolder })) {
        hash.update(`${JSON.stringify(id)} ${stat.size} ${stat.mtime} ${stat.inode}\n`);
      }
      return hash.digest("hex");
    } catch (error) {
      this.#blind = true;
      return error instanceof HoldfastError ? error.code : "unlistable";
    } finally {
      // What comes back under its name is another folder, and would not be watched.
      for (const path of this.#watched.keys()) if (!seen.has(path)) this.#unwatch(path);
    }
  }

  /** Before the folder is read: what comes into it meanwhile is either read or told. */
  #watch(path: string): void {
    if (this.#unwatchable || this.#watched.has(path)) return;
    try {
      const watcher = watch(path, { persistent: false }, (_, name) => {
        if (name !== null && this.#skip.has(join(path, name))) return;
        this.#told = true;
        this.#news?.();
      });
      watcher.on("error", () => this.#unwatch(path));
      this.#watched.set(path, watcher);
    } catch (error) {
      this.#unwatchable = true;
      const hint = "That does as well, and costs more; on Linux raise `fs.inotify.max_user_watches`.";
      this.#parts.log.warn("not all folders can be watched; they are looked at every few seconds", {
        ...describeError(error),
        hint,
      });
    }
  }

  #unwatch(path: string): void {
    this.#watched.get(path)?.close();
    this.#watched.delete(path);
  }
}
