import { job, open as openHoldfast } from "../../src/index.ts";
import type { Contender, Payload, Purpose } from "./contender.ts";

const noop = (run: (input: Payload) => void) => job<Payload>({ name: "noop", run: ({ input }) => run(input) });

/** At the default settings, for every purpose. */
export async function open(url: string, _purpose: Purpose): Promise<Contender> {
  const hf = await openHoldfast(url);
  const plain = noop(() => {});

  return {
    bulk: { batch: 1_000, atOnce: 4 },
    enqueue: (input) => hf.enqueue(plain, input),
    enqueueMany: (inputs) => hf.enqueueMany(plain, inputs),
    drain: async (jobs) => {
      let ran = 0;
      const all = Promise.withResolvers<void>();
      const worker = hf.work([noop(() => void (++ran === jobs && all.resolve()))]);
      await all.promise;
      await worker.stop();
      const { succeeded } = await hf.jobs.counts();
      if (succeeded !== jobs) throw new Error(`${succeeded} jobs have succeeded, of ${jobs}.`);
    },
    listen: async (onStart) => void hf.work([noop(({ i }) => onStart(i))]),
    left: async () => {
      const { pending, running } = await hf.jobs.counts();
      return pending + running;
    },
    close: () => hf.close(),
  };
}
