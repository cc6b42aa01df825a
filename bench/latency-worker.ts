import { open } from "../src/index.ts";
import { ping } from "./latency.ts";

const hf = await open(process.argv[2]);
hf.work([ping], { signals: true });
process.send?.("ready");
