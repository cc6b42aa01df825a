import { parentPort, workerData } from "node:worker_threads";
import { fromThrown, TASKS, type TaskName, type ToMain } from "./tasks.ts";

/** Runs one task of those that take long, and says how far it is. */
const port = parentPort as NonNullable<typeof parentPort>;
const { task, input } = workerData as { task: TaskName; input: never };
const say = (message: ToMain) => port.postMessage(message);

let told = 0;
try {
  const answer = await TASKS[task](input, (progress) => {
    const now = performance.now();
    if (now - told < 100) return;
    told = now;
    say({ progress });
  });
  say({ answer });
} catch (error) {
  say({ failure: fromThrown(error) });
}
