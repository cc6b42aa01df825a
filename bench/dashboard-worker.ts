import { job, open } from "../src/index.ts";
import { rate } from "./measure.ts";
import { payload } from "./scratch.ts";

/** Drains as many jobs as each message says, and answers with the rate. */
const hf = await open(process.argv[2], { log: false });
const noop = job<{ url: string; i: number }>({ name: "drained", run: async () => {} });
process.on("message", (jobs: number) => void drain(jobs));
process.on("disconnect", () => void hf.close());
process.send?.("ready");

async function drain(jobs: number): Promise<void> {
  for (let i = 0; i < jobs; i += 1_000)
    await hf.enqueueMany(
      noop,
      Array.from({ length: 1_000 }, (_, k) => payload(i + k)),
    );
  const last = await hf.enqueue(noop, payload(jobs), { priority: -1 });
  const start = performance.now();
  const worker = hf.work([noop]);
  await hf.jobs.wait(last);
  process.send?.(rate(jobs, start));
  await worker.stop();
}
