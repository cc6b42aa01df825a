import { open } from "../../../src/index.ts";
import { crashAt } from "../../../src/testing/index.ts";
import { after, workJob } from "../jobs.ts";
import { hear, say, told } from "./port.ts";

/** Works until it is killed, and says what it starts. */
const { path, effects, concurrency } = told<{ concurrency: number }>();
const work = workJob(effects, {}, () => void say("started"));
hear("arm", ({ point }) => crashAt(point as string));

const hf = await open(path);
hf.work([work, after], { concurrency });
await say("ready");
