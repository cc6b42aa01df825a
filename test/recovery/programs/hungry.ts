/** `hungry.ts DB`: a handler that never has enough. */
import { job, open } from "../../../src/index.ts";

const hf = await open(process.argv[2] as string);
const feast = job<null>({
  name: "feast",
  run: () => {
    const eaten: number[][] = [];
    for (;;) eaten.push(Array.from({ length: 10_000 }, (_, i) => i + 0.5));
  },
});
const { id } = await hf.enqueue(feast, null);
console.log(`accepted ${id}`);
hf.work([feast]);
