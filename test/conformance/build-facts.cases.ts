import { leadOf } from "../../src/store/builds.ts";
import assert from "node:assert/strict";
import type { Store } from "../../src/store/store.ts";
import {
  bytes,
  claimable,
  made,
  newBuild,
  newLead,
  PAUSED,
  refused,
  isQueuePaused,
  resuming,
  seeBuild,
  started,
  STOPPED,
  tokenOf,
} from "./build-parts.ts";
import { claimOne, ERROR, LEASE, register } from "./parts.ts";
import type { Check } from "./suite.ts";
import { dollars, ended, FREE, list, parsing, parsingOne, settleItem, type Site, site, target, toEnd } from "./work-parts.ts";

const SUCCEED = { move: "succeed", reason: "all_targets_done" } as const;
const TARGETS_FAILED = { move: "fail", reason: "targets_failed" } as const;
const SOURCE_FAILED = { move: "fail", reason: "source_failed" } as const;
const FOR_GOOD = { kind: "error", error: ERROR, retry: false } as const;
const LISTED = { cost: FREE, result: null, target: null };

/** What a build has done, spent and failed at decides how it may move, whatever its orchestrator believes. */
export function buildFactCases(check: Check): void {
  check("a build succeeds when everything is listed and nothing is left", async ({ store, clock }) => {
    const at = await site(store);
    const { build, lock } = at;
    await list(store, at, { targets: [target("a", toEnd("a"))] });
    await refused(store, "BUILD_NOT_READY", () => store.builds.move(build.id, SUCCEED, lock));
    await settleItem(store, at.lister, LISTED);
    const done = made(await store.builds.move(build.id, SUCCEED, lock));
    assert.deepEqual([done.state, done.reason, done.finishedAt], ["SUCCESS", "all_targets_done", clock.now()]);
    assert.equal(await leadOf(store.builds, "docs"), null);
    assert.equal(await isQueuePaused(store, build), true);
    assert.equal(made(await store.builds.start(newBuild(at.lead))).seq, 1, "and the next one starts");
  });

  check("a build with open work does not succeed", async ({ store }) => {
    const at = await site(store);
    const item = await parsingOne(store, at);
    await settleItem(store, at.lister, LISTED);
    await refused(store, "BUILD_NOT_READY", () => store.builds.move(at.build.id, SUCCEED, at.lock));
    await settleItem(store, item, ended());
    assert.equal((await store.builds.move(at.build.id, SUCCEED, at.lock))?.state, "SUCCESS");
  });

  check("a build with a failed target fails when nothing of it is in flight", async ({ store }) => {
    const at = await site(store);
    const [failing, running] = (await parsing(store, at, ["a", "b"])) as [Site["lister"], Site["lister"]];
    await settleItem(store, at.lister, LISTED);
    await refused(store, "BUILD_NOT_READY", () => store.builds.move(at.build.id, TARGETS_FAILED, at.lock));
    await settleItem(store, failing, undefined, FOR_GOOD);
    await refused(store, "BUILD_NOT_READY", () => store.builds.move(at.build.id, TARGETS_FAILED, at.lock));
    await settleItem(store, running, ended());
    await refused(store, "BUILD_NOT_READY", () => store.builds.move(at.build.id, SUCCEED, at.lock));
    const failed = made(await store.builds.move(at.build.id, TARGETS_FAILED, at.lock));
    assert.deepEqual([failed.state, failed.failed], ["FAILED", 1]);
  });

  check("work in flight for another build does not keep a build from failing", async ({ store }) => {
    const { build, lock } = await started(store);
    const blog = await started(store, { pipeline: "blog", lead: newLead(await register(store), "token-2") });
    const lister = await claimOne(store, { from: [{ queue: blog.build.queue, lease: LEASE }] });
    await refused(store, "BUILD_NOT_READY", () => store.builds.move(blog.build.id, SOURCE_FAILED, blog.lock));
    assert.equal((await store.builds.move(build.id, SOURCE_FAILED, lock))?.state, "FAILED");
    await settleItem(store, lister, undefined, FOR_GOOD);
    assert.equal((await store.builds.move(blog.build.id, SOURCE_FAILED, blog.lock))?.state, "FAILED");
  });

  check("a new budget must cover what is spent and what was refused", async ({ store }) => {
    const at = await site(store);
    const { build } = at;
    await outOfMoney(store, at);
    const token = tokenOf(1);
    const give = (usd: number) => ({ token, budget: { usd } });
    await refused(store, "BUDGET_TOO_SMALL", () => store.builds.start(resuming(at, { approval: give(6.49) })));
    const error = await refused(store, "BUDGET_TOO_SMALL", () => store.builds.authorize(build.id, give(6.49), "operator"));
    assert.match(error.hint, /\$6\.50/);
    const resumed = made(await store.builds.start(resuming(at, { approval: give(6.5) })));
    assert.deepEqual([resumed.blocked, resumed.refused, resumed.budget.micros], [null, FREE, 6_500_000]);
    assert.equal(await claimable(store, build), 0, "what was refused is still held by who was refused");
  });

  check("an approval is not enough if attempts in flight at the pause cost more than expected", async (ground) => {
    const { store } = ground;
    const at = await site(store);
    const running = await outOfMoney(store, at);
    await store.builds.authorize(at.build.id, { token: tokenOf(1), budget: { usd: 7 } }, "operator");
    await settleItem(store, running, ended({ cost: dollars(100) }));
    assert.deepEqual((await seeBuild(store, at.build)).spent, dollars(500), "what ends while it is paused is charged");
    await refused(store, "BUDGET_TOO_SMALL", () => store.builds.start(resuming(at)));
    await store.builds.authorize(at.build.id, { bytes: bytes(2) }, "operator");
    const approval = { token: tokenOf(2), budget: { usd: 8 } };
    assert.equal(made(await store.builds.start(resuming(at, { approval }))).state, "ACTIVE");
  });

  check("an attempt that the budget refused before a crash asks again afterwards", async ({ store }) => {
    const at = await site(store);
    const item = await parsingOne(store, at);
    assert.deepEqual(await store.work.begin([{ ...item, estimate: dollars(501) }]), ["pause"]);
    await store.builds.move(at.build.id, STOPPED, at.lock);
    assert.equal((await seeBuild(store, at.build)).blocked, "budget_precheck_block");
    const build = made(await store.builds.start(resuming(at)));
    assert.deepEqual([build.state, build.blocked, build.refused], ["ACTIVE", null, FREE]);
    assert.equal(await isQueuePaused(store, build), false, "the queue that was stopped is open");
  });

  check("a paused build whose last attempts fail is failed by any process, because it has no lock", async ({ store }) => {
    const at = await site(store);
    const running = await outOfMoney(store, at);
    const fail = () => store.builds.move(at.build.id, TARGETS_FAILED, { by: "holdfast" });
    await refused(store, "BUILD_NOT_READY", fail);
    await settleItem(store, running, undefined, FOR_GOOD);
    await refused(store, "BUILD_NOT_READY", fail);
    // The listing, and what was refused, are given back by then.
    const jobs = (await store.queries.list({ state: "running", limit: 10 })).items;
    for (const { id } of jobs) await store.cancel(id);
    const failed = made(await fail());
    assert.deepEqual([failed.state, failed.reason], ["FAILED", "targets_failed"]);
    assert.equal((await store.audit.page({ after: 0, limit: 10, subject: failed.id })).at(-1)?.by, "holdfast");
  });
}

/** $4 are spent, $2.50 are asked for, one attempt that was free runs on, and the build pauses. */
async function outOfMoney(store: Store, at: Site): Promise<Site["lister"]> {
  const [dear, running, next] = (await parsing(store, at, ["a", "b", "c"])) as [Site["lister"], Site["lister"], Site["lister"]];
  const both = [
    { ...dear, estimate: FREE },
    { ...running, estimate: FREE },
  ];
  assert.deepEqual(await store.work.begin(both), ["start", "start"]);
  await settleItem(store, dear, ended({ cost: dollars(400) }));
  assert.deepEqual(await store.work.begin([{ ...next, estimate: dollars(250) }]), ["pause"]);
  const build = made(await store.builds.move(at.build.id, PAUSED, at.lock, { bytes: bytes(1) }));
  assert.deepEqual([build.blocked, build.refused, build.spent], ["budget_precheck_block", dollars(250), dollars(400)]);
  return running;
}
