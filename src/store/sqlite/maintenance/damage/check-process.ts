import { statfsSync, statSync } from "node:fs";
import { dirname } from "node:path";
import { type CheckedPages, checkFile, type CheckRequest } from "./check.ts";
import { copyPages } from "../../driver.ts";
import { createFile, isBusy, modeLike } from "../../faults.ts";
import { fromThrown } from "../backup/tasks.ts";

/** Checks a copy: in a process of its own, so that whatever SQLite meets in a damaged file ends no job. */

/** `copy`: where there is nothing yet, and the caller clears away after the answer. */
export type CopyCheckRequest = CheckRequest & { copy: string };
export type CopyCheckAnswer = { checked: CheckedPages } | { failure: ReturnType<typeof fromThrown> };

process.once("message", (request: CopyCheckRequest) => {
  // The process that asked is gone, and so is the use of an answer.
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

/** As raw pages: one that is made row by row has its indexes built anew, and would hide what is looked for. */
async function copied({ copy, ...request }: CopyCheckRequest): Promise<CheckRequest> {
  const { driver, path, how } = request;
  if (!hasRoom(path, dirname(copy))) return request;
  try {
    createFile(copy, modeLike(path));
    await copyPages(driver, path, copy);
    return { driver, path: copy, how };
  } catch (error) {
    // What cannot even be copied, and what the disk had no room for after all, is looked at where it is.
    if (isBusy(error)) throw error;
    return request;
  }
}

/** To fill the disk is worse than to make the log wait until the check has read everything. */
function hasRoom(path: string, folder: string): boolean {
  const { bavail, bsize } = statfsSync(folder);
  const sizes = ["", "-wal"].map((suffix) => statSync(path + suffix, { throwIfNoEntry: false })?.size ?? 0);
  return bavail * bsize > 2 * sizes.reduce((sum, size) => sum + size);
}
