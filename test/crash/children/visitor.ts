import { appendFileSync } from "node:fs";
import { HoldfastError, open } from "../../../src/index.ts";
import { workJob } from "../jobs.ts";
import { say, told } from "./port.ts";

/** Opens the database, enqueues, writes down what was acknowledged, closes it; again and again. */
const { path, effects, acks } = told();
const work = workJob(effects);
for (let n = 0; ; n++) {
  const since = performance.now();
  try {
    await using hf = await open(path, { create: false });
    const { id } = await hf.enqueue(work, { n });
    appendFileSync(acks, `${id}\n`);
    void say("visited");
  } catch (error) {
    const { code } = error as HoldfastError;
    // For an instant nothing has the name.
    if (code !== "IN_USE" && code !== "NO_DATABASE" && code !== "DATABASE_GONE")
      await say("trouble", { error: String(error), code });
  }
  // For as long as it was there, about, it is not.
  const there = performance.now() - since;
  await new Promise((resume) => setTimeout(resume, 3 * Math.random() * there));
}
