import { createHash } from "node:crypto";
import { type FSWatcher, watch } from "node:fs";
import { join } from "node:path";
import type { Clock } from "../../core/text/duration.ts";
import { HoldfastError } from "../../core/text/errors.ts";
import type { SourceDefinition } from "../../core/pipelines/source.ts";
import { type Log, describeError } from "../../engine/log.ts";
import { listFiles } from "./files.ts";
import { listItems } from "./items.ts";

const QUIET_MS = 100;
const MAX_BURST_MS = 2_000;
/** Rescan interval where folders are watched, because events can get lost. */
const RESCAN_MS = 30_000;
/** Rescan interval for items, and where the system cannot watch so many folders. */
const POLL_MS = 3_000;

export interface ChangesParts {
  source: SourceDefinition;
  folders: { cwd: string; skip: readonly string[] };
  clock: Clock;
  log: Log;
}

/** Watches a source. File system events only trigger a listing; its hash decides, so changes of ignored files start no build. */
export class SourceChanges implements Disposable {
  readonly #parts: ChangesParts;
  readonly #skip: ReadonlySet<string>;
  readonly #watched = new Map<string, FSWatcher>();
  #isUnwatchable = false;
  /** The source could not be listed, so no event announces when it can be. */
  #isUnlistable = false;
  #marked: string | null = null;
  #onEvent: (() => void) | null = null;
  #hasChanged = false;

  constructor(parts: ChangesParts) {
    this.#parts = parts;
    this.#skip = new Set(parts.folders.skip);
  }

  /** Records the state of the source. A build calls this before it lists the source. */
  async mark(): Promise<void> {
    this.#marked = await this.#list();
  }

  /** Resolves when the source differs from the mark, or when patience ends. Resolves to false if the signal aborted first. */
  async next(signal: AbortSignal, patience = Number.POSITIVE_INFINITY): Promise<boolean> {
    // Watchers and timers are unreferenced; a caller that waits keeps the process alive.
    const stayAlive = setInterval(() => {}, 2 ** 30);
    const until = this.#parts.clock.monotonic() + patience;
    try {
      while (!signal.aborted) {
        if ((await this.#list()) !== this.#marked) return !signal.aborted;
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
    const rest = source.kind === "items" || this.#isUnwatchable || this.#isUnlistable ? POLL_MS : RESCAN_MS;
    const timers = [clock.after(Math.min(rest, until - clock.monotonic()), resolve)];
    let quiet: (() => void) | null = null;
    this.#onEvent = () => {
      if (quiet === null) timers.push(clock.after(MAX_BURST_MS, resolve));
      quiet?.();
      quiet = clock.after(QUIET_MS, resolve);
    };
    if (this.#hasChanged) this.#onEvent();
    const over = (): void => resolve();
    signal.addEventListener("abort", over, { once: true });
    // The signal may have aborted during the listing.
    if (signal.aborted) resolve();
    await promise;
    signal.removeEventListener("abort", over);
    this.#onEvent = null;
    for (const cancel of [...timers, quiet as (() => void) | null]) cancel?.();
  }

  async #list(): Promise<string> {
    this.#hasChanged = false;
    this.#isUnlistable = false;
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
      this.#isUnlistable = true;
      return error instanceof HoldfastError ? error.code : "unlistable";
    } finally {
      // A folder that is created again under the same name needs a new watcher.
      for (const path of this.#watched.keys()) if (!seen.has(path)) this.#unwatch(path);
    }
  }

  /** Watches a folder before it is read, so that no change in between is missed. */
  #watch(path: string): void {
    if (this.#isUnwatchable || this.#watched.has(path)) return;
    try {
      const watcher = watch(path, { persistent: false }, (_, name) => {
        if (name !== null && this.#skip.has(join(path, name))) return;
        this.#hasChanged = true;
        this.#onEvent?.();
      });
      watcher.on("error", () => this.#unwatch(path));
      this.#watched.set(path, watcher);
    } catch (error) {
      this.#isUnwatchable = true;
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
