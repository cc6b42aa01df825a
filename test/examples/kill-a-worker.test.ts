import assert from "node:assert/strict";
import { test } from "node:test";
import { run } from "./run.ts";

test("kill a worker: of all jobs none is lost and none is committed twice, and those of the killed one run again", async () => {
  const printed = await run("kill-a-worker", ["1000"]);
  const figures = Object.fromEntries(
    printed.map((line) => line.match(/^ {2}(\S.*?) {2,}(\S+)/)?.slice(1) ?? []).filter(({ length }) => length === 2),
  ) as Record<string, string>;
  const { enqueued, succeeded, lost, "committed twice": twice, "run twice": again } = figures;
  assert.deepEqual({ enqueued, succeeded, lost, twice }, { enqueued: "1000", succeeded: "1000", lost: "0", twice: "0" });
  assert.ok(Number(again) > 0, "it had some when it was killed");
});
