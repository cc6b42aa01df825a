import assert from "node:assert/strict";
import { type TestContext, test } from "node:test";
import type { ProcessId } from "../../src/core/text/ids.ts";
import type { Engine } from "../../src/engine/engine.ts";
import {
  type Check,
  type CheckCircumstances,
  type DeadProcess,
  Recovery,
  runChecks,
} from "../../src/engine/maintenance/recovery.ts";
import { SqliteStore } from "../../src/store/sqlite/sqlite-store.ts";
import type { Store } from "../../src/store/store.ts";
import { testClock } from "../../src/testing/index.ts";
import { registeredProcesses } from "../../src/store/processes.ts";

const ENGINE = {} as Engine;
const endless: Check = () => new Promise(() => {});

function circumstances(signal = new AbortController().signal): CheckCircumstances {
  return { alone: true, rebooted: false, signal };
}

test("findings of checks are summed up, and a check that cannot run is an error", async () => {
  const checks: Check[] = [
    async () => ["torn"],
    () => Promise.reject(new Error("the disk is gone")),
    async () => ["torn", "cut off"],
  ];
  const found = ["torn", "The database could not be checked after the crash: the disk is gone", "cut off"];
  assert.deepEqual(await runChecks(checks, ENGINE, circumstances()), found);
});

test("a process that closes waits for no check, and reports no finding", async () => {
  const leaving = new AbortController();
  const checks: Check[] = [() => new Promise(() => leaving.abort())];
  assert.equal(await runChecks(checks, ENGINE, circumstances(leaving.signal)), null);
  assert.equal(await runChecks([endless], ENGINE, circumstances(AbortSignal.abort())), null);
});

test("everything is reclaimed before anything is checked, and the report ends after the checks", async (t) => {
  const { store, dead, recovery, check } = await scene(t);
  const { jobs } = await recovery.run([await dead(2)], { opening: false, alone: true });
  assert.equal(jobs, 2);
  assert.deepEqual((await store.queries.overview()).running, new Map());
  assert.deepEqual((await store.recoveries.history({ limit: 10 })).reports, [], "it is under way");
  check.resolve(["torn"]);
  await recovery.settled();
  const [report] = (await store.recoveries.history({ limit: 10 })).reports;
  assert.deepEqual([report?.state, report?.errors, report?.jobsRecovered], ["failed", ["torn"], 2]);
});

test("a process found dead during the checks of the last crash is in the same report", async (t) => {
  const { store, dead, recovery, check } = await scene(t);
  await recovery.run([await dead(1)], { opening: false, alone: true });
  await recovery.run([await dead(3)], { opening: false, alone: true });
  check.resolve([]);
  await recovery.settled();
  const reports = (await store.recoveries.history({ limit: 10, which: "all" })).reports;
  assert.deepEqual(
    reports.map(({ state, crashed, jobsRecovered }) => [state, crashed.length, jobsRecovered]),
    [["completed", 2, 4]],
  );
});

test("a process that closes during a check leaves the report to the next one, which checks again and ends it", async (t) => {
  const { store, dead, recovery, another } = await scene(t);
  await recovery.run([await dead(1)], { opening: false, alone: true });
  await recovery.stop();
  const [left] = (await store.recoveries.history({ limit: 10, which: "all" })).reports;
  assert.deepEqual([left?.state, left?.owner], ["running", null]);
  const next = await another(async () => []);
  await next.run([], { opening: true, alone: true });
  await next.settled();
  const [ended] = (await store.recoveries.history({ limit: 10 })).reports;
  assert.deepEqual([ended?.id, ended?.state, ended?.jobsRecovered], [left?.id, "completed", 1]);
});

test("ending a report is retried after an error", async (t) => {
  const { store, dead, recovery, check } = await scene(t);
  await recovery.run([await dead(1)], { opening: false, alone: true });
  store.hooks.refuseWrites = () => new Error("not now") as never;
  check.resolve([]);
  await recovery.settled();
  assert.deepEqual((await store.recoveries.history({ limit: 10 })).reports, []);
  store.hooks.refuseWrites = null;
  recovery.closeReport();
  await recovery.settled();
  assert.equal((await store.recoveries.history({ limit: 10 })).reports.length, 1);
});

test("the first of many jobs are reclaimed before the others", async (t) => {
  const { store, dead, another } = await scene(t);
  const recovery = await another();
  const { some, all } = recovery.start([await dead(30)], { opening: false, alone: true, first: 10 });
  await some;
  assert.equal([...(await store.queries.overview()).running.values()][0], 20);
  assert.equal((await all).jobs, 30);
  assert.equal((await store.recoveries.history({ limit: 1 })).reports[0]?.jobsRecovered, 30);
});

function left(signal: AbortSignal): Promise<null> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve(null);
    signal.addEventListener("abort", () => resolve(null), { once: true });
  });
}

/** A store, a process that recovers and whose check the test ends, and the dead processes. */
async function scene(t: TestContext) {
  const options = { driver: "node:sqlite", clock: testClock(), random: () => 0.5, busyTimeout: 20 } as const;
  const store: Store = await SqliteStore.open(":memory:", options);
  t.after(() => store.close());
  const enter = (): Promise<ProcessId> => store.processes.register({ pid: 1, host: "here", boot: "boot", program: "test" });
  const check = Promise.withResolvers<string[] | null>();
  const another = async (by?: (circumstances: CheckCircumstances) => Promise<string[] | null>) =>
    new Recovery({
      store,
      clock: options.clock,
      log: { debug: () => {}, info: () => {}, warn: () => {}, error: () => {} },
      self: await enter(),
      grace: 1,
      ...(by === undefined ? {} : { check: by }),
    });
  const recovery = await another(({ signal }) => Promise.race([check.promise, left(signal)]));
  const dead = async (jobs: number): Promise<DeadProcess> => {
    const id = await enter();
    const policy = {
      attempts: 1,
      backoff: "fixed",
      delay: 0,
      maxDelay: 0,
      crashes: 9,
      onInterrupt: "retry",
      timeout: 1,
    } as const;
    const job = { name: "w", queue: "w", version: 1, policy, input: null, priority: 0, delay: 0 };
    await store.enqueue(Array.from({ length: jobs }, () => job));
    await store.claim({ from: [{ queue: "w", lease: 60_000 }], max: jobs, holder: id, worker: "w" });
    const process = (await registeredProcesses(store.processes)).find((one) => one.id === id);
    assert.ok(process !== undefined);
    return { process, life: "dead" };
  };
  return { store, recovery, check, another, dead };
}
