import { setTimeout as pause } from "node:timers/promises";
import { job, type JobDef, open } from "../src/index.ts";
import { systemClock } from "../src/engine/host.ts";
import { locate, openStore } from "../src/store/open-store.ts";
import { type Figure, kernelTime, median } from "./measure.ts";

const FEW = 10;
const JOBS = 10_000;
const CLAIMS = 1_000;
const PINGS = 300;

type Fresh = <T>(run: (where: string) => Promise<T>) => Promise<T>;

/** A claim must not cost more because a worker has more definitions, each with a queue of its own. */
export async function definitions(fresh: Fresh, many: number): Promise<Figure[]> {
  const beside = `of ${many.toLocaleString("en")} definitions, against ${FEW}`;
  const compare = async (what: string, measure: (where: string, count: number) => Promise<number>): Promise<Figure> => {
    const limit = await fresh((where) => measure(where, FEW));
    const ours = await fresh((where) => measure(where, many));
    return { what: `${what} ${beside}`, ours, limit, unit: "µs", target: { atMost: 2 } };
  };
  return [await compare("claim", claim), await compare("idle pick-up", pickUp), await compare("drained job", drain)];
}

/** A claim of one job, with its commit, while every queue has some; the median in microseconds. */
async function claim(where: string, count: number): Promise<number> {
  const { defs, fill } = make(count, () => {});
  await using hf = await open(where, { durability: "process" });
  await fill(hf);
  const store = await openStore(locate(where, { durability: "process" }), { clock: systemClock, injected: false });
  const from = defs.map(({ name }) => ({ name, lease: 30_000 }));
  const times: number[] = [];
  for (let i = 0; i < CLAIMS; i++) {
    const start = kernelTime();
    const [{ job: key, fence } = { job: null, fence: null }] = await store.claim({ from, max: 1, holder: null, worker: "bench" });
    times.push((kernelTime() - start) * 1_000);
    if (key !== null) await store.settle([{ job: key, fence, outcome: { kind: "succeeded", output: null } }]);
  }
  await store.close();
  return median(times);
}

/** From the call of an enqueue to the handler's start, on a worker of this process with nothing else to do. */
async function pickUp(where: string, count: number): Promise<number> {
  let left = JOBS;
  let started: (() => void) | undefined;
  const nextStart = () => new Promise<void>((resolve) => (started = resolve));
  const { defs, fill } = make(count, () => --left <= 0 && started?.());
  await using hf = await open(where, { durability: "process" });
  const drained = nextStart();
  await fill(hf);
  hf.work(defs);
  await drained;
  const times: number[] = [];
  for (let i = 0; i < PINGS; i++) {
    // The worker settles the job before, finds nothing more, and rests.
    await pause(20);
    const start = nextStart();
    const called = kernelTime();
    await hf.enqueue(defs[(i * 7) % count] as JobDef<number, unknown>, i);
    await start;
    times.push((kernelTime() - called) * 1_000);
  }
  return median(times);
}

/** Jobs of few of the queues, by a worker with all definitions, from the first start on; microseconds for each. */
async function drain(where: string, count: number): Promise<number> {
  let left = 0;
  let start: number | null = null;
  let done: (() => void) | undefined;
  const { defs, fill } = make(count, () => {
    start ??= kernelTime();
    if (--left === 0) done?.();
  });
  await using hf = await open(where, { durability: "process" });
  const run = async (jobs: number, queues: number): Promise<number> => {
    await fill(hf, jobs, queues);
    [left, start] = [jobs, null];
    const all = new Promise<void>((resolve) => (done = resolve));
    const worker = hf.work(defs);
    await all;
    const time = kernelTime() - ((start as number | null) ?? 0);
    await worker.stop();
    return time;
  };
  // Every queue has had a job before.
  await run(count, count);
  return ((await run(JOBS, FEW)) * 1_000) / JOBS;
}

function make(count: number, run: () => void) {
  const defs = Array.from({ length: count }, (_, i) => job<number, unknown>({ name: `job ${i}`, run }));
  /** So many jobs, in turn to each of the first `queues` queues. */
  const fill = async (hf: Awaited<ReturnType<typeof open>>, jobs = JOBS, queues = count) => {
    for (let i = 0; i < jobs; i += 1_000) {
      const batch = Array.from(
        { length: Math.min(1_000, jobs - i) },
        (_, k) => defs[(i + k) % queues] as JobDef<number, unknown>,
      );
      await Promise.all(batch.map((def, k) => hf.enqueue(def, i + k)));
    }
  };
  return { defs, fill };
}
