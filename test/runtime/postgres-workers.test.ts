import { take } from "./on-postgres.ts";

/** The same tests as on files and in memory: workers, waiting callers, and what becomes of the work when a process dies. */
await take("wake");
await take("lock");
await take("seed-003");
await take("unclosed");
await take("worker", {
  every: 3,
  slow: [
    "a worker runs hundreds of jobs, each exactly once",
    "a worker with concurrency 1 runs that many jobs at once, and no more",
    "a worker with concurrency 2 runs that many jobs at once, and no more",
    "a worker with concurrency 7 runs that many jobs at once, and no more",
    "a job's own concurrency applies within the worker's, and leaves room for others",
  ],
});
await take("seed-002", { every: 2, slow: ["more crashed entries than one claim reclaims all come back"] });
await take("recovery", {
  every: 2,
  slow: [
    "recoverStale never touches live work, however old its lease looks",
    "reclaiming before a claim is bounded, so that the claim does not wait for a large clean-up",
  ],
});
await take("stop", { every: 4 });
