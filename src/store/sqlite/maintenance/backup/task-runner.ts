import { isMainThread, parentPort, workerData } from "node:worker_threads";
import { HoldfastError } from "../../../../core/text/errors.ts";
import type { OnProgress } from "../../../backups.ts";
import { connect, type DriverName } from "../../driver.ts";
import { checkCopy, checkFile } from "../damage/check.ts";
import { cutPower } from "../power-cut.ts";
import { identify, salvageInto } from "../salvage/rebuild.ts";
import { copyTo, inspect } from "./copy.ts";
import { restoreTo } from "./restore.ts";

const TASKS = {
  copy: copyTo,
  inspect,
  restore: restoreTo,
  check: checkFile,
  checkCopy,
  checkpoint,
  identify,
  salvage: salvageInto,
  cutPower,
};
export type Tasks = typeof TASKS;

interface Request {
  task: keyof Tasks;
  input: never;
}

/** An error on its way to another thread, which its class would not survive. */
export interface Thrown {
  code: string | null;
  message: string;
  hint: string;
  stack: string;
}

export type FromTask = { progress: Parameters<OnProgress>[0] } | { answer: unknown } | { failure: Thrown };

const PROGRESS_INTERVAL_MS = 100;

async function run({ task, input }: Request, onProgress: OnProgress): Promise<FromTask> {
  try {
    return { answer: await TASKS[task](input, onProgress) };
  } catch (thrown) {
    const error = thrown instanceof Error ? thrown : new Error(String(thrown));
    const [code, hint] = error instanceof HoldfastError ? [error.code, error.hint] : [null, ""];
    return { failure: { code, message: error.message, hint, stack: error.stack ?? error.message } };
  }
}

function checkpoint({ driver, path, waitMs }: { driver: DriverName; path: string; waitMs?: number }): void {
  using db = connect(driver, path, { busyTimeout: waitMs ?? 0, mustExist: true });
  db.prepare(`pragma wal_checkpoint(${waitMs === undefined ? "passive" : "truncate"})`).row();
}

if (isMainThread) {
  process.once("message", (request: Request) => {
    process.once("disconnect", () => process.exit());
    void run(request, () => {}).then((answer) => process.send?.(answer, () => process.disconnect()));
  });
} else {
  let sentAt = 0;
  const onProgress: OnProgress = (progress) => {
    const now = performance.now();
    if (now - sentAt < PROGRESS_INTERVAL_MS) return;
    sentAt = now;
    parentPort?.postMessage({ progress } satisfies FromTask);
  };
  void run(workerData as Request, onProgress).then((answer) => parentPort?.postMessage(answer));
}
