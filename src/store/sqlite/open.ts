import { backUpBeforeMigration } from "./maintenance/backup/backups.ts";
import { randomUUID } from "node:crypto";
import {
  accessSync,
  constants,
  existsSync,
  lstatSync,
  readFileSync,
  readlinkSync,
  realpathSync,
  rmSync,
  statfsSync,
  statSync,
} from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { explainDiskFault, HoldfastError } from "../../core/text/errors.ts";
import { DEFAULT_FILE_MODE } from "../../core/text/text.ts";
import { extentText } from "../../core/recovery/loss.ts";
import type { Alive } from "../alive.ts";
import type { Durability } from "../store.ts";
import { syncFolder } from "./maintenance/backup/copy.ts";
import { enter, untilRestored } from "./maintenance/backup/replace.ts";
import { setJournal } from "./maintenance/changes/journal.ts";
import { connect, type Connection, type DriverName, scalar } from "./driver.ts";
import { createFile, explain, isBusy } from "./faults.ts";
import { lockPatience } from "./lock-patience.ts";
import { migrate, schemaVersion, versionOf } from "./migrate.ts";
import { mostSeen, readSlots } from "./maintenance/witness.ts";

export interface OpenSqliteOptions {
  driver: DriverName;
  durability?: Durability;
  /** False: `open` rejects a file without a Holdfast database, and leaves it as it is. */
  create?: boolean;
  mode?: number;
  now: () => number;
  /** True: the database is damaged, so nothing is written, no setting and no migration. */
  damaged?: boolean;
  actor?: string;
  /** Takes this process's lock before the file is opened. Default: the caller holds one. */
  alive?: Alive | null;
  backsUp?: boolean;
  journal?: boolean;
  /** How long SQLite itself waits for a lock. After that, the store waits on a timer. */
  busyTimeout: number;
}

export interface OpenedSqlite {
  db: Connection;
  databaseId: string;
  durability: Durability;
  journaled: boolean;
  token: string | null;
}

export function canonicalPath(where: string): string {
  if (where === ":memory:") return where;
  const path = resolve(where);
  const folder = dirname(path);
  if (!existsSync(folder)) {
    throw new HoldfastError(
      "FOLDER_MISSING",
      `The folder ${folder} does not exist.`,
      `Create it (mkdir -p ${folder}), or give another path.`,
    );
  }
  if (existsSync(path) && statSync(path).isDirectory()) {
    throw new HoldfastError(
      "NOT_A_DATABASE",
      `${path} is a folder.`,
      "Give the path of a file; `open` creates it if it does not exist.",
    );
  }
  if (existsSync(path)) return realpathSync(path);
  // Follow a link to a file that does not exist yet, too.
  const link = lstatSync(path, { throwIfNoEntry: false })?.isSymbolicLink() ? readlinkSync(path) : null;
  return link === null ? join(realpathSync(folder), basename(path)) : canonicalPath(resolve(folder, link));
}

/** Opens a connection, checks and migrates the file, and sets the durability. If it throws, nothing has changed. */
export async function openSqlite(path: string, options: OpenSqliteOptions): Promise<OpenedSqlite> {
  if (path !== ":memory:" && options.alive) await untilRestored(path, options.driver);
  const isNew = path !== ":memory:" && !existsSync(path);
  if (isNew && options.create === false) throw noDatabase(path);
  if (path !== ":memory:") refuseNetwork(dirname(path));
  if (path !== ":memory:" && !isNew) refuseReadOnly(path);
  let db: Connection | undefined;
  try {
    // SQLite would create the file with the umask's mode, and its log and shared memory, too.
    if (isNew) createFile(path, options.mode ?? DEFAULT_FILE_MODE);
    const token = options.alive ? await enter(path, options.driver, options.alive) : null;
    db = connect(options.driver, path, { busyTimeout: options.busyTimeout, readOnly: options.damaged ?? false });
    const get = options.damaged ? readOnly : prepare;
    if (options.backsUp && !isNew && !options.damaged) await backUp(db, path, options);
    const opened = await patiently(db, () => get(db as Connection, path, options));
    // After a power cut, a file does not exist unless its folder was synced.
    if (isNew) syncFolder(dirname(path));
    return { db, token, ...opened };
  } catch (error) {
    db?.close();
    options.alive?.leave();
    if (isNew) removeEmpty(path);
    throw explain(error, path);
  }
}

async function backUp(db: Connection, path: string, { driver, now }: OpenSqliteOptions): Promise<void> {
  const version = await patiently(db, () => versionOf(db));
  if (version === 0 || version >= schemaVersion() || (await patiently(db, () => isUnfinished(db)))) return;
  await backUpBeforeMigration(db, { path, driver, now });
}

/** Whether no process ever registered: the one that creates the database is busy with it, or was killed. It holds no data. */
function isUnfinished(db: Connection): boolean {
  return db.prepare("select 1 from sqlite_sequence where name = 'holdfast_processes'").row() === undefined;
}

function removeEmpty(path: string): void {
  if (statSync(path, { throwIfNoEntry: false })?.size === 0) rmSync(path, { force: true });
}

/** Rejects a read-only file, which SQLite opens without an error, to fail at the first write. */
function refuseReadOnly(path: string): void {
  if (!may(path, constants.R_OK) || may(path, constants.W_OK)) return;
  throw explainDiskFault("READONLY", path, undefined);
}

function may(path: string, mode: number): boolean {
  try {
    accessSync(path, mode);
    return true;
  } catch {
    return false;
  }
}

/** Sets up a connection. Every connection passes here, because settings belong to the connection. */
function prepare(db: Connection, path: string, options: OpenSqliteOptions): Omit<OpenedSqlite, "db" | "token"> {
  // Even this reads the file, and can be busy: another process switches it to write-ahead logging, or is the last to close it.
  refuseOldSqlite(scalar(db, "select sqlite_version()"), options.driver);
  // Reject the file before anything is changed, because it may be another program's database.
  if (options.create === false && versionOf(db) === 0) throw noDatabase(path);
  if (path !== ":memory:") {
    const mode = scalar<string>(db, "pragma journal_mode = wal");
    if (mode !== "wal") throw explainDiskFault("READONLY", path, undefined);
  }
  db.exec("pragma foreign_keys = off");
  db.exec("pragma journal_size_limit = 16777216");
  migrate(db, {
    path,
    now: options.now(),
    actor: options.actor ?? null,
    whenNew: (fresh) => {
      fresh
        .prepare("insert into holdfast_database (id, database_id, durability, created_at) values (1, ?, ?, ?)")
        .run(randomUUID(), options.durability ?? "power", options.now());
    },
  });
  const { databaseId, durability } = identityOf(db);
  if (options.durability !== undefined && options.durability !== durability) {
    throw new HoldfastError(
      "DURABILITY_DIFFERS",
      `${path} was made with durability "${durability}", and "${options.durability}" was asked for.`,
      "Leave `durability` out to use the database's own.",
    );
  }
  setSynchronous(db, path, durability);
  const by = { now: options.now(), actor: options.actor ?? null };
  return { databaseId, durability, journaled: setJournal(db, options.journal, by) };
}

/** Sets up a connection to a damaged database. It is read-only, so that it does not copy the log when it closes. */
function readOnly(db: Connection, path: string, { driver }: OpenSqliteOptions): Omit<OpenedSqlite, "db" | "token"> {
  refuseOldSqlite(scalar(db, "select sqlite_version()"), driver);
  const version = versionOf(db);
  if (version !== schemaVersion()) {
    throw new HoldfastError(
      "DAMAGED",
      `${path} is damaged, and of another schema (${version}) than this Holdfast reads (${schemaVersion()}).`,
      "Run `holdfast salvage`, which reads what is left and takes the rest from the newest backup, or `holdfast restore`.",
    );
  }
  return { ...identityOf(db), journaled: false };
}

function identityOf(db: Connection): Pick<OpenedSqlite, "databaseId" | "durability"> {
  const row = db.prepare("select database_id, durability from holdfast_database where id = 1").row();
  const [databaseId, durability] = row as [string, Durability];
  return { databaseId, durability };
}

function noDatabase(path: string): HoldfastError {
  const seen = path === ":memory:" ? null : mostSeen(readSlots(path));
  if (seen !== null)
    return new HoldfastError(
      "DATABASE_GONE",
      `The database at ${path} was removed, or its write-ahead log (-wal) was: it had ${extentText(seen)}.`,
      "Put both files back, or run `holdfast restore`. A process that creates a new database there gets a report of what is missing.",
    );
  return new HoldfastError(
    "NO_DATABASE",
    `There is no Holdfast database at ${path}, and none was made.`,
    "Check the path, or leave `create: false` out to create one.",
  );
}

/** Sets the durability and reads it back, because one driver silently falls back to NORMAL on a WAL database. */
function setSynchronous(db: Connection, path: string, durability: Durability): void {
  const wanted = durability === "power" ? 2 : 1;
  db.exec(`pragma synchronous = ${wanted === 2 ? "full" : "normal"}`);
  if (scalar(db, "pragma synchronous") !== wanted) {
    throw new HoldfastError(
      "DURABILITY_REFUSED",
      `SQLite did not accept synchronous=${wanted} for ${path}.`,
      "Please report this, with the driver and its version.",
    );
  }
}

export async function patiently<T>(db: Connection, run: () => T): Promise<T> {
  const isOver = lockPatience(db);
  for (let tries = 0; ; tries++) {
    try {
      return run();
    } catch (error) {
      if (!isBusy(error) || isOver()) throw error;
      const pause = Math.min(200, 10 + 5 * tries) * (0.5 + Math.random());
      await new Promise((resume) => setTimeout(resume, pause));
    }
  }
}

/** Oldest supported version: in older ones, resetting a write-ahead log can corrupt it. */
const OLDEST = [3, 51, 3] as const;

/** Rejects an old SQLite. Node is judged by its SQLite: Node 25.0 is newer than 24.21, and its SQLite is older. */
export function refuseOldSqlite(version: string, whose: string): void {
  const parts = version.split(".").map(Number);
  for (const [i, least] of OLDEST.entries()) {
    const part = parts[i] ?? 0;
    if (part > least) return;
    if (part < least) throw unsupported(`${whose} has SQLite ${version}`);
  }
}

export function noSqlite(): HoldfastError {
  return unsupported(`Node ${process.versions.node} has no SQLite`);
}

function unsupported(what: string): HoldfastError {
  return new HoldfastError(
    "SQLITE_TOO_OLD",
    `${what}, and Holdfast needs SQLite ${OLDEST.join(".")} or newer: use Node 22.23, 24.21 or 26, or a newer release of these.`,
    'Install a newer Node, or better-sqlite3 13.0.3 or newer and open the database with { driver: "better-sqlite3" }.',
  );
}

/** File systems whose locks and shared memory do not work between hosts, by the magic number of statfs(2). */
const NETWORK = new Map<number, string>([
  [0x6969, "NFS"],
  [0x517b, "SMB"],
  [0xff534d42, "CIFS"],
  [0xfe534d42, "SMB2"],
  [0x01021997, "9P"],
  [0x5346414f, "AFS"],
  [0x00c36400, "Ceph"],
  [0x0bd00bd0, "Lustre"],
  [0x47504653, "GPFS"],
  [0x01161970, "GFS2"],
  [0x7461636f, "OCFS2"],
]);
const FUSE = 0x65735546;
const NETWORK_FUSE = /^fuse\.(sshfs|s3fs|rclone|glusterfs|gcsfuse|goofys|davfs2?|cephfs|ceph-fuse|juicefs)$/;

export function networkFileSystem(
  folder: string,
  stat: (path: string) => number = typeOf,
  mounts: () => string = readMounts,
): string | null {
  const type = stat(folder) >>> 0;
  if (type === FUSE) return networkFuse(folder, mounts());
  return NETWORK.get(type) ?? null;
}

export function refuseNetwork(folder: string, stat?: (path: string) => number): void {
  const kind = networkFileSystem(folder, stat);
  if (kind === null) return;
  throw new HoldfastError(
    "NETWORK_FILE_SYSTEM",
    `${folder} is on a network file system (${kind}), where SQLite's locks are unreliable. Nothing was created.`,
    "Put the database on a local disk of the machine that runs the workers.",
  );
}

function networkFuse(folder: string, mounts: string): string | null {
  let found = { at: "", type: "" };
  for (const line of mounts.split("\n")) {
    const [, at, type] = line.split(" ");
    if (at === undefined || type === undefined) continue;
    const inside = at === "/" || folder === at || folder.startsWith(`${at}/`);
    if (inside && at.length >= found.at.length) found = { at, type };
  }
  return NETWORK_FUSE.test(found.type) ? found.type : null;
}

function typeOf(path: string): number {
  return statfsSync(path).type;
}

function readMounts(): string {
  try {
    return readFileSync("/proc/self/mounts", "utf8");
  } catch {
    return "";
  }
}
