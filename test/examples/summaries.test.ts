import assert from "node:assert/strict";
import { join } from "node:path";
import { test } from "node:test";
import { open } from "../../src/index.ts";
import { folder, run } from "./run.ts";

test("the summaries: at the budget the build pauses, a token and a new budget let it go on, and nothing is paid twice", async (t) => {
  const path = folder(t);
  const printed = await run("summaries", [path]);
  const [, summaries, spent] = printed[1]?.match(/^BUDGET_PAUSE .* after (\d+) summaries and \$(\S+)\.$/) ?? [];
  assert.ok(Number(summaries) > 0 && Number(summaries) < 12, printed[1]);
  assert.ok(Number(spent) <= 0.3, "what is within its estimates is within its budget");
  assert.deepEqual(printed.toSpliced(1, 1), [
    "The plan: all of it will cost $0.39, and $0.3 is allowed.",
    "starting anew: refused with BUDGET_PAUSED",
    "a made-up token: refused with TOKEN_MALFORMED",
    "SUCCESS with 12 summaries, 12 requests and $0.39.",
    "2026-03-12: 12 times fog",
    "the same token again: refused with BUILD_NOT_PAUSED",
    "Another build: 12 summaries reused, $0, 12 requests.",
  ]);

  await using hf = await open(join(path, "summaries.db"));
  const builds = (await hf.builds.list()).items;
  assert.deepEqual(
    builds.map(({ state, spent, budget }) => [state, spent.usd, budget.usd]),
    [
      ["SUCCESS", 0.39, 0.9],
      ["SUCCESS", 0, 0.3],
    ],
  );
});
