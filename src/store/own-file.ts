import { existsSync } from "node:fs";
import { HoldfastError } from "../core/errors.ts";

/** Options of Node for code that is given as text. Those of the second list have a value in the next argument. */
const TEXT_OPTIONS = /^(--input-type=|--eval=|--print=)/;
const TEXT_OPTIONS_WITH_VALUE = new Set(["--input-type", "-e", "--eval", "-p", "--print", "-pe"]);

interface OwnFile {
  /** The `import.meta.url` of the module beside the file; undefined where a bundler made CommonJS of it. */
  here: string | undefined;
  /** Relative to that module, without its extension. */
  name: string;
  /** What runs the file, for people: "the keeper thread". */
  runs: string;
  code?: string;
}

/**
 * The address of a file of Holdfast that a thread or a child process runs. Throws where the file is missing: a bundler copies
 * the modules that are imported, and leaves such a file behind.
 */
export function ownFile({ here, name, runs, code = "FILE_MISSING" }: OwnFile): URL {
  const url = here?.startsWith("file:") ? new URL(`${name}${here.endsWith(".ts") ? ".ts" : ".js"}`, here) : null;
  if (url !== null && existsSync(url)) return url;
  throw fileMissing(code, runs, url === null ? `beside ${here ?? "this bundle"}` : url.pathname);
}

export function fileMissing(code: string, runs: string, place: string, cause?: unknown): HoldfastError {
  return new HoldfastError(
    code,
    `The file of ${runs} is missing: ${place}. A bundler may have left it behind.`,
    "Mark holdfast as external in the bundler, and install it where the bundle runs: `--external:holdfast` (esbuild), " +
      "`externals` (webpack), `ssr.external` (Vite), `serverExternalPackages` (Next.js). docs/bundlers.md has a recipe for each.",
    cause === undefined ? {} : { cause },
  );
}

/** What a child process of this one gets of its `execArgv`: with `--input-type`, Node refuses to run a file. */
export function inheritedArguments(given: readonly string[] = process.execArgv): string[] {
  return given.filter(
    (option, i) =>
      !TEXT_OPTIONS.test(option) && !TEXT_OPTIONS_WITH_VALUE.has(option) && !TEXT_OPTIONS_WITH_VALUE.has(given[i - 1] ?? ""),
  );
}

/** The same for a thread, which refuses a list with options of the whole process: it gets all of them, or none. */
export function threadArguments(given: readonly string[] = process.execArgv): { execArgv?: string[] } {
  return inheritedArguments(given).length === given.length ? {} : { execArgv: [] };
}
