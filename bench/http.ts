import { spawn } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { job, open } from "../src/index.ts";
import { serve } from "../src/server/serve.ts";
import { type Figure, rate } from "./measure.ts";
import { inScratch } from "./scratch.ts";

const WORKER = fileURLToPath(new URL("../examples/python-worker/worker.py", import.meta.url));
const JOBS = 3_000;
const GOAL = 300;

/** Jobs that one worker in Python runs over HTTP: two requests and two durable commits each. */
export async function http(): Promise<Figure[]> {
  const ours = await inScratch(async (folder) => {
    const shout = job<{ text: string }>({ name: "shout", run: () => null });
    await using hf = await open(join(folder, "work.db"));
    await hf.enqueueMany(
      shout,
      Array.from({ length: JOBS }, () => ({ text: "a" })),
    );
    const token = "a-token-for-the-bench";
    await using serving = await serve(hf, { token });
    const env = { ...process.env, HOLDFAST_URL: serving.address, HOLDFAST_TOKEN: token };
    const start = performance.now();
    await once(spawn("python3", [WORKER, "shout", "--once"], { env, stdio: "ignore" }), "exit");
    const measured = rate(JOBS, start);
    const { succeeded } = await hf.jobs.counts();
    if (succeeded !== JOBS) throw new Error(`${succeeded} of ${JOBS} jobs succeeded`);
    return measured;
  });
  return [{ what: "jobs of a Python worker over HTTP", ours, limit: GOAL, unit: "jobs/s", target: { atLeast: 1 } }];
}
