import { job, open } from "../src/index.ts";
import { kernelTime } from "./measure.ts";

const hf = await open(process.argv[2]);
const ping = job<null>({ name: "ping", run: () => void process.send?.(kernelTime()) });
hf.work([ping], { signals: true });
process.send?.("ready");
