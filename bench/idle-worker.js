import { setTimeout as pause } from "node:timers/promises";
import { job, open } from "holdfast";

/** The compiler and the garbage collector still work on the start for a few seconds; an idle worker runs for hours. */
const SETTLES_MS = 5_000;
const MEASURED_MS = 60_000;

const hf = await open(process.argv[2]);
const worker = hf.work([job({ name: "nothing", run: () => {} })]);
await pause(SETTLES_MS);
const before = process.cpuUsage();
const start = performance.now();
await pause(MEASURED_MS);
const used = process.cpuUsage(before);
process.send?.({
  share: (used.user + used.system) / 1_000 / (performance.now() - start),
  rss: process.memoryUsage.rss(),
});
await worker.stop();
await hf.close();
process.disconnect?.();
