import { existsSync, linkSync, mkdirSync, readdirSync, readFileSync, renameSync, rmdirSync, rmSync, statSync } from "node:fs";
import { stat } from "node:fs/promises";
import { basename, dirname, extname, join, resolve } from "node:path";
import type { Clock } from "../../../../core/text/duration.ts";
import { HoldfastError } from "../../../../core/text/errors.ts";
import { Alive } from "../../../alive.ts";
import {
  artifactsPath,
  type BackupFacts,
  backupsFolder,
  type BackUpOptions,
  type Manifest,
  manifestPath,
  type OnProgress,
  parseManifest,
} from "../../../backups.ts";
import { passStep } from "../../../points.ts";
import { type Connection, type DriverName, scalar } from "../../driver.ts";
import { createFolder, explaining, fileSize, modeLike } from "../../faults.ts";
import { refuseNewer, versionOf } from "../../migrate.ts";
import type { Known } from "../epoch.ts";
import { type Copied, copyFrom, digestFile, sizeOf, syncFolder, writeSynced } from "./copy.ts";
import { runTask } from "./tasks.ts";

const PROGRESS_INTERVAL_MS = 100;

interface Source {
  db: Connection;
  path: string;
  driver: DriverName;
  clock: Pick<Clock, "now">;
}

/** Copies the database beside `path`, checks the copy, lets `collect` add the artifacts, and names the copy when it is whole. */
export async function backUp(source: Source, path: string, { reason, onProgress, collect }: BackUpOptions): Promise<Manifest> {
  const staging = explaining(path, () => new Staging(path, source.driver));
  try {
    const takenAt = source.clock.now();
    const { facts, hashes, size, sha256, took } = await copy(source, staging.database, onProgress);
    const copiedAt = Math.min(source.clock.now(), takenAt + took);
    const artifacts = await collect(hashes, staging.artifacts);
    const file = basename(staging.target);
    const head = { holdfast: "backup", format: 1, file, size, sha256, takenAt, copiedAt, reason } as const;
    const manifest: Manifest = { ...head, ...facts, artifacts };
    explaining(staging.target, () => staging.publish(manifest));
    return manifest;
  } finally {
    staging.discard();
  }
}

async function copy({ db, path, driver }: Source, to: string, onProgress: OnProgress): Promise<Copied> {
  const before = scalar<number>(db, "select commits from holdfast_counter where id = 1");
  const total = sizeOf(db);
  const isCopied = path === ":memory:";
  if (isCopied) copyFrom(db, path, to);
  let copying = true;
  const timer = setInterval(() => {
    if (copying)
      void stat(to).then(
        ({ size }) => copying && onProgress({ step: "copying", done: size, total }),
        () => {},
      );
  }, PROGRESS_INTERVAL_MS);
  try {
    const copied = await runTask("copy", { driver, from: path, to, isCopied }, (progress) => {
      copying = false;
      onProgress(progress);
    });
    const { commits } = copied.facts;
    if (commits >= before) return copied;
    throw new HoldfastError(
      "BACKUP_FAILED",
      `The copy ends at commit ${commits}, but the database was at commit ${before} before. No backup was made.`,
      "Check that all processes open the same file by this path, and try again.",
    );
  } finally {
    clearInterval(timer);
  }
}

/** Folder beside the backups in which a backup is written until it is complete. */
const STAGING = ".holdfast-backups";

/** Folder on the backup's disk, named after a lock: the next process there completes or removes what a dead one left. */
export class Staging {
  readonly target: string;
  readonly database: string;
  readonly artifacts: string;
  readonly #folder: string;
  readonly #parent: string;
  readonly #alive: Alive;

  constructor(target: string, driver: DriverName) {
    this.target = resolve(target);
    refuseTaken(this.target);
    this.#parent = join(dirname(this.target), STAGING);
    this.#alive = new Alive(this.#parent, driver);
    // Lock before the folder exists, because a folder without a lock counts as a dead process's.
    const token = this.#alive.hold();
    this.#folder = join(this.#parent, token);
    this.database = join(this.#folder, "database");
    this.artifacts = join(this.#folder, "artifacts");
    clearDead(this.#parent, this.#alive, token);
    mkdirSync(this.#folder, { mode: 0o700 });
    passStep("backup:begun");
  }

  /** Names the database first, so that no other backup takes the name, and the manifest last: if it exists, everything does. */
  publish(manifest: Manifest): void {
    const mode = modeLike(this.database);
    writeSynced(join(this.#folder, "manifest"), `${JSON.stringify(manifest, null, 2)}\n`, mode);
    writeSynced(join(this.#folder, "target"), basename(this.target), mode);
    passStep("backup:written");
    nameExclusively(this.database, this.target);
    passStep("backup:named");
    nameRest(this.#folder, this.target);
    passStep("backup:kept");
  }

  discard(): void {
    rmSync(this.#folder, { recursive: true, force: true });
    this.#alive.close();
    removeIfEmpty(this.#parent);
  }
}

export function clearStaging(folder: string, driver: DriverName): void {
  const staging = join(folder, STAGING);
  if (!existsSync(staging)) return;
  const alive = new Alive(staging, driver);
  clearDead(staging, alive, null);
  alive.close();
  removeIfEmpty(staging);
}

function clearDead(parent: string, alive: Alive, own: string | null): void {
  for (const entry of readdirSync(parent)) {
    const token = entry.replace(/\.lock$/, "");
    if (token === own || !/^[0-9a-f]+$/.test(token) || alive.probe(token) === "alive") continue;
    const folder = join(parent, token);
    if (existsSync(folder)) complete(folder, dirname(parent));
    rmSync(folder, { recursive: true, force: true });
    alive.forget(token);
  }
}

/** Completes the backup of a process that died after it had named the database, but not yet manifest and artifacts. */
function complete(staged: string, folder: string): void {
  const [manifest, name] = [join(staged, "manifest"), join(staged, "target")];
  if (!existsSync(manifest) || !existsSync(name)) return;
  const target = join(folder, basename(readFileSync(name, "utf8")));
  if (!existsSync(target) || existsSync(manifestPath(target))) return;
  const { size, sha256 } = parseManifest(readFileSync(manifest, "utf8"), manifest);
  // Another process's backup may have taken the name.
  if (statSync(target).size !== size || digestFile(target) !== sha256) return;
  nameRest(staged, target);
}

/** Names a file by a link, which replaces no file: of two processes, only one gets the name. */
function nameExclusively(from: string, to: string): void {
  try {
    linkSync(from, to);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EEXIST") throw taken(to);
    refuseTaken(to);
    renameSync(from, to);
  }
  syncFolder(dirname(to));
}

function nameRest(staged: string, target: string): void {
  if (existsSync(join(staged, "artifacts"))) {
    renameSync(join(staged, "artifacts"), artifactsPath(target));
    syncFolder(dirname(target));
  }
  renameSync(join(staged, "manifest"), manifestPath(target));
  syncFolder(dirname(target));
}

function refuseTaken(target: string): void {
  if (!existsSync(dirname(target))) {
    throw new HoldfastError(
      "FOLDER_MISSING",
      `The folder ${dirname(target)} does not exist.`,
      "Create it; if it is on another disk, check that the disk is mounted.",
    );
  }
  for (const path of [target, manifestPath(target), artifactsPath(target)]) if (existsSync(path)) throw taken(path);
}

function taken(path: string): HoldfastError {
  return new HoldfastError(
    "BACKUP_EXISTS",
    `${path} exists already, and was not changed.`,
    "Give another path, or move the existing file away.",
  );
}

function removeIfEmpty(folder: string): void {
  try {
    rmdirSync(folder);
  } catch {
    // Another process uses the folder.
  }
}

/** Lets a user go back to an older Holdfast. The name depends on the content, so that only one of several openers makes it. */
export async function backUpBeforeMigration(
  db: Connection,
  { path, driver, now }: { path: string; driver: DriverName; now: () => number },
): Promise<void> {
  const folder = backupsFolder(path);
  const to = join(folder, nameOf(db, path));
  clearStaging(folder, driver);
  if (existsSync(to)) return;
  createFolder(folder, modeLike(path));
  try {
    await backUp({ db, path, driver, clock: { now } }, to, {
      reason: "migration",
      onProgress: () => {},
      collect: async (hashes) => ({ included: false, hashes, bytes: 0, missing: [] }),
    });
  } catch (error) {
    if (error instanceof HoldfastError && error.code === "BACKUP_EXISTS") return;
    if (!(error instanceof HoldfastError)) throw error;
    throw new HoldfastError(
      error.code,
      `${path} is of an older schema, and the backup before it is changed could not be made. Nothing was changed: ${error.message}`,
      `${error.hint} Or open it without one: backups: { beforeMigration: false }.`,
      { cause: error },
    );
  }
}

function nameOf(db: Connection, path: string): string {
  const [commits, jobs] = db
    .prepare("select commits, max(jobs, coalesce((select max(key) from holdfast_jobs), 0)) from holdfast_counter where id = 1")
    .row() as [number, number];
  return `${basename(path, extname(path))}-schema-${versionOf(db)}-at-${commits}-${jobs}.db`;
}

export interface VerifiedBackup {
  path: string;
  size: number;
  sha256: string;
  facts: BackupFacts;
  hashes: string[];
  /** Null: the backup has no manifest to compare it with. */
  manifest: Manifest | null;
}

export function knownOf({ epoch, commits, jobs }: BackupFacts): Known {
  return { epoch, commits, key: jobs };
}

export async function verifyBackup(backup: string, driver: DriverName, onProgress?: OnProgress): Promise<VerifiedBackup> {
  const path = resolve(backup);
  const manifest = readManifest(path, driver);
  refuseLive(path);
  const { size, sha256, survey } = await runTask("inspect", { driver, path, expected: manifest?.sha256 }, onProgress).catch(
    (error: unknown) => {
      const code = error instanceof HoldfastError ? error.code : null;
      if (code === "NOT_A_DATABASE") throw notHoldfast(path);
      throw code === "DAMAGED" ? damaged(path, "SQLite cannot read it") : error;
    },
  );
  if (manifest !== null && (manifest.size !== size || manifest.sha256 !== sha256)) {
    const difference = manifest.size === size ? "its bytes are others" : `it has ${size} bytes instead of ${manifest.size}`;
    // A process that opens a database changes it by its registration, and leaves a folder of locks.
    if (!existsSync(`${path}-alive`)) throw damaged(path, `it differs from its manifest: ${difference}`);
    throw new HoldfastError(
      "BACKUP_CHANGED",
      `The backup ${path} differs from its manifest: ${difference}. A program opened it as a database after it was made.`,
      `Use another copy. To restore this one as it is, move its manifest ${basename(manifestPath(path))} away.`,
    );
  }
  if (survey === null) throw notHoldfast(path);
  const { facts, hashes } = survey;
  if (facts.findings.length > 0) throw damaged(path, facts.findings.join("; "));
  refuseNewer(facts.schema, path);
  return { path, size, sha256, facts, hashes, manifest };
}

function readManifest(path: string, driver: DriverName): Manifest | null {
  clearStaging(dirname(path), driver);
  if (!existsSync(path) || statSync(path).isDirectory()) {
    throw new HoldfastError(
      "NO_BACKUP",
      `There is no backup at ${path}.`,
      "Give the path of a file that `holdfast backup` or `hf.backup` wrote.",
    );
  }
  const beside = manifestPath(path);
  return existsSync(beside) ? parseManifest(readFileSync(beside, "utf8"), beside) : null;
}

function notHoldfast(path: string): HoldfastError {
  const hint = "Give the path of a file that `holdfast backup` wrote.";
  return new HoldfastError("NOT_A_DATABASE", `${path} is not a Holdfast database.`, hint);
}

/** Rejects a database with a log beside it, which may be in use: a backup is one file. */
function refuseLive(path: string): void {
  for (const end of ["-wal", "-journal"]) {
    if (fileSize(path + end) === 0) continue;
    throw new HoldfastError(
      "NOT_A_BACKUP",
      `${path} is a database with a log beside it (${basename(path)}${end}), not a backup.`,
      `Make a backup of it: holdfast backup --db ${path}.`,
    );
  }
}

export function damaged(path: string, why: string): HoldfastError {
  return new HoldfastError(
    "BACKUP_DAMAGED",
    `The backup ${path} is damaged: ${why}.`,
    "Use another backup or another copy of this one. `holdfast salvage` reads what is left of it.",
  );
}
