import assert from "node:assert/strict";
import type { ProcessId } from "../../src/core/text/ids.ts";
import { abandonment, breakOrchestratorLock, ORCHESTRATOR_TTL_MS, leadOf, newestBuild } from "../../src/store/builds.ts";
import type { Store } from "../../src/store/store.ts";
import {
  bytes,
  changesNothing,
  clearedFor,
  listing,
  LOST,
  made,
  newBuild,
  newLead,
  PAUSED,
  paused,
  isQueuePaused,
  resuming,
  seeBuild,
  started,
  STOPPED,
  stopped,
  toldOf,
} from "./build-parts.ts";
import { pass, register } from "./parts.ts";
import type { Check } from "./suite.ts";

const AT_STARTUP = "orphaned_at_startup";
const NOTHING_KNOWN = { dead: [], alive: [] };

export function orchestratorLockCases(check: Check): void {
  check("the holder of the lock renews it", async ({ store, clock }) => {
    const { lock, lead, build } = await started(store);
    const acquiredAt = clock.now();
    pass(clock, 5_000);
    assert.equal(await store.builds.beat(lock), true);
    const { token: _, ...known } = lead;
    const view = { ...known, pipeline: "docs", build: build.id, acquiredAt, beatAt: clock.now() };
    assert.deepEqual(await leadOf(store.builds, "docs"), view);
    assert.deepEqual(await store.builds.orchestratorLocks(), [view]);
    assert.equal(await leadOf(store.builds, "blog"), null);
    await changesNothing(store, false, () => store.builds.beat({ pipeline: "docs", token: "another" }));
    await changesNothing(store, false, () => store.builds.beat({ pipeline: "blog", token: lock.token }));
  });

  for (const [how, lose] of Object.entries(LOSSES)) {
    check(`an orchestrator that ${how} changes nothing any more`, async ({ store }) => {
      const { build, lock, lead } = await started(store);
      await lose(store, build.id, lead.holder);
      await zombie(store, build.id, lock);
      // And neither does it when another process leads the same build, or another one of the pipeline.
      const { state } = await seeBuild(store, build);
      const next = newLead(await register(store), "token-2");
      const led = { build, lead: next, lock };
      made(await (state === "CRASHED" ? store.builds.start(resuming(led)) : store.builds.start(newBuild(next))));
      await zombie(store, build.id, lock);
      await zombie(store, (await leadOf(store.builds, "docs"))?.build ?? "", lock);
    });
  }

  check("the lock of one pipeline moves no build of another", async ({ store }) => {
    const docs = await started(store);
    const blog = await started(store, { pipeline: "blog", token: docs.lock.token });
    await changesNothing(store, null, () => store.builds.move(blog.build.id, STOPPED, docs.lock));
    await changesNothing(store, false, () =>
      store.builds.advance(blog.build.id, docs.lock, { round: 1, listing: listing("blog") }),
    );
    await changesNothing(store, null, () => store.builds.move("b00000000000000000", STOPPED, docs.lock));
  });

  check(
    "an operator breaks a lock, whichever process holds it: its build is CRASHED, with an event and an audit entry",
    async (ground) => {
      const { store } = ground;
      const { build, lock, lead } = await started(store);
      const view = await leadOf(store.builds, "docs");
      // The lock is not broken for the process that the operator found dead: another process has taken it since.
      const other = await register(store);
      await changesNothing(store, false, () => breakOrchestratorLock(store.builds, "docs", { by: "alice", holder: other }));
      assert.equal(await breakOrchestratorLock(store.builds, "docs", { by: "alice", holder: lead.holder }), true);
      const crashed = await seeBuild(store, build);
      assert.deepEqual(
        [crashed.state, crashed.reason, crashed.note, crashed.seq],
        ["CRASHED", LOST, "the lock was broken by alice", 2],
      );
      assert.equal(await leadOf(store.builds, "docs"), null);
      assert.equal(await isQueuePaused(store, build), true);
      const told = await toldOf(store, build);
      assert.deepEqual(
        told.map(({ type }) => type),
        ["build.started", "lead.broken", "build.crashed"],
      );
      const { holder, pid, host, program } = lead;
      assert.deepEqual(told[1]?.data, { pipeline: "docs", holder, pid, host, program, by: "alice" });
      const entries = await store.audit.page({ after: 0, limit: 10 });
      assert.deepEqual(
        entries.slice(1).map(({ by, action, subject }) => [by, action, subject]),
        [
          ["alice", "lead.broken", "lead:docs"],
          ["alice", "build.crashed", build.id],
        ],
      );
      assert.deepEqual([entries[1]?.before, entries[1]?.after], [view, null]);
      await changesNothing(store, false, () => breakOrchestratorLock(store.builds, "docs", { by: "alice" }));
      await changesNothing(store, false, () => store.builds.beat(lock));
    },
  );

  check("the lock of an unregistered process is free, and its build has crashed", async ({ store }) => {
    const first = await started(store);
    await store.processes.unregister(first.lead.holder);
    const second = await started(store, { token: "token-2" });
    assert.deepEqual(
      (await toldOf(store, first.build)).map(({ type, data }) => [type, data["reason"]]),
      [
        ["build.started", "started"],
        ["build.crashed", LOST],
        ["build.abandoned", "abandoned"],
      ],
    );
    assert.equal((await leadOf(store.builds, "docs"))?.build, second.build.id);
    await clearedFor(store, second);
    assert.equal(await isQueuePaused(store, second.build), false);
  });

  check("a build whose orchestrator is unregistered is resumed at once", async ({ store }) => {
    const led = await started(store);
    await store.processes.unregister(led.lead.holder);
    const lead = newLead(await register(store));
    const build = made(await store.builds.start(resuming({ ...led, lead })));
    assert.deepEqual([build.state, build.reason, build.seq], ["ACTIVE", "resumed", 3]);
    assert.deepEqual(
      (await toldOf(store, build)).map(({ data }) => data["reason"]),
      ["started", LOST, "resumed"],
    );
    assert.equal((await leadOf(store.builds, "docs"))?.holder, lead.holder);
  });

  check("a build with a live orchestrator is not orphaned", async ({ store, clock }) => {
    const { lead } = await started(store);
    await changesNothing(store, [], () => store.builds.orphan(NOTHING_KNOWN, LOST));
    await changesNothing(store, [], () => store.builds.orphan({ dead: [], alive: [lead.holder] }, LOST));
    const other = await register(store);
    await changesNothing(store, [], () => store.builds.orphan({ dead: [other], alive: [] }, LOST));
    pass(clock, 10 * ORCHESTRATOR_TTL_MS);
    await changesNothing(store, [], () => store.builds.orphan({ dead: [], alive: [lead.holder] }, LOST));
  });

  check(
    "a build is orphaned once its lock was not renewed for the time to live, and not a millisecond before",
    async (ground) => {
      const { store, clock } = ground;
      const { build, lock } = await started(store);
      pass(clock, 60_000);
      await store.builds.beat(lock);
      pass(clock, ORCHESTRATOR_TTL_MS - 1);
      await changesNothing(store, [], () => store.builds.orphan(NOTHING_KNOWN, LOST));
      pass(clock, 1);
      const orphans = await store.builds.orphan(NOTHING_KNOWN, LOST);
      assert.deepEqual(orphans, [await seeBuild(store, build)]);
      assert.deepEqual([orphans[0]?.state, orphans[0]?.reason], ["CRASHED", LOST]);
    },
  );

  check(
    "orphaned builds of dead processes have their reason, event and audit entry, and their queues are paused",
    async (ground) => {
      const { store } = ground;
      const docs = await started(store);
      const blog = await started(store, { pipeline: "blog", token: "token-2" });
      const wiki = await started(store, { pipeline: "wiki", token: "token-3" });
      await store.processes.unregister(blog.lead.holder);
      const orphans = await store.builds.orphan({ dead: [docs.lead.holder], alive: [] }, AT_STARTUP);
      assert.deepEqual(
        orphans.map(({ id, state, reason, seq }) => [id, state, reason, seq]),
        [docs, blog].map(({ build }) => [build.id, "CRASHED", AT_STARTUP, 2]),
      );
      for (const { build } of [docs, blog]) {
        assert.equal((await toldOf(store, build)).at(-1)?.type, "build.crashed");
        const entry = (await store.audit.page({ after: 0, limit: 10, subject: build.id })).at(-1);
        assert.deepEqual([entry?.by, entry?.action], ["recovery", "build.crashed"]);
        assert.equal(await isQueuePaused(store, build), true);
      }
      assert.deepEqual(
        (await store.builds.orchestratorLocks()).map(({ pipeline }) => pipeline),
        ["wiki"],
      );
      assert.equal(await isQueuePaused(store, wiki.build), false);
      await changesNothing(store, [], () => store.builds.orphan({ dead: [docs.lead.holder], alive: [] }, AT_STARTUP));
      assert.equal(made(await store.builds.start(resuming({ ...docs, lead: wiki.lead }))).state, "ACTIVE");
    },
  );

  check("only ACTIVE builds can be orphaned", async ({ store }) => {
    const { lead } = await stopped(store);
    await store.builds.move((await newestBuild(store.builds, "docs"))?.id ?? "", abandonment("done with"), { by: "operator" });
    const resting = await paused(store, { lead: { ...lead, token: "token-2" } });
    await store.processes.unregister(lead.holder);
    await changesNothing(store, [], () => store.builds.orphan({ dead: [lead.holder], alive: [] }, AT_STARTUP));
    assert.equal((await seeBuild(store, resting.build)).state, "BUDGET_PAUSE");
  });

  check.shared("two processes that find the same orphaned build move it once", async ({ store, another }) => {
    const { build, lead } = await started(store);
    const known = { dead: [lead.holder], alive: [] };
    const other = await another();
    const found = await Promise.all([store.builds.orphan(known, LOST), other.builds.orphan(known, LOST)]);
    assert.equal(found.flat().length, 1);
    assert.equal((await seeBuild(store, build)).seq, 2);
  });
}

/** How an orchestrator loses its lock without having let it go. */
const LOSSES: Record<string, (store: Store, build: string, holder: ProcessId) => Promise<unknown>> = {
  "was taken for dead": (store, _, holder) => store.builds.orphan({ dead: [holder], alive: [] }, LOST),
  "had its lock broken": (store) => breakOrchestratorLock(store.builds, "docs", { by: "operator" }),
  "had its build abandoned": (store, build) => store.builds.move(build, abandonment("enough"), { by: "operator" }),
};

/** All that an orchestrator does, by one whose lock is another's by now. */
async function zombie(store: Store, build: string, lock: { pipeline: string; token: string }): Promise<void> {
  await changesNothing(store, false, () => store.builds.beat(lock));
  await changesNothing(store, null, () => store.builds.move(build, STOPPED, lock));
  await changesNothing(store, null, () => store.builds.move(build, PAUSED, lock, { bytes: bytes(1) }));
  await changesNothing(store, null, () => store.builds.move(build, { move: "succeed", reason: "all_targets_done" }, lock));
  await changesNothing(store, null, () => store.builds.move(build, { move: "fail", reason: "source_failed" }, lock));
  await changesNothing(store, false, () => store.builds.advance(build, lock, { round: 1, listing: listing("docs") }));
}
