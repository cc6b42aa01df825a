import { join } from "node:path";
import { job, open } from "../src/index.ts";
import type { Durability } from "../src/store/store.ts";
import { type Figure, rate } from "./measure.ts";
import { Raw } from "./raw.ts";
import { inScratch, payload } from "./scratch.ts";

/** Enqueueing in bulk, draining no-op jobs, enqueueing one by one: each against the same done with bare statements. */
export async function throughput(durability: Durability, rounds: number): Promise<Figure[]> {
  const jobs = 50_000;
  const singles = durability === "power" ? 4_000 : 10_000;
  const best = { bulk: { ours: 0, limit: 0 }, drain: { ours: 0, limit: 0 }, single: { ours: 0, limit: 0 } };
  for (let round = 0; round < rounds; round++) {
    const limit = await inScratch((folder) => raw(join(folder, "raw.db"), durability, jobs, singles));
    const ours = await inScratch((folder) => holdfast(join(folder, "work.db"), durability, jobs, singles));
    for (const what of ["bulk", "drain", "single"] as const) {
      best[what].limit = Math.max(best[what].limit, limit[what]);
      best[what].ours = Math.max(best[what].ours, ours[what]);
    }
  }
  const unit = "jobs/s";
  return [
    { what: "enqueue, 1,000 at once", durability, ...best.bulk, unit, target: { atLeast: 0.6 } },
    { what: "drain of no-op jobs", durability, ...best.drain, unit, target: { atLeast: 0.5 } },
    { what: "enqueue, one by one", durability, ...best.single, unit, target: { atLeast: 0.8 } },
  ];
}

interface Rates {
  bulk: number;
  drain: number;
  single: number;
}

async function raw(path: string, durability: Durability, jobs: number, singles: number): Promise<Rates> {
  const limit = new Raw(path, durability);
  const single = limit.insert(singles, 1);
  limit.drain(100);
  const bulk = limit.insert(jobs, 1_000);
  const drain = limit.drain(100);
  limit.close();
  return { bulk, drain, single };
}

async function holdfast(path: string, durability: Durability, jobs: number, singles: number): Promise<Rates> {
  const hf = await open(path, { durability });
  const noop = job<{ url: string; i: number }, void>({ name: "noop", run: async () => {} });
  const drained = async (): Promise<void> => {
    const worker = hf.work([noop]);
    const end = await hf.enqueue(noop, payload(0), { priority: -1 });
    await hf.jobs.wait(end);
    await worker.stop();
  };

  let start = performance.now();
  for (let i = 0; i < singles; i++) await hf.enqueue(noop, payload(i));
  const single = rate(singles, start);
  await drained();

  start = performance.now();
  for (let i = 0; i < jobs; i += 1_000) {
    await hf.enqueueMany(
      noop,
      Array.from({ length: 1_000 }, (_, k) => payload(i + k)),
    );
  }
  const bulk = rate(jobs, start);

  start = performance.now();
  await drained();
  const drain = rate(jobs, start);
  await hf.close();
  return { bulk, drain, single };
}
