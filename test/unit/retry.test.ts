import assert from "node:assert/strict";
import { test } from "node:test";
import * as fc from "fast-check";
import type { JobError } from "../../src/core/jobs/job.ts";
import { backoff, decide, type History, type Next, type Outcome, type Policy } from "../../src/core/jobs/retry.ts";

const ERROR: JobError = { name: "Error", message: "boom" };
const POLICY: Policy = {
  attempts: 3,
  backoff: "fixed",
  delay: 1_000,
  maxDelay: 60_000,
  crashes: 3,
  onInterrupt: "retry",
  timeout: 3_600_000,
};
const START: History = { attempt: 5, errors: 0, crashes: 0 };

/** What differs from a plain return to pending. */
type Expected = Partial<Omit<Next, "error">> & { error?: string | null };
const CASES: [string, Outcome, Partial<History>, Partial<Policy>, Expected][] = [
  [
    "success ends it and drops its checkpoint",
    { kind: "succeeded", output: null },
    {},
    {},
    { state: "succeeded", dropCheckpoint: true },
  ],
  [
    "success forgives nothing that was counted",
    { kind: "succeeded", output: "1" },
    { errors: 2, crashes: 1 },
    {},
    { state: "succeeded", errors: 2, crashes: 1, dropCheckpoint: true },
  ],
  ["the first error of three waits", { kind: "error", error: ERROR }, {}, {}, { errors: 1, delay: 1_000, error: "boom" }],
  [
    "the second error of three waits",
    { kind: "error", error: ERROR },
    { errors: 1 },
    {},
    { errors: 2, delay: 1_000, error: "boom" },
  ],
  [
    "the third error of three fails",
    { kind: "error", error: ERROR },
    { errors: 2 },
    {},
    { state: "failed", errors: 3, error: "boom" },
  ],
  [
    "the only error of one fails",
    { kind: "error", error: ERROR },
    {},
    { attempts: 1 },
    { state: "failed", errors: 1, error: "boom" },
  ],
  [
    "errors are counted, not starts",
    { kind: "error", error: ERROR },
    { attempt: 99 },
    {},
    { attempt: 99, errors: 1, delay: 1_000, error: "boom" },
  ],
  [
    "crashes are no errors",
    { kind: "error", error: ERROR },
    { crashes: 2 },
    {},
    { errors: 1, crashes: 2, delay: 1_000, error: "boom" },
  ],
  [
    "an error not to be retried fails",
    { kind: "error", error: ERROR, retry: false },
    {},
    {},
    { state: "failed", errors: 1, error: "boom" },
  ],
  [
    "an error may be retried at another time",
    { kind: "error", error: ERROR, delay: 7 },
    {},
    {},
    { errors: 1, delay: 7, error: "boom" },
  ],
  ["an error's delay of none is none", { kind: "error", error: ERROR, delay: 0 }, {}, {}, { errors: 1, delay: 0, error: "boom" }],
  [
    "its delay does not save a last error",
    { kind: "error", error: ERROR, delay: 7 },
    { errors: 2 },
    {},
    { state: "failed", errors: 3, error: "boom" },
  ],
  [
    "an error is not an interruption",
    { kind: "error", error: ERROR },
    {},
    { onInterrupt: "fail" },
    { errors: 1, delay: 1_000, error: "boom" },
  ],
  [
    "later is charged nothing",
    { kind: "later", delay: 9, error: ERROR },
    { errors: 2, crashes: 2 },
    {},
    { attempt: 4, errors: 2, crashes: 2, delay: 9, error: "boom" },
  ],
  ["unreadable is quarantined", { kind: "unreadable", error: ERROR }, {}, {}, { state: "quarantined", error: "boom" }],
  [
    "released is charged nothing",
    { kind: "released" },
    { errors: 2, crashes: 2 },
    { onInterrupt: "fail" },
    { attempt: 4, errors: 2, crashes: 2 },
  ],
  [
    "interrupted is charged nothing, and starts over",
    { kind: "interrupted" },
    { errors: 2, crashes: 2 },
    {},
    { attempt: 4, errors: 2, crashes: 2, dropCheckpoint: true },
  ],
  ["interrupted resumes where it says so", { kind: "interrupted" }, {}, { onInterrupt: "resume" }, { attempt: 4 }],
  [
    "interrupted fails where it says so",
    { kind: "interrupted" },
    {},
    { onInterrupt: "fail" },
    { state: "failed", attempt: 4, error: "INTERRUPTED" },
  ],
  ["the first stall counts as a crash and costs no time", { kind: "stalled" }, {}, {}, { crashes: 1, dropCheckpoint: true }],
  ["the first stall never ends the job", { kind: "stalled" }, {}, { crashes: 1 }, { crashes: 1, dropCheckpoint: true }],
  ["the second stall waits", { kind: "stalled" }, { crashes: 1 }, {}, { crashes: 2, delay: 1_000, dropCheckpoint: true }],
  [
    "a stall beyond the limit of crashes is quarantined",
    { kind: "stalled" },
    { crashes: 3 },
    {},
    { state: "quarantined", crashes: 4, error: "STALLED" },
  ],
  [
    "a crash after stalls is quarantined at the limit",
    { kind: "crashed" },
    { crashes: 2 },
    {},
    { state: "quarantined", crashes: 3, error: "CRASHED" },
  ],
  ["stalled resumes where it says so", { kind: "stalled" }, {}, { onInterrupt: "resume" }, { crashes: 1 }],
  [
    "stalled fails where it says so",
    { kind: "stalled" },
    {},
    { onInterrupt: "fail" },
    { state: "failed", crashes: 1, error: "INTERRUPTED" },
  ],
  ["the first crash costs no time", { kind: "crashed" }, {}, {}, { crashes: 1, dropCheckpoint: true }],
  ["the first crash resumes where it says so", { kind: "crashed" }, {}, { onInterrupt: "resume" }, { crashes: 1 }],
  ["the second crash waits", { kind: "crashed" }, { crashes: 1 }, {}, { crashes: 2, delay: 1_000, dropCheckpoint: true }],
  [
    "the third crash of three is quarantined",
    { kind: "crashed" },
    { crashes: 2 },
    {},
    { state: "quarantined", crashes: 3, error: "CRASHED" },
  ],
  [
    "the only crash of one is quarantined",
    { kind: "crashed" },
    {},
    { crashes: 1 },
    { state: "quarantined", crashes: 1, error: "CRASHED" },
  ],
  ["errors are no crashes", { kind: "crashed" }, { errors: 2 }, {}, { errors: 2, crashes: 1, dropCheckpoint: true }],
  [
    "a crash fails where it says so",
    { kind: "crashed" },
    {},
    { onInterrupt: "fail" },
    { state: "failed", crashes: 1, error: "INTERRUPTED" },
  ],
  [
    "a last crash is quarantined even where it says fail",
    { kind: "crashed" },
    { crashes: 2 },
    { onInterrupt: "fail" },
    { state: "quarantined", crashes: 3, error: "CRASHED" },
  ],
];

for (const [what, outcome, history, policy, expected] of CASES) {
  test(what, () => {
    const before = { ...START, ...history };
    const { error, ...next } = decide(before, { ...POLICY, ...policy }, outcome, 0.5);
    const { error: expectedError = null, ...rest } = expected;
    assert.deepEqual(next, { state: "pending", delay: 0, dropCheckpoint: false, ...before, ...rest });
    assert.equal(error === null ? null : (error.code ?? error.message), expectedError);
  });
}

test("the error of a quarantined job names its crashes and their limit", () => {
  for (const [crashes, said] of [
    [1, /\(crash 1 of 1\)\.$/],
    [3, /\(crash 3 of 3\)\.$/],
  ] as const) {
    const next = decide({ ...START, crashes: crashes - 1 }, { ...POLICY, crashes }, { kind: "crashed" }, 0.5);
    assert.match(next.error?.message ?? "", said);
  }
});

const policies = fc.record({
  attempts: fc.integer({ min: 1, max: 100 }),
  backoff: fc.constantFrom("exponential" as const, "fixed" as const),
  delay: fc.integer({ min: 0, max: 86_400_000 }),
  maxDelay: fc.integer({ min: 0, max: 86_400_000 }),
  crashes: fc.integer({ min: 1, max: 100 }),
  onInterrupt: fc.constantFrom("retry" as const, "fail" as const, "resume" as const),
  timeout: fc.integer({ min: 1, max: 86_400_000 }),
});
const dice = fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true });

test("an exponential backoff is in the upper half of its step, and never above its limit", () => {
  fc.assert(
    fc.property(policies, fc.integer({ min: 1, max: 10_000 }), dice, (policy, failures, random) => {
      const waits = backoff({ ...policy, backoff: "exponential" }, failures, random);
      const step = Math.min(policy.maxDelay, policy.delay * 2 ** Math.min(failures - 1, 1_000));
      assert.ok(Number.isSafeInteger(waits));
      assert.ok(waits >= Math.floor(step / 2) && waits <= Math.ceil(step), `${waits} of ${step}`);
    }),
  );
});

test("an exponential backoff grows with the failures and with the random number", () => {
  fc.assert(
    fc.property(policies, fc.integer({ min: 1, max: 60 }), dice, (policy, failures, random) => {
      const exponential = { ...policy, backoff: "exponential" as const };
      assert.ok(backoff(exponential, failures + 1, random) >= backoff(exponential, failures, random));
      assert.ok(backoff(exponential, failures, random) >= backoff(exponential, failures, 0));
    }),
  );
});

test("a fixed backoff is its delay", () => {
  fc.assert(
    fc.property(policies, fc.integer({ min: 1, max: 10_000 }), dice, (policy, failures, random) => {
      assert.equal(backoff({ ...policy, backoff: "fixed" }, failures, random), policy.delay);
    }),
  );
});

test("every job ends: errors at its attempts, crashes at their limit, stalls beyond it", () => {
  const outcomes = fc.constantFrom<Outcome>(
    { kind: "error", error: ERROR },
    { kind: "crashed" },
    { kind: "released" },
    { kind: "stalled" },
    { kind: "interrupted" },
    { kind: "later", delay: 1, error: ERROR },
  );
  fc.assert(
    fc.property(policies, fc.array(outcomes, { maxLength: 60 }), dice, (policy, run, random) => {
      let history: History = { attempt: 0, errors: 0, crashes: 0 };
      let [errors, crashes] = [0, 0];
      for (const outcome of run) {
        const next = decide({ ...history, attempt: history.attempt + 1 }, policy, outcome, random);
        if (outcome.kind === "error") errors++;
        if (outcome.kind === "crashed" || outcome.kind === "stalled") crashes++;
        assert.ok(next.attempt >= 0 && next.delay >= 0);
        assert.deepEqual([next.errors, next.crashes], [errors, crashes]);
        const limit = policy.crashes + (outcome.kind === "stalled" ? 1 : 0);
        const isCharged = outcome.kind === "crashed" || outcome.kind === "stalled";
        assert.equal(next.state === "quarantined", isCharged && crashes >= limit);
        if (errors >= policy.attempts) assert.equal(next.state, "failed");
        if (next.state !== "pending") return;
        history = { attempt: next.attempt, errors: next.errors, crashes: next.crashes };
      }
    }),
  );
});
