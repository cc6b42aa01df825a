import { fork } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { job, open } from "../src/index.ts";
import { type Figure, kernelTime, median } from "./measure.ts";
import { inScratch } from "./scratch.ts";

export const ping = job<null, number>({ name: "ping", run: () => kernelTime() });

/** From the enqueue's acknowledgement to the handler's start. */
export async function latency(): Promise<Figure[]> {
  const unit = "ms";
  return [
    { what: "pick-up in the same process, p50", ours: await here(), limit: 0.5, unit, target: { atMost: 1 } },
    { what: "pick-up in another process, p50", ours: await elsewhere(), limit: 5, unit, target: { atMost: 1 } },
  ];
}

async function here(): Promise<number> {
  return inScratch(async (folder) => {
    const hf = await open(join(folder, "work.db"));
    hf.work([ping]);
    const times = await pings(hf);
    await hf.close();
    return times;
  });
}

async function elsewhere(): Promise<number> {
  return inScratch(async (folder) => {
    const path = join(folder, "work.db");
    const hf = await open(path);
    const child = fork(new URL("./latency-worker.ts", import.meta.url), [path]);
    await once(child, "message");
    const times = await pings(hf);
    child.kill("SIGTERM");
    await once(child, "exit");
    await hf.close();
    return times;
  });
}

async function pings(hf: Awaited<ReturnType<typeof open>>): Promise<number> {
  const times: number[] = [];
  for (let i = 0; i < 300; i++) {
    // So that the worker is asleep again.
    await pause(5);
    const accepted = await hf.enqueue(ping, null);
    const acknowledged = kernelTime();
    const done = await hf.jobs.wait(accepted);
    if (done.state === "succeeded") times.push(Math.max(0, done.output - acknowledged));
  }
  return median(times);
}
