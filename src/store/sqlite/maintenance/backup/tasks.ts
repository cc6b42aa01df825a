import { chmodSync, statSync } from "node:fs";
import { dirname } from "node:path";
import { Worker } from "node:worker_threads";
import { HoldfastError } from "../../../../core/text/errors.ts";
import type { OnProgress } from "../../../backups.ts";
import { ownThread } from "../../../own-file.ts";
import { passStep } from "../../../points.ts";
import { checkFile } from "../damage/check.ts";
import { connect, type DriverName } from "../../driver.ts";
import { explain } from "../../faults.ts";
import { identify, salvageInto } from "../salvage/rebuild.ts";
import { copyDatabase, copyFileSynced, digestFile, survey, type Survey, syncFile, syncFolder } from "./copy.ts";
import { type Preparation, prepare, type Prepared } from "./prepare.ts";

export const TASKS = { copy, inspect, restore, check: checkFile, checkpoint, identify, salvage: salvageInto };
export type TaskName = keyof typeof TASKS;
type Input<Name extends TaskName> = Parameters<(typeof TASKS)[Name]>[0];
type Answer<Name extends TaskName> = Awaited<ReturnType<(typeof TASKS)[Name]>>;

export interface Copied extends Survey {
  size: number;
  sha256: string;
  whole: boolean;
  took: number;
}

async function copy(
  { driver, from, to, copied }: { driver: DriverName; from: string; to: string; copied: boolean },
  onProgress: OnProgress,
): Promise<Copied> {
  const since = performance.now();
  const { whole } = copied ? { whole: true } : await copyDatabase(driver, from, to);
  const took = Math.ceil(performance.now() - since);
  passStep("backup:copied");
  syncFile(to);
  passStep("backup:synced");
  const { survey, size, sha256 } = inspect({ driver, path: to }, onProgress);
  passStep("backup:checked");
  if (survey === null) throw new Error("the copy is not what was copied");
  return { ...survey, size, sha256, whole, took };
}

/** Hashes and surveys a file that no process has open; no survey if the hash is not the expected one. */
function inspect(
  { driver, path, expected }: { driver: DriverName; path: string; expected?: string | undefined },
  onProgress: OnProgress,
): { size: number; sha256: string; survey: Survey | null } {
  const { size } = statSync(path);
  const sha256 = digestFile(path, (done) => onProgress({ step: "hashing", done, total: size }));
  if (expected !== undefined && expected !== sha256) return { size, sha256, survey: null };
  onProgress({ step: "checking", done: 0, total: size });
  try {
    return { size, sha256, survey: survey(driver, path) };
  } catch (error) {
    throw explain(error, path);
  }
}

function restore(
  { from, sha256, mode, ...preparation }: Preparation & { from: string; sha256: string; mode: number },
  onProgress: OnProgress,
): Prepared & { survey: Survey | null } {
  const { driver, path } = preparation;
  const total = statSync(from).size;
  try {
    const copied = copyFileSynced(from, path, (done) => onProgress({ step: "copying", done, total }));
    if (copied !== sha256) throw new Error(`${from} has changed while it was read`);
    chmodSync(path, mode);
    passStep("restore:copied");
    const prepared = prepare(preparation, onProgress);
    // A replay makes another database of the backup, which is checked like one.
    const surveyed = prepared.replayed === null ? null : survey(driver, path);
    syncFile(path);
    syncFolder(dirname(path));
    passStep("restore:prepared");
    return { ...prepared, survey: surveyed };
  } catch (error) {
    throw explain(error, path);
  }
}

function checkpoint({ driver, path, waitMs }: { driver: DriverName; path: string; waitMs?: number }): void {
  using db = connect(driver, path, { busyTimeout: waitMs ?? 0, mustExist: true });
  db.prepare(`pragma wal_checkpoint(${waitMs === undefined ? "passive" : "truncate"})`).row();
}

export type ToMain = { progress: Parameters<OnProgress>[0] } | { answer: unknown } | { failure: ReturnType<typeof fromThrown> };

export function runTask<Name extends TaskName>(
  task: Name,
  input: Input<Name>,
  onProgress: OnProgress = () => {},
): Promise<Answer<Name>> {
  return new Promise((resolve, reject) => {
    const { code, options } = ownThread({ here: import.meta.url, name: "./thread", runs: `the thread for "${task}"` });
    const thread = new Worker(code, { workerData: { task, input }, ...options });
    thread.on("message", (message: ToMain) => {
      if ("progress" in message) onProgress(message.progress);
      else if ("answer" in message) resolve(message.answer as Answer<Name>);
      else reject(toThrown(message.failure));
    });
    thread.on("error", reject);
    thread.on("exit", () => reject(new Error(`the thread for "${task}" ended without an answer`)));
  });
}

/** The class of an error does not survive the way to another thread. */
export function fromThrown(thrown: unknown): { code: string | null; message: string; hint: string; stack: string } {
  const error = thrown instanceof Error ? thrown : new Error(String(thrown));
  const [code, hint] = error instanceof HoldfastError ? [error.code, error.hint] : [null, ""];
  return { code, message: error.message, hint, stack: error.stack ?? error.message };
}

export function toThrown({ code, message, hint, stack }: ReturnType<typeof fromThrown>): Error {
  const error = code === null ? new Error(message) : new HoldfastError(code, message, hint);
  error.stack = stack;
  return error;
}
