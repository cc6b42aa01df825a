import { faultOf } from "../../artifacts/faults.ts";
import { HoldfastError } from "../../core/errors.ts";

const CHECK = "Check `root` of files(), the folder in which the program runs, and that the disk is mounted.";

/** Not an empty source: everything in it would be taken for removed. */
export function missingRoot(path: string, is: string, cause?: unknown): HoldfastError {
  return new HoldfastError("SOURCE_MISSING", `The root of the source, ${path}, ${is}.`, CHECK, { cause });
}

/** Of what the globs begin with, nothing is there: as good as a missing root. */
export function missingFolders(paths: readonly string[]): HoldfastError {
  return new HoldfastError(
    "SOURCE_MISSING",
    paths.length === 1
      ? `The folder that the glob of the source begins with, ${paths[0]}, is not there.`
      : `None of the folders that the globs of the source begin with is there: ${paths.join(", ")}.`,
    `${CHECK} If nothing is to be in it, make an empty folder.`,
  );
}

/** A folder that a glob begins with. */
export function missingFolder(path: string, happened: string): HoldfastError {
  return new HoldfastError("SOURCE_MISSING", `A folder of the source, ${path}, ${happened} while it was listed.`, CHECK);
}

export function unreadable(path: string, cause: unknown): HoldfastError {
  return new HoldfastError(
    "SOURCE_UNREADABLE",
    `${path} cannot be read: ${(cause as Error).message}.`,
    "Check its owner and permissions, or leave it out with `ignore` of files().",
    { cause },
  );
}

export function invalidName(path: string, is: string): HoldfastError {
  return new HoldfastError(
    "SOURCE_NAME_INVALID",
    `The name of ${JSON.stringify(path)} ${is}, so it cannot be the id of a target.`,
    "Rename it, or leave it out with `ignore` of files().",
  );
}

export function bytesChanged(path: string, happened: string, cause?: unknown): HoldfastError {
  return new HoldfastError(
    "BYTES_CHANGED",
    `${path} does not have the bytes any more that it was claimed for: ${happened}.`,
    "Let it be listed again; its new bytes get work of their own. With `snapshot: true` the old ones are kept.",
    { cause },
  );
}

/**
 * It was there a moment ago, and is not any more: its name or its folder is gone, or leads in a circle, or a folder or a
 * socket has taken its place.
 */
export function isGone(error: unknown): boolean {
  return GONE.has(faultOf(error) ?? "");
}

const GONE = new Set(["ENOENT", "ENOTDIR", "ELOOP", "EISDIR", "ENXIO"]);
