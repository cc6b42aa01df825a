import { chmodSync, closeSync, fchmodSync, mkdirSync, openSync, statSync } from "node:fs";
import { HoldfastError } from "../../core/text/errors.ts";
import { DEFAULT_FILE_MODE, fileModeOf, folderModeOf } from "../../core/text/text.ts";

/** SQLite's primary result codes that mean something to a caller. */
const CODES = {
  5: "BUSY",
  6: "LOCKED",
  8: "READONLY",
  10: "IOERR",
  11: "CORRUPT",
  13: "FULL",
  14: "CANTOPEN",
  18: "TOOBIG",
  19: "CONSTRAINT",
  20: "MISMATCH",
  26: "NOTADB",
} as const;
type SqliteFault = (typeof CODES)[keyof typeof CODES] | "OTHER";

/** The kind of a SQLite error, of either driver. */
export function faultOf(error: unknown): SqliteFault | null {
  if (!(error instanceof Error)) return null;
  const { errcode, code } = error as { errcode?: unknown; code?: unknown };
  if (typeof errcode === "number") return CODES[(errcode & 0xff) as keyof typeof CODES] ?? "OTHER";
  // No process has ever written a number that JavaScript cannot hold: a driver that reads one reads a damaged page.
  if (code === "ERR_OUT_OF_RANGE" && error.message.startsWith("Value is too large to be represented")) return "CORRUPT";
  if (typeof code !== "string" || !code.startsWith("SQLITE_")) return null;
  const name = Object.values(CODES).find((known) => code.startsWith(`SQLITE_${known}`));
  return name ?? "OTHER";
}

export function isBusy(error: unknown): boolean {
  const fault = faultOf(error);
  return fault === "BUSY" || fault === "LOCKED";
}

/** What a statement has shown cannot be: an index and its table disagree. */
export function corrupt(what: string): Error {
  return Object.assign(new Error(what), { errcode: 11 });
}

/** Whether it is about what was to be written, and not about the file or the disk. */
export function isOfContent(error: unknown): boolean {
  const fault = faultOf(error);
  return fault !== null && ["OTHER", "TOOBIG", "CONSTRAINT", "MISMATCH"].includes(fault);
}

/** Whether a page that the statement needs cannot be read, or holds what cannot be stored in the table. */
export function isOfDamage(error: unknown): boolean {
  const fault = faultOf(error);
  return fault !== null && ["CORRUPT", "NOTADB", "MISMATCH", "CONSTRAINT", "TOOBIG"].includes(fault);
}

/** Whether it is about the file or the disk: whatever else was to be written would not have been, either. */
export function isOfDisk(error: unknown): boolean {
  const fault = faultOf(error);
  return fault !== null && ["BUSY", "LOCKED", "READONLY", "IOERR", "FULL", "CANTOPEN"].includes(fault);
}

/** The same trouble met by the file system's own calls, beside the database. */
function systemFault(error: unknown): SqliteFault | null {
  const code = error instanceof Error ? (error as NodeJS.ErrnoException).code : undefined;
  switch (code) {
    case "ENOSPC":
    case "EDQUOT":
      return "FULL";
    case "EROFS":
      return "READONLY";
    case "EIO":
      return "IOERR";
    case "EACCES":
    case "EPERM":
    case "EEXIST":
    case "ENOTDIR":
    case "ENOENT":
    case "EMFILE":
      return "CANTOPEN";
    default:
      return null;
  }
}

/** Both drivers answer so once their connection is closed. */
function isOfClosed(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const { code, message } = error as NodeJS.ErrnoException;
  return code === "ERR_INVALID_STATE" || message === "The database connection is not open";
}

/** The error that a caller gets; errors that are not SQLite's pass as they are. */
export function explain(error: unknown, path: string): unknown {
  if (error instanceof HoldfastError) return error;
  if (isOfClosed(error)) {
    return new HoldfastError(
      "CLOSED",
      `The connection to ${path} was closed by a callback, so this handle cannot be used any more.`,
      "Close it with hf.close(), open it again, and leave the connection open in callbacks of hf.transaction and `commit`.",
      { cause: error },
    );
  }
  const fault = faultOf(error) ?? systemFault(error);
  if (fault === null) return error;
  const cause = { cause: error };
  const said = (error as Error).message;
  switch (fault) {
    case "BUSY":
    case "LOCKED":
      return new HoldfastError(
        "BUSY",
        `${path} was locked by another writer for too long, so nothing was changed.`,
        "Look for a program that keeps a write transaction open on this file, and try again when it has ended.",
        cause,
      );
    case "FULL":
      return new HoldfastError(
        "DISK_FULL",
        `The disk is full: cannot write to ${path}, so nothing was changed.`,
        "Free space on that disk and try again.",
        cause,
      );
    case "READONLY":
      return new HoldfastError(
        "READ_ONLY",
        `${path} cannot be written.`,
        "Check the owner and the permissions of the file and of its folder, and that the disk is not mounted read-only.",
        cause,
      );
    case "CANTOPEN":
      return new HoldfastError(
        "CANNOT_OPEN",
        `${path} cannot be opened: ${said}.`,
        "Check that its folder exists and that this user may read and write there.",
        cause,
      );
    case "NOTADB":
      return new HoldfastError(
        "NOT_A_DATABASE",
        `${path} is not a SQLite database. It was not changed.`,
        "Give the path of a Holdfast database, or of a file that does not exist yet.",
        cause,
      );
    case "CORRUPT":
      return new HoldfastError(
        "DAMAGED",
        `${path} is damaged: ${said}.`,
        "Run `holdfast doctor --recheck` to read it again. If it is still damaged, stop all workers, copy the file with its -wal and -shm, and run `holdfast restore`.",
        cause,
      );
    case "IOERR":
      return new HoldfastError(
        "DISK_ERROR",
        `The disk under ${path} reported an error: ${said}.`,
        "Check the disk and the system's log; what was acknowledged before is not affected by this call.",
        cause,
      );
    case "TOOBIG":
    case "CONSTRAINT":
    case "MISMATCH":
      return new HoldfastError(
        "VALUE_INVALID",
        `SQLite rejected a value: ${said}. Nothing was changed.`,
        "Make the value smaller if it has many millions of characters; otherwise this is probably a bug in Holdfast: please report it with the stack.",
        cause,
      );
    case "OTHER":
      return new HoldfastError(
        "STORE_ERROR",
        `SQLite rejected a statement: ${said}. Nothing was changed.`,
        "Try again. If it fails again, this is probably a bug in Holdfast: please report it with the stack.",
        cause,
      );
  }
}

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
