import { HoldfastError } from "../core/text/errors.ts";
import type { Log } from "./log.ts";
import type { StoreLocation } from "../store/open-store.ts";
import { fileMissing, findPackage, isModuleMissing, type OwnThread, ownThread } from "../store/own-file.ts";
import { THREAD_CODE } from "../store/thread-code.ts";

const CODE = "KEEPER_MISSING";
const RUNS = "the keeper thread";

/**
 * The code that the keeper thread runs. Without that thread, a handler that blocks for longer than its lease runs in two
 * processes at once, so no job is claimed where the code, or a module that it imports, is missing.
 */
export class KeeperFile {
  readonly #log: Log;
  readonly #kind: StoreLocation["kind"];
  #thread: OwnThread | null = null;
  #missing: HoldfastError | null = null;
  #isLogged = false;

  constructor(log: Log, { kind }: StoreLocation) {
    this.#log = log;
    this.#kind = kind;
  }

  /** Throws KEEPER_MISSING. */
  require(): OwnThread {
    if (this.#missing !== null) throw this.#missing;
    if (this.#thread !== null) return this.#thread;
    this.#requireDriver();
    return (this.#thread = ownThread({ here: import.meta.url, name: "./keeper-thread", runs: RUNS, code: CODE }));
  }

  /** For a process that claims nothing, and continues without the thread. */
  find(): OwnThread | null {
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
    if (isModuleMissing(error)) this.#missing = fileMissing(CODE, RUNS, (error as Error).message, error);
  }

  /** A bundler may have taken the driver for PostgreSQL into the program; the thread needs the package itself. */
  #requireDriver(): void {
    if (THREAD_CODE === null || this.#kind !== "postgres") return;
    try {
      findPackage("postgres");
    } catch (cause) {
      this.#missing = new HoldfastError(
        CODE,
        "The keeper thread needs the package `postgres`, which is not installed beside this program.",
        "Run `npm install postgres` where the program runs. A bundler may keep it out of the bundle, but need not.",
        { cause },
      );
      throw this.#missing;
    }
  }
}
