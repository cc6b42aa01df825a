import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { job, open } from "../../../src/index.ts";

/** Two databases with a worker each; the second is in the middle of a job when the signal comes. */
const folder = process.argv[2] as string;
const idle = await open(join(folder, "idle.db"));
const busy = await open(join(folder, "busy.db"));
const slow = job({
  name: "slow",
  run: async () => {
    process.send?.("running");
    await pause(90);
    return "done";
  },
});
idle.work([slow], { signals: true });
busy.work([slow], { signals: true });
await busy.enqueue(slow, null, { id: "it" });
