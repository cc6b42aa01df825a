import { join } from "node:path";
import { type Holdfast, job, type JobDef, open } from "../src/index.ts";
import { type Figure, median, rate } from "./measure.ts";
import { inScratch, payload } from "./scratch.ts";

type Input = ReturnType<typeof payload> & { key: string };

const KEYS = 1_000;

/** One key with a great many waiting must not slow the others, and counting keys must not halve the rate. */
export async function limits(many: number, rounds: number): Promise<Figure[]> {
  const alone = await inScratch((folder) => claimBeside(join(folder, "alone.db"), 0));
  const beside = await inScratch((folder) => claimBeside(join(folder, "beside.db"), many));
  let [without, within] = [0, 0];
  for (let round = 0; round < rounds; round++) {
    without = Math.max(without, await inScratch((folder) => drain(join(folder, "without.db"), definition({}))));
    within = Math.max(within, await inScratch((folder) => drain(join(folder, "within.db"), definition(limitOf(2)))));
  }
  return [
    {
      what: `claim beside ${many.toLocaleString("en")} parked of one key`,
      ours: beside,
      limit: alone,
      unit: "µs",
      target: { atMost: 1.5 },
    },
    {
      what: `drain, limited over ${KEYS.toLocaleString("en")} keys, against without`,
      ours: within,
      limit: without,
      unit: "jobs/s",
      target: { atLeast: 0.5 },
    },
  ];
}

function limitOf(concurrency: number): Pick<Parameters<typeof job<Input, void>>[0], "limit"> {
  return { limit: { key: ({ key }) => key, concurrency } };
}

function definition(options: ReturnType<typeof limitOf> | object): JobDef<Input, void> {
  return job<Input, void>({ name: "limited", run: async () => {}, ...options });
}

/** Microseconds for one claim of another key, with its commit, while the slots of the great one are taken. */
async function claimBeside(path: string, parked: number): Promise<number> {
  const hf = await open(path, { durability: "process" });
  const def = definition(limitOf(2));
  await fill(hf, def, parked + 2, () => "great");
  const held = [await hf.claim(def, { worker: "bench" }), await hf.claim(def, { worker: "bench" })];
  await fill(hf, def, 1_000, (i) => `small-${i}`);
  const times: number[] = [];
  for (let i = 0; i < 1_000; i++) {
    const start = performance.now();
    const claim = await hf.claim(def, { worker: "bench" });
    times.push((performance.now() - start) * 1_000);
    await claim?.release();
  }
  for (const claim of held) await claim?.release();
  await hf.close();
  return median(times);
}

/** Jobs a second, over many keys. */
async function drain(path: string, def: JobDef<Input, void>): Promise<number> {
  const jobs = 50_000;
  const hf = await open(path, { durability: "process" });
  await fill(hf, def, jobs, (i) => `key-${i % KEYS}`);
  const start = performance.now();
  const worker = hf.work([def]);
  await hf.jobs.wait(await hf.enqueue(def, { ...payload(0), key: "last" }, { priority: -1 }));
  // Some may have waited behind the last of their key.
  for (const state of ["pending", "running"] as const) {
    for (const { id } of (await hf.jobs.list({ state, limit: 1_000 })).items) await hf.jobs.wait(id);
  }
  const perSecond = rate(jobs, start);
  await worker.stop();
  await hf.close();
  return perSecond;
}

async function fill(hf: Holdfast, def: JobDef<Input, void>, jobs: number, keyOf: (i: number) => string): Promise<void> {
  for (let i = 0; i < jobs; i += 1_000) {
    const inputs = Array.from({ length: Math.min(1_000, jobs - i) }, (_, k) => ({ ...payload(i + k), key: keyOf(i + k) }));
    await hf.enqueueMany(def, inputs);
  }
}
