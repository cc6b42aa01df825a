import { join } from "node:path";
import { job, open } from "../src/index.ts";
import type { Figure } from "./measure.ts";
import { inScratch, payload } from "./scratch.ts";

const LEASES = 100_000;

/** Taking back a hundred thousand expired leases at once. */
export async function reclaim(): Promise<Figure[]> {
  const seconds = await inScratch(async (folder) => {
    const hf = await open(join(folder, "work.db"));
    const noop = job<{ url: string; i: number }, void>({ name: "noop", run: () => {} });
    for (let i = 0; i < LEASES; i += 1_000) {
      await hf.enqueueMany(
        noop,
        Array.from({ length: 1_000 }, (_, k) => payload(i + k)),
      );
    }
    for (let i = 0; i < LEASES; i += 1_000) {
      await hf.engine.store.claim({ from: [{ queue: "noop", lease: 1 }], max: 1_000, holder: null, worker: "gone" });
    }
    const start = performance.now();
    const { entriesReclaimed } = await hf.recovery.recoverStale();
    const took = (performance.now() - start) / 1_000;
    if (entriesReclaimed !== LEASES) throw new Error(`${entriesReclaimed} leases were taken back, not ${LEASES}`);
    await hf.close();
    return took;
  });
  return [{ what: "100,000 expired leases taken back", ours: seconds, limit: 1, unit: "s", target: { atMost: 1 } }];
}
