import { definedOnly } from "../core/text/options.ts";
import { existsSync } from "node:fs";
import { hostname, userInfo } from "node:os";
import { dirname } from "node:path";
import type { Command } from "commander";
import { actorText } from "../core/recovery/audit.ts";
import { RECOVER_COMMAND } from "../core/recovery/recovery-report.ts";
import { HoldfastError } from "../core/text/errors.ts";
import { DEFAULT_FILE_MODE } from "../core/text/text.ts";
import type { Holdfast } from "../holdfast.ts";
import type { Log } from "../engine/log.ts";
import type { OpenOptions } from "../engine/open-options.ts";
import { openHandle, openReadOnly as openDatabaseReadOnly, openToOperate } from "../open-handle.ts";
import { isAddress, locate } from "../store/open-store.ts";
import { createFolder } from "../store/sqlite/faults.ts";
import { configOf, namedConfig } from "./config.ts";
import { workerLog } from "./render/output.ts";

const DEFAULT_PATH = ".holdfast/work.db";

/** Opens an existing database. A mistyped path must not create one, nor add tables to another program's database. */
export async function openExisting(
  command: Command,
  {
    delivers = false,
    recovery,
    ...options
  }: Pick<OpenOptions, "log" | "onStop"> & { delivers?: boolean; recovery?: "auto" | "by an operator" } = {},
): Promise<Holdfast> {
  const where = whereOf(command) ?? DEFAULT_PATH;
  const isFile = !isAddress(where);
  if (isFile && !existsSync(where)) throw noDatabase(where);
  try {
    // An existing database keeps its durability.
    const { durability: _, recovery: asked, ...configured } = openOptions(command, delivers);
    // With `recovery: "manual"` in the config, only `recover --apply` recovers.
    const mode = recovery === "by an operator" ? undefined : asked === "manual" ? asked : recovery;
    return await openToOperate(where, { ...configured, ...options, ...definedOnly({ recovery: mode }), create: false });
  } catch (error) {
    throw isFile && error instanceof HoldfastError && error.code === "NO_DATABASE" ? noDatabase(where) : error;
  }
}

export async function openReadOnly(command: Command): Promise<Holdfast> {
  const where = whereOf(command) ?? DEFAULT_PATH;
  const isThere = where !== ":memory:" && (isAddress(where) || existsSync(where));
  const found = isThere ? await openDatabaseReadOnly(where, openOptions(command, false)).catch(nullIfMissing) : null;
  return found ?? openHandle(":memory:", { log: workerLog("warn") });
}

function nullIfMissing(error: unknown): null {
  if (error instanceof HoldfastError && error.code === "NO_DATABASE") return null;
  throw error;
}

export function openOrCreate(
  command: Command,
  {
    delivers = false,
    onStop,
    ...options
  }: { program?: string; log?: Log; delivers?: boolean; onStop?: (drain: number) => void } = {},
): Promise<Holdfast> {
  return openHandle(whereOf(command), { ...openOptions(command, delivers, options), ...definedOnly({ onStop }) });
}

/** Merges the config's options over a command's own. Only a command that stays (`delivers`) delivers events and makes backups. */
function openOptions(command: Command, delivers: boolean, own: OpenOptions = {}): OpenOptions {
  const { sinks = {}, backups, ...configured } = optionsOf(command);
  return {
    program: programOf(command),
    user: userName(),
    log: workerLog("warn"),
    ...own,
    ...configured,
    ...(delivers ? { sinks } : {}),
    ...backupOptions(backups, delivers),
  };
}

export function isManual(command: Command): boolean {
  return configOf(command)?.options.recovery === "manual";
}

export function recoverAdvice(command: Command): string {
  return `${RECOVER_COMMAND}${isManual(command) ? " --apply" : ""}${sameDatabase(command)}`;
}

/** Returns the options of backups: short commands make no scheduled backups, but may make one before a migration. */
function backupOptions(backups: OpenOptions["backups"], delivers: boolean): Pick<OpenOptions, "backups"> {
  if (backups === undefined) return {};
  if (delivers) return { backups };
  return backups.beforeMigration === undefined ? {} : { backups: { beforeMigration: backups.beforeMigration } };
}

/** Returns the config's options without `onStop`, because no process asks a short command to stop. */
export function optionsOf(command: Command): OpenOptions {
  const config = configOf(command);
  const { onStop: _, ...options } = config?.options ?? {};
  const where = whereOf(command) ?? DEFAULT_PATH;
  // Options for the config's own database do not fit a database of another kind.
  if (where !== config?.db) delete options[isAddress(where) ? "driver" : "schema"];
  if (where !== config?.db && isAddress(where)) for (const name of ["backups", "journal"] as const) delete options[name];
  const { schema, artifacts } = command.optsWithGlobals<{ schema?: string; artifacts?: string }>();
  return { ...options, ...definedOnly({ schema, artifacts }) };
}

export function fileOf(command: Command): string {
  const where = whereOf(command);
  if (where === undefined) createFolder(dirname(DEFAULT_PATH), optionsOf(command).mode ?? DEFAULT_FILE_MODE);
  return where ?? DEFAULT_PATH;
}

export function driverOf(command: Command): "node:sqlite" | "better-sqlite3" {
  return configOf(command)?.options.driver ?? "node:sqlite";
}

export function pathOf(command: Command): string {
  const where = whereOf(command) ?? DEFAULT_PATH;
  return isAddress(where) ? locate(where, optionsOf(command)).name : where;
}

/** Returns the options that name this command's database, for advice that an operator pastes into the same shell. */
export function sameDatabase(command: Command): string {
  const { db, schema } = command.optsWithGlobals<{ db?: string; schema?: string }>();
  // The address is shown without user and password; PGUSER and PGPASSWORD supply them.
  const shown = db === undefined || !isAddress(db) ? db : pathOf(command);
  const given = { db: shown, schema, config: namedConfig(command) };
  const options = Object.entries(given).filter(([, value]) => value !== undefined);
  return options.map(([name, value]) => ` --${name} ${quoted(value as string)}`).join("");
}

function quoted(text: string): string {
  return /^[\w./:@%+=,-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

export function programOf(command: Command): string {
  return command.parent === null ? command.name() : `${programOf(command.parent)} ${command.name()}`;
}

export function actorOf(command: Command): string {
  const { user = userName() } = optionsOf(command);
  return actorText({ program: programOf(command), pid: process.pid, host: hostname(), user });
}

function userName(): string {
  try {
    return userInfo().username;
  } catch {
    return `user ${process.getuid?.() ?? "without a name"}`;
  }
}

export function whereOf(command: Command): string | undefined {
  return command.optsWithGlobals<{ db?: string }>().db ?? (process.env["HOLDFAST_DB"] || configOf(command)?.db);
}

function noDatabase(path: string): HoldfastError {
  return new HoldfastError(
    "NO_DATABASE",
    `There is no Holdfast database at ${path}.`,
    "Give another with --db PATH or HOLDFAST_DB. `holdfast enqueue`, `holdfast work` and `holdfast run` create one.",
  );
}
