import assert from "node:assert/strict";
import type { Amount } from "../../src/core/pipelines/budget.ts";
import type { BuildKey, ResultKey } from "../../src/core/text/ids.ts";
import { inlineValue, type StoredValue } from "../../src/core/pipelines/work.ts";
import { type ArtifactRef, type NewResult, resultOf, type StoredResult } from "../../src/store/work.ts";
import type { Claimed, Store } from "../../src/store/store.ts";
import { started } from "./build-parts.ts";
import { ERROR, see } from "./parts.ts";
import type { Check } from "./suite.ts";
import {
  again,
  claimOf,
  counts,
  dollars,
  ended,
  everyWork,
  FREE,
  list,
  next,
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
import { abandonment } from "../../src/store/builds.ts";

export function resultCases(check: Check): void {
  check("the newest success of a context hash is found, of its own pipeline and stage only", async ({ store }) => {
    const first = await site(store);
    const old = await make(store, first, "a", { hash: "context-1", output: inlineValue('"old"'), shared: true });
    await fail(store, first, "b");
    const second = await next(store, first);
    const made = await make(store, second, "a", { hash: "context-1", output: inlineValue('"new"'), shared: true });
    const keys = [
      { stage: "parse", hash: "context-1" },
      { stage: "parse", hash: "context-2" },
      { stage: "index", hash: "context-1" },
      { stage: "parse", hash: "of a failure" },
      { stage: "parse", hash: "context-1", build: first.build.key },
      { stage: "parse", hash: "context-1", build: 99 as BuildKey },
    ];
    const found = { key: made.key, output: inlineValue('"new"') };
    const before = { key: old.key, output: inlineValue('"old"') };
    assert.deepEqual(await store.work.lookUp("docs", keys), [found, null, null, null, before, null]);
    assert.deepEqual(await store.work.lookUp("blog", keys.slice(0, 1)), [null]);
    assert.deepEqual(await store.work.lookUp("docs", []), []);
  });

  check("a result that is not shared is found for its own target only", async ({ store }) => {
    const at = await site(store);
    const made = await make(store, at, "a", { hash: "context-1" });
    const parsed = { stage: "parse", hash: "context-1" };
    const own = { ...parsed, path: "a" };
    const keys = [own, { ...own, path: "b" }, parsed, { ...own, hash: "context-2" }, { ...own, build: 99 as BuildKey }];
    const found = { key: made.key, output: made.output };
    assert.deepEqual(await store.work.lookUp("docs", keys), [found, null, null, null, null]);
  });

  check("results are read by keys, in the requested order", async ({ store }) => {
    const at = await site(store);
    const a = await make(store, at, "a");
    const b = await make(store, at, "b");
    assert.deepEqual(await store.work.results({ keys: [b.key, 99 as ResultKey, a.key] }), [b, a]);
  });

  check("a build has its own result for a target, else the newest success before it", async ({ store }) => {
    const first = await site(store);
    const a1 = await make(store, first, "a");
    const b1 = await make(store, first, "b");
    const second = await next(store, first);
    const a2 = await make(store, second, "a");
    const b2 = await fail(store, second, "b");
    const third = await next(store, second);
    const a3 = await make(store, third, "a");
    const of = (at: Site, path: string) => resultOf(store.work, at.build.id, "parse", path);
    assert.deepEqual(await Promise.all([first, second, third].map((at) => of(at, "a"))), [a1, a2, a3]);
    assert.deepEqual(await of(first, "b"), b1);
    assert.deepEqual(await of(second, "b"), b2, "what failed has failed");
    assert.deepEqual(await of(third, "b"), b1);
    assert.equal(await of(third, "c"), null);
    assert.equal(await resultOf(store.work, "b00000000000000000", "parse", "a"), null);
    const before = (at: Site, path: string) => resultOf(store.work, at.build.id, "parse", path, { before: true });
    assert.deepEqual(await Promise.all([first, second, third].map((at) => before(at, "a"))), [null, a1, a2]);
    assert.deepEqual(await before(third, "b"), b2);
    const all = async (at: Site) =>
      (await store.work.results({ build: at.build.id, stage: "parse", limit: 10 })).map(({ key }) => key);
    assert.deepEqual(await all(first), [a1.key, b1.key]);
    assert.deepEqual(await all(second), [a2.key]);
    assert.deepEqual(await all(third), [a3.key, b1.key]);
  });

  check("a reused result belongs to the build with its artifacts, and costs nothing", async ({ store }) => {
    const first = await site(store);
    const artifacts = [{ name: "page.html", hash: "p", size: 7 }];
    const a = await make(store, first, "a", { output: file("o", 3), artifacts }, dollars(2));
    const second = await next(store, first);
    await list(store, second, {
      targets: [target("b", toEnd("b"), { passed: [{ stage: "parse", as: "cached", result: a.key }] })],
    });
    const b = (await resultOf(store.work, second.build.id, "parse", "b")) as StoredResult;
    const taken = { build: second.build.id, path: "b", target: "b", state: "REUSED" as const, cost: FREE };
    assert.deepEqual(b, { ...a, key: b.key, at: b.at, ...taken });
    assert.deepEqual(await store.work.results({ build: second.build.id, stage: "parse", limit: 10 }), [a, b]);
    assert.deepEqual(await store.work.results({ build: first.build.id, stage: "parse", limit: 10 }), [a]);
    assert.deepEqual(
      (await store.work.artifacts(b)).map(({ name, hash, size }) => ({ name, hash, size })),
      [{ name: "", hash: "o", size: 3 }, ...artifacts],
    );
    const found = await store.work.lookUp("docs", [{ stage: "parse", hash: a.hash, path: "a" }]);
    assert.equal(found[0]?.key, a.key, "only what was made is found");
    const made = await make(store, second, "b", { hash: "context-2" });
    assert.deepEqual(await resultOf(store.work, second.build.id, "parse", "b"), made, "what is made takes its place");
    assert.deepEqual(await store.work.artifacts(made), []);
    assert.deepEqual((await counts(store, second.build)).slice(0, 2), [0, 0]);
  });

  check("a target with earlier content gets the result of that content, not the last one", async ({ store }) => {
    const first = await site(store);
    const old = await make(store, first, "a", { hash: "context-1", output: inlineValue('"old"') });
    const second = await next(store, first);
    const other = await make(store, second, "a", { hash: "context-2", output: inlineValue('"other"') });
    const third = await next(store, second);
    const passed = [{ stage: "parse", as: "cached" as const, result: old.key }];
    await list(store, third, { targets: [again(await seeTarget(store, "a"), toEnd("a"), { passed })] });
    const of = async (at: Site) => (await resultOf(store.work, at.build.id, "parse", "a"))?.output;
    assert.deepEqual(await Promise.all([first, second, third].map(of)), [old.output, other.output, old.output]);
    const fourth = await next(store, third);
    assert.deepEqual(await of(fourth), old.output);
  });

  check("a removed or skipped target has no result from then on, and earlier builds keep theirs", async ({ store }) => {
    const first = await site(store);
    const a = await make(store, first, "a");
    const b = await make(store, first, "b");
    const second = await next(store, first);
    const { rev } = await seeTarget(store, "a");
    const passed = [{ stage: "parse", as: "passed" as const, result: null }];
    await list(store, second, {
      targets: [again(await seeTarget(store, "b"), toEnd("b"), { passed })],
      gone: [{ path: "a", rev, removals: [], had: ["parse"] }],
    });
    const all = async (at: Site) => store.work.results({ build: at.build.id, stage: "parse", limit: 10 });
    assert.deepEqual(await all(second), []);
    assert.deepEqual(await all(first), [a, b]);
    assert.equal(await resultOf(store.work, second.build.id, "parse", "a"), null);
    assert.deepEqual(await resultOf(store.work, first.build.id, "parse", "a"), a);
    const third = await next(store, second);
    assert.deepEqual(await all(third), []);
    assert.deepEqual(await resultOf(store.work, third.build.id, "parse", "a", { before: true }), a);
    const made = await make(store, third, "a");
    assert.deepEqual(await all(third), [made]);
  });

  check("the results of a stage are paged in the order of paths", async ({ store }) => {
    const at = await site(store);
    const paths = ["", "a", "b", "c", "d", "é"];
    for (const path of paths.toReversed()) await make(store, at, path);
    const seen: string[] = [];
    for (let after: string | undefined; ;) {
      const page = await store.work.results({
        build: at.build.id,
        stage: "parse",
        limit: 2,
        ...(after !== undefined && { after }),
      });
      seen.push(...page.map(({ path }) => path));
      after = page.at(-1)?.path;
      if (after === undefined) break;
    }
    assert.deepEqual(seen, paths);
  });

  check("cleared work of a build that failed too often does not delay the next build", async ({ store }) => {
    const first = await site(store, { maxFailures: 0 });
    await list(store, first, { targets: [target("b", toWork(first.build, "parse", "b"))] });
    await fail(store, first, "a");
    await store.builds.move(first.build.id, abandonment("enough"), { by: "operator" });
    const second = await started(store, { token: "another" });
    const clearing = { pipeline: "docs", which: "all", limit: 100 } as const;
    assert.equal(await store.work.clearWork(clearing), 2, "its listing, and what was not reached");
    assert.equal(await store.builds.advance(second.build.id, second.lock, "run"), true);
    assert.equal((await claimOf(store, second.build)).length, 1, "the listing of the next");
  });

  check("failures are listed in order of time", async ({ store }) => {
    const at = await site(store);
    const [c, a, b] = [await fail(store, at, "c"), await fail(store, at, "a"), await fail(store, at, "b")];
    await make(store, at, "d");
    assert.deepEqual(await store.work.results({ build: at.build.id, failed: true, limit: 10 }), [c, a, b]);
    assert.deepEqual(await store.work.results({ build: at.build.id, failed: true, limit: 2 }), [c, a]);
  });

  check("a result that is made again in its build replaces the one before", async ({ store }) => {
    const at = await site(store);
    const old = await make(store, at, "a", { hash: "context-1", output: file("old", 3) });
    await fail(store, at, "a");
    const failed = await resultOf(store.work, at.build.id, "parse", "a");
    assert.equal(failed?.state, "FAILED");
    assert.deepEqual((await counts(store, at.build)).slice(0, 2), [0, 1]);
    const made = await make(store, at, "a", { hash: "context-2", output: file("new", 3) });
    assert.deepEqual(await resultOf(store.work, at.build.id, "parse", "a"), made);
    assert.deepEqual(await store.work.results({ build: at.build.id, stage: "parse", limit: 10 }), [made]);
    assert.deepEqual((await counts(store, at.build)).slice(0, 2), [0, 0]);
    assert.deepEqual(await store.work.results({ build: at.build.id, failed: true, limit: 10 }), []);
    // Another target may have reused the superseded result, and continues with it.
    assert.deepEqual(await store.work.results({ keys: [old.key] }), [{ ...old, build: "" }]);
    assert.deepEqual(await store.work.referenced(["old", "new"]), new Set(["old", "new"]));
    assert.deepEqual(
      (await store.work.artifacts({ build: at.build.id })).map(({ hash }) => hash),
      ["new"],
    );
  });

  check("artifacts of results and listings are referenced by build, stage, target and name", async ({ store }) => {
    const at = await site(store);
    await list(store, at, {
      targets: [target("a", toWork(at.build, "parse", "a"), { artifacts: [{ name: "snapshot", hash: "s", size: 5 }] })],
    });
    const [lease] = await claimOf(store, at.build);
    const artifacts = [{ name: "page.html", hash: "p", size: 7 }];
    const target1 = again(await seeTarget(store, "a"), toEnd("a"), { artifacts: [{ name: "value", hash: "v", size: 9 }] });
    await settleItem(store, lease as Claimed, ended({ result: result({ output: file("o", 3), artifacts }), target: target1 }));
    const ref = (stage: string, name: string, hash: string, size: number): ArtifactRef => {
      return { build: at.build.id, stage, path: "a", name, hash, size };
    };
    const all = [
      ref("", "snapshot", "s", 5),
      ref("", "value", "v", 9),
      ref("parse", "", "o", 3),
      ref("parse", "page.html", "p", 7),
    ];
    assert.deepEqual(await store.work.artifacts({ build: at.build.id }), all);
    assert.deepEqual(await store.work.artifacts({ build: at.build.id, stage: "parse", path: "a" }), all.slice(2));
    assert.deepEqual(await store.work.artifacts({ build: at.build.id, stage: "parse", path: "b" }), []);
    assert.deepEqual(await store.work.referenced(["p", "x", "s", "o"]), new Set(["p", "s", "o"]));
    assert.deepEqual(await store.work.referenced([]), new Set());
  });

  check("a success that names a missing artifact is an error of its attempt", async ({ store }) => {
    const at = await site(store);
    store.hooks.missingArtifacts = (hashes) => [...hashes].filter((hash) => hash !== "there");
    const lease = await parsingOne(store, at);
    const flow = toWork(at.build, "index", "a");
    const work = ended({
      cost: dollars(2),
      result: result({ output: file("there", 3), artifacts: [{ name: "x", hash: "lost", size: 1 }] }),
      target: again(await seeTarget(store, "a"), flow),
    });
    await settleItem(store, lease, work);
    const job = await see(store, lease.id);
    assert.deepEqual([job.state, job.error?.code], ["pending", "ARTIFACT_MISSING"]);
    assert.deepEqual(await counts(store, at.build), [1, 0, { parse: [0, 0, 0, 0, 1], index: [0, 0, 0, 0, 0] }]);
    assert.deepEqual(await store.work.artifacts({ build: at.build.id }), []);
    assert.deepEqual((await store.work.costs("docs")).parse?.spent, dollars(2), "which has cost what it has");
  });

  check("a batch that names a missing artifact is rejected whole", async ({ store }) => {
    const at = await site(store);
    store.hooks.missingArtifacts = (hashes) => [...hashes];
    const before = await everyWork(store, at.build);
    const artifacts = [{ name: "snapshot", hash: "lost", size: 1 }];
    const listed = list(store, at, { targets: [target("a", toEnd("a")), target("b", toEnd("b"), { artifacts })], cursor: "1" });
    await assert.rejects(listed, { code: "ARTIFACT_MISSING" });
    assert.deepEqual(await everyWork(store, at.build), before);
  });

  check("artifacts referenced by running work are reported", async ({ store }) => {
    const at = await site(store);
    const [lease] = (await parsing(store, at, ["a"])) as [Claimed];
    const { job, fence } = lease;
    const work = ended({ result: result({ output: file("o", 3) }) });
    const settled = store.settle([{ job, fence, outcome: { kind: "succeeded", output: null }, work }]);
    assert.deepEqual(await store.work.referenced(["o"]), new Set(["o"]));
    await settled;
  });
}

function file(artifact: string, size: number): StoredValue {
  return { hash: `bytes:${artifact}`, text: null, artifact, size };
}

/** Runs the stage "parse" for a target. */
async function make(
  store: Store,
  at: Site,
  path: string,
  given: Partial<NewResult> = {},
  cost: Amount = FREE,
): Promise<StoredResult> {
  const lease = await run(store, at, path);
  const end = ended({ cost, result: result(given), target: again(await seeTarget(store, path), toEnd(path)) });
  await settleItem(store, lease, end);
  return (await resultOf(store.work, at.build.id, "parse", path)) as StoredResult;
}

async function fail(store: Store, at: Site, path: string): Promise<StoredResult> {
  const lease = await run(store, at, path);
  const work = ended({ result: null, context: { hash: "of a failure", parts: "{}" } });
  await settleItem(store, lease, work, { kind: "error", error: ERROR, retry: false });
  return (await resultOf(store.work, at.build.id, "parse", path)) as StoredResult;
}

async function run(store: Store, at: Site, path: string): Promise<Claimed> {
  const [row] = await store.work.targets({ pipeline: "docs", segment: 0, paths: [path] });
  const flow = toWork(at.build, "parse", path);
  await list(store, at, { targets: [row === undefined ? target(path, flow) : again(row, flow)] });
  const [lease] = await claimOf(store, at.build);
  return lease as Claimed;
}
