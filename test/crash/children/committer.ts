import { appendFileSync } from "node:fs";
import { open } from "../../../src/index.ts";
import { crashAt } from "../../../src/testing/index.ts";
import { after, committingJob } from "../jobs.ts";
import { say, told } from "./port.ts";

/** Works on one job that commits a row of the user's own, and dies at a point, or inside the callback. */
const { path, effects, acks, dies } = told<{ dies: string }>();
const work = committingJob(effects, () => {
  if (dies === "inside the callback") process.kill(process.pid, "SIGKILL");
});
const hf = await open(path);
const { id } = await hf.enqueue(work, {});
appendFileSync(acks, `${id}\n`);
if (dies.startsWith("settle:")) crashAt(dies);
hf.work([work, after]);
await hf.jobs.wait(id);
await say("survived");
