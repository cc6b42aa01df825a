import { appendFileSync } from "node:fs";
import { type Log, open } from "../../../src/index.ts";
import { after, type WorkInput, workJob } from "../jobs.ts";
import { heard, say, told } from "./port.ts";

/** Produces and works at once; everything that it was told or that went wrong is in its last word. */
const { path, effects, acks, produces, from = 0 } = told<{ produces: number; from?: number }>();
const troubles: string[] = [];
const note = (message: string, data?: object) => void troubles.push(`${message} ${JSON.stringify(data)}`);
const log: Log = { debug: () => {}, info: () => {}, warn: note, error: note };

const hf = await open(path, { log });
const work = workJob(effects);
const go = heard("go");
const stop = heard("stop");
await say("ready");
await go;
hf.work([work, after], { concurrency: 10 });
// A tenth one by one, as an application would; the rest in handfuls.
for (let n = 0; n < produces;) {
  const many = n % 100 < 10 ? 1 : Math.min(90, produces - n);
  const inputs: WorkInput[] = Array.from({ length: many }, (_, i) => ({ n: from + n + i }));
  try {
    const answers = await hf.enqueueMany(work, inputs);
    appendFileSync(acks, answers.map(({ id }) => `${id}\n`).join(""));
  } catch (error) {
    note("a caller was shown an error", { error: String(error) });
  }
  n += many;
}
await say("produced");
await stop;
await hf.close();
await say("over", { troubles });
process.exit();
