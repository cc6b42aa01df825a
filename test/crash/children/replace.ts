// Replaces the input of one key again and again beside a worker, and prints each number once it is durable: node replace.ts WHERE FIRST
import { job, open } from "../../../src/index.ts";

const [where, first] = process.argv.slice(2) as [string, string];
const hf = await open(where, { log: false });
const latest = job<{ n: number }, number>({ name: "latest", lease: "1s", retry: { delay: 1 }, run: ({ input }) => input.n });
hf.work([latest], { concurrency: 2 });
for (let n = Number(first); ; n++) {
  await hf.enqueue(latest, { n }, { key: "one", onDuplicate: "replace" });
  process.stdout.write(`${n}\n`);
}
