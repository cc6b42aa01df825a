import { open } from "../../src/index.ts";
import { crawl } from "./jobs.ts";

const hf = await open(process.argv[2]);
hf.work([crawl], { concurrency: 16, signals: true });
process.once("disconnect", () => void hf.close()); // it does not outlive the example
