import assert from "node:assert/strict";
import { join } from "node:path";
import { test } from "node:test";
import { open } from "../../src/index.ts";
import { folder, run } from "./run.ts";

const NIGHTS = ["2026-10-22", "2026-10-23", "2026-10-25", "2026-10-26", "2026-10-27", "2026-10-28", "2026-10-29"];

test("the nightly batches: each night once, missed ones are made up for, and a report comes after all of its batches", async (t) => {
  const path = folder(t);
  const printed = await run("nightly-batches", [path]);
  assert.deepEqual(
    printed.filter((line) => line.startsWith("  ")),
    [
      "  night of 2026-10-22, run at 2026-10-22T00:30: 4 regions sold 396",
      "  night of 2026-10-23, run at 2026-10-23T00:30: cancelled. Job 2026-10-23 east, which this job waited for, failed.",
      // 2026-10-24 was missed by more than four days.
      "  night of 2026-10-25, run at 2026-10-28T12:00: 4 regions sold 450",
      "  night of 2026-10-26, run at 2026-10-28T12:00: 4 regions sold 468",
      "  night of 2026-10-27, run at 2026-10-28T12:00: 4 regions sold 486",
      "  night of 2026-10-28, run at 2026-10-28T12:00: 4 regions sold 504",
      "  night of 2026-10-29, run at 2026-10-29T01:30: 4 regions sold 522",
    ],
  );
  assert.match(printed.at(-1) as string, /the report of 2026-10-23, again: 4 regions sold 414$/);

  await using hf = await open(join(path, "nights.db"), { recovery: "manual" });
  assert.deepEqual(await hf.jobs.counts({ name: "nightly" }), counts({ succeeded: NIGHTS.length }));
  assert.deepEqual(await hf.jobs.counts({ name: "batch" }), counts({ succeeded: NIGHTS.length * 4 }));
  assert.deepEqual(await hf.jobs.counts({ name: "report" }), counts({ succeeded: NIGHTS.length, cancelled: 1 }));
  for (const night of NIGHTS) {
    const report = await hf.jobs.get(`${night} report`);
    if (report?.state === "cancelled") continue;
    for (const region of ["north", "south", "east", "west"]) {
      const batch = await hf.jobs.get(`${night} ${region}`);
      assert.ok((batch?.finishedAt as number) <= (report?.startedAt as number), `${night} ${region}`);
    }
  }
});

function counts(given: object): object {
  return { waiting: 0, pending: 0, running: 0, succeeded: 0, failed: 0, cancelled: 0, quarantined: 0, ...given };
}
