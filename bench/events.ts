import { join } from "node:path";
import { job, open } from "../src/index.ts";
import type { Durability } from "../src/store/store.ts";
import { type Figure, rate } from "./measure.ts";
import { inScratch, payload } from "./scratch.ts";

const JOBS = 20_000;
/** Set after it was measured (0.37 to 0.54): it says that it got worse. */
const BOUND = 0.3;

interface Rates {
  enqueue: number;
  drain: number;
}

/** What a queue pays that tells of its jobs, `events: true`: three events a job, each in the commit that it tells of. */
export async function events(rounds: number): Promise<Figure[]> {
  const figures: Figure[] = [];
  for (const durability of ["power", "process"] as const) {
    const best = { enqueue: { ours: 0, limit: 0 }, drain: { ours: 0, limit: 0 } };
    for (let round = 0; round < rounds; round++) {
      const silent = await measure(durability, false);
      const telling = await measure(durability, true);
      for (const what of ["enqueue", "drain"] as const) {
        best[what].limit = Math.max(best[what].limit, silent[what]);
        best[what].ours = Math.max(best[what].ours, telling[what]);
      }
    }
    const unit = "jobs/s";
    figures.push(
      { what: "enqueue, 1,000 at once, with events", durability, ...best.enqueue, unit, target: { atLeast: BOUND } },
      { what: "drain of no-op jobs, with events", durability, ...best.drain, unit, target: { atLeast: BOUND } },
    );
  }
  return figures;
}

async function measure(durability: Durability, tells: boolean): Promise<Rates> {
  return inScratch(async (folder) => {
    const hf = await open(join(folder, "work.db"), { durability });
    const noop = job<ReturnType<typeof payload>, void>({
      name: "noop",
      queue: { name: "noop", events: tells },
      run: async () => {},
    });
    // The queue's own word is written with the first.
    await hf.enqueue(noop, payload(0));
    let start = performance.now();
    for (let i = 0; i < JOBS; i += 1_000) {
      await hf.enqueueMany(
        noop,
        Array.from({ length: 1_000 }, (_, k) => payload(i + k)),
      );
    }
    const enqueue = rate(JOBS, start);
    start = performance.now();
    const worker = hf.work([noop]);
    await hf.jobs.wait(await hf.enqueue(noop, payload(0), { priority: -1 }));
    const drain = rate(JOBS, start);
    await worker.stop();
    await hf.close();
    return { enqueue, drain };
  });
}
