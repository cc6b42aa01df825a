import { existsSync } from "node:fs";
import { hostname, userInfo } from "node:os";
import { dirname } from "node:path";
import type { Command } from "commander";
import { actorText } from "../core/audit.ts";
import { HoldfastError } from "../core/errors.ts";
import { DEFAULT_FILE_MODE } from "../core/file-mode.ts";
import type { Holdfast } from "../runtime/holdfast.ts";
import type { Log } from "../runtime/log.ts";
import type { OpenOptions } from "../runtime/open-options.ts";
import { open, openToLook as look, openToOperate } from "../runtime/open.ts";
import { isAddress, locate } from "../store/open-store.ts";
import { createFolder } from "../store/sqlite/modes.ts";
import { configOf } from "./config.ts";
import { workerLog } from "./render/output.ts";

/** What `open` takes where nobody names one. */
const DEFAULT = ".holdfast/work.db";

/** For commands that look or operate: where a path was mistyped, nothing may be made, nor put into another program's database. */
export async function openExisting(
  command: Command,
  {
    delivers = false,
    recovery,
    ...options
  }: Pick<OpenOptions, "log" | "onStop"> & { delivers?: boolean; recovery?: "auto" | "by an operator" } = {},
): Promise<Holdfast> {
  const where = whereOf(command) ?? DEFAULT;
  const isFile = !isAddress(where);
  if (isFile && !existsSync(where)) throw noDatabase(where);
  try {
    // It was made as it is, whatever a config says by now; and who looks does not deliver.
    const { durability: _, sinks = {}, recovery: asked, backups, ...configured } = optionsOf(command);
    // Where it is to be left alone until an operator says so, only his word counts.
    const mode = recovery === "by an operator" ? undefined : asked === "manual" ? asked : recovery;
    return await openToOperate(where, {
      program: programOf(command),
      user: userName(),
      log: workerLog("warn"),
      ...configured,
      ...(delivers ? { sinks } : {}),
      ...kept(backups, delivers),
      ...options,
      ...(mode === undefined ? {} : { recovery: mode }),
      create: false,
    });
  } catch (error) {
    throw isFile && error instanceof HoldfastError && error.code === "NO_DATABASE" ? noDatabase(where) : error;
  }
}

/** For what changes nothing, whatever is there: where there is no database, one in memory takes its place for a moment. */
export async function openToLook(command: Command): Promise<Holdfast> {
  const where = whereOf(command) ?? DEFAULT;
  const { durability: _, sinks: __, backups, ...configured } = optionsOf(command);
  const log = workerLog("warn");
  const isThere = where !== ":memory:" && (isAddress(where) || existsSync(where));
  const found = isThere
    ? await look(where, { program: programOf(command), log, ...configured, ...kept(backups, false) }).catch(orNone)
    : null;
  return found ?? open(":memory:", { log });
}

/** A server, or another program's file, in which Holdfast has never been. */
function orNone(error: unknown): null {
  if (error instanceof HoldfastError && error.code === "NO_DATABASE") return null;
  throw error;
}

/** `delivers`: whoever is here for longer brings events to the config's sinks. */
export function openOrMake(
  command: Command,
  {
    delivers = false,
    onStop,
    ...options
  }: { program?: string; log?: Log; delivers?: boolean; onStop?: (drain: number) => void } = {},
): Promise<Holdfast> {
  const { sinks = {}, backups, ...configured } = optionsOf(command);
  return open(whereOf(command), {
    program: programOf(command),
    user: userName(),
    log: workerLog("warn"),
    ...options,
    ...configured,
    ...(delivers ? { sinks } : {}),
    ...kept(backups, delivers),
    ...(onStop === undefined ? {} : { onStop }),
  });
}

/** Whether what a crash has left waits for an operator's word. */
export function isManual(command: Command): boolean {
  return configOf(command)?.options.recovery === "manual";
}

/** Who is gone in a moment makes no backups by a plan; whether one is made before a migration is said to all. */
function kept(backups: OpenOptions["backups"], delivers: boolean): Pick<OpenOptions, "backups"> {
  if (backups === undefined) return {};
  if (delivers) return { backups };
  return backups.beforeMigration === undefined ? {} : { backups: { beforeMigration: backups.beforeMigration } };
}

/** The config's, but for `onStop`: a command that is done in a moment need not be asked to stop. */
function optionsOf(command: Command): OpenOptions {
  const config = configOf(command);
  const { onStop: _, ...options } = config?.options ?? {};
  const where = whereOf(command) ?? DEFAULT;
  // What a config says of its own database does not fit one of another kind that was named instead.
  if (where !== config?.db) delete options[isAddress(where) ? "driver" : "schema"];
  if (where !== config?.db && isAddress(where)) for (const name of ["backups", "journal"] as const) delete options[name];
  const { schema, artifacts } = command.optsWithGlobals<{ schema?: string; artifacts?: string }>();
  return { ...options, ...(schema === undefined ? {} : { schema }), ...(artifacts === undefined ? {} : { artifacts }) };
}

/** Where it is, or is going to be; the folder of the default is made. */
export function fileOf(command: Command): string {
  const where = whereOf(command);
  if (where === undefined) createFolder(dirname(DEFAULT), optionsOf(command).mode ?? DEFAULT_FILE_MODE);
  return where ?? DEFAULT;
}

export function artifactsOf(command: Command): string | undefined {
  return optionsOf(command).artifacts;
}

/** On a server. */
export function schemaOf(command: Command): string {
  return optionsOf(command).schema ?? "holdfast";
}

/** Where backups go by the config. */
export function backupsOf(command: Command): string | undefined {
  return optionsOf(command).backups?.folder;
}

/** Of files that are no database yet, or no more. */
export function driverOf(command: Command): "node:sqlite" | "better-sqlite3" {
  return configOf(command)?.options.driver ?? "node:sqlite";
}

/** Where the database is, for people: without a password, which an address may hold. */
export function pathOf(command: Command): string {
  const where = whereOf(command) ?? DEFAULT;
  return isAddress(where) ? locate(where, optionsOf(command)).name : where;
}

/** `holdfast jobs list`: what the process is called while it has the database open. */
export function programOf(command: Command): string {
  return command.parent === null ? command.name() : `${programOf(command.parent)} ${command.name()}`;
}

/** Whoever acts by a command that has no database open: `holdfast restore (pid 4711 on here, by alice)`. */
export function actorOf(command: Command): string {
  const { user = userName() } = optionsOf(command);
  return actorText({ program: programOf(command), pid: process.pid, host: hostname(), user });
}

/** Who has typed the command; in a container there may be no name for the number. */
function userName(): string {
  try {
    return userInfo().username;
  } catch {
    return `user ${process.getuid?.() ?? "without a name"}`;
  }
}

/** Undefined where `open` knows the default. */
export function whereOf(command: Command): string | undefined {
  return command.optsWithGlobals<{ db?: string }>().db ?? (process.env["HOLDFAST_DB"] || configOf(command)?.db);
}

function noDatabase(path: string): HoldfastError {
  return new HoldfastError(
    "NO_DATABASE",
    `There is no Holdfast database at ${path}.`,
    "Name another with --db PATH or HOLDFAST_DB. `holdfast enqueue`, `holdfast work` and `holdfast run` make one.",
  );
}
