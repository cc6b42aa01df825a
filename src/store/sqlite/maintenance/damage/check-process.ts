import { statfsSync } from "node:fs";
import { dirname } from "node:path";
import { type CheckedPages, checkFile, type CheckRequest } from "./check.ts";
import { copyPages } from "../../driver.ts";
import { createFile, fileSize, isBusy, modeLike } from "../../faults.ts";
import { fromThrown } from "../backup/tasks.ts";

/** Checks a copy in a process of its own: a crash of SQLite in a damaged file ends no job. */

/** `copy`: a path without a file, which the caller removes after the answer. */
export type CopyCheckRequest = CheckRequest & { copy: string };
export type CopyCheckAnswer = { checked: CheckedPages } | { failure: ReturnType<typeof fromThrown> };

process.once("message", (request: CopyCheckRequest) => {
  process.once("disconnect", () => process.exit());
  void answerTo(request).then((answer) => process.send?.(answer, () => process.disconnect()));
});

async function answerTo(request: CopyCheckRequest): Promise<CopyCheckAnswer> {
  try {
    return { checked: checkFile(await copied(request)) };
  } catch (error) {
    return { failure: fromThrown(error) };
  }
}

/** Copies raw pages: a copy made row by row would have new indexes, and hide damaged ones. */
async function copied({ copy, ...request }: CopyCheckRequest): Promise<CheckRequest> {
  const { driver, path, how } = request;
  if (!hasRoom(path, dirname(copy))) return request;
  try {
    createFile(copy, modeLike(path));
    await copyPages(driver, path, copy);
    return { driver, path: copy, how };
  } catch (error) {
    // A file that cannot be copied, or for which the disk had no room after all, is checked where it is.
    if (isBusy(error)) throw error;
    return request;
  }
}

/** A full disk is worse than a log that cannot be truncated while the check reads the database. */
function hasRoom(path: string, folder: string): boolean {
  const { bavail, bsize } = statfsSync(folder);
  return bavail * bsize > 2 * (fileSize(path) + fileSize(`${path}-wal`));
}
