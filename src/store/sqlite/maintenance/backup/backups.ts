import { existsSync, linkSync, mkdirSync, readdirSync, readFileSync, renameSync, rmdirSync, rmSync, statSync } from "node:fs";
import { stat } from "node:fs/promises";
import { basename, dirname, extname, join, resolve } from "node:path";
import type { Clock } from "../../../../core/text/duration.ts";
import { HoldfastError } from "../../../../core/text/errors.ts";
import { Alive } from "../../../alive.ts";
import {
  artifactsPath,
  type BackupArtifacts,
  backupsFolder,
  type Manifest,
  manifestPath,
  manifestText,
  type OnProgress,
  parseManifest,
  type StagedBackup,
  type StageOptions,
} from "../../../backups.ts";
import { passStep } from "../../../points.ts";
import type { Connection, DriverName } from "../../driver.ts";
import { createFolder, explain, modeLike } from "../../faults.ts";
import { versionOf } from "../../migrate.ts";
import { copyFrom, digestFile, sizeOf, syncFolder, writeSynced } from "./copy.ts";
import { type Copied, runTask } from "./tasks.ts";

/** How often the copy's size is looked at, in milliseconds. */
const LOOK = 100;

/** Backups of a file. */
export class Backups {
  readonly #db: Connection;
  readonly #path: string;
  readonly #driver: DriverName;
  readonly #clock: Pick<Clock, "now">;

  constructor(db: Connection, { path, driver, clock }: { path: string; driver: DriverName; clock: Pick<Clock, "now"> }) {
    this.#db = db;
    this.#path = path;
    this.#driver = driver;
    this.#clock = clock;
  }

  get epoch(): number {
    return identityOf(this.#db).epoch;
  }

  async stage(path: string, { reason, onProgress = () => {} }: StageOptions): Promise<StagedBackup> {
    const staging = this.#open(path);
    try {
      const takenAt = this.#clock.now();
      const copied = await this.#copy(staging.database, onProgress);
      const { facts, hashes, size, sha256, took } = copied;
      const copiedAt = Math.min(this.#clock.now(), takenAt + took);
      const publish = async (artifacts: BackupArtifacts): Promise<Manifest> => {
        const file = basename(staging.target);
        const head = { holdfast: "backup", format: 1, file, size, sha256, takenAt, copiedAt, reason } as const;
        const manifest: Manifest = { ...head, ...facts, artifacts };
        try {
          staging.publish(manifest);
        } catch (error) {
          throw explain(error, staging.target);
        }
        return manifest;
      };
      return { facts, hashes, artifactFolder: staging.artifacts, publish, discard: async () => staging.discard() };
    } catch (error) {
      staging.discard();
      throw error;
    }
  }

  #open(path: string): Staging {
    try {
      return new Staging(path, this.#driver);
    } catch (error) {
      throw explain(error, path);
    }
  }

  async #copy(to: string, onProgress: OnProgress): Promise<Copied> {
    const before = this.#commits();
    const total = sizeOf(this.#db);
    const inMemory = this.#path === ":memory:";
    if (inMemory) copyFrom(this.#db, this.#path, to);
    let copying = true;
    const look = setInterval(() => {
      if (copying)
        void stat(to).then(
          ({ size }) => copying && onProgress({ step: "copying", done: size, total }),
          () => {},
        );
    }, LOOK);
    try {
      const copied = await runTask("copy", { driver: this.#driver, from: this.#path, to, copied: inMemory }, (progress) => {
        copying = false;
        onProgress(progress);
      });
      if (copied.facts.commits < before) throw behind(copied.facts.commits, before);
      return copied;
    } finally {
      clearInterval(look);
    }
  }

  #commits(): number {
    return (this.#db.prepare("select commits from holdfast_counter where id = 1").row() as [number])[0];
  }
}

function identityOf(db: Connection): { databaseId: string; epoch: number } {
  const [databaseId, epoch] = db.prepare("select database_id, epoch from holdfast_database where id = 1").row() as [
    string,
    number,
  ];
  return { databaseId, epoch };
}

/** What was acknowledged before it began has to be in it. */
function behind(commits: number, before: number): HoldfastError {
  return new HoldfastError(
    "BACKUP_FAILED",
    `The copy ends at commit ${commits}, but the database was at commit ${before} before. No backup was made.`,
    "Check that all processes open the same file by this path, and try again.",
  );
}

/** The folder, in that of the backups, where they lie until they are whole. */
const WORKSHOP = ".holdfast-backups";

/**
 * A place for a backup that is being made, on the disk where it will be. Its name belongs to a lock that the kernel frees:
 * the process that makes the next backup there finishes what a dead process had all but finished, and removes the rest.
 */
export class Staging {
  readonly target: string;
  readonly database: string;
  readonly artifacts: string;
  readonly #place: string;
  readonly #workshop: string;
  readonly #alive: Alive;

  constructor(target: string, driver: DriverName) {
    this.target = resolve(target);
    refuseTaken(this.target);
    this.#workshop = join(dirname(this.target), WORKSHOP);
    this.#alive = new Alive(this.#workshop, driver);
    // The lock first: what has none is taken for a dead one's.
    const token = this.#alive.hold();
    this.#place = join(this.#workshop, token);
    this.database = join(this.#place, "database");
    this.artifacts = join(this.#place, "artifacts");
    clearDead(this.#workshop, this.#alive, token);
    mkdirSync(this.#place, { mode: 0o700 });
    passStep("backup:begun");
  }

  /**
   * First the database gets its name, by which no other can get it any more; then what belongs to it, the manifest last:
   * where that is, everything is.
   */
  publish(manifest: Manifest): void {
    const mode = modeLike(this.database);
    writeSynced(join(this.#place, "manifest"), manifestText(manifest), mode);
    writeSynced(join(this.#place, "target"), basename(this.target), mode);
    passStep("backup:written");
    name(this.database, this.target);
    passStep("backup:named");
    nameRest(this.#place, this.target);
    passStep("backup:kept");
    this.discard();
  }

  discard(): void {
    rmSync(this.#place, { recursive: true, force: true });
    this.#alive.close();
    removeEmpty(this.#workshop);
  }
}

/** What dead processes have left in a folder of backups: finished, or gone. */
export function clearWorkshop(folder: string, driver: DriverName): void {
  const workshop = join(folder, WORKSHOP);
  if (!existsSync(workshop)) return;
  const alive = new Alive(workshop, driver);
  clearDead(workshop, alive, null);
  alive.close();
  removeEmpty(workshop);
}

function clearDead(workshop: string, alive: Alive, own: string | null): void {
  for (const entry of readdirSync(workshop)) {
    const token = entry.replace(/\.lock$/, "");
    // Its lock is made before its place, and goes after it: without one, no process is there.
    if (token === own || !/^[0-9a-f]+$/.test(token) || alive.probe(token) === "alive") continue;
    const place = join(workshop, token);
    if (existsSync(place)) finish(place, dirname(workshop));
    rmSync(place, { recursive: true, force: true });
    alive.forget(token);
  }
}

/** It died with the database under its name, and all the rest in its place: the name says which. */
function finish(place: string, folder: string): void {
  const [manifest, name] = [join(place, "manifest"), join(place, "target")];
  if (!existsSync(manifest) || !existsSync(name)) return;
  const target = join(folder, basename(readFileSync(name, "utf8")));
  if (!existsSync(target) || existsSync(manifestPath(target))) return;
  const { size, sha256 } = parseManifest(readFileSync(manifest, "utf8"), manifest);
  // Another process's backup may have got the name.
  if (statSync(target).size !== size || digestFile(target) !== sha256) return;
  nameRest(place, target);
}

/** Nothing is ever written over: of two at once, one gets the name. */
function name(from: string, to: string): void {
  try {
    linkSync(from, to);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EEXIST") throw taken(to);
    // File systems without links.
    refuseTaken(to);
    renameSync(from, to);
  }
  syncFolder(dirname(to));
}

function nameRest(place: string, target: string): void {
  if (existsSync(join(place, "artifacts"))) {
    renameSync(join(place, "artifacts"), artifactsPath(target));
    syncFolder(dirname(target));
  }
  renameSync(join(place, "manifest"), manifestPath(target));
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

/** Others may be at work in it. */
function removeEmpty(workshop: string): void {
  try {
    rmdirSync(workshop);
  } catch {
    // It is not empty, or not there.
  }
}

/**
 * Before a newer Holdfast changes the schema: a user who wants to go back to the older one has what it could read. Of several
 * processes that open it at once, one makes it; it is named after what is in it, so the others find it there.
 */
export async function backUpBeforeMigration(
  db: Connection,
  { path, driver, now }: { path: string; driver: DriverName; now: () => number },
): Promise<void> {
  const folder = backupsFolder(path);
  const to = join(folder, nameOf(db, path));
  clearWorkshop(folder, driver);
  if (existsSync(to)) return;
  createFolder(folder, modeLike(path));
  try {
    const staged = await new Backups(db, { path, driver, clock: { now } }).stage(to, { reason: "migration" });
    await staged.publish({ included: false, hashes: [...staged.hashes], bytes: 0, missing: [] }).catch(async (error: unknown) => {
      await staged.discard();
      throw error;
    });
  } catch (error) {
    if (error instanceof HoldfastError && error.code === "BACKUP_EXISTS") return;
    throw error instanceof HoldfastError ? unmade(path, error) : error;
  }
}

function nameOf(db: Connection, path: string): string {
  const [commits, jobs] = db
    .prepare("select commits, max(jobs, coalesce((select max(key) from holdfast_jobs), 0)) from holdfast_counter where id = 1")
    .row() as [number, number];
  return `${basename(path, extname(path))}-schema-${versionOf(db)}-at-${commits}-${jobs}.db`;
}

function unmade(path: string, cause: HoldfastError): HoldfastError {
  return new HoldfastError(
    cause.code,
    `${path} is of an older schema, and the backup before it is changed could not be made. Nothing was changed: ${cause.message}`,
    `${cause.hint} Or open it without one: backups: { beforeMigration: false }.`,
    { cause },
  );
}
