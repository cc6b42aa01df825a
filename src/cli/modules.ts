import { spawnSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { basename, dirname, join, relative, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import type { Command } from "commander";
import { HoldfastError } from "../core/text/errors.ts";
import { didYouMean } from "../core/text/options.ts";
import { isPipeline, type Pipeline, pipelineOf } from "../core/pipelines/pipeline.ts";
import { loadedFrom } from "../pipelines/model.ts";
import type { Definition } from "../engine/definition.ts";
import { configOf, modulesOf } from "./config.ts";

export async function definitionsIn(files: readonly string[]): Promise<Definition[]> {
  const found = new Set<Definition>();
  for (const file of files) {
    for (const value of Object.values(await loadModule(file)).flat()) if (isDefinition(value)) found.add(value);
  }
  return [...found];
}

type LoadErrorCode = "MODULE_INVALID" | "CONFIG_INVALID";

export async function loadModule(
  file: string,
  as: LoadErrorCode = "MODULE_INVALID",
  missing = "Give the path of a .ts or .js module that exports jobs or a pipeline.",
): Promise<Record<string, unknown>> {
  const path = resolve(file);
  if (!existsSync(path)) throw new HoldfastError(as, `There is no file ${file}.`, missing);
  try {
    return (await import(pathToFileURL(path).href)) as Record<string, unknown>;
  } catch (error) {
    throw explainLoadError(error, file, as);
  }
}

function explainLoadError(error: unknown, file: string, as: LoadErrorCode): HoldfastError {
  const { code, hint } = (typeof error === "object" && error !== null ? error : {}) as { code?: unknown; hint?: unknown };
  const why = messageOf(error);
  const invalid = (message: string, mend: string) => new HoldfastError(as, message, mend, { cause: error });
  if (code === "ERR_UNKNOWN_FILE_EXTENSION" || code === "ERR_UNSUPPORTED_DIR_IMPORT")
    return invalid(`${file} is not a module.`, "Give the path of a .ts or .js file that exports jobs or a pipeline.");
  const place = errorPlace(error, file);
  if (code === "ERR_UNSUPPORTED_TYPESCRIPT_SYNTAX")
    return invalid(
      `${place} cannot be run as it is: ${why}`,
      "Node only strips types: avoid enums, namespaces and parameter properties, or compile the file first.",
    );
  if (isModuleInCommonJs(error, resolve(file))) return invalid(`${place} does not load: ${why}`, MODULE_HINT);
  if (isSyntaxError(error)) return invalid(`${place} has a syntax error: ${why}`, "Correct that line.");
  if (typeof code === "string" && typeof hint === "string")
    return new HoldfastError(as === "CONFIG_INVALID" ? as : code, `${place} does not load: ${why}`, hint, { cause: error });
  return invalid(
    `${place} does not load: ${why}`,
    lacksHoldfast(why) ? "Run `npm install holdfast` in its folder." : `Correct it; \`node ${file}\` shows where it fails.`,
  );
}

const MODULE_HINT = 'Set "type": "module" in package.json, or name the file .mts: here "type" is "commonjs".';

/** Whether Node has read an ES module as CommonJS, as it does after `npm init`, which writes `"type": "commonjs"`. */
function isModuleInCommonJs(error: unknown, path: string): boolean {
  if (!(error instanceof SyntaxError) || !/\.[jt]s$/.test(path) || packageTypeAt(dirname(path)) !== "commonjs") return false;
  return /^(Cannot use import statement|Cannot use 'import\.meta'|Unexpected token 'export'|await is only valid)/.test(
    error.message,
  );
}

/** Returns `type` of the nearest package.json, by which Node chooses between CommonJS and ES modules. */
export function packageTypeAt(folder: string): unknown {
  const file = join(folder, "package.json");
  if (existsSync(file)) return readPackage(file).type;
  const parent = dirname(folder);
  return parent === folder ? undefined : packageTypeAt(parent);
}

function readPackage(file: string): { type?: unknown } {
  try {
    return (JSON.parse(readFileSync(file, "utf8")) ?? {}) as { type?: unknown };
  } catch {
    return {};
  }
}

function lacksHoldfast(why: string): boolean {
  return why.startsWith("Cannot find package 'holdfast'");
}

function parsedPlace(error: unknown): RegExpExecArray | null {
  return /^(?:file:\/\/)?(\/.+|[A-Za-z]:.+):(\d+)$/m.exec(stackOf(error));
}

/** Whether Node could not parse the module. A module that runs can throw a SyntaxError, too, for example by JSON.parse. */
function isSyntaxError(error: unknown): boolean {
  return error instanceof SyntaxError && (parsedPlace(error) !== null || thrownPlace(error) === null);
}

function thrownPlace(error: unknown): RegExpExecArray | null {
  const frames = stackOf(error)
    .split("\n")
    .filter((line) => /^ +at /.test(line) && !line.includes("/node_modules/") && !line.includes(OWN_FOLDER));
  return /\(?file:\/\/(\/.+):(\d+):\d+\)?$/m.exec(frames.join("\n"));
}

const OWN_FOLDER = new URL("..", import.meta.url).href;

/** Finds the line of a failed import, because Node names only the file. */
function importPlace(error: unknown): [string, string, string] | null {
  const [, wanted, path] = /^Cannot find (?:module|package) '(.+?)' imported from (\/.+)$/m.exec(messageOf(error)) ?? [];
  if (wanted === undefined || path === undefined || !existsSync(path)) return null;
  const line = readFileSync(path, "utf8")
    .split("\n")
    .findIndex((text) => /\b(?:from|import)\b/.test(text) && text.includes(basename(wanted)));
  return line < 0 ? null : ["", path, String(line + 1)];
}

/** Returns where an error occurred, such as `jobs.ts:7`; without the line if Node does not report it. */
function errorPlace(error: unknown, file: string): string {
  const found = parsedPlace(error) ?? importPlace(error) ?? thrownPlace(error) ?? checkedPlace(error, file);
  const [, path, line] = found ?? [];
  return path === undefined ? file : `${relative(process.cwd(), decodeURI(path))}:${line}`;
}

/** Parses the file again in a child process: Node reports the line of a syntax error only for the file it was started with. */
function checkedPlace(error: unknown, file: string): RegExpExecArray | null {
  if (!(error instanceof SyntaxError)) return null;
  return /^(.+):(\d+)$/m.exec(spawnSync(process.execPath, ["--check", file], { encoding: "utf8" }).stderr);
}

function messageOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}

function stackOf(error: unknown): string {
  return error instanceof Error ? (error.stack ?? "") : "";
}

/** Checks the shape, because the module may import another copy of this package. */
function isDefinition(value: unknown): value is Definition {
  if (typeof value !== "object" || value === null) return false;
  const { name, policy, handle } = value as Partial<Definition>;
  return typeof name === "string" && typeof policy === "object" && typeof handle === "function";
}

export interface FoundPipeline {
  pipeline: Pipeline;
  file: string;
}

export async function findPipeline(given: string, command: Command): Promise<FoundPipeline> {
  if (existsSync(given) || /[/\\]|\.[cm]?[jt]s$/.test(given)) return { pipeline: await defaultPipeline(given), file: given };
  const config = configOf(command);
  if (config === null) {
    const file = [".ts", ".js", ".mts", ".mjs"].map((ending) => given + ending).find((name) => existsSync(name));
    throw new HoldfastError(
      "USAGE",
      `There is no file ${given}, and this folder has no config that lists pipelines.`,
      file === undefined
        ? "Give the path of a module whose default export is a pipeline, or list it in holdfast.config.ts."
        : `Did you mean ${file}? Give the path of the module.`,
    );
  }
  return pipelineNamed(given, modulesOf(config), config.file);
}

export async function pipelineNamed(name: string, files: readonly string[], whose: string): Promise<FoundPipeline> {
  const all = await pipelinesIn(files);
  const found = all.find(({ pipeline }) => pipeline.name === name);
  if (found !== undefined) return found;
  const names = all.map(({ pipeline }) => pipeline.name);
  throw new HoldfastError(
    "USAGE",
    `No module of ${whose} exports a pipeline "${name}".`,
    names.length === 0
      ? "No pipeline is exported: export what pipeline(name).source(…) returns."
      : `${didYouMean(name, names)}Pipelines: ${names.join(", ")}.`,
  );
}

export async function pipelinesIn(files: readonly string[]): Promise<FoundPipeline[]> {
  const found = new Map<string, FoundPipeline & { rank: number }>();
  for (const file of files) {
    const exported = await loadModule(file);
    for (const [key, value] of Object.entries(exported).flatMap(([key, value]) => [value].flat().map((one) => [key, one]))) {
      if (!isPipeline(value)) continue;
      // A module may also export a pipeline under construction. The one with the most stages is the complete one.
      const rank = key === "default" ? Number.POSITIVE_INFINITY : pipelineOf(value).stages.length;
      const known = found.get(value.name);
      if (known === undefined || rank > known.rank) found.set(value.name, { pipeline: value, file, rank });
    }
  }
  for (const { pipeline, file } of found.values()) loadedFrom(pipeline, file);
  return [...found.values()].map(({ pipeline, file }) => ({ pipeline, file }));
}

async function defaultPipeline(file: string): Promise<Pipeline> {
  const { default: given, ...others } = await loadModule(file);
  if (isPipeline(given)) {
    loadedFrom(given, file);
    return given;
  }
  const named = Object.entries(others).filter(([, value]) => isPipeline(value));
  const what = given === undefined ? "has no default export" : "has a default export that is not a pipeline";
  throw new HoldfastError(
    "MODULE_INVALID",
    `${file} ${what}.`,
    named.length === 0 ? "Write export default pipeline(name).source(…).stage(…)." : `Write export default ${named[0]?.[0]}.`,
  );
}
