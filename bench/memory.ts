import { join } from "node:path";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { job, open } from "../src/index.ts";
import type { Figure } from "./measure.ts";
import { inScratch, payload } from "./scratch.ts";

/** The worker's heap, in the middle of a short and of a long queue. */
export async function memory(long: number): Promise<Figure[]> {
  const short = await heapWhileWorking(10_000);
  return [
    {
      what: `heap in the middle of ${long.toLocaleString("en")} jobs, against 10,000`,
      ours: await heapWhileWorking(long),
      limit: short,
      unit: "MB",
      target: { atMost: 1.25 },
    },
  ];
}

async function heapWhileWorking(jobs: number): Promise<number> {
  return inScratch(async (folder) => {
    const hf = await open(join(folder, "work.db"), { durability: "process" });
    let ran = 0;
    const { promise: halfDone, resolve: half } = Promise.withResolvers<void>();
    const noop = job<{ url: string; i: number }, void>({
      name: "noop",
      run: async () => {
        if (++ran === Math.floor(jobs / 2)) half();
      },
    });
    for (let i = 0; i < jobs; i += 1_000) {
      await hf.enqueueMany(
        noop,
        Array.from({ length: 1_000 }, (_, k) => payload(i + k)),
      );
    }
    const worker = hf.work([noop]);
    await halfDone;
    const used = heap();
    await worker.stop();
    await hf.close();
    return used;
  });
}

function heap(): number {
  setFlagsFromString("--expose-gc");
  (runInNewContext("gc") as () => void)();
  return process.memoryUsage().heapUsed / 1024 / 1024;
}
