/** `recovery-doomed.ts PATH JOBS RUNNING`: fills a database, takes jobs in hand, and is killed. */
import { job, open } from "../src/index.ts";
import { payload } from "./scratch.ts";

const [path = "", jobs = "0", running = "0"] = process.argv.slice(2);
const BATCH = 1_000;
const hf = await open(path);
const noop = job<{ url: string; i: number }, void>({ name: "noop", run: () => {} });
for (let i = 0; i < Number(jobs); i += BATCH) {
  await hf.enqueueMany(
    noop,
    Array.from({ length: Math.min(BATCH, Number(jobs) - i) }, (_, k) => payload(i + k)),
  );
}
const { store, self: holder } = hf.engine;
for (let left = Number(running); left > 0; left -= BATCH) {
  await store.claim({ from: [{ queue: "noop", lease: 3_600_000 }], max: Math.min(BATCH, left), holder, worker: "doomed" });
}
process.kill(process.pid, "SIGKILL");
