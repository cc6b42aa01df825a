import { chmodSync, closeSync, fchmodSync, mkdirSync, openSync, statSync } from "node:fs";
import { DEFAULT_FILE_MODE, fileModeOf, folderModeOf } from "../../core/text/text.ts";

/** The mode of files beside a database, or in a folder, that has this path: like its own. */
export function modeLike(path: string): number {
  const found = statSync(path, { throwIfNoEntry: false });
  return found === undefined ? DEFAULT_FILE_MODE : fileModeOf(found.mode);
}

/** Creates a file, whatever the umask is. False: it is there already, and stays as it is. */
export function createFile(path: string, mode: number): boolean {
  try {
    const fd = openSync(path, "wx", mode);
    fchmodSync(fd, mode);
    closeSync(fd);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EEXIST") return false;
    throw error;
  }
}

/** Creates a folder for files of this mode, and what is missing above it, whatever the umask is. One that is there stays as it is. */
export function createFolder(path: string, fileMode: number, { recursive = true } = {}): void {
  const mode = folderModeOf(fileMode);
  if (mkdirSync(path, { recursive, mode }) !== undefined || !recursive) chmodSync(path, mode);
}
