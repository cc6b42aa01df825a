import assert from "node:assert/strict";
import { BUILD_MOVES, type BuildMove, type WantedMove } from "../../src/core/pipelines/build.ts";
import type { LeaseRef } from "../../src/core/jobs/lease.ts";
import { pipelineQueue } from "../../src/core/pipelines/work.ts";
import { abandonment, buildById, leadOf, type OrchestratedBuild, type NewBuild, newestBuild } from "../../src/store/builds.ts";
import type { StoredResult } from "../../src/store/work.ts";
import {
  BUDGET,
  bytes,
  changesNothing,
  clearedFor,
  claimable,
  everything,
  listing,
  LOST,
  made,
  newBuild,
  newLead,
  paused,
  refused,
  isQueuePaused,
  resuming,
  seeBuild,
  started,
  stopped,
  STOPPED,
  toldOf,
} from "./build-parts.ts";
import { changesDuring, claimOne, ERROR, LEASE, pass, register } from "./parts.ts";
import type { Check } from "./suite.ts";
import { again, counts, dollars, ended, list, parsing, seeTarget, settleItem, site, toWork } from "./work-parts.ts";

const SUCCEED: WantedMove = { move: "succeed", reason: "all_targets_done" };
const FAILED_FOR_GOOD = { kind: "error", error: ERROR, retry: false } as const;
const KILLED_WORKERS = { name: "CrashError", code: "CRASHED", message: "It took its worker down 3 times." };
const SOURCE_FAILED: WantedMove = { move: "fail", reason: "source_failed" };

export function buildCases(check: Check): void {
  check("a started build is ACTIVE, with its stages, its budget and its listing job", async (ground) => {
    const { store, clock } = ground;
    const { build: led, lead } = await started(store, { maxFailures: 3 });
    const { isQueuePaused: isResting, retries, ...build } = led;
    assert.deepEqual([isResting, retries], [false, false]);
    const { description, hash } = newBuild(lead);
    assert.match(build.id, /^b[0-9a-v]{17}$/);
    assert.deepEqual(build, {
      key: build.key,
      id: build.id,
      pipeline: "docs",
      queue: "pipeline/docs",
      state: "ACTIVE",
      reason: "started",
      note: null,
      seq: 1,
      hash,
      description,
      options: '{"rerun":[]}',
      budget: BUDGET,
      spent: { micros: 0, tokens: 0 },
      reserved: { micros: 0, tokens: 0 },
      approved: false,
      maxFailures: 3,
      round: 0,
      listing: "running",
      open: 0,
      failed: 0,
      blocked: null,
      refused: { micros: 0, tokens: 0 },
      createdAt: clock.now(),
      finishedAt: null,
      stages: ["parse", "index"].map((stage) => ({ stage, ran: 0, cached: 0, failed: 0, passed: 0, open: 0 })),
    });
    assert.deepEqual(await buildById(store.builds, build.id), build);
    assert.equal(await isQueuePaused(store, build), false);
    assert.equal(await claimable(store, build), 1, "the listing");
  });

  check("a waiting worker is notified of a build that starts and of a build that resumes", async ({ store }) => {
    const lead = newLead(await register(store));
    let build = "";
    const starting = await changesDuring(store, async () => {
      build = made(await store.builds.start(newBuild(lead))).id;
    });
    assert.ok(starting.some(({ ready }) => ready?.has("pipeline/docs")));
    const lock = { pipeline: "docs", token: lead.token };
    const led = { build: made(await store.builds.move(build, STOPPED, lock)), lead, lock };
    const resumed = await changesDuring(store, () => store.builds.start(resuming(led)));
    assert.ok(resumed.some(({ ready }) => ready?.has("pipeline/docs")));
  });

  check("a second start returns the running build's orchestrator, and changes nothing", async ({ store, clock }) => {
    const { build, lead } = await started(store);
    const { token: _, ...known } = lead;
    const acquiredAt = clock.now();
    pass(clock, 1_000);
    const other = newLead(await register(store, "other"), "token-2");
    const conflict = { ...known, pipeline: "docs", build: build.id, acquiredAt, beatAt: acquiredAt };
    await changesNothing(store, { conflict }, () => store.builds.start(newBuild(other)));
  });

  check("of several concurrent starts one succeeds, and the others get its build", async ({ store }) => {
    const holder = await register(store);
    const answers = await Promise.all(["a", "b", "c"].map((token) => store.builds.start(newBuild(newLead(holder, token)))));
    const conflicts = answers.filter((answer) => "conflict" in answer);
    assert.equal(conflicts.length, 2);
    const build = made(answers.find((answer) => "seq" in answer) ?? null);
    assert.deepEqual(
      conflicts.map((answer) => ("conflict" in answer ? answer.conflict.build : null)),
      [build.id, build.id],
    );
    assert.equal(await claimable(store, build), 1, "there is one listing");
  });

  check.shared("of two processes that start at once, one succeeds", async ({ store, another }) => {
    const stores = [store, await another(), await another()];
    const leads = await Promise.all(stores.map(async (one, i) => newLead(await register(one), `token-${i}`)));
    const answers = await Promise.all(stores.map((one, i) => one.builds.start(newBuild(leads[i] as (typeof leads)[0]))));
    assert.equal(answers.filter((answer) => "conflict" in answer).length, 2);
    assert.equal((await store.builds.list({ limit: 10 })).items.length, 1);
  });

  check("two pipelines have orchestrators at the same time", async ({ store }) => {
    const docs = await started(store);
    const blog = await started(store, { pipeline: "blog" });
    assert.deepEqual(
      (await store.builds.orchestratorLocks()).map(({ pipeline, build }) => [pipeline, build]),
      [
        ["blog", blog.build.id],
        ["docs", docs.build.id],
      ],
    );
    await store.builds.move(docs.build.id, STOPPED, docs.lock);
    assert.equal(await isQueuePaused(store, docs.build), true);
    assert.equal(await isQueuePaused(store, blog.build), false, "the other continues");
  });

  check("a start abandons the crashed build before it, and says so", async ({ store, clock }) => {
    const { build: old } = await stopped(store);
    pass(clock, 1_000);
    const { build, lock } = await started(store, { token: "token-2" });
    const abandoned = await seeBuild(store, old);
    assert.deepEqual(
      [abandoned.state, abandoned.reason, abandoned.note, abandoned.seq, abandoned.finishedAt],
      ["ABANDONED", "abandoned", "another build was started", 3, clock.now()],
    );
    assert.equal(build.state, "ACTIVE");
    assert.ok(build.id > old.id && build.key > old.key);
    await clearedFor(store, { build, lock });
    assert.equal(await isQueuePaused(store, build), false, "the queue that they share is open");
  });

  check("a start is rejected while a build of the pipeline is paused for its budget", async ({ store }) => {
    const { build, lead } = await paused(store);
    await changesNothing(store, { paused: build.id }, () => store.builds.start(newBuild({ ...lead, token: "token-2" })));
  });

  check("a failed start leaves nothing behind, not even the abandoning of an older build", async ({ store }) => {
    const { lead } = await stopped(store);
    const before = await everything(store);
    const bad = { ...listing("docs") };
    Object.defineProperty(bad, "policy", {
      get: () => {
        throw new Error("bad");
      },
    });
    await assert.rejects(store.builds.start(newBuild(lead, { listing: bad })), /bad/);
    assert.deepEqual(await everything(store), before);
  });

  check("a call that fails does not affect other calls of the same batch", async ({ store }) => {
    const { build, lock } = await started(store);
    const holder = await register(store);
    const [failed, blog] = await Promise.allSettled([
      store.builds.move(build.id, SUCCEED, lock),
      store.builds.start(newBuild(newLead(holder, "token-2"), { pipeline: "blog" })),
    ]);
    assert.equal(failed.status, "rejected");
    assert.equal(blog.status, "fulfilled");
    assert.equal((await newestBuild(store.builds, "blog"))?.state, "ACTIVE");
    assert.equal((await seeBuild(store, build)).state, "ACTIVE");
  });

  check(
    "each transition has its number, reason and event, in order, and the queue is paused unless the build is ACTIVE",
    async (ground) => {
      const { store, clock } = ground;
      const led = await started(store);
      const { id } = led.build;
      await store.builds.move(id, STOPPED, led.lock);
      assert.equal(await isQueuePaused(store, led.build), true);
      assert.equal(await claimable(store, led.build), 0);
      assert.equal(await leadOf(store.builds, "docs"), null, "the lock is let go");
      const resumed = made(await store.builds.start(resuming(led)));
      assert.deepEqual([resumed.state, resumed.reason, resumed.seq], ["ACTIVE", "resumed", 3]);
      assert.equal((await leadOf(store.builds, "docs"))?.build, id);
      assert.equal(await isQueuePaused(store, led.build), false);
      pass(clock, 5_000);
      const failed = made(await store.builds.move(id, SOURCE_FAILED, { pipeline: "docs", token: "token-2" }));
      assert.deepEqual([failed.state, failed.reason, failed.seq, failed.finishedAt], ["FAILED", "source_failed", 4, clock.now()]);
      assert.equal(await isQueuePaused(store, led.build), true);
      assert.equal(await leadOf(store.builds, "docs"), null);
      const rest = { pipeline: "docs", spent: { usd: 0, tokens: 0 }, budget: { usd: 5 }, note: null };
      assert.deepEqual(await toldOf(store, led.build), [
        { type: "build.started", data: { ...rest, seq: 1, from: "PENDING", to: "ACTIVE", reason: "started" } },
        { type: "build.crashed", data: { ...rest, seq: 2, from: "ACTIVE", to: "CRASHED", reason: "stopped" } },
        { type: "build.resumed", data: { ...rest, seq: 3, from: "CRASHED", to: "ACTIVE", reason: "resumed" } },
        { type: "build.failed", data: { ...rest, seq: 4, from: "ACTIVE", to: "FAILED", reason: "source_failed" } },
      ]);
      const all = await store.events.page({ after: 0, limit: 100 });
      assert.equal(all.length, 4, "no queue was paused");
      assert.ok(all.every(({ build }) => build === id));
      assert.equal(new Set(all.map(({ dedupeKey }) => dedupeKey)).size, 4);
    },
  );

  check("a build moves only as the table says", async ({ store }) => {
    const { build, lock } = await started(store);
    await refused(store, "BUILD_NOT_READY", () => store.builds.move(build.id, SUCCEED, lock));
    await refused(store, "BUILD_NOT_READY", () => store.builds.move(build.id, { move: "fail", reason: "targets_failed" }, lock));
    await refused(store, "BUILD_NOT_READY", () => store.builds.move(build.id, { move: "crash", reason: LOST }, lock));
    await refused(store, "BUILD_NOT_READY", () => store.builds.move(build.id, abandonment(" "), { by: "operator" }));
    await refused(store, "BUILD_REASON", () => store.builds.move(build.id, { move: "fail", reason: "stopped" }, lock));
    await refused(store, "BUILD_STATE", () => store.builds.move(build.id, { move: "start", reason: "started" }, lock));
    await refused(store, "BUILD_STATE", () => store.builds.move(build.id, { move: "resume", reason: "resumed" }, lock));
  });

  check("a build that has ended never moves again", async ({ store }) => {
    const led = await started(store);
    await store.builds.move(led.build.id, abandonment("not needed"), { by: "operator" });
    await refused(store, "BUILD_STATE", () => store.builds.move(led.build.id, abandonment("really"), { by: "operator" }));
    await refused(store, "BUILD_STATE", () => store.builds.start(resuming(led)));
    for (const move of Object.keys(BUILD_MOVES) as BuildMove[]) {
      const wanted = { move, reason: "abandoned", note: "please" } as const;
      await refused(store, "BUILD_STATE", () => store.builds.move(led.build.id, wanted, { by: "operator" }));
    }
    await refused(store, "BUILD_NOT_PAUSED", () => store.builds.authorize(led.build.id, { bytes: bytes(2) }, "operator"));
    await started(store, { token: "token-2" });
    await refused(store, "BUILD_STATE", () => store.builds.start(resuming(led, { token: "token-3" })));
  });

  check("an operator abandons a build in any state, and its orchestrator loses the lock", async ({ store, clock }) => {
    const { build, lock } = await started(store);
    pass(clock, 10);
    const abandoned = made(await store.builds.move(build.id, abandonment("wrong folder"), { by: "operator" }));
    assert.deepEqual(
      [abandoned.state, abandoned.reason, abandoned.note, abandoned.seq, abandoned.finishedAt],
      ["ABANDONED", "abandoned", "wrong folder", 2, clock.now()],
    );
    assert.equal(await isQueuePaused(store, build), true);
    assert.deepEqual(await store.builds.orchestratorLocks(), []);
    assert.equal(await store.builds.beat(lock), false);
    const crashed = await stopped(store);
    assert.equal((await store.builds.move(crashed.build.id, abandonment("again"), { by: "operator" }))?.state, "ABANDONED");
    const pausing = await paused(store);
    assert.equal((await store.builds.move(pausing.build.id, abandonment("too dear"), { by: "operator" }))?.state, "ABANDONED");
    assert.equal(await store.builds.move("b00000000000000000", abandonment("gone"), { by: "operator" }), null);
  });

  check("a build resumes only with the pipeline that it was started with", async ({ store }) => {
    const led = await stopped(store);
    const error = await refused(store, "PIPELINE_CHANGED", () => store.builds.start(resuming(led, { version: 2 })));
    assert.match(error.message, /version of stage "parse" is 2, it was 1\./);
    const unknown = { ...resuming(led), build: "b00000000000000000" };
    await refused(store, "NO_SUCH_BUILD", () => store.builds.start(unknown));
    assert.equal(made(await store.builds.start(resuming(led))).state, "ACTIVE");
  });

  check("a build whose orchestrator lock is held is not resumed by another process", async ({ store }) => {
    const led = await started(store);
    const conflict = await leadOf(store.builds, "docs");
    assert.equal(conflict?.build, led.build.id);
    await changesNothing(store, { conflict }, () => store.builds.start(resuming(led)));
  });

  check.shared("of two processes that resume at once, one succeeds", async ({ store, another }) => {
    const led = await stopped(store);
    const other = await another();
    const answers = await Promise.all([
      store.builds.start(resuming(led, { token: "token-2" })),
      other.builds.start(resuming(led, { token: "token-3" })),
    ]);
    assert.equal(answers.filter((answer) => "conflict" in answer).length, 1);
    assert.equal((await seeBuild(store, led.build)).seq, 3);
  });

  check("each round follows the one before once, with its listing job", async ({ store }) => {
    const { build, lock } = await started(store);
    assert.equal(await claimable(store, build), 1);
    const next = (round: number, key = lock) => store.builds.advance(build.id, key, { round, listing: listing("docs", round) });
    await changesNothing(store, false, () => next(0));
    await changesNothing(store, false, () => next(2));
    await changesNothing(store, false, () => next(1, { pipeline: "docs", token: "of another process" }));
    assert.equal(await next(1), true);
    const { round, listing: listed, seq } = await seeBuild(store, build);
    assert.deepEqual([round, listed, seq], [1, "running", 1]);
    assert.equal(await claimable(store, build), 1);
    await changesNothing(store, false, () => next(1));
    await changesNothing(store, false, () =>
      store.builds.advance("b00000000000000000", lock, { round: 2, listing: listing("docs") }),
    );
    await store.builds.move(build.id, STOPPED, lock);
    await changesNothing(store, false, () => next(2));
  });

  check("a resume removes failures from the counts until they are listed again", async ({ store }) => {
    const at = await site(store, { maxFailures: 1 });
    const leases = await parsing(store, at, ["a", "b"], { attempts: 1 });
    for (const lease of leases) await settleItem(store, lease, ended({ result: null, cost: dollars(1) }), FAILED_FOR_GOOD);
    await settleItem(store, at.lister, ended({ result: null }));
    const failed = { parse: [0, 0, 2, 0, 0], index: [0, 0, 0, 0, 0] };
    assert.deepEqual(await counts(store, at.build), [0, 2, failed]);
    await store.builds.move(at.build.id, STOPPED, at.lock);
    const resumed = made(await store.builds.start(resuming(at))) as OrchestratedBuild;
    assert.deepEqual([resumed.retries, resumed.failed, resumed.spent.micros], [true, 0, 20_000]);
    assert.deepEqual(await counts(store, at.build), [0, 0, { parse: [0, 0, 0, 0, 0], index: [0, 0, 0, 0, 0] }]);
    const lock = { pipeline: "docs", token: "token-2" };
    await refused(store, "BUILD_NOT_READY", () => store.builds.move(at.build.id, SUCCEED, lock));
    // Stopped before anything was listed again: they have failed, as before.
    await store.builds.move(at.build.id, STOPPED, lock);
    assert.deepEqual(await counts(store, at.build), [0, 2, failed]);
    assert.equal((await store.work.results({ build: at.build.id, failed: true, limit: 9 })).length, 2);
    await store.builds.start(resuming(at, { token: "token-3" }));
    const own = { pipeline: "docs", token: "token-3" };
    assert.equal(await store.builds.advance(at.build.id, own, { round: 0, listing: listing("docs") }), true);
    assert.equal(
      await store.builds.advance(at.build.id, own, { round: 0, listing: listing("docs") }),
      false,
      "while it is listed",
    );
    const lister = await claimOne(store, { from: [{ queue: at.build.queue, lease: LEASE }] });
    const page = await store.work.results({ retried: at.build.key, after: 0, limit: 1 });
    const rest = await store.work.results({ retried: at.build.key, after: (page[0] as StoredResult).key, limit: 9 });
    assert.deepEqual(
      [...page, ...rest].map(({ stage, path }) => [stage, path]),
      [
        ["parse", "a"],
        ["parse", "b"],
      ],
    );
    const row = await seeTarget(store, "a");
    assert.equal(row.failure, page[0]?.key);
    const targets = [again(row, toWork(at.build, "parse", "a"))];
    await list(store, { ...at, lister }, { targets, retried: page.map(({ key }) => key) });
    assert.deepEqual(await store.work.results({ retried: at.build.key, after: 0, limit: 9 }), rest);
    assert.equal((await seeTarget(store, "a")).failure, null);
    assert.deepEqual(await counts(store, at.build), [1, 0, { parse: [0, 0, 0, 0, 1], index: [0, 0, 0, 0, 0] }]);
    await store.builds.move(at.build.id, abandonment("enough"), { by: "operator" });
    assert.deepEqual((await counts(store, at.build))[1], 1, "the other one has failed and was not tried again");
  });

  for (const [what, { hasDied, byOperator }] of [
    ["a resume after a stop runs a target again that killed its workers", { hasDied: false, byOperator: false }],
    ["an operator's resume runs a target again that killed its workers", { hasDied: true, byOperator: true }],
    [
      "a program's resume after the orchestrator died does not run a target again that killed its workers",
      { hasDied: true, byOperator: false },
    ],
  ] as const)
    check(what, async ({ store }) => {
      const at = await site(store);
      const [killer, other] = await parsing(store, at, ["a", "b"], { attempts: 1 });
      await settleItem(store, killer as LeaseRef, ended({ result: null }), { ...FAILED_FOR_GOOD, error: KILLED_WORKERS });
      await settleItem(store, other as LeaseRef, ended({ result: null }), FAILED_FOR_GOOD);
      await settleItem(store, at.lister, ended({ result: null }));
      if (hasDied) await store.builds.orphan({ dead: [at.lead.holder], alive: [] }, LOST);
      else await store.builds.move(at.build.id, STOPPED, at.lock);
      await store.builds.start({ ...resuming(at), byOperator });
      const retried = await store.work.results({ retried: at.build.key, after: 0, limit: 9 });
      assert.deepEqual(
        retried.map(({ path }) => path),
        hasDied && !byOperator ? ["b"] : ["a", "b"],
      );
    });

  check("builds are listed in the order of creation, page by page", async ({ store, clock }) => {
    const ids: string[] = [];
    const add = async (given: Partial<NewBuild> = {}) => {
      const led = await started(store, given);
      ids.push(led.build.id);
      pass(clock, 1_000);
      return led;
    };
    const first = await add();
    await store.builds.move(first.build.id, abandonment("once"), { by: "operator" });
    await add({ pipeline: "blog" });
    const third = await add();
    await store.builds.move(third.build.id, STOPPED, third.lock);
    await add({ pipeline: "wiki", queue: pipelineQueue("wiki", "here") });
    assert.deepEqual(ids, ids.toSorted());
    const list = async (filter: object) => {
      const { items, next } = await store.builds.list({ limit: 2, ...filter });
      return [items.map(({ id }) => ids.indexOf(id)), next];
    };
    assert.deepEqual(await list({ limit: 10 }), [[0, 1, 2, 3], undefined]);
    assert.deepEqual(await list({}), [[0, 1], ids[1]]);
    assert.deepEqual(await list({ after: ids[1] }), [[2, 3], undefined]);
    assert.deepEqual(await list({ order: "newest" }), [[3, 2], ids[2]]);
    assert.deepEqual(await list({ order: "newest", after: ids[2] }), [[1, 0], undefined]);
    assert.deepEqual(await list({ order: "newest", pipeline: "docs" }), [[2, 0], undefined]);
    assert.deepEqual(await list({ pipeline: "docs" }), [[0, 2], undefined]);
    assert.deepEqual(await list({ pipeline: "docs", limit: 1 }), [[0], ids[0]]);
    assert.deepEqual(await list({ state: "ACTIVE" }), [[1, 3], undefined]);
    assert.deepEqual(await list({ pipeline: "docs", state: "ACTIVE" }), [[], undefined]);
    await assert.rejects(list({ after: "nonsense" }), { code: "OPTION_INVALID" });
    const newest = async (of: string, state?: Parameters<typeof newestBuild>[2]) =>
      (await newestBuild(store.builds, of, state))?.id;
    assert.equal(await newest("docs"), ids[2]);
    assert.equal(await newest("docs", "ABANDONED"), ids[0]);
    assert.equal(await newest("docs", "SUCCESS"), undefined);
    assert.equal(await newest("nothing"), undefined);
    assert.equal(await buildById(store.builds, "nothing"), null);
  });

  check("one query finds the newest build of each pipeline, and so every unfinished one", async ({ store }) => {
    assert.deepEqual((await store.builds.list({ newest: true })).items, []);
    const docs = await started(store);
    const blog = await started(store, { pipeline: "blog" });
    await store.builds.move(docs.build.id, abandonment("enough"), { by: "anna" });
    const again = await started(store);
    await store.builds.move(blog.build.id, abandonment("enough"), { by: "anna" });
    const { items: found } = await store.builds.list({ newest: true });
    assert.deepEqual(
      found.map(({ id, pipeline, state }) => [id, pipeline, state]),
      [
        [blog.build.id, "blog", "ABANDONED"],
        [again.build.id, "docs", "ACTIVE"],
      ],
    );
    assert.deepEqual(found[1], await seeBuild(store, again.build), "as it is when it is asked for");
  });

  check("the audit has actor, action and states of each build transition", async ({ store, clock }) => {
    const { build, lock } = await started(store);
    const at = clock.now();
    pass(clock, 1_000);
    await store.builds.move(build.id, STOPPED, lock);
    await store.builds.move(build.id, abandonment("enough"), { by: "alice" });
    const entries = await store.audit.page({ after: 0, limit: 10, subject: build.id });
    const by = "holdfast run docs.ts (pid 4321 on here)";
    const rest = { note: null, budget: { usd: 5 }, approved: false };
    const pending = { state: "PENDING", reason: "started", seq: 0, ...rest };
    const active = { state: "ACTIVE", reason: "started", seq: 1, ...rest };
    const crashed = { state: "CRASHED", reason: "stopped", seq: 2, ...rest };
    const abandoned = { state: "ABANDONED", reason: "abandoned", seq: 3, ...rest, note: "enough" };
    const about = { seq: 0, subject: build.id };
    assert.deepEqual(
      entries.map((entry) => ({ ...entry, seq: 0 })),
      [
        { at, by, action: "build.started", ...about, before: pending, after: { ...active, programHash: "f00d" } },
        { at: at + 1_000, by, action: "build.crashed", ...about, before: active, after: crashed },
        { at: at + 1_000, by: "alice", action: "build.abandoned", ...about, before: crashed, after: abandoned },
      ],
    );
    const [, second, third] = entries.map(({ seq }) => seq) as [number, number, number];
    const after = await store.audit.page({ after: second, limit: 1 });
    assert.deepEqual(
      after.map(({ seq }) => seq),
      [third],
    );
    assert.deepEqual(await store.audit.page({ after: 0, limit: 10, subject: "nothing" }), []);
  });

  check.shared("builds, locks, audit and events survive a reopening", async ({ store, reopen }) => {
    await paused(store);
    await started(store, { pipeline: "blog" });
    const before = await everything(store);
    assert.deepEqual(await everything(await reopen()), before);
  });
}
