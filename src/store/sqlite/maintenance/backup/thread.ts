import { parentPort, workerData } from "node:worker_threads";
import type { OnProgress } from "../../../backups.ts";
import { fromThrown, type TaskName, TASKS, type ToMain } from "./tasks.ts";

/** Runs one task of those that take long, and says how far it is. */
const port = parentPort as NonNullable<typeof parentPort>;
const { task, input } = workerData as { task: TaskName; input: never };
const say = (message: ToMain) => port.postMessage(message);

let told = 0;
const onProgress: OnProgress = (progress) => {
  const now = performance.now();
  if (now - told < 100) return;
  told = now;
  say({ progress });
};

// The build makes a script of this module, which cannot await outside of a function.
void run();

async function run(): Promise<void> {
  try {
    say({ answer: await TASKS[task](input, onProgress) });
  } catch (error) {
    say({ failure: fromThrown(error) });
  }
}
