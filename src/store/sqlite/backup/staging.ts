import { existsSync, linkSync, mkdirSync, readdirSync, readFileSync, renameSync, rmdirSync, rmSync, statSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { HoldfastError } from "../../../core/errors.ts";
import { Alive } from "../../alive.ts";
import { artifactsPath, manifestPath, manifestText, parseManifest } from "../../backup-manifest.ts";
import type { Manifest } from "../../backups.ts";
import { passStep } from "../../points.ts";
import type { DriverName } from "../driver.ts";
import { digestFile, syncFolder, writeSynced } from "./files.ts";
import { modeLike } from "../modes.ts";

/** The folder, in that of the backups, where they lie until they are whole. */
const WORKSHOP = ".holdfast-backups";

/**
 * A place for a backup that is being made, on the disk where it will be. Its name belongs to a lock that the kernel frees:
 * whoever makes the next backup there finishes what a dead process had all but finished, and removes the rest.
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
    // Its lock is made before its place, and goes after it: without one, nobody is there.
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
  // Somebody else's may have got the name.
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
      "Make it first; if it is on another disk, check that the disk is mounted.",
    );
  }
  for (const path of [target, manifestPath(target), artifactsPath(target)]) if (existsSync(path)) throw taken(path);
}

function taken(path: string): HoldfastError {
  return new HoldfastError(
    "BACKUP_EXISTS",
    `${path} is there already; it was left as it is.`,
    "Give another name, or move it away. A backup is never written over another.",
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
