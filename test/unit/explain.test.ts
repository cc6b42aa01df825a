import assert from "node:assert/strict";
import { suite, test } from "node:test";
import { type Explanation, explain, type JobFacts, type LimitFacts, WAIT_REASONS } from "../../src/core/jobs/explain.ts";
import type { Job } from "../../src/core/jobs/job.ts";
import type { LimitRule } from "../../src/core/limits/limit.ts";

const NOW = 1_000_000_000;
const JOB: Job = {
  id: "one",
  name: "mail",
  queue: "post",
  state: "pending",
  input: null,
  attempt: 0,
  crashes: 0,
  priority: 0,
  createdAt: NOW - 60_000,
  runAt: NOW - 60_000,
};
const NOTHING: Omit<JobFacts, "job"> = {
  version: 2,
  now: NOW,
  gate: null,
  isPaused: false,
  lock: null,
  upstream: [],
  limits: [],
  ahead: 0,
  build: null,
};
const RULE: LimitRule = { of: "job", position: 0, keyed: true, concurrency: null, rate: null };
const RATE = { starts: 5, per: 60_000 };

function limit(rule: Partial<LimitRule>, given: Partial<LimitFacts> = {}): LimitFacts {
  return { key: "acme", rule: { ...RULE, ...rule }, running: 0, bucket: 0, isHere: true, ...given };
}

interface Case {
  name: string;
  job?: Partial<Job>;
  facts?: Partial<JobFacts>;
  worked?: number[];
  is: Omit<Explanation, "state">;
}

const CASES: Case[] = [
  {
    name: "a running job",
    job: { state: "running", attempt: 2, startedAt: NOW - 5_000, worker: "here:7", leaseExpiresAt: NOW + 9_000 },
    is: { reason: "running", message: "Attempt 2 has run for 5 s on worker here:7.", until: NOW + 9_000 },
  },
  {
    name: "a running job whose lease has expired",
    job: { state: "running", attempt: 1, startedAt: NOW - 5_000, worker: "here:7", leaseExpiresAt: NOW - 1_000 },
    is: {
      reason: "running",
      message: "Attempt 1 has run for 5 s on worker here:7. Its lease has expired; the next worker or claim reclaims the job.",
      until: NOW - 1_000,
    },
  },
  {
    name: "a job that succeeded",
    job: { state: "succeeded", attempt: 1, finishedAt: NOW - 180_000 },
    is: { reason: "finished", message: "The job succeeded 3 min ago." },
  },
  {
    name: "a job that failed",
    job: { state: "failed", attempt: 3, finishedAt: NOW - 2_000, error: { name: "Error", message: "no" } },
    is: { reason: "finished", message: "The job failed 2 s ago, after 3 attempts." },
  },
  {
    name: "a delayed job",
    job: { runAt: NOW + 7_200_000 },
    facts: { gate: "time" },
    is: { reason: "delayed", message: "The job can start in 2 h.", until: NOW + 7_200_000 },
  },
  {
    name: "a job between two attempts",
    job: { runAt: NOW + 4_000, attempt: 1, startedAt: NOW - 9_000, error: { name: "Error", message: "no" } },
    facts: { gate: "time" },
    is: { reason: "backoff", message: "Waits after attempt 1; the next one can start in 4 s.", until: NOW + 4_000 },
  },
  {
    name: "a job whose only attempt is not counted",
    job: { runAt: NOW + 90_000, attempt: 0, startedAt: NOW - 9_000 },
    facts: { gate: "time" },
    is: {
      reason: "backoff",
      message: "Waits for its next attempt, which can start in 1 min 30 s.",
      until: NOW + 90_000,
    },
  },
  {
    name: "a job after others",
    job: { state: "waiting" },
    facts: { upstream: ["a", "b", "c", "d", "e"] },
    is: { reason: "waiting-for-job", message: "Waits for 5 jobs: a, b, c and 2 more.", jobs: ["a", "b", "c", "d", "e"] },
  },
  {
    name: "a job at a rate",
    // All five starts are used; one returns every 12 s.
    facts: { gate: "limit", limits: [limit({ rate: RATE }, { bucket: NOW + 60_000 })] },
    is: {
      reason: "limit",
      message: 'Waits for the limit of key "acme" (5/m); the next slot is free in 12 s.',
      until: NOW + 12_000,
      limit: { key: "acme", used: 5, max: 5 },
    },
  },
  {
    name: "a job at a concurrency",
    facts: { gate: "limit", limits: [limit({ concurrency: 2 }, { running: 2 })] },
    is: {
      reason: "limit",
      message: 'Waits for the limit of key "acme" (2 at once); 2 jobs run.',
      limit: { key: "acme", used: 2, max: 2 },
    },
  },
  {
    name: "a job behind others at a limit with a free slot",
    facts: { gate: "limit", limits: [limit({ concurrency: 2, rate: RATE }, { running: 1 })] },
    is: {
      reason: "limit",
      message: 'Waits for the limit of key "acme" (2 at once); other jobs come first.',
      limit: { key: "acme", used: 1, max: 2 },
    },
  },
  {
    name: "a ready job whose queue's limit was used up since",
    facts: { limits: [limit({ of: "queue", keyed: false, concurrency: 1 }, { key: "", running: 1, isHere: false })] },
    is: {
      reason: "limit",
      message: 'Waits for the limit of queue "post" (1 at once); 1 job runs.',
      limit: { key: "", used: 1, max: 1 },
    },
  },
  {
    name: "a job of a paused queue",
    job: { runAt: NOW + 1_000 },
    facts: { isPaused: true, gate: "time" },
    is: { reason: "queue-paused", message: 'Queue "post" is paused.' },
  },
  {
    name: "a job of a locked queue",
    facts: { lock: { holder: "anna", expiresAt: NOW + 240_000 } },
    is: {
      reason: "locked",
      message: 'Waits for the lock of queue "post", held by "anna" for another 4 min.',
      until: NOW + 240_000,
    },
  },
  {
    name: "a job of a queue with an exclusive claim",
    facts: { lock: { holder: "anna", expiresAt: null } },
    is: { reason: "locked", message: 'Waits for the lock of queue "post", held by "anna" until its exclusive claim ends.' },
  },
  {
    name: "a job without a worker",
    worked: [],
    is: { reason: "no-worker", message: 'No live process runs version 2 of job "mail".' },
  },
  {
    name: "a job of another version",
    worked: [3, 1, 3],
    is: { reason: "no-worker", message: 'No live process runs version 2 of job "mail"; processes run version 1, 3.' },
  },
  {
    name: "a job behind others",
    facts: { ahead: 12 },
    is: { reason: "behind", message: '12 jobs of queue "post" come first.', ahead: 12 },
  },
  {
    name: "a job behind more than are counted",
    facts: { ahead: 10_000 },
    is: { reason: "behind", message: 'At least 10,000 jobs of queue "post" come first.', ahead: 10_000 },
  },
  {
    name: "the next job, which is due though it was delayed",
    facts: { gate: "time" },
    is: {
      reason: "behind",
      message: 'The job is the next of queue "post"; a worker claims it when it has a free slot.',
      ahead: 0,
    },
  },
  {
    name: "a job of a build at its budget",
    facts: { isPaused: true, build: { id: "b1", pipeline: "docs", state: "BUDGET_PAUSE", approved: false } },
    is: {
      reason: "build-paused",
      message: 'Build b1 of pipeline "docs" is paused at its budget and waits for approval.',
    },
  },
];

suite("an explanation", () => {
  for (const { name, job, facts, worked = [2], is } of CASES) {
    test(`the explanation of ${name}`, () => {
      const asked = { ...JOB, ...job };
      assert.deepEqual(explain({ job: asked, ...NOTHING, ...facts }, worked), { state: asked.state, ...is });
    });
  }

  for (const [seconds, text] of [
    [0.2, "1 s"],
    [90, "1 min 30 s"],
    [599, "9 min 59 s"],
    [731, "12 min"],
    [3_590, "1 h"],
    [7_199, "2 h"],
    [108_000, "1 d 6 h"],
    [1_036_000, "12 d"],
  ] as const) {
    test(`a delay of ${seconds} s is ${text}`, () => {
      const job = { ...JOB, runAt: NOW + seconds * 1_000 };
      assert.equal(explain({ job, ...NOTHING, gate: "time" }, [2]).message, `The job can start in ${text}.`);
    });
  }

  test("every reason has a case", () => {
    assert.deepEqual(new Set(CASES.map(({ is }) => is.reason)), new Set(WAIT_REASONS));
  });

  test("a job of an active build is explained like any other job", () => {
    const facts: JobFacts = { job: JOB, ...NOTHING, build: { id: "b1", pipeline: "docs", state: "ACTIVE", approved: false } };
    assert.equal(explain(facts, [2]).reason, "behind");
  });
});
