import { open } from "../../../src/index.ts";
import { crashAt } from "../../../src/testing/index.ts";
import { limitedJob } from "../jobs.ts";
import { hear, say, told } from "./port.ts";

/** Works on limited jobs until it is killed, or told to stop. */
const { path, effects, concurrency } = told<{ concurrency: number }>();
hear("arm", ({ point }) => crashAt(point as string));

const hf = await open(path);
const worker = hf.work([limitedJob(effects, () => void say("started"))], { concurrency });
hear("stop", async () => {
  await worker.stop();
  await hf.close();
  await say("over");
  process.disconnect();
});
await say("ready");
