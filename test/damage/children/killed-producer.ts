/** Enqueues so many jobs, one commit each, and kills itself: they stand in the write-ahead log only. */
import { job, open } from "../../../src/index.ts";

const [path = "", count = "0", schema] = process.argv.slice(2);
const greet = job<{ name: string }>({ name: "greet", run: () => {} });
// The schema is in the database file, unless it should be in the log.
if (schema !== "logged") await (await open(path)).close();
const hf = await open(path);
for (let n = 0; n < Number(count); n++) await hf.enqueue(greet, { name: `number ${n}` });
process.kill(process.pid, "SIGKILL");
