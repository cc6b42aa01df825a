import assert from "node:assert/strict";
import { test } from "node:test";
import { mutations } from "./mutations.ts";
import { runSchedule } from "./schedule.ts";
import { Violation } from "./violation.ts";

/** A mutation has to show within so many schedules; most show within ten. */
const SCHEDULES = 300;

for (const [name, options] of Object.entries(mutations)) {
  test(`a store that ${name} is found out`, async (t) => {
    for (let seed = 1; seed <= SCHEDULES; seed++) {
      const { failure } = await runSchedule(seed, options);
      if (failure === null) continue;
      assert.ok(failure.error instanceof Violation, String(failure.error));
      return t.diagnostic(`by schedule ${seed}: ${failure.error.message}`);
    }
    assert.fail(`${SCHEDULES} schedules noticed nothing`);
  });
}
