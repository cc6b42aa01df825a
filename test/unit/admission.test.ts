import assert from "node:assert/strict";
import { test } from "node:test";
import {
  Admission,
  dependentsOf,
  type Enqueued,
  isEarly,
  type NewJob,
  findRejected,
  type JobLookup,
  initialState,
  rejectedFollowUp,
} from "../../src/core/jobs/admission.ts";
import type { JobKey } from "../../src/core/text/ids.ts";
import type { JobState } from "../../src/core/jobs/job.ts";

/** One job is there: `old`, of the name "mail" and with the key "k". */
const EXISTING: JobLookup = {
  nameOf: (id) => (id === "old" ? "mail" : undefined),
  upstream: (id) => (id === "old" ? upstream("old", "running") : undefined),
  holderOf: (name, key) => (name === "mail" && key === "k" ? "old" : undefined),
};

test("an id belongs to one job for ever, a key to one unfinished job of a name", () => {
  assert.deepEqual(refused({ name: "mail", id: "old" }), { id: "old", duplicate: true });
  assert.deepEqual(refused({ name: "scan", id: "old" }), { id: "old", taken: "mail" });
  assert.deepEqual(refused({ name: "mail", key: "k" }), { id: "old", duplicate: true });
  assert.deepEqual(refused({ name: "mail", id: "new", key: "k" }), { id: "old", duplicate: true });
  assert.equal(refused({ name: "scan", key: "k" }), undefined);
  assert.equal(refused({ name: "mail", id: "new" }), undefined);
});

test("a job that depends on a duplicate depends on the existing job", () => {
  const admission = new Admission(EXISTING);
  admission.reject({ name: "mail", followUpId: "f1", key: "k" });
  const next = { name: "scan", after: ["f1"] };
  assert.equal(admission.reject(next), undefined);
  assert.deepEqual(admission.initialState(next), { state: "waiting", for: [upstream("old", "running")] });
  assert.deepEqual(admission.reject({ name: "scan", after: ["old", "f2"] }), { id: "f2", missing: true });
});

test("in a whole batch a job may depend on an earlier one, and the first rejected job is named", () => {
  assert.equal(
    findRejected(
      [
        { name: "a", id: "x" },
        { name: "b", after: ["x", "old"] },
      ],
      EXISTING,
    ),
    undefined,
  );
  assert.deepEqual(
    findRejected(
      [
        { name: "b", after: ["x"] },
        { name: "a", id: "x" },
      ],
      EXISTING,
    ),
    {
      id: "x",
      missing: true,
      name: "b",
    },
  );
  const twice = [
    { name: "a", id: "x" },
    { name: "b", id: "x" },
  ];
  assert.deepEqual(findRejected(twice, EXISTING), { id: "x", taken: "a", name: "b" });
});

test("a success with an impossible follow-up fails without a retry", () => {
  for (const why of [{ taken: "mail" }, { missing: true as const }]) {
    const outcome = rejectedFollowUp({ id: "x", name: "a", ...why });
    assert.ok(outcome.kind === "error" && outcome.retry === false);
    assert.equal(outcome.error.code, "taken" in why ? "ID_TAKEN" : "NO_SUCH_JOB");
  }
});

test("a job's first state follows from the states of its upstream jobs", () => {
  assert.deepEqual(initialState([]), { state: "pending" });
  assert.deepEqual(initialState([upstream("a", "succeeded")]), { state: "pending" });
  const waits = [upstream("b", "pending"), upstream("c", "waiting")];
  assert.deepEqual(initialState([upstream("a", "succeeded"), ...waits]), { state: "waiting", for: waits });
  for (const state of ["failed", "cancelled", "quarantined"] as const) {
    const started = initialState([upstream("a", "running"), upstream("b", state)]);
    assert.ok(started.state === "cancelled" && started.error.message.includes("Job b"), state);
  }
});

test("an unsuccessful end cancels dependents, whatever else they wait for", () => {
  const [a, b, c, d] = [1, 2, 3, 4] as JobKey[] as [JobKey, JobKey, JobKey, JobKey];
  const waits = [
    { job: c, upstream: a },
    { job: c, upstream: b },
    { job: d, upstream: a },
  ];
  const { cancelled, unblocked } = dependentsOf(
    waits,
    new Map([
      [a, "succeeded"],
      [b, "failed"],
    ]),
  );
  assert.deepEqual([[...cancelled], unblocked], [[[c, b]], [d]]);
});

test("a job that was to run at once is not delayed by a clock that was set back", () => {
  assert.equal(isEarly(200, 100, 150), true);
  assert.equal(isEarly(200, 100, 200), false);
  assert.equal(isEarly(100, 100, 50), false);
});

function refused(job: NewJob): Enqueued | undefined {
  return new Admission(EXISTING).reject(job);
}

function upstream(id: string, state: JobState): { id: string; job: JobKey; state: JobState } {
  return { id, job: id.length as JobKey, state };
}
