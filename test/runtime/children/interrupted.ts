import { open } from "../../../src/index.ts";
import { crashAt } from "../../../src/testing/index.ts";
import { chained, DEFINITIONS, endless } from "./tasks.ts";

/** A process that is in the middle of its work: it says so, and then waits to be killed, or kills itself at a point. */
const [, , path, point] = process.argv as [string, string, string, string | undefined];
const hf = await open(path);
if (point === undefined) {
  let held = 0;
  hf.work(DEFINITIONS.map((def) => endless(def, () => ++held === DEFINITIONS.length && process.stdout.write("held\n"))));
} else {
  crashAt(point);
  hf.work([chained]);
}
