import type * as Holdfast from "../../src/index.ts";
import { payload } from "../scratch.ts";
import { peer, type Player } from "./player.ts";

const BATCH = 1_000;
type Payload = ReturnType<typeof payload>;

/** At the default settings, from a build like the one that users install. */
export async function open(place: string): Promise<Player> {
  const built = process.env["HOLDFAST_BUILT"] as string;
  const { job, items, open: openHoldfast, pipeline } = await peer<typeof Holdfast>(built);
  const hf = await openHoldfast(place);
  const noop = (run: (i: number) => void) => job<Payload>({ name: "noop", run: ({ input }) => run(input.i) });
  const plain = noop(() => {});
  return {
    fill: async (jobs) => {
      for (let from = 0; from < jobs; from += BATCH)
        await hf.enqueueMany(
          plain,
          Array.from({ length: Math.min(BATCH, jobs - from) }, (_, k) => payload(from + k)),
        );
    },
    enqueue: (i) => hf.enqueue(plain, payload(i)),
    work: async (onRun) => void hf.work([noop(onRun)]),
    left: async () => {
      const { pending, running } = await hf.jobs.counts();
      return pending + running;
    },
    pipeline: async (targets, onStep) => {
      const docs = pipeline("docs")
        .source(items(() => Array.from({ length: targets }, (_, i) => payload(i)), { id: ({ i }) => `t${i}` }))
        .stage("parse", {}, async ({ input }) => (onStep(), { size: input.url.length }))
        .stage("count", {}, async ({ input }) => (onStep(), { count: input.size }))
        .stage("index", {}, async ({ input }) => (onStep(), { indexed: input.count }));
      const handle = await hf.builds.start(docs);
      const { state, reason } = await handle.done();
      if (state !== "SUCCESS") throw new Error(`the build is ${state}: ${reason}`);
    },
    close: () => hf.close(),
  };
}
