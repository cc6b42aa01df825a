import assert from "node:assert/strict";
import { suite } from "node:test";
import { type Holdfast, job, type JobContext, type StaleStats } from "../../src/index.ts";
import { code, file, memory, see, seeAll, stage, test, unchecked } from "./parts.ts";

const plain = job({ name: "plain", run: (c: JobContext<unknown>) => c.input });

async function leave(hf: Holdfast, entries: number, lease: number): Promise<string[]> {
  const ids = (await hf.enqueueMany(plain, Array(entries).fill(0))).map(({ id }) => id);
  for (let i = 0; i < entries; i++) assert.ok(await hf.claim(plain, { worker: "gone", lease }));
  return ids;
}

suite("recoverStale", () => {
  test("recoverStale with nothing to recover says so, and changes nothing", async (t) => {
    const { hf, clock } = await memory(t);
    await leave(hf, 1, 60_000);
    await hf.lock("held").acquire("me", "1m");
    const before = await seeAll(hf);
    assert.deepEqual(await hf.recovery.recoverStale(), {
      locksCleaned: 0,
      entriesReclaimed: 0,
      recoveryTimestamp: clock.now(),
    });
    assert.deepEqual(await seeAll(hf), before);
    assert.ok(await hf.lock("held").get());
  });

  test("recoverStale reclaims expired leases and locks, and counts them", async (t) => {
    const { hf, clock } = await memory(t);
    const ids = await leave(hf, 3, 1_000);
    await hf.lock("a").acquire("gone", "1s");
    await hf.lock("b").acquire("gone", "1s");
    await clock.advance("1s");
    assert.deepEqual(await hf.recovery.recoverStale(), {
      locksCleaned: 2,
      entriesReclaimed: 3,
      recoveryTimestamp: clock.now(),
    });
    for (const id of ids) assert.deepEqual([(await see(hf, id)).state, (await see(hf, id)).crashes], ["pending", 1]);
  });

  test("recoverStale never touches live work, however old its lease looks", async (t) => {
    const { hf, clock } = await memory(t);
    const slow = stage<JobContext<unknown>>();
    const def = job({ name: "x", lease: "1s", run: slow.run });
    hf.work([def]);
    const { id } = await hf.enqueue(def, 1);
    await slow.called(1);
    await clock.advance("5m");
    assert.equal((await hf.recovery.recoverStale()).entriesReclaimed, 0);
    assert.equal((await hf.recovery.reclaimStale(0)).entriesReclaimed, 0);
    assert.deepEqual([(await see(hf, id)).state, slow.calls.length], ["running", 1]);
  });

  test("from the second crash on a job waits out a backoff, and is finally quarantined", async (t) => {
    const { hf, clock } = await memory(t);
    const def = job({ name: "x", crashes: 3, retry: { backoff: "fixed", delay: "10s" }, run: () => null });
    const { id } = await hf.enqueue(def, 1);
    const delays: number[] = [];
    for (let crash = 1; crash <= 3; crash++) {
      assert.ok(await hf.claim(def, { worker: "gone", lease: "1s" }));
      await clock.advance("1s");
      await hf.recovery.recoverStale();
      const { runAt, state } = await see(hf, id);
      if (state === "pending") delays.push(Math.max(0, runAt - clock.now()));
      await clock.advance("10s");
    }
    assert.deepEqual(delays, [0, 10_000]);
    const ended = await see(hf, id);
    assert.deepEqual([ended.state, ended.crashes, ended.error?.code], ["quarantined", 3, "CRASHED"]);
    assert.equal(await hf.claim(def, { worker: "me" }), null);
  });

  test("a clock set forward does not expire live work, and a clock set back delays no job", async (t) => {
    const { hf, clock } = await memory(t);
    const slow = stage<JobContext<unknown>>();
    const def = job({ name: "x", lease: "30s", run: slow.run });
    hf.work([def]);
    await hf.enqueue(def, 1);
    await slow.called(1);
    clock.set(clock.now() + 3_600_000);
    await clock.advance("1m");
    assert.equal(slow.calls.length, 1);
    clock.set(clock.now() - 7_200_000);
    const [left] = await leave(hf, 1, 30_000);
    clock.set(clock.now() - 3_600_000);
    await clock.advance("32s");
    const seen = await see(hf, left ?? "");
    assert.deepEqual([seen.state, slow.calls.length], ["pending", 1]);
  });
});

suite("reclaimStale", () => {
  test("reclaimStale takes leases that expired at least that long ago", async (t) => {
    const { hf, clock } = await memory(t);
    const [older] = await leave(hf, 1, 1_000);
    const [newer] = await leave(hf, 1, 2_000);
    await clock.advance("6s");
    assert.equal((await hf.recovery.reclaimStale(5_001)).entriesReclaimed, 0);
    assert.equal((await hf.recovery.reclaimStale("5s")).entriesReclaimed, 1);
    assert.deepEqual([(await see(hf, older ?? "")).state, (await see(hf, newer ?? "")).state], ["pending", "running"]);
    assert.equal((await hf.recovery.reclaimStale(0)).entriesReclaimed, 1);
  });

  test("a malformed duration is rejected", async (t) => {
    const { hf } = await memory(t);
    for (const bad of [-1, Number.NaN, unchecked<number>("a while")]) {
      await assert.rejects(hf.recovery.reclaimStale(bad), code("DURATION_INVALID"));
    }
  });
});

const NOT_STALE = { staleLocks: 0, staleEntries: 0 };
const exclusive = job({ name: "exclusive", run: () => {} });

suite("stats", () => {
  test("stats of a new database are zero, with no last recovery", async (t) => {
    const { hf } = await memory(t);
    const nothing = { locksCleaned: 0, entriesReclaimed: 0, recoveryTimestamp: 0 };
    assert.deepEqual(await hf.recovery.stats(), { ...nothing, ...NOT_STALE });
  });

  test("stats do not recover anything", async (t) => {
    const { hf, clock } = await memory(t);
    const [id] = await leave(hf, 1, 1_000);
    await hf.lock("a").acquire("gone", "1s");
    await clock.advance("1h");
    const nothing = { locksCleaned: 0, entriesReclaimed: 0, recoveryTimestamp: 0 };
    assert.deepEqual(await hf.recovery.stats(), { ...nothing, staleLocks: 1, staleEntries: 1 });
    assert.equal((await see(hf, id ?? "")).state, "running");
    assert.equal(await hf.lock("a").isStale(), true);
  });

  test("stats count exactly what a recovery would reclaim", async (t) => {
    const { hf, clock } = await memory(t);
    await leave(hf, 3, 1_000);
    await leave(hf, 2, 7_200_000);
    await hf.lock("over").acquire("gone", "1s");
    await hf.lock("held").acquire("here", "2h");
    await hf.enqueue(exclusive, {});
    await hf.claim(exclusive, { worker: "gone", lease: "1s", exclusive: true });
    await clock.advance("1h");
    const { staleLocks, staleEntries } = await hf.recovery.stats();
    assert.deepEqual([staleEntries, staleLocks], [4, 2]);
    const plan = await hf.recovery.preview();
    assert.deepEqual([plan?.crashed, plan?.expired], [[], { jobs: 4, locks: ["exclusive", "over"] }]);
    const { entriesReclaimed, locksCleaned } = await hf.recovery.recoverStale();
    assert.deepEqual([entriesReclaimed, locksCleaned], [4, 2]);
    const after = await hf.recovery.stats();
    assert.deepEqual([after.staleEntries, after.staleLocks, await hf.recovery.preview()], [0, 0, null]);
  });

  test("stats add up over all processes, and survive a reopening", async (t) => {
    const { another, clock } = await file(t);
    const [mine, theirs] = [await another(), await another()];
    await leave(mine, 2, 1_000);
    await mine.lock("a").acquire("gone", "1s");
    await clock.advance("1s");
    await mine.recovery.recoverStale();
    const first = clock.now();
    assert.deepEqual(await theirs.recovery.stats(), {
      locksCleaned: 1,
      entriesReclaimed: 2,
      recoveryTimestamp: first,
      ...NOT_STALE,
    });
    await clock.advance("1m");
    await theirs.recovery.recoverStale();
    assert.equal(
      (await mine.recovery.stats()).recoveryTimestamp,
      first,
      "when something was recovered, not when a process looked",
    );
    await theirs.claim(plain, { worker: "gone", lease: "1s" });
    await clock.advance("1s");
    await theirs.recovery.recoverStale();
    const total: StaleStats = { locksCleaned: 1, entriesReclaimed: 3, recoveryTimestamp: clock.now(), ...NOT_STALE };
    assert.deepEqual(await mine.recovery.stats(), total);
    await Promise.all([mine.close(), theirs.close()]);
    assert.deepEqual(await (await another()).recovery.stats(), total);
  });

  test("two concurrent recoveries count each entry once", async (t) => {
    const { another, clock } = await file(t);
    const handles = [await another(), await another()];
    const [mine] = handles as [Holdfast, Holdfast];
    const ids = await leave(mine, 20, 1_000);
    await mine.lock("a").acquire("gone", "1s");
    await clock.advance("1s");
    const found = await Promise.all([...handles, ...handles].map((hf) => hf.recovery.recoverStale()));
    assert.equal(
      found.reduce((sum, { entriesReclaimed }) => sum + entriesReclaimed, 0),
      20,
    );
    assert.equal(
      found.reduce((sum, { locksCleaned }) => sum + locksCleaned, 0),
      1,
    );
    const stats = await mine.recovery.stats();
    assert.deepEqual([stats.entriesReclaimed, stats.locksCleaned], [20, 1]);
    for (const id of ids) assert.equal((await see(mine, id)).crashes, 1);
  });
});

suite("reclaiming before a claim", () => {
  test("reclaiming before a claim is bounded, so that the claim does not wait for a large clean-up", async (t) => {
    const { hf, clock } = await memory(t);
    await leave(hf, 300, 1_000);
    await clock.advance("1s");
    const { store } = hf.engine;
    const sizes: number[] = [];
    const reclaim = store.recoveries.reclaim.bind(store.recoveries);
    store.recoveries.reclaim = (judgements, cause) => {
      sizes.push(judgements.length);
      return reclaim(judgements, cause);
    };
    assert.ok(await hf.claim(plain, { worker: "me" }));
    assert.equal(sizes.length, 1);
    assert.ok((sizes[0] as number) >= 1 && (sizes[0] as number) <= 200, `${sizes[0]} at once`);
  });

  for (const broken of ["stale", "reclaim"] as const) {
    test(`a reclaim that fails in ${broken} blocks no claim, by hand or by a worker, and is logged`, async (t) => {
      const { hf, clock, logged } = await memory(t);
      await leave(hf, 1, 1_000);
      await clock.advance("1s");
      const { recoveries } = hf.engine.store;
      const whole = recoveries[broken].bind(recoveries);
      Object.assign(recoveries, { [broken]: () => Promise.reject(new Error("no reclaim today")) });
      const byHand = await hf.enqueue(plain, 1);
      const claim = await hf.claim(plain, { worker: "me" });
      assert.equal(claim?.job.id, byHand.id);
      assert.ok(logged.some(({ level, data }) => level === "warn" && JSON.stringify(data).includes("no reclaim today")));
      hf.work([plain]);
      assert.equal((await hf.jobs.wait(await hf.enqueue(plain, "worked"))).output, "worked");
      await clock.advance("2s");
      Object.assign(recoveries, { [broken]: whole });
      await clock.advance("1s");
      assert.equal((await hf.recovery.stats()).entriesReclaimed, 1, "and it is tried again");
    });
  }
});

test("a working process finishes a report that another left unfinished", async (t) => {
  const { hf, clock } = await memory(t);
  const { store } = hf.engine;
  const who = { pid: 7, host: "elsewhere", boot: "boot", program: "worker" };
  const [dead, owner] = [await store.processes.register(who), await store.processes.register({ ...who, pid: 8 })];
  const begun = await store.recoveries.begin({ dead: [{ id: dead, life: "dead" }], by: owner, opening: true, alone: false });
  const report = begun?.report as number;
  const reason = "orchestrator_lost";
  await store.recoveries.reclaimFrom({ report, process: dead, as: "crashed", reason, limit: 1, spent: 0, cause: "it died" });
  await store.recoveries.close({ report: report, by: owner, ending: null });
  await store.processes.unregister(owner);
  hf.work([job<null, void>({ name: "idle", run: () => {} })]);
  await clock.advance("30s");
  const [ended] = (await store.recoveries.history({ limit: 1, which: "all" })).reports;
  assert.deepEqual([ended?.state, ended?.crashed.map(({ pid }) => pid)], ["completed", [7]]);
});

test("a janitor that is alone sleeps longer, and returns to its interval when anything happens", async (t) => {
  const { hf, clock } = await memory(t);
  const { store } = hf.engine;
  const probe = store.processes.probe.bind(store.processes);
  const looks: number[] = [];
  store.processes.probe = () => {
    looks.push(clock.now());
    return probe();
  };
  hf.work([job<null, void>({ name: "idle", run: () => {} })]);
  await clock.advance("1m");
  assert.ok(looks.length < 20, `${looks.length} looks in an idle minute`);
  const at = clock.now();
  await hf.lock("any").acquire("anna", "1h");
  await clock.advance(500);
  assert.ok((looks.at(-1) as number) > at, "a commit brings it back within half a second");
  const claim = await hf.claim("elsewhere", { worker: "none" });
  assert.equal(claim, null);
});
