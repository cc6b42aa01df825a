import { fork } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import type { Figure } from "./measure.ts";
import { inScratch } from "./scratch.ts";

/** What a worker with nothing to do costs, of one core. */
export async function idle(): Promise<Figure[]> {
  const share = await inScratch(async (folder) => {
    const child = fork(new URL("./idle-worker.ts", import.meta.url), [join(folder, "work.db")]);
    const [used] = (await once(child, "message")) as [number];
    await once(child, "exit");
    return used;
  });
  return [{ what: "an idle worker's share of a core", ours: share * 100, limit: 0.3, unit: "%", target: { atMost: 1 } }];
}
