import { chmodSync, existsSync, renameSync, rmSync, statSync } from "node:fs";
import { dirname } from "node:path";
import { passStep } from "../../points.ts";
import type { DriverName } from "../driver.ts";
import { clearFindings } from "../damage/findings.ts";
import { syncFolder } from "./files.ts";
import { hasPlan, type Plan, reportPath, restoreFolder, Right, stagedPath } from "./right.ts";
import { modeLike } from "../modes.ts";

/**
 * The staged database takes the place of the one that is there, which is kept with its log. Each step can be done again:
 * whoever finds the plan of a dead process goes on with it. The old log is gone from its name before the new database has
 * its own: one beside the wrong database would be written into it. A database that was just being switched to a write-ahead
 * log has the other kind, too.
 */
export function switchOver(path: string, { kept, act }: Pick<Plan, "kept" | "act">): void {
  const folder = dirname(path);
  if (existsSync(stagedPath(path))) {
    // An empty log is no part of a database.
    if (sizeOf(`${path}-wal`) === 0) rmSync(`${path}-wal`, { force: true });
    if (existsSync(path)) chmodSync(stagedPath(path), modeLike(path));
    for (const end of ["-wal", "-journal", ""]) if (existsSync(path + end)) renameSync(path + end, kept + end);
    rmSync(`${path}-shm`, { force: true });
    syncFolder(folder);
    passStep(`${act}:aside`);
    renameSync(stagedPath(path), path);
    syncFolder(folder);
  }
  if (existsSync(reportPath(path))) renameSync(reportPath(path), `${kept}.report.json`);
  // What was found wrong was wrong with the other one.
  clearFindings(path);
  passStep(`${act}:installed`);
}

function sizeOf(path: string): number {
  return statSync(path, { throwIfNoEntry: false })?.size ?? 0;
}

/** What a dead process has left of a restore: brought to its end, or forgotten. One that lives is left alone. */
export function settleRestore(path: string, driver: DriverName): void {
  if (!existsSync(restoreFolder(path))) return;
  using right = Right.take(path, driver);
  if (right !== null) settleWith(right, path);
}

export function settleWith(right: Right, path: string): void {
  const plan = right.plan();
  if (plan?.phase === "switching") switchOver(path, plan);
  right.clear();
}

/** Of somebody who lives: he is about to change the files. */
export function isSwitching(path: string): boolean {
  return hasPlan(path);
}
