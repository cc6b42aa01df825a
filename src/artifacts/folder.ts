import { randomBytes } from "node:crypto";
import { closeSync, fsyncSync, openSync } from "node:fs";
import { chmod, mkdir, open, stat } from "node:fs/promises";
import { dirname, join } from "node:path";
import { HoldfastError } from "../core/text/errors.ts";
import { fileModeOf, folderModeOf } from "../core/text/text.ts";

/**
 * Makes it with all that is missing above it; resolves when a power cut would leave it there. `fileMode`: that of the files
 * which are to be in it; left out: as the umask says.
 */
export async function makeFolder(path: string, fileMode?: number): Promise<void> {
  const first = await mkdir(path, { recursive: true, ...(fileMode === undefined ? {} : { mode: folderModeOf(fileMode) }) });
  if (first === undefined) return;
  if (fileMode !== undefined) await chmod(path, folderModeOf(fileMode));
  for (let made = path; ; made = dirname(made)) {
    await syncFolder(dirname(made));
    if (made === first || made === dirname(made)) return;
  }
}

/** The mode of files in a folder: like its own. */
export async function fileModeIn(folder: string): Promise<number> {
  return fileModeOf((await stat(folder)).mode);
}

/** The names in it are on the disk. Windows cannot sync a folder, and needs not. */
export async function syncFolder(path: string): Promise<void> {
  if (process.platform === "win32") return;
  const handle = await open(path, "r");
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}

/** The same, for those who cannot wait. */
export function syncFolderNow(path: string): void {
  if (process.platform === "win32") return;
  const handle = openSync(path, "r");
  try {
    fsyncSync(handle);
  } finally {
    closeSync(handle);
  }
}

/** The bytes of a file that is open for reading only; Windows syncs none such. */
export async function syncRead(handle: { sync(): Promise<void> }): Promise<void> {
  try {
    await handle.sync();
  } catch (error) {
    if (process.platform !== "win32" || faultOf(error) !== "EPERM") throw error;
  }
}

const HASH = /^[0-9a-f]{64}$/;

/** Where everything is: `ab/cdef…` the artifacts; `tmp` what is being written; `doomed` what a sweep has put aside. */
export class Layout {
  readonly root: string;
  readonly temporary: string;
  readonly doomed: string;
  /** For the locks of those who write here. */
  readonly alive: string;
  /** Of the files in it; artifacts themselves are only read. */
  readonly mode: number;

  constructor(root: string, mode: number) {
    this.root = root;
    this.mode = mode;
    this.temporary = join(root, "tmp");
    this.doomed = join(root, "doomed");
    this.alive = join(root, "alive");
  }

  /** The folder of an artifact. There are 256, and none is ever removed: another process may be about to add a file. */
  shelfOf(hash: string): string {
    return join(this.root, checkHash(hash).slice(0, 2));
  }

  fileOf(hash: string): string {
    return join(this.shelfOf(hash), hash.slice(2));
  }
}

/** A hash becomes part of a path, so nothing else may pass. */
export function checkHash(hash: string): string {
  if (isHash(hash)) return hash;
  throw new HoldfastError(
    "ARTIFACT_HASH_INVALID",
    `${JSON.stringify(hash) ?? String(hash)} is not the hash of an artifact.`,
    "Give the hash that `artifact` returned: 64 digits from 0 to 9 and a to f.",
  );
}

export function isHash(hash: unknown): hash is string {
  return typeof hash === "string" && HASH.test(hash);
}

/** A unique file name that names its owner. */
export function nameFor(token: string): string {
  return `${token}-${randomBytes(8).toString("hex")}`;
}

/** Whose it is; null when it is no such name. */
export function tokenOf(name: string): string | null {
  return /^([^-]+)-[0-9a-f]{16}(?:\.export)?$/.exec(name)?.[1] ?? null;
}

/** A file that is not there yet, of this mode or as the umask says, with these bytes, on the disk when it resolves; how many they were. Its folder is not synced. */
export async function writeNew(path: string, pieces: AsyncIterable<Buffer> | Iterable<Buffer>, mode?: number): Promise<number> {
  const handle = await open(path, "wx", mode);
  try {
    if (mode !== undefined) await handle.chmod(mode);
    let size = 0;
    for await (const piece of pieces) {
      await handle.writeFile(piece);
      size += piece.length;
    }
    await handle.sync();
    return size;
  } finally {
    await handle.close();
  }
}

/**
 * Named instants at which a test may kill the process, as a crash would. Those of the store are its own
 * (`store/points.ts`): nothing here is a transaction.
 */
export const ARTIFACT_POINTS = [
  // The temporary file is there, and empty; all bytes are in it; they are synced; it has its name; its folder is synced.
  "put:begun",
  "put:written",
  "put:synced",
  "put:renamed",
  "put:kept",
  // Put aside; references were looked at again; back in its place, of those that have one; gone, of those that have none.
  "sweep:doomed",
  "sweep:checked",
  "sweep:restored",
  "sweep:removed",
  // The staging folder is there; a file is in it; all is synced; it has its name; the pointer is made; it has its name.
  "export:begun",
  "export:copied",
  "export:synced",
  "export:renamed",
] as const;
export type ArtifactPoint = (typeof ARTIFACT_POINTS)[number];

let armed: ArtifactPoint | undefined;

export function armArtifactPoint(point: ArtifactPoint): void {
  armed = point;
}

export function passArtifactPoint(point: ArtifactPoint): void {
  if (armed !== undefined && armed === point) process.kill(process.pid, "SIGKILL");
}

/** The system's word for what went wrong with a file. */
export function faultOf(error: unknown): string | null {
  const code = error instanceof Error ? (error as NodeJS.ErrnoException).code : undefined;
  return code ?? null;
}

export function isAbsent(error: unknown): boolean {
  return faultOf(error) === "ENOENT";
}

/** Converts an error of the file system for the caller, with the store's codes. */
export function explain(error: unknown, path: string): unknown {
  if (error instanceof HoldfastError) return error;
  const cause = { cause: error };
  switch (faultOf(error)) {
    case "ENOSPC":
    case "EDQUOT":
      return new HoldfastError(
        "DISK_FULL",
        `The disk is full: cannot write to ${path}.`,
        "Free space on that disk and try again.",
        cause,
      );
    case "EROFS":
    case "EACCES":
    case "EPERM":
      return new HoldfastError(
        "READ_ONLY",
        `${path} cannot be used: ${(error as Error).message}.`,
        "Check the owner and the permissions of the folder, and that the disk is not mounted read-only.",
        cause,
      );
    case "EIO":
      return new HoldfastError(
        "DISK_ERROR",
        `The disk under ${path} reported an error: ${(error as Error).message}.`,
        "Check the disk and the system's log; what was stored before is not affected by this call.",
        cause,
      );
    case "ENOTDIR":
    case "EEXIST":
    case "ENOENT":
    case "EMFILE":
      return new HoldfastError(
        "CANNOT_OPEN",
        `${path} cannot be used: ${(error as Error).message}.`,
        "Check that it is a folder which this user may read and write, and that no other program removes files from it.",
        cause,
      );
    default:
      return error;
  }
}

/** For promises of the file system: `await rename(a, b).catch(explained(a))`. */
export function explained(path: string): (error: unknown) => never {
  return (error) => {
    throw explain(error, path);
  };
}

export function missing(hash: string): HoldfastError {
  return new HoldfastError(
    "ARTIFACT_MISSING",
    `There is no artifact ${hash}.`,
    "Check that the folder of artifacts is the right one and that no program removes files from it. Run the stage again to create the artifact again.",
  );
}

export function damaged(hash: string, path: string): HoldfastError {
  return new HoldfastError(
    "ARTIFACT_DAMAGED",
    `The artifact ${hash} is damaged: ${path} does not have the bytes that it is named after.`,
    "Check the disk. Storing the same bytes again repairs it: bring the file back from a backup, or run its stage again.",
  );
}
