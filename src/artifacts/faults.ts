import { HoldfastError } from "../core/errors.ts";

/** The system's word for what went wrong with a file. */
export function faultOf(error: unknown): string | null {
  const code = error instanceof Error ? (error as NodeJS.ErrnoException).code : undefined;
  return code ?? null;
}

export function isAbsent(error: unknown): boolean {
  return faultOf(error) === "ENOENT";
}

/** What a caller is told of a file system's error; the codes are those that the store has for them. */
export function explain(error: unknown, path: string): unknown {
  if (error instanceof HoldfastError) return error;
  const cause = { cause: error };
  switch (faultOf(error)) {
    case "ENOSPC":
    case "EDQUOT":
      return new HoldfastError(
        "DISK_FULL",
        `There was no room to write to ${path}.`,
        "Free some space on that disk and try again.",
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
        "Check that it is a folder in which you may read and write, and that nobody removes what is in it.",
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
    "Was it removed by hand, or is this another folder than the one it was stored in? Running its stage again makes it anew.",
  );
}

export function damaged(hash: string, path: string): HoldfastError {
  return new HoldfastError(
    "ARTIFACT_DAMAGED",
    `The artifact ${hash} is damaged: ${path} does not have the bytes that it is named after.`,
    "Check the disk. Storing the same bytes again repairs it: bring the file back from a backup, or run its stage again.",
  );
}
