import { existsSync, globSync } from "node:fs";
import { basename, dirname, resolve } from "node:path";
import type { Command } from "commander";
import { HoldfastError } from "../core/text/errors.ts";
import { refuseUnknown } from "../core/text/options.ts";
import { type Config, OPEN_OPTIONS, type OpenOptions } from "../engine/open-options.ts";
import { loadModule } from "./modules.ts";

export const CONFIG_FILES = ["holdfast.config.ts", "holdfast.config.mts", "holdfast.config.js", "holdfast.config.mjs"] as const;

interface Settings {
  file: string;
  folder: string;
  db: string | undefined;
  modules: readonly string[];
  options: OpenOptions;
}

const read = new WeakMap<Command, Settings>();

export async function readConfig(command: Command): Promise<void> {
  const file = namedConfig(command) ?? foundConfig(command);
  if (file === undefined) return;
  const loaded = await loadModule(file, "CONFIG_INVALID", "Give --config the path of a config file.");
  const { db, modules, ...options } = check(loaded["default"], basename(file));
  const folder = dirname(resolve(file));
  read.set(rootOf(command), {
    file,
    folder,
    db: db === undefined || db === ":memory:" || /^\w+:\/\//.test(db) ? db : resolve(folder, db),
    modules,
    options: resolvePaths(folder, options),
  });
}

export function configOf(command: Command): Settings | null {
  return read.get(rootOf(command)) ?? null;
}

export function namedConfig(command: Command): string | undefined {
  const { config } = command.optsWithGlobals<{ config?: string | boolean }>();
  return typeof config === "string" ? config : undefined;
}

const READ_ONLY_COMMANDS = new Set(
  [
    "status, health, metrics, doctor, events, events sinks, audit, audit verify",
    "jobs list, jobs show, queues list, quarantine list, schedules list, builds list, builds show, builds why",
  ].flatMap((names) => names.split(", ")),
);

/** Finds the config. A config is a program: a read-only command with --db must not run one that happens to be in the folder. */
function foundConfig(command: Command): string | undefined {
  const { config, db } = command.optsWithGlobals<{ config?: string | boolean; db?: string }>();
  if (config === false || (db !== undefined && READ_ONLY_COMMANDS.has(pathOf(command)))) return undefined;
  return CONFIG_FILES.find((name) => existsSync(name));
}

function pathOf(command: Command): string {
  const { parent } = command;
  return parent === null || parent.parent === null ? command.name() : `${pathOf(parent)} ${command.name()}`;
}

export function modulesOf({ file, folder, modules }: Settings): string[] {
  if (modules.length === 0) {
    throw new HoldfastError(
      "NO_HANDLER",
      `${file} lists no modules.`,
      'List the files that export jobs: modules: ["./jobs.ts"].',
    );
  }
  const found = modules.flatMap((name) => {
    const path = resolve(folder, name);
    // A file name may contain characters of a glob.
    if (existsSync(path) || !/[*?[\]{}]/.test(name)) return [path];
    const matches = globSync(name, { cwd: folder }).toSorted();
    if (matches.length > 0) return matches.map((match) => resolve(folder, match));
    throw invalid(`No file matches "${name}", which ${file} names under modules.`, "Correct the glob, or remove it.");
  });
  return [...new Set(found)];
}

function check(value: unknown, file: string): Config {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    const is =
      value === undefined ? "is missing" : `is ${Array.isArray(value) ? "a list" : (JSON.stringify(value) ?? typeof value)}`;
    throw invalid(`The default export of ${file} ${is}.`, 'Write export default { modules: ["./jobs.ts"] }.');
  }
  refuseUnknown(value, ["db", "modules", ...OPEN_OPTIONS], file);
  const { db, modules } = value as Partial<Config>;
  if (db !== undefined && (typeof db !== "string" || db === "")) {
    throw invalid(`db in ${file} is ${JSON.stringify(db)}.`, "Give the path of the database, or leave it out.");
  }
  if (!Array.isArray(modules) || !modules.every((name) => typeof name === "string" && name !== "")) {
    throw invalid(
      modules === undefined ? `${file} has no modules.` : `modules in ${file} is ${JSON.stringify(modules)}.`,
      'Give the paths of the files that export jobs: modules: ["./jobs.ts"].',
    );
  }
  return value as Config;
}

function resolvePaths(folder: string, given: OpenOptions): OpenOptions {
  const { artifacts } = given;
  const options = typeof artifacts === "string" ? { ...given, artifacts: resolve(folder, artifacts) } : { ...given };
  const { backups } = options;
  if (typeof backups?.folder === "string") options.backups = { ...backups, folder: resolve(folder, backups.folder) };
  if (typeof options.sinks !== "object" || options.sinks === null) return options;
  const sinks = Object.entries(options.sinks).map(([name, sink]): [string, typeof sink] => {
    return sink?.type === "file" && typeof sink.path === "string"
      ? [name, { ...sink, path: resolve(folder, sink.path) }]
      : [name, sink];
  });
  return { ...options, sinks: Object.fromEntries(sinks) };
}

function rootOf(command: Command): Command {
  return command.parent === null ? command : rootOf(command.parent);
}

function invalid(message: string, hint: string): HoldfastError {
  return new HoldfastError("CONFIG_INVALID", message, hint);
}
