import type { OpenOptions } from "./open-options.ts";

/**
 * The default export of `holdfast.config.ts`: where the commands find the database and the definitions.
 *
 * ```ts
 * export default { db: "work.db", modules: ["./jobs.ts"] } satisfies Config;
 * ```
 */
export interface Config extends OpenOptions {
  /** A path from the config's folder. `--db` and HOLDFAST_DB come before it; default ".holdfast/work.db". */
  db?: string;
  /** Modules that export jobs, as paths or globs from the config's folder. */
  modules: string[];
}
