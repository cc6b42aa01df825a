import type { HoldfastError } from "../core/errors.ts";
import { fileMissing, ownFile } from "../store/own-file.ts";
import type { Log } from "./log.ts";

const CODE = "KEEPER_MISSING";
const RUNS = "the keeper thread";

/**
 * The file that the keeper thread runs. Without that thread, a handler that blocks for longer than its lease runs in two
 * processes at once, so no job is claimed where the file, or a module that it imports, is missing.
 */
export class KeeperFile {
  readonly #log: Log;
  #url: URL | null = null;
  #missing: HoldfastError | null = null;
  #isLogged = false;

  constructor(log: Log) {
    this.#log = log;
  }

  /** Throws KEEPER_MISSING. */
  require(): URL {
    if (this.#missing !== null) throw this.#missing;
    return (this.#url ??= ownFile({ here: import.meta.url, name: "./keeper-thread", runs: RUNS, code: CODE }));
  }

  /** For a process that claims nothing, and continues without the thread. */
  find(): URL | null {
    try {
      return this.require();
    } catch (error) {
      const { code, message, hint } = error as HoldfastError;
      if (!this.#isLogged) this.#log.warn("the keeper thread cannot start", { code, error: message, hint });
      this.#isLogged = true;
      return null;
    }
  }

  /** The thread ended before it was at work. */
  failed(error: unknown): void {
    const code = error instanceof Error && "code" in error ? error.code : null;
    if (code !== "ERR_MODULE_NOT_FOUND" && code !== "MODULE_NOT_FOUND") return;
    this.#missing = fileMissing(CODE, RUNS, (error as Error).message, error);
  }
}
