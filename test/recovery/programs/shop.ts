/**
 * A user's application: `shop.ts DB [DURABILITY]`. It takes orders, four at a time, prints the id of each that was accepted,
 * works on them, and keeps one in hand for ever. It stops in good order at SIGTERM.
 */
import { job, open, type OpenOptions } from "../../../src/index.ts";

const [path = "", durability = "power"] = process.argv.slice(2);
const hf = await open(path, { durability } as OpenOptions);
const order = job<{ item: number }>({
  name: "order",
  crashes: 100,
  run: async ({ input, signal }) => {
    if (input.item > 0) return { sold: input.item };
    await new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
  },
});
const worker = hf.work([order], { concurrency: 4 });
const { id } = await hf.enqueue(order, { item: 0 });
console.log(`accepted ${id}`);
const closing = new AbortController();
process.once("SIGTERM", async () => {
  closing.abort();
  await worker.stop({ drain: 0 });
  await hf.close();
  process.exit(0);
});
for (let item = 1; !closing.signal.aborted; item += 4) {
  const accepted = await Promise.all([0, 1, 2, 3].map((n) => hf.enqueue(order, { item: item + n })));
  for (const { id } of accepted) console.log(`accepted ${id}`);
}
