import { hostname } from "node:os";
import { resolve } from "node:path";
import { actorText } from "../core/recovery/audit.ts";
import { type BackupPlan, type BackupsOptions, checkBackups } from "../core/recovery/backup-plan.ts";
import { type Duration, toMillis } from "../core/text/duration.ts";
import { HoldfastError } from "../core/text/errors.ts";
import {
  checkBoolean,
  checkFunction,
  checkOneOf,
  checkText,
  describeValue,
  invalidOption,
  refuseUnknown,
} from "../core/text/options.ts";
import type { SinkOptions } from "./events/relays.ts";
import { backupsFolder } from "../store/backups.ts";
import type { OpenStoreOptions, StoreLocation } from "../store/open-store.ts";
import type { Durability } from "../store/store.ts";
import { type Log, quietLog, silentLog } from "./log.ts";

export interface OpenOptions {
  /** "power": an acknowledged write survives a power cut. "process": it survives a crash of the process; faster. Default: "power". */
  durability?: Durability;
  /** SQLite library. Default: "node:sqlite". */
  driver?: "node:sqlite" | "better-sqlite3";
  /** PostgreSQL schema of Holdfast's tables. Default: "holdfast". */
  schema?: string;
  /** False: reject with `NO_DATABASE` instead of creating a missing database. Default: true. */
  create?: boolean;
  /**
   * "manual": after a crash the database stays read-only, and writes are rejected with `RECOVERY_PENDING`, until an operator runs
   * `holdfast recover --apply`. Default: "auto".
   */
  recovery?: "auto" | "manual";
  /**
   * SQLite: how long a write waits for another process's transaction before it is rejected with `BUSY`. The first handle of a
   * file in a process decides. Default: "5s".
   */
  busyTimeout?: Duration;
  /** Logger; false logs nothing. Default: warnings and errors on standard error. */
  log?: Log | false;
  /**
   * True: spans and metrics of OpenTelemetry, through `@opentelemetry/api`. The first handle of a database in a process decides.
   * Default: false.
   */
  telemetry?: boolean;
  /** Source of the wall time in milliseconds, for tests. Default: the system clock. */
  clock?: { now(): number };
  /** Where events are delivered, by sink name. One process delivers to a sink at a time. */
  sinks?: Record<string, SinkOptions>;
  /** Folder of artifacts. Required on PostgreSQL if there are any, and shared by all workers. Default: beside the file. */
  artifacts?: string;
  /** SQLite: scheduled backups. One process makes each. Default: only before a migration. */
  backups?: BackupsOptions;
  /**
   * SQLite: true writes every change also to a journal beside the file, so that `holdfast restore --at` can go back to any
   * instant. The setting is stored in the database. Default: unchanged, at first false.
   */
  journal?: boolean;
  /**
   * SQLite: mode of a database file that `open` creates, and of the files beside it; folders get the matching x bits. An existing
   * database keeps its mode. Exports follow the umask. Default: 0o600.
   */
  mode?: number;
  /** Name of this process in `status` and in recovery reports. Default: the script's path. */
  program?: string;
  /** Actor of this process in the audit log. Default: the process alone. */
  user?: string;
  /** Called when `holdfast stop` asks this process to stop, with the milliseconds that running jobs may still take. */
  onStop?: (drain: number) => void;
}

const CHECKS: Record<keyof OpenOptions, (given: never) => unknown> = {
  durability: (given: Durability) => checkOneOf(given, ["power", "process"], "durability"),
  driver: (given: "node:sqlite" | "better-sqlite3") => checkOneOf(given, ["node:sqlite", "better-sqlite3"], "driver"),
  schema: () => {},
  create: (given: unknown) => checkBoolean(given, "create"),
  recovery: (given: "auto" | "manual") => checkOneOf(given, ["auto", "manual"], "recovery"),
  busyTimeout: (given: Duration) => toMillis(given, "busyTimeout"),
  log: (given: unknown) => given === false || checkLog(given),
  telemetry: (given: unknown) => checkBoolean(given, "telemetry"),
  clock: checkClock,
  sinks: () => {},
  artifacts: (given: unknown) => checkText(given, "artifacts"),
  backups: () => {},
  journal: () => {},
  mode: checkMode,
  program: (given: unknown) => checkText(given, "program"),
  user: (given: unknown) => checkText(given, "user"),
  onStop: (given: unknown) => checkFunction(given, "onStop"),
};

export const OPEN_OPTIONS: readonly string[] = Object.keys(CHECKS);

export function checkOpenOptions(options: OpenOptions): void {
  refuseUnknown(options, OPEN_OPTIONS, "open");
  for (const [name, check] of Object.entries(CHECKS)) {
    const given = options[name as keyof OpenOptions];
    if (given !== undefined) check(given as never);
  }
}

function checkMode(mode: unknown): void {
  if (typeof mode === "number" && Number.isInteger(mode) && (mode & ~0o666) === 0 && (mode & 0o600) === 0o600) return;
  const given = typeof mode === "number" && Number.isInteger(mode) ? `0o${mode.toString(8)}` : describeValue(mode);
  throw invalidOption(
    `mode must be a file mode that lets the owner read and write, without x bits, got ${given}.`,
    "Give 0o600 (the default), or 0o660 to share the database with a group.",
  );
}

function checkLog(log: unknown): void {
  const missing = ["debug", "info", "warn", "error"].filter((level) => typeof propertyOf(log, level) !== "function");
  if (missing.length === 0) return;
  throw invalidOption(
    `log must have the methods debug, info, warn and error, got ${describeValue(log)} without ${missing.join(", ")}.`,
    "Give `console`, another object with these methods, or false; leave it out for warnings and errors on standard error.",
  );
}

function checkClock(clock: unknown): void {
  const now = propertyOf(clock, "now");
  const time: unknown = typeof now === "function" ? Reflect.apply(now, clock, []) : undefined;
  if (typeof time === "number" && Number.isFinite(time)) return;
  throw invalidOption(
    `clock must have a method now() that returns milliseconds since 1970, got ${describeValue(typeof now === "function" ? time : clock)}.`,
    "Give an object such as { now: () => Date.now() }.",
  );
}

function propertyOf(value: unknown, name: string): unknown {
  const isHolder = (typeof value === "object" && value !== null) || typeof value === "function";
  return isHolder ? (value as Record<string, unknown>)[name] : undefined;
}

export function logOf({ log = quietLog }: OpenOptions): Log {
  return log === false ? silentLog : log;
}

export function checkJournal({ kind, key, name }: StoreLocation, given: unknown): boolean {
  const journal = checkBoolean(given, "`journal`");
  if (!journal || (kind === "sqlite" && key !== null)) return journal;
  throw invalidOption(
    `\`journal\` needs a SQLite file, and ${name} is not one.`,
    "Leave `journal` out. PostgreSQL has continuous archiving (PITR) instead.",
  );
}

export function planOf(location: StoreLocation, { backups }: OpenOptions): BackupPlan | null {
  if (location.kind === "sqlite") {
    const plan = checkBackups(backups, location.path === ":memory:" ? null : backupsFolder(location.path));
    return plan === null ? null : { ...plan, folder: resolve(plan.folder) };
  }
  if (backups === undefined) return null;
  throw new HoldfastError(
    "BACKUP_BY_SERVER",
    `Holdfast makes no backups of a database on a server (${location.name}).`,
    "Leave `backups` out and use the server's tools: pg_dump, pg_basebackup, continuous archiving.",
  );
}

/**
 * The default export of `holdfast.config.ts`: where the commands find the database and the definitions.
 *
 * ```ts
 * export default { db: "work.db", modules: ["./client.ts"] } satisfies Config;
 * ```
 */
export interface Config extends OpenOptions {
  /** Database, as a path from the config's folder or an address. `--db` and `HOLDFAST_DB` override it. Default: ".holdfast/work.db". */
  db?: string;
  /** Modules that export jobs and pipelines, as paths or globs from the config's folder. */
  modules: string[];
}

export interface EngineOptions extends Pick<OpenStoreOptions, "clock" | "backsUp" | "journal" | "writeWaitMs" | "onlyReads"> {
  log: Log;
  program: string;
  user?: string;
  /** "later": opening recovers nothing; workers do. "manual": the database is read-only while recovery is pending. */
  recovery?: "auto" | "manual" | "later";
  onStop?: (drain: number) => void;
  artifacts?: string;
  telemetry?: boolean;
}

export function actorOf({ program, user }: EngineOptions): string {
  return actorText({ program, pid: process.pid, host: hostname(), ...(user === undefined ? {} : { user }) });
}
