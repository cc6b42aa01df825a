import type { OpenOptions } from "./engine/open-options.ts";
import type { Holdfast } from "./holdfast.ts";
import { rejectSurplus } from "./core/text/options.ts";

/**
 * Opens a database, and creates it if it does not exist: a file, or on a PostgreSQL server a schema of its own.
 *
 * ```ts
 * const hf = await open("work.db");
 * ```
 */
export async function open(where?: string, options: OpenOptions = {}): Promise<Holdfast> {
  rejectSurplus(arguments, 2, "open");
  // Load the engine on use, so that a program that only defines jobs starts without it.
  const { openHandle } = await import("./open-handle.ts");
  return openHandle(where, options);
}
