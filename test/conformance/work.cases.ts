import assert from "node:assert/strict";
import { abandonment, type OrchestratedBuild } from "../../src/store/builds.ts";
import type { Claimed, Store } from "../../src/store/store.ts";
import { type Flow, resultOf } from "../../src/store/work.ts";
import { made, resuming, seeBuild, started, STOPPED } from "./build-parts.ts";
import { addOne, changesDuring, claimOne, ERROR, LEASE, pass, see, SUCCEEDED, takeBack } from "./parts.ts";
import type { Check } from "./suite.ts";
import {
  again,
  claimOf,
  counts,
  dollars,
  ended,
  everyWork,
  FREE,
  item,
  list,
  parsed,
  parsing,
  parsingOne,
  result,
  seeTarget,
  settleItem,
  site,
  type Site,
  target,
  toEnd,
  toWork,
} from "./work-parts.ts";
import { countJobs } from "../../src/store/queries.ts";

export function workCases(check: Check): void {
  check("a work item belongs to its job, and is open until it ends", async ({ store }) => {
    const at = await site(store);
    const { build, lister } = at;
    const lease = await parsingOne(store, at);
    const view = (await store.work.works([lease.job]))[0];
    assert.deepEqual(
      [view?.kind, view?.stage, view?.segment, view?.build.id, view?.target?.path],
      ["stage", "parse", 0, build.id, "a"],
    );
    assert.deepEqual(await counts(store, build), [1, 0, { parse: [0, 0, 0, 0, 1], index: [0, 0, 0, 0, 0] }]);
    const listing = (await store.work.works([lister.job]))[0];
    assert.deepEqual([listing?.kind, listing?.stage, listing?.target], ["listing", "", null]);
    await settleItem(store, lease, ended({ target: again(await seeTarget(store, "a"), toEnd("a")) }));
    assert.equal((await store.work.works([lease.job]))[0], null);
    assert.equal((await seeBuild(store, build)).open, 0);
  });

  check("one target, stage and build has one open item, however often it is requested", async ({ store }) => {
    const { build } = await site(store);
    const [first] = await store.enqueue([item({ build })]);
    assert.ok(first);
    const more = await store.enqueue([item({ build }), item({ build, path: "b" }), item({ build, stage: "index" })]);
    assert.deepEqual(
      more.map((answer) => "duplicate" in answer && answer.duplicate),
      [true, false, false],
    );
    assert.equal(more[0]?.id, first.id);
    assert.equal((await seeBuild(store, build)).open, 3);
    await store.cancel(first.id);
    const [next] = await store.enqueue([item({ build })]);
    assert.notEqual(next?.id, first.id, "and one more, when that has ended");
  });

  check("a success commits with its result, its target, its counts and the next stage's job", async ({ store, clock }) => {
    const at = await site(store);
    const lease = await parsingOne(store, at);
    pass(clock, 50);
    await parsed(store, at, lease, "a", { cost: dollars(3) });
    assert.equal((await see(store, lease.id)).state, "succeeded");
    const made = await resultOf(store.work, at.build.id, "parse", "a");
    const { output, hash, parts } = result();
    assert.deepEqual(made, {
      key: made?.key,
      build: at.build.id,
      stage: "parse",
      path: "a",
      target: "a",
      state: "SUCCESS",
      hash,
      parts,
      output,
      cost: dollars(3),
      error: null,
      at: clock.now(),
    });
    const row = await seeTarget(store, "a");
    assert.deepEqual(row.completed, [{ stage: "parse", result: made?.key, output: output.hash }], "the completed leads to it");
    assert.deepEqual([row.rev, row.done, row.member], [2, null, null]);
    assert.deepEqual(await counts(store, at.build), [1, 0, { parse: [1, 0, 0, 0, 0], index: [0, 0, 0, 0, 1] }]);
    const [next] = (await claimOf(store, at.build)) as [Claimed];
    assert.equal((await store.work.works([next.job]))[0]?.stage, "index");
  });

  check("a success with a lost lease changes none of these", async ({ store }) => {
    const at = await site(store);
    const lease = await parsingOne(store, at);
    const row = await seeTarget(store, "a");
    await takeBack(store, "stalled", lease);
    const before = await everyWork(store, at.build);
    const { job, fence } = lease;
    const work = ended({ cost: dollars(3), target: again(row, toWork(at.build, "index", "a")) });
    assert.deepEqual(await store.settle([{ job, fence, outcome: SUCCEEDED, work }]), ["lost"]);
    assert.deepEqual(await everyWork(store, at.build), before);
  });

  check("many items end in one call, each with its own parts, beside plain jobs", async ({ store }) => {
    const at = await site(store);
    const leases = await parsing(store, at, ["a", "b", "c"]);
    await addOne(store, { name: "plain" });
    const plain = await claimOne(store, { from: [{ queue: "plain", lease: LEASE }] });
    const rows = await Promise.all(["a", "b", "c"].map((path) => seeTarget(store, path)));
    const settlements = leases.map(({ job, fence }, i) => {
      const row = rows[i] as (typeof rows)[number];
      return { job, fence, outcome: SUCCEEDED, work: ended({ target: again(row, toWork(at.build, "index", row.path)) }) };
    });
    const { job, fence } = plain;
    const fates = await store.settle([...settlements, { job, fence, outcome: SUCCEEDED }]);
    assert.deepEqual(fates, ["held", "held", "held", "held"]);
    assert.deepEqual(await counts(store, at.build), [3, 0, { parse: [3, 0, 0, 0, 0], index: [0, 0, 0, 0, 3] }]);
    assert.equal((await claimOf(store, at.build)).length, 3);
  });

  check("an item without a result of its own is not counted", async ({ store }) => {
    const at = await site(store);
    const lease = await parsingOne(store, at);
    await parsed(store, at, lease, "a", { result: null });
    assert.equal(await resultOf(store.work, at.build.id, "parse", "a"), null);
    assert.deepEqual(await counts(store, at.build), [1, 0, { parse: [0, 0, 0, 0, 0], index: [0, 0, 0, 0, 1] }]);
    assert.deepEqual(await store.work.costs("docs"), {}, "and says nothing about what the stage costs");
  });

  check("stages that a target passes are counted", async ({ store }) => {
    const at = await site(store);
    const lease = await parsingOne(store, at);
    const passed = [{ stage: "index", as: "cached" }] as const;
    await settleItem(store, lease, ended({ target: again(await seeTarget(store, "a"), toEnd("a"), { passed }) }));
    assert.deepEqual(await counts(store, at.build), [0, 0, { parse: [1, 0, 0, 0, 0], index: [0, 1, 0, 0, 0] }]);
    const row = await seeTarget(store, "a");
    assert.deepEqual([row.done, row.member, row.group], ["definition-1", "member of a", null]);
  });

  check("a result is kept, and the target left alone, if the target changed meanwhile", async ({ store }) => {
    const at = await site(store);
    const lease = await parsingOne(store, at);
    const row = { ...(await seeTarget(store, "a")), rev: 7 };
    const passed = [{ stage: "index", as: "passed" }] as const;
    await settleItem(store, lease, ended({ target: again(row, toWork(at.build, "index", "a"), { passed }) }));
    assert.equal((await resultOf(store.work, at.build.id, "parse", "a"))?.state, "SUCCESS");
    assert.equal((await seeTarget(store, "a")).rev, 1);
    assert.deepEqual(await counts(store, at.build), [0, 0, { parse: [1, 0, 0, 0, 0], index: [0, 0, 0, 0, 0] }]);
  });

  check("a target that cannot advance after a success has failed there", async ({ store }) => {
    const at = await site(store);
    const lease = await parsingOne(store, at);
    const flow = { to: "failed", completed: [], stage: "index", hash: "", error: ERROR } as const;
    await settleItem(store, lease, ended({ target: again(await seeTarget(store, "a"), flow) }));
    assert.deepEqual(await counts(store, at.build), [0, 1, { parse: [1, 0, 0, 0, 0], index: [0, 0, 1, 0, 0] }]);
    const [failure] = await store.work.results({ build: at.build.id, failed: true, limit: 10 });
    assert.deepEqual([failure?.stage, failure?.path, failure?.error], ["index", "a", ERROR]);
  });

  const WAYS_TO_FAIL: Record<string, (store: Store, lease: Claimed) => Promise<unknown>> = {
    failed: (store, lease) => settleItem(store, lease, undefined, { kind: "error", error: ERROR, retry: false }),
    quarantined: (store, lease) => settleItem(store, lease, undefined, { kind: "unreadable", error: ERROR }),
    "quarantined after its crashes": (store, lease) => takeBack(store, "crashed", lease),
    cancelled: (store, lease) => store.cancel(lease.id),
    "settled without what it made": (store, lease) => settleItem(store, lease, undefined),
  };
  for (const [way, act] of Object.entries(WAYS_TO_FAIL)) {
    check(`an item that is ${way} is a recorded failure, and its target has not reached its end`, async ({ store }) => {
      const at = await site(store);
      const lease = await parsingOne(store, at, "a", { crashes: 1 });
      await act(store, lease);
      assert.deepEqual(await counts(store, at.build), [0, 1, { parse: [0, 0, 1, 0, 0], index: [0, 0, 0, 0, 0] }]);
      const [failure] = await store.work.results({ build: at.build.id, failed: true, limit: 10 });
      const { error } = await see(store, lease.id);
      assert.deepEqual([failure?.state, failure?.path, failure?.target], ["FAILED", "a", "a"]);
      if (way === "cancelled") assert.equal(failure?.error?.code, "CANCELLED");
      else assert.deepEqual(failure?.error, error);
      const row = await seeTarget(store, "a");
      assert.deepEqual([row.done, row.member, row.rev], [null, null, 2]);
      assert.equal((await store.work.works([lease.job]))[0], null);
      assert.equal(await store.retry(lease.id), false, "the next build does it again, not an operator");
      assert.deepEqual(await claimOf(store, at.build), []);
    });
  }

  check("the record of a failure has the context of the attempt", async ({ store }) => {
    const at = await site(store);
    const lease = await parsingOne(store, at);
    const work = { cost: FREE, result: null, target: null, context: { hash: "context-9", parts: '{"version":9}' } };
    await settleItem(store, lease, work, { kind: "error", error: ERROR, retry: false });
    const [failure] = await store.work.results({ build: at.build.id, failed: true, limit: 10 });
    assert.deepEqual([failure?.hash, failure?.parts], ["context-9", '{"version":9}']);
  });

  check("an attempt that is retried leaves its item open", async ({ store, clock }) => {
    const at = await site(store);
    const lease = await parsingOne(store, at);
    await settleItem(store, lease, undefined, { kind: "error", error: ERROR });
    assert.deepEqual(await counts(store, at.build), [1, 0, { parse: [0, 0, 0, 0, 1], index: [0, 0, 0, 0, 0] }]);
    pass(clock, 1_000);
    const [second] = (await claimOf(store, at.build)) as [Claimed];
    await parsed(store, at, second, "a");
    assert.deepEqual(await counts(store, at.build), [1, 0, { parse: [1, 0, 0, 0, 0], index: [0, 0, 0, 0, 1] }]);
  });

  check("a listing that succeeds is done, and one that fails has failed", async ({ store }) => {
    const first = await site(store);
    await settleItem(store, first.lister, { cost: FREE, result: null, target: null });
    assert.equal((await seeBuild(store, first.build)).listing, "done");
    const second = await site(store, { pipeline: "blog", token: "token-2" });
    await settleItem(store, second.lister, undefined, { kind: "error", error: ERROR, retry: false });
    const { listing, open, failed } = await seeBuild(store, second.build);
    assert.deepEqual([listing, open, failed], ["failed", 0, 0]);
  });

  check("a target is deleted after the last of its removals", async ({ store }) => {
    const at = await removing(store, ["parse", "index"]);
    const [first, second] = await claimOf(store, at.build);
    const { rev } = await seeTarget(store, "a");
    const work = { cost: FREE, result: null, target: null, forget: { path: "a", rev } };
    await settleItem(store, first as Claimed, work);
    await seeTarget(store, "a");
    await settleItem(store, second as Claimed, work);
    assert.deepEqual(await store.work.targets({ pipeline: "docs", segment: 0, paths: ["a"] }), []);
    assert.deepEqual(await counts(store, at.build), [0, 0, { parse: [0, 0, 0, 0, 0], index: [0, 0, 0, 0, 0] }]);
  });

  check("a target is not deleted when a removal has failed, or when it is back", async ({ store }) => {
    const at = await removing(store, ["parse", "index"]);
    const [first, second] = await claimOf(store, at.build);
    await settleItem(store, first as Claimed, undefined, { kind: "error", error: ERROR, retry: false });
    const forget = { path: "a", rev: (await seeTarget(store, "a")).rev };
    await settleItem(store, second as Claimed, { cost: FREE, result: null, target: null, forget });
    await seeTarget(store, "a");
    assert.deepEqual(await counts(store, at.build), [0, 1, { parse: [0, 0, 1, 0, 0], index: [0, 0, 0, 0, 0] }]);
    await list(store, at, { gone: [{ ...forget, removals: [item({ build: at.build, kind: "remove" })] }] });
    const [third] = await claimOf(store, at.build);
    const left = await seeTarget(store, "a");
    await list(store, at, { targets: [again(left, toEnd("a"))] });
    const late = { path: "a", rev: left.rev };
    await settleItem(store, third as Claimed, { cost: FREE, result: null, target: null, forget: late });
    assert.equal((await seeTarget(store, "a")).rev, left.rev + 1);
  });

  check("a work item of a returned target knows that an old removal is still running", async ({ store }) => {
    const at = await removing(store, ["parse"]);
    const [removal] = (await claimOf(store, at.build)) as [Claimed];
    const step = { stage: "parse", result: null, output: "none", undone: true } as const;
    const flow = toWork(at.build, "parse", "a", { completed: [step] });
    await list(store, at, { targets: [again(await seeTarget(store, "a"), flow), target("b", toWork(at.build, "parse", "b"))] });
    const leases = await claimOf(store, at.build);
    const views = async () => {
      const seen = await store.work.works([...leases, removal].map(({ job }) => job));
      return Object.fromEntries(seen.map((view) => [`${view?.kind} ${view?.target?.path}`, view?.removing]));
    };
    assert.deepEqual(await views(), { "stage a": true, "stage b": false, "remove a": false });
    assert.deepEqual((await seeTarget(store, "a")).completed, [step]);
    await settleItem(store, removal, { cost: FREE, result: null, target: null, forget: { path: "a", rev: 2 } });
    assert.equal((await views())["stage a"], false);
    assert.notEqual((await seeTarget(store, "a")).done, "gone", "it is not forgotten");
  });

  check("leftover work of an ended build is cleared, and no target fails", async ({ store }) => {
    const at = await site(store);
    const leases = await parsing(store, at, ["a", "b", "c"]);
    const other = await site(store, { pipeline: "blog", token: "token-2" });
    assert.equal(await store.work.clearWork({ ...OF_DOCS, limit: 100 }), 0, "not while the build runs");
    await store.builds.move(at.build.id, abandonment("enough"), { by: "operator" });
    const changes = await changesDuring(store, async () => {
      assert.equal(await store.work.clearWork({ ...OF_DOCS, limit: 2 }), 2);
      assert.equal(await store.work.clearWork({ ...OF_DOCS, limit: 100 }), 2, "the listing among them");
    });
    assert.equal(await store.work.clearWork({ ...OF_DOCS, limit: 100 }), 0);
    const told = changes.flatMap(({ ended: leasesEnded }) => leasesEnded.map(({ job }) => job));
    assert.deepEqual(new Set(told), new Set([at.lister, ...leases].map(({ job }) => job)), "their holders are told");
    assert.deepEqual(await counts(store, at.build), [0, 0, { parse: [0, 0, 0, 0, 0], index: [0, 0, 0, 0, 0] }]);
    assert.deepEqual(await store.work.results({ build: at.build.id, failed: true, limit: 10 }), []);
    for (const { id } of leases) assert.equal((await see(store, id)).state, "cancelled");
    assert.equal((await see(store, other.lister.id)).state, "running");
  });

  check("leftover work of an ended build is not pending, and no worker can claim it", async ({ store }) => {
    const at = await site(store);
    await parsing(store, at, ["a"]);
    const delayed = { ...item({ build: at.build, path: "c" }), delay: 60_000 };
    const flow: Flow = { to: "work", completed: [], job: delayed };
    const upstream = await addOne(store, { name: "plain" });
    await list(store, at, { targets: [target("b", toWork(at.build, "parse", "b")), target("c", flow)] });
    await store.enqueue([{ ...item({ build: at.build, path: "d" }), after: [upstream] }]);
    const { queue } = at.build;
    assert.deepEqual(await unfinished(store, queue), { pending: 2, waiting: 1, running: 2, laneTotal: 3, old: true });
    await store.builds.move(at.build.id, abandonment("enough"), { by: "operator" });
    const left = { pending: 0, waiting: 0, running: 2, laneTotal: 0, old: false };
    assert.deepEqual(await unfinished(store, queue), left);
    assert.deepEqual(await claimOf(store, at.build), []);
    assert.equal(await store.work.clearWork({ which: "idle", limit: 100 }), 4, "the listing, which runs, among them");
    assert.deepEqual(await unfinished(store, queue), { ...left, running: 1 });
    assert.equal((await countJobs(store.queries, { queue })).cancelled, 4);
  });

  check("a preview does not count a job of an ended build as left over if reclaiming quarantines it", async ({ store }) => {
    const at = await site(store);
    const lease = await parsingOne(store, at, "a", { crashes: 1 });
    await store.builds.move(at.build.id, abandonment("enough"), { by: "operator" });
    const { ends, leftoverJobs } = await store.recoveries.preview(NO_PROCESS, [{ ...lease, verdict: "crashed" }]);
    assert.deepEqual([ends.quarantined, leftoverJobs], [1, 1], "its listing is left over");
    await takeBack(store, "crashed", lease);
    assert.equal(await store.work.clearWork({ which: "idle", limit: 100 }), 1);
  });

  check("work that runs when its build ends may end and is kept, and nothing follows from it", async ({ store }) => {
    const at = await site(store);
    const [first, second, third] = (await parsing(store, at, ["a", "b", "c"])) as [Claimed, Claimed, Claimed];
    await store.builds.move(at.build.id, abandonment("enough"), { by: "operator" });
    assert.equal((await store.recoveries.preview(NO_PROCESS, [])).leftoverJobs, 1, "its listing");
    assert.equal(
      (
        await store.recoveries.preview(
          NO_PROCESS,
          [second, third].map(({ job, fence }) => ({ job, fence, verdict: "crashed" })),
        )
      ).leftoverJobs,
      3,
      "and what is reclaimed",
    );
    assert.equal(await store.work.clearWork({ which: "idle", limit: 100 }), 1, "its listing");
    await parsed(store, at, first, "a");
    assert.deepEqual(await counts(store, at.build), [2, 0, { parse: [1, 0, 0, 0, 2], index: [0, 0, 0, 0, 0] }]);
    assert.notEqual(await resultOf(store.work, at.build.id, "parse", "a"), null);
    assert.equal((await seeTarget(store, "a")).done, null, "the next build takes it from there");
    await settleItem(store, second, undefined, { kind: "error", error: ERROR, retry: true });
    await takeBack(store, "crashed", third);
    assert.equal((await countJobs(store.queries, { queue: at.build.queue })).pending, 0, "what would be tried again is not");
    assert.equal((await store.recoveries.preview(NO_PROCESS, [])).leftoverJobs, 2);
    assert.equal(await store.work.clearWork({ which: "idle", limit: 100 }), 2);
    assert.deepEqual(await counts(store, at.build), [0, 0, { parse: [1, 0, 0, 0, 0], index: [0, 0, 0, 0, 0] }]);
    assert.equal(await store.work.clearWork({ which: "idle", limit: 100 }), 0);
  });

  check("a build is paused until leftover work of earlier builds is cleared", async ({ store }) => {
    const before = await site(store);
    await parsing(store, before, ["a"]);
    await list(store, before, { targets: [target("b", toWork(before.build, "parse", "b"))] });
    await store.builds.move(before.build.id, STOPPED, before.lock);
    const led = await started(store, { token: "token-2" });
    assert.equal(led.build.isQueuePaused, true);
    assert.deepEqual(await claimOf(store, led.build), [], "neither of the old one nor of the new one");
    assert.equal(await store.work.clearWork({ which: "idle", limit: 100 }), 2);
    assert.equal(await store.builds.advance(led.build.id, led.lock, "run"), false, "something still runs");
    assert.equal(await store.work.clearWork({ ...OF_DOCS, limit: 100 }), 1);
    assert.deepEqual(await claimOf(store, led.build), []);
    assert.equal(await store.builds.advance(led.build.id, { pipeline: "docs", token: "another's" }, "run"), false);
    assert.equal(await store.builds.advance(before.build.id, led.lock, "run"), false);
    assert.deepEqual(await claimOf(store, led.build), []);
    assert.equal(await store.builds.advance(led.build.id, led.lock, "run"), true);
    assert.equal((await claimOf(store, led.build)).length, 1, "its listing");
    const resumed = await store.builds.move(led.build.id, STOPPED, led.lock);
    const answer = await store.builds.start(resuming({ ...led, build: made(resumed) }, { token: "token-3" }));
    assert.equal((answer as OrchestratedBuild).isQueuePaused, false);
  });

  check("an item that depends on a failed job is cancelled with it", async ({ store }) => {
    const { build } = await site(store);
    const upstream = await addOne(store, { name: "plain" });
    await store.enqueue([{ ...item({ build, path: "b" }), after: [upstream] }]);
    assert.equal((await seeBuild(store, build)).open, 1);
    await store.cancel(upstream);
    await store.enqueue([{ ...item({ build, path: "c" }), after: [upstream] }]);
    const { open, failed } = await seeBuild(store, build);
    assert.deepEqual([open, failed], [0, 2]);
  });
}

const NO_PROCESS = { dead: [], alive: [] };
const OF_DOCS = { pipeline: "docs", which: "all" } as const;

/** What is said of a queue's unfinished jobs, by all who count them. */
async function unfinished(store: Store, queue: string): Promise<object> {
  const { pending, waiting, running } = await countJobs(store.queries, { queue });
  const seen = (await store.queries.overview()).queues.find(({ name }) => name === queue);
  assert.deepEqual([seen?.counts.pending, seen?.counts.waiting, seen?.counts.running], [pending, waiting, running]);
  const lanes = (await store.queries.overview()).lanes.filter((lane) => lane.queue === queue);
  const laneTotal = lanes.reduce((sum, lane) => sum + lane.counts.pending + lane.counts.waiting, 0);
  return { pending, waiting, running, laneTotal, old: seen?.oldestAt !== undefined };
}

/** The target "a", gone, with what these stages have to remove. */
async function removing(store: Store, stages: string[]): Promise<Site> {
  const at = await site(store);
  await list(store, at, { targets: [target("a", toEnd("a"))] });
  const removals = stages.map((stage) => item({ build: at.build, kind: "remove", stage }));
  await list(store, at, { gone: [{ path: "a", rev: 1, removals }] });
  return at;
}
