import assert from "node:assert/strict";
import { test } from "node:test";
import type { Job } from "../../src/index.ts";
import { validateRecovery } from "../../src/testing/index.ts";

const pending: Job = {
  id: "a",
  name: "order",
  queue: "order",
  state: "pending",
  input: { item: 1 },
  attempt: 0,
  crashes: 0,
  priority: 0,
  createdAt: 1,
  runAt: 1,
};
const running: Job = { ...pending, state: "running", attempt: 1, startedAt: 2 };
const succeeded: Job = { ...running, state: "succeeded", output: { sold: 1 }, finishedAt: 3 };

const SOUND: [string, Job, Job][] = [
  ["nothing has happened", pending, pending],
  ["it was given back", running, { ...running, state: "pending", crashes: 1 }],
  ["it runs again, in another attempt", running, { ...running, attempt: 2, crashes: 1 }],
  ["it succeeded before the end, or after it", running, succeeded],
  ["it was over", succeeded, { ...succeeded }],
  ["it was quarantined", running, { ...running, state: "quarantined", crashes: 3, finishedAt: 4 }],
  ["it waited, and its turn came", { ...pending, state: "waiting" }, running],
];
for (const [what, before, after] of SOUND) {
  test(`a recovery is valid if ${what}`, () => {
    assert.deepEqual(validateRecovery([before], [after]), { ok: true, reasons: [] });
  });
}

const UNSOUND: [string, Job[]][] = [
  ["job a is missing", []],
  ["job a is there twice", [succeeded, { ...succeeded }]],
  ["job a had succeeded, and is pending now", [{ ...pending, attempt: 1 }]],
  ["job a had succeeded, and was done again", [{ ...succeeded, attempt: 2, finishedAt: 9 }]],
  ["job a has another output than before", [{ ...succeeded, output: { sold: 2 } }]],
  ["job a has another input than before", [{ ...succeeded, input: { item: 2 } }]],
];
for (const [reason, after] of UNSOUND) {
  test(`a recovery is invalid if ${reason}`, () => {
    assert.deepEqual(validateRecovery([succeeded], after), { ok: false, reasons: [reason] });
  });
}

test("a recovery is invalid if a job still runs in its old attempt, or its counts have fallen", () => {
  assert.deepEqual(validateRecovery([running], [running]).reasons, ["job a still runs in attempt 1, which the crash has ended"]);
  const often: Job = { ...running, state: "pending", attempt: 3, crashes: 2 };
  assert.deepEqual(validateRecovery([often], [{ ...often, attempt: 2, crashes: 1 }]).reasons, [
    "job a has had 3 attempts, and now 2",
    "job a was charged 2 crashes, and now 1",
  ]);
  assert.deepEqual(validateRecovery([pending], [{ ...pending, state: "waiting" }]).reasons, [
    "job a was pending, and waits for others now",
  ]);
});

test("a job known only by its id must exist", () => {
  assert.equal(validateRecovery([{ id: "a" }], [running]).ok, true);
  assert.deepEqual(validateRecovery([{ id: "a" }, { id: "b" }], [running]).reasons, ["job b is missing"]);
});
