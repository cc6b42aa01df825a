import { closeSync, fsyncSync, openSync } from "node:fs";
import { chmod, mkdir, open, stat } from "node:fs/promises";
import { dirname } from "node:path";
import { fileModeOf, folderModeOf } from "../core/file-mode.ts";
import { faultOf } from "./faults.ts";

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
