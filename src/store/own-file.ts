import { existsSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { getEnvironmentData, setEnvironmentData } from "node:worker_threads";
import { HoldfastError } from "../core/text/errors.ts";
import { IS_THREAD_CODE, THREAD_CODE } from "./thread-code.ts";

/** Options of Node for code that is given as text. Those of the second list take the next argument as their value. */
const TEXT_OPTIONS = /^(--input-type=|--eval=|--print=)/;
const TEXT_OPTIONS_WITH_VALUE = new Set(["--input-type", "-e", "--eval", "-p", "--print", "-pe"]);

interface OwnFile {
  /** The `import.meta.url` of the module beside the file. Undefined: in a CommonJS bundle. */
  here: string | undefined;
  name: string;
  runs: string;
  code?: string;
}

/** Returns the URL of a file that a thread or child process runs. Throws if a bundler left the file behind. */
export function ownFile({ here, name, runs, code = "FILE_MISSING" }: OwnFile): URL {
  const url = here?.startsWith("file:") ? new URL(`${name}${here.endsWith(".ts") ? ".ts" : ".js"}`, here) : null;
  if (url !== null && existsSync(url)) return url;
  throw fileMissing(code, runs, url === null ? `beside ${here ?? "this bundle"}` : url.pathname);
}

export interface OwnThread {
  code: URL | string;
  options: { eval: boolean; execArgv?: string[] };
}

/** Returns the code of a thread: a text in the published package, a file in a checkout. */
export function ownThread(file: OwnFile): OwnThread {
  const code = THREAD_CODE ?? ownFile(file);
  setEnvironmentData(PACKAGES_FROM, packagesFrom());
  return { code, options: { eval: code === THREAD_CODE, ...threadArguments() } };
}

const PACKAGES_FROM = "holdfast.packages-from";

/** Loads a package that the user installs. It also works in thread code, which is in no folder. */
export function requirePackage(name: string): unknown {
  return createRequire(packagesFrom())(name);
}

export function findPackage(name: string): string {
  return createRequire(packagesFrom()).resolve(name);
}

export function isModuleMissing(error: unknown): boolean {
  const code = error instanceof Error && "code" in error ? error.code : null;
  return code === "ERR_MODULE_NOT_FOUND" || code === "MODULE_NOT_FOUND";
}

/** Returns from where packages are found: this file, or the program if a bundler made CommonJS of this file. */
function packagesFrom(): string {
  if (IS_THREAD_CODE) return getEnvironmentData(PACKAGES_FROM) as string;
  const here: string | undefined = import.meta.url;
  return here?.startsWith("file:") ? here : pathToFileURL(process.argv[1] ?? join(process.cwd(), "program.js")).href;
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

/** Returns the `execArgv` for a child process, without `--input-type`, with which Node refuses to run a file. */
export function inheritedArguments(given: readonly string[] = process.execArgv): string[] {
  return given.filter(
    (option, i) =>
      !TEXT_OPTIONS.test(option) && !TEXT_OPTIONS_WITH_VALUE.has(option) && !TEXT_OPTIONS_WITH_VALUE.has(given[i - 1] ?? ""),
  );
}

/** Returns the `execArgv` for a thread: all options or none, because a thread rejects a list with options of the process. */
export function threadArguments(given: readonly string[] = process.execArgv): { execArgv?: string[] } {
  return inheritedArguments(given).length === given.length ? {} : { execArgv: [] };
}
