import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { type TestClock, testClock } from "../../src/testing/index.ts";
import type { Store } from "../../src/store/store.ts";
import { testAllOnly } from "../selection.ts";
import { attemptCases } from "./attempts.cases.ts";
import { auditCases } from "./audit.cases.ts";
import { budgetCases } from "./budget.cases.ts";
import { buildFactCases } from "./build-facts.cases.ts";
import { buildCases } from "./builds.cases.ts";
import { claimCases } from "./claim.cases.ts";
import { commitRowsCases } from "./commit-rows.cases.ts";
import { continueCases } from "./continue.cases.ts";
import { dependencyCases } from "./dependencies.cases.ts";
import { enqueueCases } from "./enqueue.cases.ts";
import { eventCases } from "./events.cases.ts";
import { factCases } from "./facts.cases.ts";
import { groupCases } from "./group.cases.ts";
import { reclaimCases } from "./reclaim.cases.ts";
import { jobEventCases } from "./job-events.cases.ts";
import { orchestratorLockCases } from "./orchestrator-locks.cases.ts";
import { leaseCases } from "./leases.cases.ts";
import { limitCases } from "./limits.cases.ts";
import { lockCases } from "./locks.cases.ts";
import { minuteCases } from "./minutes.cases.ts";
import { queryCases } from "./queries.cases.ts";
import { noteCases } from "./notes.cases.ts";
import { operateCases } from "./operate.cases.ts";
import { processCases } from "./processes.cases.ts";
import { queueCases } from "./queues.cases.ts";
import { recoveryCases } from "./recoveries.cases.ts";
import { resultCases } from "./results.cases.ts";
import { scheduleCases } from "./schedules.cases.ts";
import { replaceCases } from "./replace.cases.ts";
import { searchCases } from "./search.cases.ts";
import { settleCases } from "./settle.cases.ts";
import { targetCases } from "./targets.cases.ts";
import { tokenCases } from "./tokens.cases.ts";
import { transactCases } from "./transact.cases.ts";
import { vitalsCases } from "./vitals.cases.ts";
import { workCases } from "./work.cases.ts";
import type { StoreUnderTest, UserTable } from "./stores.ts";

/** What a case is given: a fresh store, and a clock that stands still. */
export interface Ground {
  store: Store;
  clock: TestClock;
  another(): Promise<Store>;
  reopen(): Promise<Store>;
  userTable(): Promise<UserTable>;
}

export type Attempt = (ground: Ground) => Promise<void>;

/** Names a promise in a sentence and tries to break it. */
export interface Check {
  (promise: string, attempt: Attempt): void;
  /** The case closes the data and opens it again, or opens it twice. */
  shared(promise: string, attempt: Attempt): void;
  /** The caller's own synchronous work runs inside the store's transaction. */
  readonly inProcess: Omit<Check, "inProcess"> & ((promise: string, attempt: Attempt) => void);
}

/** Generous: a promise that is never kept is broken, and says which one it was. */
const LIMIT = 60_000;

const AREAS: Record<string, (check: Check) => void> = {
  enqueue: enqueueCases,
  claim: claimCases,
  settle: settleCases,
  attempts: attemptCases,
  "rows of the user's own": commitRowsCases,
  leases: leaseCases,
  reclaim: reclaimCases,
  dependencies: dependencyCases,
  limits: limitCases,
  queues: queueCases,
  minutes: minuteCases,
  locks: lockCases,
  schedules: scheduleCases,
  notes: noteCases,
  queries: queryCases,
  search: searchCases,
  replace: replaceCases,
  "facts about one job": factCases,
  operate: operateCases,
  events: eventCases,
  "job events": jobEventCases,
  processes: processCases,
  audit: auditCases,
  recoveries: recoveryCases,
  vitals: vitalsCases,
  group: groupCases,
  transact: transactCases,
  builds: buildCases,
  "builds and their work": buildFactCases,
  "confirmation tokens": tokenCases,
  "orchestrator locks": orchestratorLockCases,
  work: workCases,
  "next stages": continueCases,
  targets: targetCases,
  results: resultCases,
  budgets: budgetCases,
};

export interface Extent {
  /** Areas that it does not have yet, with the reason. */
  missing?: Record<string, string>;
  /** The only areas that `npm test` runs; `npm run test:all` runs the others, too. */
  areas?: readonly string[];
}

/** Every promise of the Store interface; nothing in it knows what the store is made of. */
export function conformance(under: StoreUnderTest, { missing = {}, areas }: Extent = {}): void {
  const run = (promise: string, attempt: Attempt, reason: string | null) => {
    void test(promise, { timeout: LIMIT, ...(reason === null ? {} : { skip: reason }) }, async () => {
      const clock = testClock();
      const { cleanup, findings, ...opened } = await under.open(clock);
      try {
        await attempt({ clock, ...opened });
        // Whatever was done, every statement has kept the sums of the rows that it changed.
        assert.deepEqual((await findings?.()) ?? [], []);
      } finally {
        await cleanup();
      }
    });
  };
  /** With a reason, its cases are skipped. */
  const checkUnless = (reason: string | null) =>
    Object.assign((promise: string, attempt: Attempt) => run(promise, attempt, reason), {
      shared: (promise: string, attempt: Attempt) => run(promise, attempt, reason ?? under.alone),
    });
  describe(under.name, () => {
    for (const [area, cases] of Object.entries(AREAS)) {
      const reason = missing[area] ?? null;
      const options = areas === undefined || areas.includes(area) ? {} : testAllOnly;
      describe(area, options, () =>
        cases(Object.assign(checkUnless(reason), { inProcess: checkUnless(reason ?? under.outside) })),
      );
    }
  });
}
