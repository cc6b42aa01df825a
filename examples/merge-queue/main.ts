/**
 * A merge queue: three processes share one checkout, and the holder of the exclusive claim merges the next branch. One
 * of them is killed with SIGKILL in the middle of a merge; another one cleans up after it and continues.
 *
 *   node examples/merge-queue/main.ts [folder]
 */
import { type ChildProcess, fork } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { open } from "../../src/index.ts";
import { exampleFolder } from "../folder.ts";
import { merge } from "./jobs.ts";
import { trunkAt } from "./trunk.ts";

/** Branches, and the file that each of them writes. */
const BRANCHES = { search: "search.ts", login: "login.ts", rewrite: "price.ts", docs: "guide.md", fix: "price.ts" };
const VICTIM = "login";

using folder = exampleFolder("merge-queue");
const [database, checkout] = [join(folder.path, "queue.db"), join(folder.path, "checkout")];
const trunk = trunkAt(checkout);
trunk.create(BRANCHES);

await using hf = await open(database);
const jobs = [];
for (const branch of Object.keys(BRANCHES)) {
  // What is urgent goes first. Asked for twice while it waits, a branch is one job.
  jobs.push(await hf.enqueue(merge, { branch }, { key: branch, priority: branch === "fix" ? 1 : 0 }));
}

const workers = [start(), start(), start()];
for (const job of jobs) {
  const { input, state, error, attempt } = await hf.jobs.wait(job);
  const { branch } = input as { branch: string };
  console.log(`${branch}: ${error?.message ?? state}${attempt > 1 ? `, in attempt ${attempt}` : ""}`);
}
console.log(`main has: ${trunk.merged().join(", ")}`);

const ended = workers.filter(({ signalCode }) => signalCode === null).map((worker) => once(worker, "exit"));
for (const worker of workers) worker.kill("SIGTERM");
await Promise.all(ended);

function start(): ChildProcess {
  const worker = fork(new URL("./worker.ts", import.meta.url), [database, checkout]);
  worker.on("message", ({ testing, attempt }: { testing: string; attempt: number }) => {
    console.log(`worker ${worker.pid} tests ${testing}`);
    if (testing !== VICTIM || attempt > 1) return;
    worker.kill("SIGKILL");
    console.log(`worker ${worker.pid} is killed in the middle of it`);
  });
  return worker;
}
