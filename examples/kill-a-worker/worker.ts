import { open } from "../../src/index.ts";
import { index } from "./jobs.ts";

const hf = await open(process.argv[2]);
hf.work([index], { concurrency: 8, signals: true });
process.send?.("ready");
