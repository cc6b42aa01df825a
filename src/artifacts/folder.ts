import { randomBytes } from "node:crypto";
import { closeSync, fsyncSync, openSync } from "node:fs";
import { chmod, mkdir, open } from "node:fs/promises";
import { dirname, join } from "node:path";
import { type DiskFault, explainDiskFault, HoldfastError } from "../core/text/errors.ts";
import { folderModeOf } from "../core/text/text.ts";

/** Creates and syncs a folder and its parents. `fileMode` is the mode of files in it; by default the umask decides. */
export async function makeFolder(path: string, fileMode?: number): Promise<void> {
  const first = await mkdir(path, { recursive: true, ...(fileMode === undefined ? {} : { mode: folderModeOf(fileMode) }) });
  if (first === undefined) return;
  if (fileMode !== undefined) await chmod(path, folderModeOf(fileMode));
  for (let made = path; ; made = dirname(made)) {
    await syncFolder(dirname(made));
    if (made === first || made === dirname(made)) return;
  }
}

/** Syncs a folder. Windows cannot sync a folder, and does not need to. */
export async function syncFolder(path: string): Promise<void> {
  if (process.platform === "win32") return;
  await using handle = await open(path, "r");
  await handle.sync();
}

export function syncFolderNow(path: string): void {
  if (process.platform === "win32") return;
  const handle = openSync(path, "r");
  try {
    fsyncSync(handle);
  } finally {
    closeSync(handle);
  }
}

/** Syncs a file that is open for reading. Windows rejects that, so the error is ignored there. */
export async function syncRead(handle: { sync(): Promise<void> }): Promise<void> {
  try {
    await handle.sync();
  } catch (error) {
    if (process.platform !== "win32" || faultOf(error) !== "EPERM") throw error;
  }
}

const HASH = /^[0-9a-f]{64}$/;

/** Paths of the artifact folder: `ab/cdef…` has artifacts, `tmp` files being written, `trash` what a sweep is about to remove. */
export class Layout {
  readonly root: string;
  readonly temporary: string;
  readonly trash: string;
  readonly alive: string;
  readonly mode: number;

  constructor(root: string, mode: number) {
    this.root = root;
    this.mode = mode;
    this.temporary = join(root, "tmp");
    this.trash = join(root, "trash");
    this.alive = join(root, "alive");
  }

  /** Returns one of 256 folders. No process removes such a folder, because another one may be about to add a file. */
  shelfOf(hash: string): string {
    return join(this.root, checkHash(hash).slice(0, 2));
  }

  fileOf(hash: string): string {
    return join(this.shelfOf(hash), hash.slice(2));
  }
}

/** Rejects text that is not a hash, because a hash becomes part of a path. */
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

export function nameFor(token: string): string {
  return `${token}-${randomBytes(8).toString("hex")}`;
}

export function tokenOf(name: string): string | null {
  return /^([^-]+)-[0-9a-f]{16}(?:\.export)?$/.exec(name)?.[1] ?? null;
}

/** Writes and syncs a new file, but not its folder. Returns its size. By default the umask decides the mode. */
export async function writeNew(path: string, pieces: AsyncIterable<Buffer> | Iterable<Buffer>, mode?: number): Promise<number> {
  await using handle = await open(path, "wx", mode);
  if (mode !== undefined) await handle.chmod(mode);
  let size = 0;
  for await (const piece of pieces) {
    await handle.writeFile(piece);
    size += piece.length;
  }
  await handle.sync();
  return size;
}

/** Instants at which a test may kill the process; those of the store are in `store/points.ts`. */
export const ARTIFACT_POINTS = [
  "put:begun",
  "put:written",
  "put:synced",
  "put:renamed",
  "put:kept",
  "sweep:trashed",
  "sweep:checked",
  "sweep:restored",
  "sweep:removed",
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

export function faultOf(error: unknown): string | null {
  return error instanceof Error ? ((error as NodeJS.ErrnoException).code ?? null) : null;
}

export function isAbsent(error: unknown): boolean {
  return faultOf(error) === "ENOENT";
}

const FAULTS: Readonly<Record<string, DiskFault>> = {
  ENOSPC: "FULL",
  EDQUOT: "FULL",
  EROFS: "READONLY",
  EACCES: "READONLY",
  EPERM: "READONLY",
  EIO: "IOERR",
  ENOTDIR: "CANTOPEN",
  EEXIST: "CANTOPEN",
  ENOENT: "CANTOPEN",
  EMFILE: "CANTOPEN",
};

export function explain(error: unknown, path: string): unknown {
  const fault = error instanceof HoldfastError ? undefined : FAULTS[faultOf(error) ?? ""];
  return fault === undefined ? error : explainDiskFault(fault, path, error);
}

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
