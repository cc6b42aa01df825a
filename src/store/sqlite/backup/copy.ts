import { rmSync, statfsSync, statSync } from "node:fs";
import { dirname } from "node:path";
import { HoldfastError } from "../../../core/errors.ts";
import { DEFAULT_FILE_MODE } from "../../../core/file-mode.ts";
import { connect, type Connection, copyPages, type DriverName } from "../driver.ts";
import { explain, faultOf } from "../faults.ts";
import { createFile, modeLike } from "../modes.ts";

/** On a thread of its own it may wait for somebody who is just opening the file. */
const PATIENCE = 5_000;

/**
 * A copy of a database as it is at one instant, in a file that is not there yet. `vacuum into` reads one snapshot, so it
 * ends however much others write meanwhile, and hinders none of them; it keeps rowids, and carries no free page along.
 *
 * What is too damaged to be read row by row is copied page by page, damage and all.
 */
export async function copyDatabase(driver: DriverName, from: string, to: string): Promise<{ whole: boolean }> {
  const db = connect(driver, from, { busyTimeout: PATIENCE, readOnly: true });
  try {
    copyFrom(db, from, to, modeLike(from));
    return { whole: true };
  } catch (error) {
    if (!(error instanceof HoldfastError) || error.code !== "DAMAGED") throw error;
  } finally {
    db.close();
  }
  rmSync(to, { force: true });
  createFile(to, modeLike(from));
  await copyPages(driver, from, to);
  return { whole: false };
}

/** The same on a connection that is there already: what is in memory, nobody else can reach. */
export function copyFrom(db: Connection, from: string, to: string, mode = DEFAULT_FILE_MODE): void {
  try {
    refuseFull(sizeOf(db), to);
    // Who may not read the database may not read its backup, nor what there is of it while it is written.
    createFile(to, mode);
    db.prepare("vacuum into ?").run(to);
  } catch (error) {
    // Only what is read can be damaged; everything else is about what is written.
    throw explain(error, faultOf(error) === "CORRUPT" ? from : to);
  }
}

/** How large a copy will be, at most. */
export function sizeOf(db: Connection): number {
  const [pages, free, size] = ["page_count", "freelist_count", "page_size"].map(
    (name) => (db.prepare(`pragma ${name}`).row() as [number])[0],
  ) as [number, number, number];
  return (pages - free) * size;
}

/** To fill a disk is worse than to make no backup: the database may be on it, too. */
function refuseFull(size: number, to: string): void {
  const { bavail, bsize } = statfsSync(dirname(to));
  const there = statSync(to, { throwIfNoEntry: false })?.size ?? 0;
  if (bavail * bsize + there >= size) return;
  throw new HoldfastError(
    "DISK_FULL",
    `There is no room for ${size} bytes at ${dirname(to)}, so nothing was written.`,
    "Free some space on that disk, or write to another.",
  );
}
