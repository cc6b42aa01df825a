import { appendFileSync, readFileSync } from "node:fs";
import { isMainThread } from "node:worker_threads";

/*
 * For the process of each test file, while `times.ts` measures: at its end it adds to this file what it has taken of the
 * processors, with all the processes that it started and waited for.
 */
const file = process.env["HOLDFAST_TEST_CPU"];
const isTest = isMainThread && process.env["NODE_TEST_CONTEXT"] !== undefined && process.argv[1]?.endsWith(".test.ts");

if (file !== undefined && isTest && process.platform === "linux") {
  process.once("exit", () => appendFileSync(file, `${JSON.stringify([process.argv[1], taken()])}\n`));
}

/** Milliseconds: the system counts them in hundredths of a second. */
function taken(): number {
  // The program's name, in brackets, may hold anything.
  const fields = readFileSync("/proc/self/stat", "utf8").split(") ").at(-1)?.split(" ") ?? [];
  const times = fields.slice(11, 15).map(Number);
  return times.reduce((sum, one) => sum + one, 0) * 10;
}
