import { join } from "node:path";
import { type Holdfast, job, open } from "../src/index.ts";
import { type Figure, median } from "./measure.ts";
import { inScratch, payload } from "./scratch.ts";

const noop = job<{ url: string; i: number }, void>({ name: "noop", run: () => {} });

/** A claim must not cost more because there is more to claim, or because more was done before. */
export async function claimCost(many: number): Promise<Figure[]> {
  const few = await inScratch(async (folder) => {
    const hf = await open(join(folder, "few.db"), { durability: "process" });
    await fill(hf, 1_000);
    const cost = await measure(hf);
    await hf.close();
    return cost;
  });
  const { pending, finished } = await inScratch(async (folder) => {
    const hf = await open(join(folder, "many.db"), { durability: "process" });
    await fill(hf, many);
    const atPending = await measure(hf);
    const worker = hf.work([noop]);
    await hf.jobs.wait(await hf.enqueue(noop, payload(0), { priority: -1 }));
    await worker.stop();
    await fill(hf, 1_000);
    const atFinished = await measure(hf);
    await hf.close();
    return { pending: atPending, finished: atFinished };
  });
  const unit = "µs";
  const target = { atMost: 1.5 };
  return [
    { what: `claim beside ${many.toLocaleString("en")} pending, against 1,000`, ours: pending, limit: few, unit, target },
    { what: `claim beside ${many.toLocaleString("en")} finished, against 1,000`, ours: finished, limit: few, unit, target },
  ];
}

async function fill(hf: Holdfast, jobs: number): Promise<void> {
  for (let i = 0; i < jobs; i += 1_000) {
    await hf.enqueueMany(
      noop,
      Array.from({ length: 1_000 }, (_, k) => payload(i + k)),
    );
  }
}

/** Microseconds for one claim of one job with its commit; it is given back each time. */
async function measure(hf: Holdfast): Promise<number> {
  const times: number[] = [];
  for (let i = 0; i < 1_000; i++) {
    const start = performance.now();
    const claim = await hf.claim(noop, { worker: "bench" });
    times.push((performance.now() - start) * 1_000);
    await claim?.release();
  }
  return median(times);
}
