import assert from "node:assert/strict";
import { test } from "node:test";
import { firstOf } from "../selection.ts";
import { mutations } from "./mutations.ts";
import { runSchedule } from "./schedule.ts";
import { Violation } from "./violation.ts";

/** A mutation has to show within so many schedules; most show within ten. */
const SCHEDULES = 300;
/** Those that have shown what others do not are tried before the many. */
const TELLING = [17, 24, 42, 74];
const SEEDS = [1, 2, 3, 4, 5, ...TELLING, ...Array.from({ length: SCHEDULES }, (_, i) => i + 6)];

for (const [position, [name, options]] of Object.entries(mutations).entries()) {
  test(`a store that ${name} is found out`, firstOf(2, position), async (t) => {
    for (const seed of SEEDS) {
      const { failure } = await runSchedule(seed, options);
      if (failure === null) continue;
      assert.ok(failure.error instanceof Violation, String(failure.error));
      return t.diagnostic(`by schedule ${seed}: ${failure.error.message}`);
    }
    assert.fail(`${SEEDS.length} schedules noticed nothing`);
  });
}
