import { chmodSync, closeSync, fchmodSync, mkdirSync, openSync, statSync } from "node:fs";
import { type DiskFault, explainDiskFault, HoldfastError } from "../../core/text/errors.ts";
import { DEFAULT_FILE_MODE, fileModeOf, folderModeOf } from "../../core/text/text.ts";

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

export function faultOf(error: unknown): SqliteFault | null {
  if (!(error instanceof Error)) return null;
  const { errcode, code } = error as { errcode?: unknown; code?: unknown };
  if (typeof errcode === "number") return CODES[(errcode & 0xff) as keyof typeof CODES] ?? "OTHER";
  // Holdfast never writes a number that JavaScript cannot hold, so a driver that reads one reads a damaged page.
  if (code === "ERR_OUT_OF_RANGE" && error.message.startsWith("Value is too large to be represented")) return "CORRUPT";
  if (typeof code !== "string" || !code.startsWith("SQLITE_")) return null;
  const name = Object.values(CODES).find((known) => code.startsWith(`SQLITE_${known}`));
  return name ?? "OTHER";
}

function isOneOf(...faults: SqliteFault[]): (error: unknown) => boolean {
  return (error) => faults.includes(faultOf(error) as SqliteFault);
}

export const isBusy = isOneOf("BUSY", "LOCKED");
export const isDamage = isOneOf("CORRUPT", "NOTADB");
/** Whether the values to be written caused the error, and not the file or the disk. */
export const isOfContent = isOneOf("OTHER", "TOOBIG", "CONSTRAINT", "MISMATCH");
/** Whether a page that the statement needs is unreadable, or holds values that cannot be stored in the table. */
export const isOfDamage = isOneOf("CORRUPT", "NOTADB", "MISMATCH", "CONSTRAINT", "TOOBIG");
/** Whether the file or the disk caused the error: no other write would have succeeded either. */
export const isOfDisk = isOneOf("BUSY", "LOCKED", "READONLY", "IOERR", "FULL", "CANTOPEN");

/** Makes the error of a statement whose result shows that an index and its table disagree. */
export function corrupt(what: string): Error {
  return Object.assign(new Error(what), { errcode: 11 });
}

const SYSTEM_FAULTS: Record<string, SqliteFault> = {
  ENOSPC: "FULL",
  EDQUOT: "FULL",
  EROFS: "READONLY",
  EIO: "IOERR",
  EACCES: "CANTOPEN",
  EPERM: "CANTOPEN",
  EEXIST: "CANTOPEN",
  ENOTDIR: "CANTOPEN",
  ENOENT: "CANTOPEN",
  EMFILE: "CANTOPEN",
};

function isOfClosed(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const { code, message } = error as NodeJS.ErrnoException;
  return code === "ERR_INVALID_STATE" || message === "The database connection is not open";
}

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
  const fault = faultOf(error) ?? SYSTEM_FAULTS[(error as NodeJS.ErrnoException | null)?.code ?? ""] ?? null;
  if (fault === null) return error;
  if (fault === "FULL" || fault === "READONLY" || fault === "CANTOPEN" || fault === "IOERR")
    return explainDiskFault(fault, path, error);
  const [code, message, hint] = explanation(fault, path, (error as Error).message);
  return new HoldfastError(code, message, hint, { cause: error });
}

export function explaining<T>(path: string, run: () => T): T {
  try {
    return run();
  } catch (error) {
    throw explain(error, path);
  }
}

function explanation(
  fault: Exclude<SqliteFault, DiskFault>,
  path: string,
  reason: string,
): [code: string, message: string, hint: string] {
  switch (fault) {
    case "BUSY":
    case "LOCKED":
      return [
        "BUSY",
        `${path} was locked by another writer for too long, so nothing was changed.`,
        "Look for a program that keeps a write transaction open on this file, and try again when it has ended.",
      ];
    case "NOTADB":
      return [
        "NOT_A_DATABASE",
        `${path} is not a SQLite database. It was not changed.`,
        "Give the path of a Holdfast database, or of a file that does not exist yet.",
      ];
    case "CORRUPT":
      return [
        "DAMAGED",
        `${path} is damaged: ${reason}.`,
        "Run `holdfast doctor --recheck` to read it again. If it is still damaged, stop all workers, copy the file with its -wal and -shm, and run `holdfast restore`.",
      ];
    case "TOOBIG":
    case "CONSTRAINT":
    case "MISMATCH":
      return [
        "VALUE_INVALID",
        `SQLite rejected a value: ${reason}. Nothing was changed.`,
        "Make the value smaller if it has many millions of characters; otherwise this is probably a bug in Holdfast: please report it with the stack.",
      ];
    case "OTHER":
      return [
        "STORE_ERROR",
        `SQLite rejected a statement: ${reason}. Nothing was changed.`,
        "Try again. If it fails again, this is probably a bug in Holdfast: please report it with the stack.",
      ];
  }
}

export function fileSize(path: string): number {
  return statSync(path, { throwIfNoEntry: false })?.size ?? 0;
}

export function openFile(path: string, flags: string, mode?: number): Disposable & { fd: number } {
  const fd = openSync(path, flags, mode);
  return { fd, [Symbol.dispose]: () => closeSync(fd) };
}

/** Returns the mode for files beside this database or in this folder: the mode of the database or folder itself. */
export function modeLike(path: string): number {
  const found = statSync(path, { throwIfNoEntry: false });
  return found === undefined ? DEFAULT_FILE_MODE : fileModeOf(found.mode);
}

/** Creates a file with this mode, whatever the umask is. False: it exists, and stays as it is. */
export function createFile(path: string, mode: number): boolean {
  try {
    using file = openFile(path, "wx", mode);
    fchmodSync(file.fd, mode);
    return true;
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "EEXIST") return false;
    throw error;
  }
}

/** Creates a folder for files of this mode, with its parents, whatever the umask is. An existing folder stays as it is. */
export function createFolder(path: string, fileMode: number, { recursive = true } = {}): void {
  const mode = folderModeOf(fileMode);
  if (mkdirSync(path, { recursive, mode }) !== undefined || !recursive) chmodSync(path, mode);
}
