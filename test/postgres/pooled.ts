import { items, pipeline } from "../../src/index.ts";

/** Where nothing is said, which is in the process that leads the build, a step takes its time: the others come to their share. */
const LASTS = Number(process.env["POOLED_LASTS"] ?? 300);

/** Two stages, the second for money; each says which process it ran in. */
export const pooled = pipeline("pooled", { budget: { usd: 1 } })
  .source(items(() => Array.from({ length: 50 }, (_, n) => n), { id: (n) => `n${String(n).padStart(2, "0")}` }))
  .stage("square", {}, ({ input }) => ({ square: input * input, pid: process.pid }))
  .stage("say", { estimate: () => ({ usd: 0.01 }) }, async ({ input, cost }) => {
    await new Promise((resolve) => setTimeout(resolve, LASTS));
    cost({ usd: 0.01 });
    return { text: `it is ${input.square}`, pids: [input.pid, process.pid] };
  });
