import { open } from "../../../src/index.ts";
import { crashAt } from "../../../src/testing/index.ts";
import { after, workJob } from "../jobs.ts";
import { hear, say, told } from "./port.ts";

/** A program as one would deploy it many times: it says its schedule at every start, and works. Until it is killed. */
const { path, effects } = told();
const work = workJob(effects);
hear("arm", ({ point }) => crashAt(point as string));

const hf = await open(path);
await hf.schedule(work, { cron: "* * * * * *", input: {}, missed: "all", within: "1h" });
hf.work([work, after], { concurrency: 4 });
await say("ready");
