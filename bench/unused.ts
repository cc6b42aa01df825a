import { join } from "node:path";
import { type Holdfast, job, open } from "../src/index.ts";
import { type Figure, rate } from "./measure.ts";
import { inScratch, payload } from "./scratch.ts";

const JOBS = 50_000;

interface Input {
  url: string;
  i: number;
}

/** What limits, schedules, retention and events cost a queue that uses none of them: its drain beside queues that use them all. */
export async function unused(rounds: number): Promise<Figure[]> {
  const best = { ours: 0, limit: 0 };
  for (let round = 0; round < rounds; round++) {
    best.limit = Math.max(best.limit, await drain(async () => {}));
    best.ours = Math.max(best.ours, await drain(useEverything));
  }
  return [
    {
      what: "drain beside queues with limits, schedules, …",
      ...best,
      unit: "jobs/s",
      durability: "process",
      target: { atLeast: 0.97 },
    },
  ];
}

async function useEverything(hf: Holdfast): Promise<void> {
  const queue = { name: "busy", events: true, keep: { succeeded: "1d" }, limit: { rate: "1000/s" } } as const;
  const limited = job<Input, void>({
    name: "limited",
    queue,
    limit: { key: ({ i }) => String(i % 10), concurrency: 1 },
    run: () => {},
  });
  const { id } = await hf.enqueue(limited, payload(0), { delay: "1h" });
  await hf.enqueueMany(
    limited,
    Array.from({ length: 100 }, (_, i) => payload(i)),
    { after: [id] },
  );
  await hf.schedule(limited, { cron: "@daily", input: payload(1) });
}

async function drain(prepare: (hf: Holdfast) => Promise<void>): Promise<number> {
  return inScratch(async (folder) => {
    const hf = await open(join(folder, "work.db"), { durability: "process" });
    await prepare(hf);
    const noop = job<Input, void>({ name: "noop", run: async () => {} });
    for (let i = 0; i < JOBS; i += 1_000) {
      await hf.enqueueMany(
        noop,
        Array.from({ length: 1_000 }, (_, k) => payload(i + k)),
      );
    }
    const start = performance.now();
    const worker = hf.work([noop]);
    await hf.jobs.wait(await hf.enqueue(noop, payload(0), { priority: -1 }));
    const drained = rate(JOBS, start);
    await worker.stop();
    await hf.close();
    return drained;
  });
}
