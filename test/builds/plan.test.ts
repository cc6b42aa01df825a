import assert from "node:assert/strict";
import { test } from "node:test";
import { items, open, pipeline } from "../../src/index.ts";

test("a plan adds up what each target is estimated to cost, however many are looked at together", async () => {
  const numbers = Array.from({ length: 40 }, (_, i) => i + 1);
  const sums = pipeline("sums")
    .source(items(() => numbers, { id: String }))
    .stage("cheap", { estimate: ({ input }) => ({ usd: input, tokens: 1 }) }, ({ input, cost }) => {
      cost({ usd: 1 });
      return input;
    })
    .stage("dear", {}, ({ input, cost }) => {
      cost({ usd: 2 });
      return input;
    });
  await using hf = await open(":memory:");
  const before = await hf.builds.plan(sums);
  assert.deepEqual(before.stages, {
    cheap: { run: 40, cached: 0, unknown: 0, estimate: { usd: 820, tokens: 40 } },
    dear: { run: 0, cached: 0, unknown: 40, estimate: { usd: 0, tokens: 0 } },
  });

  assert.equal((await (await hf.builds.start(sums)).done()).state, "SUCCESS");
  const rerun = await hf.builds.plan(sums, { rerun: ["cheap"] });
  assert.deepEqual(rerun.stages["dear"], { run: 0, cached: 0, unknown: 40, estimate: { usd: 80, tokens: 0 } });
  assert.deepEqual(rerun.estimate, { usd: 900, tokens: 40 });
});
