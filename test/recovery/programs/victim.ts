/** `victim.ts DB [CRASHES]`: takes three orders, and dies of the first. CRASHES is how often an order may do so. */
import { job, open } from "../../../src/index.ts";

const [path = "", crashes = "3"] = process.argv.slice(2);
const hf = await open(path);
const order = job<{ item: number }>({
  name: "order",
  concurrency: 1,
  crashes: Number(crashes),
  run: () => void process.kill(process.pid, "SIGKILL"),
});
await hf.enqueueMany(order, [{ item: 1 }, { item: 2 }, { item: 3 }]);
hf.work([order], { concurrency: 1 });
