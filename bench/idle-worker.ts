import { setTimeout as pause } from "node:timers/promises";
import { job, open } from "../src/index.ts";

const hf = await open(process.argv[2]);
const worker = hf.work([job({ name: "nothing", run: () => {} })]);
await pause(1_000);
const before = process.cpuUsage();
const start = performance.now();
await pause(5_000);
const used = process.cpuUsage(before);
process.send?.((used.user + used.system) / 1_000 / (performance.now() - start));
await worker.stop();
await hf.close();
process.disconnect?.();
