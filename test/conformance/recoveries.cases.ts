import assert from "node:assert/strict";
import { UNKNOWN_ACTOR } from "../../src/core/recovery/audit.ts";
import type { ProcessId } from "../../src/core/text/ids.ts";
import { NO_COUNTS } from "../../src/core/recovery/recovery-report.ts";
import type { DeadProcess, Recovering, StoredReport } from "../../src/store/recoveries.ts";
import { type Life, registeredProcesses } from "../../src/store/processes.ts";
import type { Store } from "../../src/store/store.ts";
import { seeBuild, started } from "./build-parts.ts";
import { add, claim, claimOne, LEASE, lockOf, pass, POLICY, register, see, seeAll, settle } from "./parts.ts";
import type { Check } from "./suite.ts";
import { abandonment } from "../../src/store/builds.ts";
import { countJobs } from "../../src/store/queries.ts";

/** What reclaiming from a process answers that held nothing. */
const NOTHING = {
  entries: 0,
  quarantined: 0,
  failed: 0,
  replaced: 0,
  builds: [],
  locks: [],
  orchestratorLocks: [],
  isDone: true,
  isUnregistered: true,
};
/** What it answers if another process has unregistered the dead one. */
const GONE = { ...NOTHING, isUnregistered: false };
const FOUND = { errors: [], commitsMissing: null, walFramesReplayed: 0 };

export function recoveryCases(check: Check): void {
  for (const [life, quarantined] of [
    ["dead", 1],
    ["rebooted", 0],
  ] as const) {
    const what = `of a process that is ${life}, a preview counts what reclaiming then counts: quarantined, failed, replaced`;
    check(what, async ({ store }) => {
      const [by, dead] = [await register(store), await register(store)];
      await add(
        store,
        {},
        { policy: { ...POLICY, crashes: 1 } },
        { policy: { ...POLICY, onInterrupt: "fail" } },
        { key: "k" },
        { key: "l", policy: { ...POLICY, onInterrupt: "fail" } },
      );
      await claim(store, { holder: dead, max: 5 });
      await add(store, { key: "k", replaces: true }, { key: "l", replaces: true });
      const rebooted = life === "rebooted" ? [dead] : [];
      const { jobs, ends } = await store.recoveries.preview({ dead: [dead], rebooted, alive: [by] }, []);
      assert.deepEqual({ jobs, ends }, { jobs: 5, ends: { quarantined, failed: 2, replaced: 1 } });
      const recovering = await begun(store, by, [dead], life);
      const as = life === "dead" ? "crashed" : "interrupted";
      const { entries, ...rest } = await reclaimFrom(store, recovering, dead, { as });
      assert.deepEqual([entries, rest.quarantined, rest.failed, rest.replaced], [5, quarantined, 2, 1]);
      const report = await closed(store, recovering, by);
      assert.deepEqual([report.jobsResetToPending, report.jobsQuarantined], [2 - quarantined, quarantined]);
    });
  }

  check("a preview counts a crash that an open report has, although the host has restarted since", async ({ store }) => {
    const [by, dead] = [await register(store), await register(store)];
    await add(store, { policy: { ...POLICY, crashes: 1 } });
    await claim(store, { holder: dead });
    const recovering = await begun(store, by, [dead], "dead");
    const { ends } = await store.recoveries.preview({ dead: [dead], rebooted: [dead], alive: [by] }, []);
    assert.equal(ends.quarantined, 1);
    assert.equal((await reclaimFrom(store, recovering, dead)).quarantined, 1);
  });

  check("a recovery without dead processes does not begin and writes no report", async ({ store }) => {
    const by = await register(store);
    assert.equal(await begin(store, by, []), null);
    assert.equal(await begin(store, by, [999 as ProcessId]), null, "nor where no process is registered by that number");
    assert.deepEqual((await store.recoveries.history({ limit: 10, which: "all" })).reports, []);
  });

  check("a recovery reclaims a dead process's jobs, unregisters it, and reports it", async (ground) => {
    const { store, clock } = ground;
    const [by, dead] = [await register(store), await register(store, "indexer")];
    const ids = await add(store, {}, {}, {}, {});
    await claim(store, { holder: dead, max: 3 });
    const begunAt = clock.now();
    const recovering = await begun(store, by, [dead]);
    assert.deepEqual(
      recovering.left.map(({ id, life, program }) => [id, life, program]),
      [[dead, "dead", "indexer"]],
    );
    pass(clock, 5);
    assert.deepEqual(await reclaimFrom(store, recovering, dead, { limit: 2, spent: 4 }), {
      ...NOTHING,
      entries: 2,
      isDone: false,
      isUnregistered: false,
    });
    pass(clock, 1);
    assert.deepEqual(await reclaimFrom(store, recovering, dead, { spent: 2 }), { ...NOTHING, entries: 1 });
    const recoveredAt = clock.now();
    pass(clock, 1_000);
    const report = await closed(store, recovering, by, 4);
    assert.deepEqual(report, {
      id: recovering.report,
      state: "completed",
      owner: null,
      begunAt,
      recoveredAt,
      crashed: [{ host: "here", pid: 1, program: "indexer", startedAt: begunAt }],
      errors: [],
      wasSuccessful: true,
      ...NO_COUNTS,
      jobsRunningBeforeCrash: 3,
      jobsRecovered: 3,
      jobsResetToPending: 3,
      jobsPending: 4,
      recoveryDurationMs: 6,
      walSizeBeforeRecoveryBytes: report.walSizeBeforeRecoveryBytes,
      walFramesReplayed: 0,
      commitsMissing: report.commitsMissing,
      acknowledgedBy: null,
      acknowledgedAt: null,
    });
    assert.deepEqual(
      (await registeredProcesses(store.processes)).map(({ id }) => id),
      [by],
    );
    for (const id of ids.slice(0, 3))
      assert.deepEqual([(await see(store, id)).state, (await see(store, id)).crashes], ["pending", 1]);
    assert.deepEqual((await store.recoveries.history({ limit: 10 })).reports, [report]);
    assert.equal((await store.recoveries.history({ limit: 0 })).totals.entriesReclaimed, 3, "and it is in the sums");
  });

  check("jobs reclaimed in several transactions add up in one report", async ({ store }) => {
    const [by, dead] = [await register(store), await register(store)];
    await add(store, {}, {}, {}, {}, {});
    await claim(store, { holder: dead });
    const recovering = await begun(store, by, [dead]);
    const taken: number[] = [];
    for (let n = 0; n < 4; n++) taken.push((await reclaimFrom(store, recovering, dead, { limit: 2 })).entries);
    assert.deepEqual(taken, [2, 2, 1, 0]);
    const { jobsRecovered, jobsResetToPending } = await closed(store, recovering, by);
    assert.deepEqual([jobsRecovered, jobsResetToPending], [5, 5]);
  });

  check("a report distinguishes jobs that ended with this crash from those that run again", async ({ store }) => {
    const [by, dead] = [await register(store), await register(store)];
    await add(store, {}, { policy: { crashes: 1 } }, { policy: { onInterrupt: "fail" } });
    await claim(store, { holder: dead });
    const report = await recovered(store, by, [dead]);
    const { jobsRunningBeforeCrash, jobsRecovered, jobsResetToPending, jobsQuarantined } = report;
    assert.deepEqual([jobsRunningBeforeCrash, jobsRecovered, jobsResetToPending, jobsQuarantined], [3, 3, 1, 1]);
    assert.deepEqual((await seeAll(store)).map(({ state }) => state).sort(), ["failed", "pending", "quarantined"]);
  });

  check("processes that died with their host are charged no crash", async ({ store }) => {
    const [by, gone] = [await register(store), await register(store)];
    const [id] = await add(store, { policy: { crashes: 1 } });
    await claim(store, { holder: gone });
    const recovering = await begun(store, by, [gone], "rebooted");
    assert.deepEqual(
      recovering.left.map(({ life }) => life),
      ["rebooted"],
    );
    await reclaimFrom(store, recovering, gone, { as: "interrupted" });
    assert.equal((await closed(store, recovering, by)).jobsQuarantined, 0);
    const { state, crashes, attempt } = await see(store, id as string);
    assert.deepEqual([state, crashes, attempt], ["pending", 0, 0]);
  });

  check("jobs of other processes and claims by hand are left alone", async ({ store }) => {
    const [by, dead, alive] = [await register(store), await register(store), await register(store)];
    await add(store, {}, {}, {});
    await claim(store, { holder: dead, max: 1 });
    await claim(store, { holder: alive, max: 1 });
    await claim(store, { holder: null, max: 1 });
    const { jobsRecovered } = await recovered(store, by, [dead]);
    assert.equal(jobsRecovered, 1);
    assert.deepEqual(
      (await store.queries.overview()).running,
      new Map<ProcessId | null, number>([
        [alive, 1],
        [null, 1],
      ]),
    );
  });

  check("a dead process stays registered until its last job is reclaimed", async ({ store }) => {
    const [by, dead] = [await register(store), await register(store)];
    await add(store, {}, {});
    await claim(store, { holder: dead });
    const recovering = await begun(store, by, [dead]);
    assert.equal((await reclaimFrom(store, recovering, dead, { limit: 1 })).isDone, false);
    assert.equal((await registeredProcesses(store.processes)).length, 2);
    const ending = { jobsPending: 0, ...FOUND };
    assert.deepEqual(
      await store.recoveries.close({ report: recovering.report, by, ending }),
      { closed: [], left: recovering.left },
      "nor is its report ended",
    );
    assert.deepEqual(await reclaimFrom(store, recovering, dead), { ...NOTHING, entries: 1 });
    assert.deepEqual(await reclaimFrom(store, recovering, dead), GONE, "done is done");
    assert.equal((await closed(store, recovering, by)).jobsRecovered, 2);
  });

  check("a dead process's builds are CRASHED and its locks are free before they expire", async ({ store, clock }) => {
    const by = await register(store);
    const { build, lead } = await started(store);
    const dead = lead.holder;
    store.processes.self = dead;
    assert.ok(await store.locks.acquire("nightly", "anna", "t1", LEASE));
    assert.ok(await store.locks.acquire("expired", "anna", "t2", 10));
    await add(store, { queue: "alone" });
    await claim(store, { holder: dead, from: [{ queue: "alone", lease: LEASE }], exclusive: "t3" });
    store.processes.self = by;
    assert.ok(await store.locks.acquire("mine", "me", "t4", LEASE));
    pass(clock, 10);
    assert.deepEqual(await store.recoveries.preview({ dead: [dead], alive: [by] }, []), {
      jobs: 1,
      ends: { quarantined: 0, failed: 0, replaced: 0 },
      builds: [build.id],
      locks: ["nightly", "alone"].sort(),
      orchestratorLocks: [build.pipeline],
      staleLocks: ["expired"],
      overlongLocks: [],
      leftoverJobs: 0,
    });
    const report = await recovered(store, by, [dead]);
    assert.deepEqual(
      [report.buildsCrashed, report.locksReleased],
      [1, 3],
      "the named one, the exclusive claim's, and the orchestrator's",
    );
    assert.equal((await store.recoveries.history({ limit: 0 })).totals.locksCleaned, 3, "the totals count the same locks");
    const { state, reason } = await seeBuild(store, build);
    assert.deepEqual([state, reason], ["CRASHED", "orchestrator_lost"]);
    assert.deepEqual(await store.builds.orchestratorLocks(), []);
    assert.equal(await lockOf(store, "nightly"), null);
    assert.equal((await lockOf(store, "mine"))?.holder, "me");
    assert.ok(await store.locks.acquire("nightly", "another", "t5", LEASE));
    assert.equal(await store.locks.renew("nightly", "t1", LEASE), false, "the dead one's token opens nothing any more");
  });

  check("only the lock of a dead process's own attempt is counted as freed", async ({ store }) => {
    const [by, dead] = [await register(store), await register(store)];
    await add(store, { queue: "alone" });
    const from = [{ queue: "alone", lease: LEASE }];
    const first = await claimOne(store, { from, exclusive: "token" });
    await settle(store, first, { kind: "released" });
    assert.equal((await claim(store, { from, holder: dead })).length, 1, "its lock was free by then");
    const report = await recovered(store, by, [dead]);
    assert.deepEqual([report.jobsRecovered, report.locksReleased], [1, 0]);
  });

  check("a lock belongs to the process that extended it last", async ({ store }) => {
    const [by, dead] = [await register(store), await register(store)];
    store.processes.self = dead;
    await store.locks.acquire("handed over", "anna", "token", LEASE);
    store.processes.self = by;
    assert.equal(await store.locks.renew("handed over", "token", LEASE), true);
    assert.equal((await recovered(store, by, [dead])).locksReleased, 0);
    assert.equal((await lockOf(store, "handed over"))?.holder, "anna");
  });

  check("one report is open at a time: a second process helps with it, and does not end it", async ({ store }) => {
    const [first, second, dead, later] = [
      await register(store),
      await register(store),
      await register(store),
      await register(store),
    ];
    await add(store, {}, {});
    await claim(store, { holder: dead, max: 1 });
    await claim(store, { holder: later, max: 1 });
    const mine = await begun(store, first, [dead]);
    const theirs = await begun(store, second, [dead, later]);
    assert.deepEqual([mine.owned, theirs.owned, theirs.report], [true, false, mine.report]);
    assert.deepEqual(
      theirs.left.map(({ id }) => id),
      [dead, later],
    );
    assert.deepEqual(await reclaimFrom(store, theirs, dead), { ...NOTHING, entries: 1 });
    assert.deepEqual(await reclaimFrom(store, mine, dead), GONE);
    const ending = { jobsPending: 0, ...FOUND };
    assert.deepEqual(
      await store.recoveries.close({ report: mine.report, by: second, ending }),
      { closed: [], left: [] },
      "the report belongs to another process",
    );
    const { left } = await store.recoveries.close({ report: mine.report, by: first, ending });
    assert.deepEqual(
      left.map(({ id }) => id),
      [later],
      "whom the other has found is to be buried first",
    );
    await reclaimFrom(store, mine, later);
    const report = await closed(store, mine, first);
    assert.deepEqual([report.crashed.length, report.jobsRunningBeforeCrash, report.jobsRecovered], [2, 2, 2]);
    assert.equal(await begin(store, second, [dead, later]), null, "and there is nothing more to report");
    assert.equal((await store.recoveries.history({ limit: 10, which: "all" })).reports.length, 1);
  });

  check.shared("of two concurrent recoveries one owns the report, and nothing is counted twice", async (ground) => {
    const { store, another } = ground;
    const other = await another();
    const [first, second] = [await register(store), await register(other)];
    const dead = await register(store);
    store.processes.self = first;
    await add(store, ...Array.from({ length: 20 }, () => ({})));
    await claim(store, { holder: dead });
    const both = await Promise.all([begin(store, first, [dead]), begin(other, second, [dead])]);
    const owners = both.filter((one) => one?.owned === true);
    assert.equal(owners.length, 1);
    const parts = await Promise.all(
      [store, other].map(async (handle, i) => {
        const recovering = both[i];
        if (recovering === null || recovering === undefined) return 0;
        return (await reclaimFrom(handle, recovering, dead)).entries;
      }),
    );
    assert.equal(
      parts.reduce((sum, n) => sum + n, 0),
      20,
    );
    const mine = both[0]?.owned === true;
    const report = await closed(mine ? store : other, (mine ? both[0] : both[1]) as Recovering, mine ? first : second);
    assert.deepEqual([report.jobsRecovered, report.jobsRunningBeforeCrash, report.crashed.length], [20, 20, 1]);
    assert.equal((await store.recoveries.history({ limit: 10, which: "all" })).reports.length, 1);
  });

  check("a process that finds the recoverer dead continues its report, which is exact", async ({ store }) => {
    const [first, dead] = [await register(store, "first"), await register(store, "dead")];
    await add(store, {}, {}, {});
    await claim(store, { holder: dead });
    const before = await begun(store, first, [dead]);
    await reclaimFrom(store, before, dead, { limit: 2, spent: 3 });
    // Killed here.
    const second = await register(store, "second");
    const after = await begun(store, second, [dead, first]);
    assert.deepEqual([after.report, after.owned, after.continued], [before.report, true, true]);
    const late = { report: before.report, by: first, ending: { jobsPending: 0, ...FOUND } };
    assert.deepEqual(await store.recoveries.close(late), { closed: [], left: [] });
    for (const { id } of after.left) {
      await reclaimFrom(store, after, id, { spent: 1 });
    }
    const report = await closed(store, after, second);
    assert.deepEqual(
      report.crashed.map(({ program }) => program),
      ["first", "dead"],
    );
    const { jobsRunningBeforeCrash, jobsRecovered, jobsResetToPending, recoveryDurationMs } = report;
    assert.deepEqual([jobsRunningBeforeCrash, jobsRecovered, jobsResetToPending, recoveryDurationMs], [3, 3, 3, 5]);
  });

  check("a report that its owner gave up or left behind is ended by the next process", async ({ store }) => {
    const [first, second, dead] = [await register(store), await register(store), await register(store)];
    const { report } = await begun(store, first, [dead]);
    assert.equal(await begin(store, second, []).then((one) => one?.owned), undefined, "a live owner keeps its report");
    await store.recoveries.close({ report, by: second, ending: null });
    assert.equal(await begin(store, second, []), null, "nor can another process give it up");
    await store.recoveries.close({ report, by: first, ending: null });
    const handed = await begun(store, second, []);
    assert.deepEqual([handed.report, handed.owned], [report, true]);
    await store.processes.unregister(second);
    const third = await register(store);
    const left = await begun(store, third, []);
    assert.deepEqual([left.report, left.owned, left.left.map(({ id }) => id)], [report, true, [dead]]);
    await reclaimFrom(store, left, dead);
    assert.equal((await closed(store, left, third)).crashed.length, 1);
  });

  check("findings are kept once each, and such a report stays open until it is acknowledged", async (ground) => {
    const { store, clock } = ground;
    const [by, dead] = [await register(store), await register(store)];
    const findings = { errors: ["one"], commitsMissing: 2, walFramesReplayed: 7 };
    const recovering = await store.recoveries.begin({ dead: [found(dead)], by, opening: true, alone: true, findings });
    assert.ok(recovering !== null);
    await reclaimFrom(store, recovering, dead);
    const ending = { jobsPending: 0, errors: ["two", "one"], commitsMissing: 1, walFramesReplayed: 0 };
    const { closed } = await store.recoveries.close({ report: recovering.report, by, ending });
    const [report] = closed;
    assert.ok(report !== undefined);
    const { state, errors, wasSuccessful, commitsMissing, walFramesReplayed } = report;
    assert.deepEqual([state, errors, wasSuccessful, commitsMissing, walFramesReplayed], ["failed", ["one", "two"], false, 2, 7]);
    assert.deepEqual((await store.recoveries.history({ limit: 10, which: "open" })).reports, [report]);
    pass(clock, 60_000);
    const { closed: acknowledged } = await store.recoveries.close("acknowledged");
    assert.deepEqual(acknowledged, [
      { ...report, state: "acknowledged", acknowledgedBy: UNKNOWN_ACTOR, acknowledgedAt: clock.now() },
    ]);
    assert.deepEqual((await store.recoveries.close("acknowledged")).closed, []);
    assert.deepEqual((await store.recoveries.history({ limit: 10, which: "open" })).reports, []);
    assert.deepEqual((await store.recoveries.history({ limit: 10 })).reports, acknowledged);
  });

  check("a finding is reported even if no process died", async ({ store }) => {
    const by = await register(store);
    const findings = { errors: ["the write-ahead log was cut off"], commitsMissing: 3 };
    const recovering = await store.recoveries.begin({ dead: [], by, opening: true, alone: true, findings });
    assert.ok(recovering?.owned);
    const { crashed, errors, commitsMissing, state } = await closed(store, recovering, by);
    assert.deepEqual([crashed, errors, commitsMissing, state], [[], findings.errors, 3, "failed"]);
  });

  check("a recovery writes one event and one audit entry, an acknowledgement another", async ({ store }) => {
    const [by, dead] = [await register(store), await register(store)];
    const report = await recovered(store, by, [dead]);
    const told = async () =>
      (
        await store.events.page({
          after: 0,
          limit: 100,
          types: ["recovery.completed", "recovery.failed", "recovery.acknowledged"],
        })
      ).map(({ type, data }) => [type, (data as { recovery: number }).recovery]);
    const audited = async () =>
      (await store.audit.page({ after: 0, limit: 100 })).map(({ action, by: who, subject }) => [action, who, subject]);
    assert.deepEqual(await told(), [["recovery.completed", report.id]]);
    assert.deepEqual(await audited(), [["recovery.completed", "recovery", `recovery:${report.id}`]]);
    const findings = { errors: ["wrong"] };
    const again = await store.recoveries.begin({ dead: [], by, opening: false, alone: false, findings });
    await closed(store, again as Recovering, by);
    await store.recoveries.close("acknowledged");
    assert.deepEqual(
      (await told()).map(([type]) => type),
      ["recovery.completed", "recovery.failed", "recovery.acknowledged"],
    );
    assert.deepEqual(
      (await audited()).map(([action, who]) => [action, who]),
      [
        ["recovery.completed", "recovery"],
        ["recovery.failed", "recovery"],
        ["recovery.acknowledged", UNKNOWN_ACTOR],
      ],
    );
  });

  check("the sums cover all ended reports, and count the open ones", async ({ store }) => {
    assert.deepEqual((await store.recoveries.history({ limit: 0 })).totals.reports, {
      ...NO_COUNTS,
      reports: 0,
      open: 0,
      failed: 0,
      commitsMissing: 0,
    });
    const [by, dead, other] = [await register(store), await register(store), await register(store)];
    await add(store, {}, { policy: { crashes: 1 } }, {});
    await claim(store, { holder: dead, max: 2 });
    await claim(store, { holder: other });
    const first = await begun(store, by, [dead]);
    await reclaimFrom(store, first, dead, { spent: 6 });
    assert.equal((await store.recoveries.history({ limit: 0 })).totals.reports.reports, 0, "not while it is under way");
    await closed(store, first, by);
    const second = await begun(store, by, [other]);
    await reclaimFrom(store, second, other, { spent: 10 });
    const ending = { ...FOUND, errors: ["2 are gone"], commitsMissing: 2 };
    await store.recoveries.close({ report: second.report, by, ending: { jobsPending: 3, ...ending } });
    const sums = {
      ...NO_COUNTS,
      reports: 2,
      jobsRunningBeforeCrash: 3,
      jobsRecovered: 3,
      jobsResetToPending: 2,
      jobsQuarantined: 1,
      recoveryDurationMs: 16,
      commitsMissing: 2,
      failed: 1,
    };
    assert.deepEqual((await store.recoveries.history({ limit: 0 })).totals.reports, { ...sums, open: 1 });
    await store.recoveries.close("acknowledged");
    assert.deepEqual((await store.recoveries.history({ limit: 0 })).totals.reports, { ...sums, open: 0 });
  });

  check("reports are listed newest first, and open ones only if asked for", async ({ store }) => {
    const by = await register(store);
    const first = await recovered(store, by, [await register(store, "one")]);
    const second = await recovered(store, by, [await register(store, "two")]);
    const third = await begun(store, by, [await register(store, "three")]);
    const list = async (query: { limit: number; which?: "all" | "open" }) =>
      (await store.recoveries.history(query)).reports.map(({ id }) => id);
    assert.deepEqual(await list({ limit: 10 }), [second.id, first.id]);
    assert.deepEqual(await list({ limit: 1 }), [second.id]);
    assert.deepEqual(await list({ limit: 10, which: "all" }), [third.report, second.id, first.id]);
    assert.deepEqual(await list({ limit: 10, which: "open" }), [third.report]);
  });

  check.shared("reports survive a reopening", async ({ store, reopen }) => {
    const by = await register(store);
    const report = await recovered(store, by, [await register(store)]);
    assert.deepEqual((await (await reopen()).recoveries.history({ limit: 10 })).reports, [report]);
  });

  check("a read-only store rejects every write with the given error, and can be read", async ({ store }) => {
    const [id] = await add(store, {});
    const refusal = new Error("sealed");
    store.hooks.refuseWrites = () => refusal as never;
    const writes: (() => unknown)[] = [
      () => store.enqueue([]),
      () => claim(store),
      () => store.settle([]),
      () => store.cancel(id as string),
      () => store.locks.acquire("a", "b", "c", 1),
      () => store.recoveries.close("acknowledged"),
      () => store.queues.setPaused("work", true),
      () => store.enqueueWithin({}, []),
      () => store.builds.move("b", abandonment("n"), { by: "me" }),
      () => store.builds.authorize("b", { bytes: new Uint8Array(32) }, "me"),
    ];
    for (const write of writes) await assert.rejects(async () => write(), refusal, String(write));
    assert.equal((await see(store, id as string)).state, "pending");
    assert.equal((await countJobs(store.queries)).pending, 1);
    assert.equal(typeof (await store.events.position()), "number");
    store.hooks.refuseWrites = null;
    assert.equal(await store.cancel(id as string), true);
  });
}

function found(id: ProcessId, life: Life = "dead"): { id: ProcessId; life: Life } {
  return { id, life };
}

function begin(store: Store, by: ProcessId, dead: ProcessId[], life: Life = "dead"): Promise<Recovering | null> {
  return store.recoveries.begin({ dead: dead.map((id) => found(id, life)), by, opening: false, alone: false });
}

async function begun(store: Store, by: ProcessId, dead: ProcessId[], life: Life = "dead"): Promise<Recovering> {
  const recovering = await begin(store, by, dead, life);
  assert.ok(recovering !== null, "there is something to recover");
  return recovering;
}

/** Reclaims what a dead process holds, and unregisters it when it holds nothing any more. */
function reclaimFrom(store: Store, { report }: Recovering, process: ProcessId, given: Partial<DeadProcess> = {}) {
  const dead = { report, process, as: "crashed", reason: "orchestrator_lost", limit: 100, spent: 0, cause: "it died" } as const;
  return store.recoveries.reclaimFrom({ ...dead, ...given });
}

async function closed(store: Store, { report }: Recovering, by: ProcessId, jobsPending = 0): Promise<StoredReport> {
  const { closed } = await store.recoveries.close({ report, by, ending: { jobsPending, ...FOUND } });
  assert.equal(closed.length, 1, "it is ended");
  return closed[0] as StoredReport;
}

/** All of it. */
async function recovered(store: Store, by: ProcessId, dead: ProcessId[]): Promise<StoredReport> {
  const recovering = await begun(store, by, dead);
  for (const id of dead) {
    await reclaimFrom(store, recovering, id);
  }
  return closed(store, recovering, by);
}
