import { parentPort, workerData } from "node:worker_threads";
import type { OnProgress } from "../../../backups.ts";
import { fromThrown, type TaskName, TASKS, type ToMain } from "./tasks.ts";

const port = parentPort as NonNullable<typeof parentPort>;
const { task, input } = workerData as { task: TaskName; input: never };
const send = (message: ToMain) => port.postMessage(message);

let sentAt = 0;
const onProgress: OnProgress = (progress) => {
  const now = performance.now();
  if (now - sentAt < 100) return;
  sentAt = now;
  send({ progress });
};

// The build makes a script of this module, where `await` is not possible outside of a function.
void run();

async function run(): Promise<void> {
  try {
    send({ answer: await TASKS[task](input, onProgress) });
  } catch (error) {
    send({ failure: fromThrown(error) });
  }
}
