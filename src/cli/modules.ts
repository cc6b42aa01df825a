import { spawnSync } from "node:child_process";
import { existsSync } from "node:fs";
import { relative, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { HoldfastError } from "../core/errors.ts";
import type { Definition } from "../runtime/definition.ts";

/** Every job definition that these modules export, by default or by name, alone or in an array; each once. */
export async function definitionsIn(files: readonly string[]): Promise<Definition[]> {
  const found = new Set<Definition>();
  for (const file of files) {
    for (const value of Object.values(await load(file)).flat()) if (isDefinition(value)) found.add(value);
  }
  return [...found];
}

export async function load(file: string): Promise<Record<string, unknown>> {
  const path = resolve(file);
  if (!existsSync(path)) {
    throw new HoldfastError(
      "MODULE_INVALID",
      `There is no file ${file}.`,
      "Give the path of a .ts or .js module that exports jobs.",
    );
  }
  try {
    return (await import(pathToFileURL(path).href)) as Record<string, unknown>;
  } catch (error) {
    throw explain(error, file);
  }
}

/** What the module itself throws passes as it is, with its stack; what Node says of its form needs a hint. */
function explain(error: unknown, file: string): unknown {
  switch ((error as { code?: unknown } | null)?.code) {
    case "ERR_UNKNOWN_FILE_EXTENSION":
    case "ERR_UNSUPPORTED_DIR_IMPORT":
      return new HoldfastError(
        "MODULE_INVALID",
        `${file} is no module.`,
        "Give the path of a .ts or .js file that exports jobs.",
      );
    case "ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX":
      return new HoldfastError(
        "MODULE_INVALID",
        `${syntaxErrorPlace(error, file)} cannot be run as it is: ${(error as Error).message}`,
        "Node only strips types: avoid enums, namespaces and parameter properties, or compile it first.",
        { cause: error },
      );
    default:
      return error instanceof SyntaxError ? syntaxError(error, file) : error;
  }
}

function syntaxError(error: SyntaxError, file: string): HoldfastError {
  return new HoldfastError(
    "MODULE_INVALID",
    `${syntaxErrorPlace(error, file)} has a syntax error: ${error.message}`,
    "Correct that line.",
    { cause: error },
  );
}

/** `jobs.ts:7`, of the module or of one that it imports; without the line where Node does not tell it. */
export function syntaxErrorPlace(error: unknown, file: string): string {
  const inStack = /^(?:file:\/\/)?(\/.+|[A-Za-z]:.+):(\d+)$/m.exec((error as Error).stack ?? "");
  // Node keeps the line of a syntax error in JavaScript to itself, unless the file is the one it was started with.
  const checked = inStack ?? /^(.+):(\d+)$/m.exec(spawnSync(process.execPath, ["--check", file], { encoding: "utf8" }).stderr);
  const [, path, line] = checked ?? [];
  return path === undefined ? file : `${relative(process.cwd(), path)}:${line}`;
}

/** By its shape: the module may bring another copy of this package. */
function isDefinition(value: unknown): value is Definition {
  if (typeof value !== "object" || value === null) return false;
  const { name, policy, handle } = value as Partial<Definition>;
  return typeof name === "string" && typeof policy === "object" && typeof handle === "function";
}
