import assert from "node:assert/strict";
import type { ResultKey } from "../../src/core/text/ids.ts";
import { GONE_MARK, type CompletedStages, inlineValue } from "../../src/core/pipelines/work.ts";
import type { Claimed, Store } from "../../src/store/store.ts";
import { type MemberPage, resultOf, type TargetPage, type TargetRow } from "../../src/store/work.ts";
import { seeBuild } from "./build-parts.ts";
import { changesDuring, claim, ERROR, LEASE, see, takeBack } from "./parts.ts";
import type { Check } from "./suite.ts";
import {
  again,
  claimOf,
  counts,
  dollars,
  everyWork,
  item,
  list,
  money,
  next,
  parsed,
  parsing,
  parsingOne,
  result,
  seeTarget,
  settleItem,
  site,
  target,
  toEnd,
  toWork,
} from "./work-parts.ts";

export function targetCases(check: Check): void {
  check("a listed target comes back as it was given", async ({ store }) => {
    const at = await site(store);
    const completed: CompletedStages = [{ stage: "split", result: null, output: "none" }];
    const given = target("p/ä☃", toEnd("p/ä☃", { completed, group: "g" }), {
      parent: "p",
      fingerprint: '{"size":3}',
      value: { hash: "bytes:ab", text: null, artifact: "ab", size: 3 },
    });
    await list(store, at, { targets: [given] });
    const row: TargetRow = {
      segment: 0,
      path: "p/ä☃",
      id: "ä☃",
      parent: "p",
      hash: "hash of p/ä☃",
      fingerprint: '{"size":3}',
      value: given.value,
      seen: at.build.key,
      done: "definition-1",
      completed,
      group: "g",
      member: "member of p/ä☃",
      failure: null,
      rev: 1,
    };
    assert.deepEqual(
      await store.work.targets({ pipeline: "docs", segment: 0, paths: ["other", "p/ä☃"] }),
      [row],
      "those that are not there are left out",
    );
    assert.deepEqual(await store.work.targets({ pipeline: "docs", segment: 1, paths: ["p/ä☃"] }), []);
    assert.deepEqual(await store.work.targets({ pipeline: "blog", segment: 0, paths: ["p/ä☃"] }), []);
  });

  check("a batch commits with the job's checkpoint, and nothing of it without the lease", async ({ store }) => {
    const at = await site(store);
    await list(store, at, { targets: [target("a", toEnd("a"))], cursor: '"a"' });
    assert.equal(await store.loadCheckpoint(at.lister.job), '"a"');
    await list(store, at, { targets: [target("b", toEnd("b"))] });
    assert.equal(await store.loadCheckpoint(at.lister.job), '"a"', "without one it stays as it was");
    await takeBack(store, "stalled", at.lister);
    const before = await everyWork(store, at.build);
    const targets = [target("c", toWork(at.build, "parse", "c"))];
    const batch = { build: at.build.key, pipeline: "docs", segment: 0, targets, cursor: '"c"' };
    assert.equal(await store.work.listed(at.lister, batch), "lost");
    assert.deepEqual(await everyWork(store, at.build), before);
    const [next] = await claimOf(store, at.build);
    await store.cancel((next as Claimed).id);
    assert.equal(await store.work.listed(next as Claimed, batch), "cancelled");
    assert.deepEqual(await store.work.targets({ pipeline: "docs", segment: 0, paths: ["c"] }), []);
  });

  check("a stage's item lists under its own lease", async ({ store }) => {
    const at = await site(store);
    const lease = await parsingOne(store, at);
    const children = ["a/1", "a/2"].map((path) => target(path, toWork(at.build, "index", path, { segment: 1 }), { parent: "a" }));
    await list(store, { ...at, lister: lease }, { segment: 1, targets: children, cursor: "1" });
    assert.equal((await store.work.targets({ pipeline: "docs", segment: 1, parent: "a", limit: 10 })).length, 2);
    assert.equal((await claimOf(store, at.build)).length, 2);
  });

  check("an unchanged target is only marked as seen, and counted", async ({ store }) => {
    const first = await site(store);
    const paths = Array.from({ length: 50 }, (_, i) => `t${String(i).padStart(2, "0")}`);
    await list(store, first, { targets: paths.map((path) => target(path, toEnd(path))) });
    const second = await next(store, first);
    const rows = await store.work.targets({ pipeline: "docs", segment: 0, paths });
    const passed = [
      { stage: "parse", as: "cached" },
      { stage: "index", as: "passed" },
    ] as const;
    await list(store, second, { targets: rows.map((row) => again(row, null, { passed })) });
    const seen = await store.work.targets({ pipeline: "docs", segment: 0, paths });
    for (const row of rows) row.seen = second.build.key;
    assert.deepEqual(seen, rows);
    assert.deepEqual(await counts(store, second.build), [0, 0, { parse: [0, 50, 0, 0, 0], index: [0, 0, 0, 50, 0] }]);
  });

  check("a target that changed since it was read is left alone", async ({ store }) => {
    const at = await site(store);
    await list(store, at, { targets: ["a", "b", "c"].map((path) => target(path, toEnd(path))) });
    const rows = await store.work.targets({ pipeline: "docs", segment: 0, paths: ["a", "b", "c"] });
    const [a, b, c] = rows.map((row) => ({ ...row, rev: 5 })) as [TargetRow, TargetRow, TargetRow];
    const passed = [{ stage: "parse", as: "cached" }] as const;
    await list(store, at, {
      targets: [
        again(a, null, { passed }),
        again(b, toWork(at.build, "parse", "b"), { passed }),
        target("c", toEnd("c"), { passed }),
      ],
      gone: [
        { path: "a", rev: 9, removals: [item({ build: at.build, kind: "remove" })] },
        { path: c.path, rev: c.rev, removals: [] },
      ],
    });
    assert.deepEqual(await store.work.targets({ pipeline: "docs", segment: 0, paths: ["a", "b", "c"] }), rows);
    assert.deepEqual(await counts(store, at.build), [0, 0, { parse: [0, 0, 0, 0, 0], index: [0, 0, 0, 0, 0] }]);
  });

  check("among unchanged targets, the others are not counted", async ({ store }) => {
    const at = await site(store);
    await list(store, at, { targets: ["a", "b", "c"].map((path) => target(path, toEnd(path))) });
    const second = await next(store, at);
    const [a, b, c] = (await store.work.targets({ pipeline: "docs", segment: 0, paths: ["a", "b", "c"] })) as [
      TargetRow,
      TargetRow,
      TargetRow,
    ];
    const passed = [{ stage: "parse", as: "cached" }] as const;
    await list(store, second, { targets: [a, { ...b, rev: 2 }, c].map((row) => again(row, null, { passed })) });
    const seen = await store.work.targets({ pipeline: "docs", segment: 0, paths: ["a", "b", "c"] });
    assert.deepEqual(
      seen.map((row) => row.seen),
      [second.build.key, at.build.key, second.build.key],
    );
    assert.deepEqual((await counts(store, second.build))[2].parse, [0, 2, 0, 0, 0]);
  });

  check("a restarted target cancels its open item, which counts as no failure", async ({ store }) => {
    const at = await site(store);
    const [lease] = (await parsing(store, at, ["a", "b"])) as [Claimed];
    await store.work.begin([{ ...lease, estimate: dollars(7) }]);
    const row = await seeTarget(store, "a");
    const flow = toWork(at.build, "parse", "a");
    const changes = await changesDuring(store, () =>
      list(store, at, { targets: [again(row, flow, { hash: "another", value: inlineValue('"another"') })] }),
    );
    assert.deepEqual(
      changes.flatMap(({ ended }) => ended.map(({ job }) => job)),
      [lease.job],
      "its holder is notified",
    );
    assert.equal((await see(store, lease.id)).state, "cancelled");
    assert.deepEqual(await counts(store, at.build), [2, 0, { parse: [0, 0, 0, 0, 2], index: [0, 0, 0, 0, 0] }]);
    assert.deepEqual(await money(store, at.build), { spent: 70_000, reserved: 0 }, "its actual cost is unknown");
    const { hash, rev } = await seeTarget(store, "a");
    assert.deepEqual([hash, rev], ["another", 2]);
    assert.equal((await claimOf(store, at.build)).length, 1);
  });

  check("a failure is taken back when its target changed or is gone", async ({ store }) => {
    const at = await site(store);
    for (const lease of await parsing(store, at, ["a", "b", "c"])) {
      await settleItem(store, lease, undefined, { kind: "error", error: ERROR, retry: false });
    }
    assert.equal((await seeBuild(store, at.build)).failed, 3);
    await list(store, at, {
      targets: [again(await seeTarget(store, "a"), toWork(at.build, "parse", "a"), { hash: "another" })],
      gone: [{ path: "b", rev: 2, removals: [] }],
    });
    assert.deepEqual(await counts(store, at.build), [1, 1, { parse: [0, 0, 1, 0, 1], index: [0, 0, 0, 0, 0] }]);
    const failures = await store.work.results({ build: at.build.id, failed: true, limit: 10 });
    assert.deepEqual(
      failures.map(({ path }) => path),
      ["c"],
    );
    const second = await next(store, at);
    await list(store, second, { targets: [again(await seeTarget(store, "c"), toWork(second.build, "parse", "c"))] });
    assert.equal(
      (await store.work.results({ build: at.build.id, failed: true, limit: 10 })).length,
      1,
      "but not in the record of an earlier build",
    );
    assert.equal((await seeBuild(store, second.build)).failed, 0);
  });

  check("a target that cannot advance from the start has failed", async ({ store }) => {
    const at = await site(store);
    await list(store, at, {
      targets: [target("a", { to: "failed", completed: [], stage: "parse", hash: "context-1", error: ERROR })],
    });
    assert.deepEqual(await counts(store, at.build), [0, 1, { parse: [0, 0, 1, 0, 0], index: [0, 0, 0, 0, 0] }]);
    const [failure] = await store.work.results({ build: at.build.id, failed: true, limit: 10 });
    assert.deepEqual([failure?.path, failure?.hash, failure?.error], ["a", "context-1", ERROR]);
  });

  check("a removed target is deleted at once if nothing has to be removed, else after its removal", async ({ store }) => {
    const at = await site(store);
    await list(store, at, { targets: ["a", "b"].map((path) => target(path, toEnd(path))) });
    const removals = [item({ build: at.build, kind: "remove" })];
    const gone = [
      { path: "a", rev: 1, removals },
      { path: "b", rev: 1, removals: [] },
    ];
    await list(store, at, { gone });
    await list(store, at, { gone });
    assert.deepEqual(
      (await store.work.targets({ pipeline: "docs", segment: 0, paths: ["a", "b"] })).map(({ path, done, member }) => [
        path,
        done,
        member,
      ]),
      [["a", GONE_MARK, null]],
    );
    assert.deepEqual(
      await store.work.targets({ members: true, pipeline: "docs", segment: 0, limit: 10 }),
      [],
      "it is of no group any more",
    );
    const [removal, ...more] = await claimOf(store, at.build);
    assert.deepEqual([(await store.work.works([(removal as Claimed).job]))[0]?.kind, more.length], ["remove", 0]);
    assert.equal((await seeBuild(store, at.build)).open, 1);
  });

  check("a removed target with children to remove is kept until a listing finds it without them", async ({ store }) => {
    const at = await site(store);
    await list(store, at, { targets: [target("a", toEnd("a"))] });
    await list(store, at, { gone: [{ path: "a", rev: 1, removals: [], keep: true }] });
    const { rev } = await seeTarget(store, "a");
    await list(store, at, { gone: [{ path: "a", rev, removals: [] }] });
    assert.equal((await store.work.targets({ pipeline: "docs", segment: 0, paths: ["a"] })).length, 0);
  });

  check("a removed target cancels its open item", async ({ store }) => {
    const at = await site(store);
    const lease = await parsingOne(store, at);
    await list(store, at, { gone: [{ path: "a", rev: 1, removals: [] }] });
    assert.equal((await see(store, lease.id)).state, "cancelled");
    assert.deepEqual(await counts(store, at.build), [0, 0, { parse: [0, 0, 0, 0, 0], index: [0, 0, 0, 0, 0] }]);
  });

  check("a build that produced something for a removed target releases it, and its removal finds it", async ({ store }) => {
    const at = await site(store);
    const leases = await parsing(store, at, ["a", "b"]);
    for (const lease of leases) {
      const [work] = await store.work.works([lease.job]);
      await parsed(store, at, lease, work?.target?.path as string, { result: result({ hash: `of ${work?.target?.path}` }) });
    }
    const row = await seeTarget(store, "a");
    const made = row.completed[0]?.result as ResultKey;
    await list(store, at, { gone: [{ path: "a", rev: row.rev - 1, removals: [], keep: true }] });
    assert.equal((await seeTarget(store, "a")).done, null, "it has gone on since it was read");
    await list(store, at, { gone: [{ path: "a", rev: row.rev, removals: [], keep: true }] });
    const left = await seeTarget(store, "a");
    assert.deepEqual([left.done, left.completed], [GONE_MARK, row.completed]);
    assert.deepEqual(await counts(store, at.build), [1, 0, { parse: [2, 0, 0, 0, 0], index: [0, 0, 0, 0, 1] }]);
    const removals = [item({ build: at.build, kind: "remove" })];
    await list(store, at, { gone: [{ path: "a", rev: left.rev, removals, had: ["parse"] }] });
    const had = await store.work.results({ build: at.build.id, stage: "parse", limit: 10 });
    assert.deepEqual([had.map(({ path }) => path), await resultOf(store.work, at.build.id, "parse", "a")], [["b"], null]);
    assert.deepEqual(
      (await store.work.results({ keys: [made] })).map(({ key, output }) => [key, output.text]),
      [[made, '"text"']],
    );
    const views = await store.work.works((await claimOf(store, at.build)).map(({ job }) => job));
    assert.deepEqual(views.map((view) => `${view?.kind} ${view?.target?.path}`).sort(), ["remove a", "stage b"]);
  });

  check("pages of targets are in the byte order of their paths, whichever are asked for", async ({ store }) => {
    const at = await site(store);
    const paths = ["", "B", "a", "a/b", "z", "é", "☃", "🙂", "\uffff"];
    await list(store, at, { targets: paths.map((path) => target(path, toEnd(path), { id: "x" })) });
    const children = [3, 1, 2].map((n) => target(`a/${n}`, toEnd("x"), { parent: "a" }));
    await list(store, at, { segment: 1, targets: [...children, target("b/1", toEnd("x"), { parent: "b" })] });
    const ordered = paths.toSorted((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
    assert.deepEqual(await pathsOf(store, { pipeline: "docs", segment: 0, limit: 2 }), ordered);
    assert.deepEqual(await pathsOf(store, { pipeline: "docs", segment: 1, limit: 2, parent: "a" }), ["a/1", "a/2", "a/3"]);
    const second = await next(store, at);
    const seen = await store.work.targets({ pipeline: "docs", segment: 0, paths: ["B", "z"] });
    await list(store, second, { targets: seen.map((row) => again(row, null)) });
    const unseen = second.build.key;
    assert.deepEqual(
      await pathsOf(store, { pipeline: "docs", segment: 0, limit: 2, unseen }),
      ordered.filter((path) => path !== "B" && path !== "z"),
    );
    const [child] = await store.work.targets({ pipeline: "docs", segment: 1, paths: ["a/2"] });
    await list(store, second, { segment: 1, targets: [again(child as TargetRow, null)] });
    assert.deepEqual(await pathsOf(store, { pipeline: "docs", segment: 1, limit: 1, unseen, parent: "a" }), ["a/1", "a/3"]);
  });

  check("members are those at the end of their segment, without a group first, then group by group", async ({ store }) => {
    const at = await site(store);
    const grouped: [string, string | null][] = [
      ["e", "y"],
      ["d", "x"],
      ["c", null],
      ["b", "x"],
      ["a", null],
      ["f", ""],
    ];
    await list(store, at, { targets: grouped.map(([path, group]) => target(path, toEnd(path, { group }))) });
    await list(store, at, { targets: [target("on its way", toWork(at.build, "parse", "on its way"))] });
    const page: MemberPage = { members: true, pipeline: "docs", segment: 0, limit: 2 };
    assert.deepEqual(await membersOf(store, page), ["a", "c", "f", "b", "d", "e"]);
    assert.deepEqual(await membersOf(store, { ...page, limit: 1 }), ["a", "c", "f", "b", "d", "e"]);
    assert.deepEqual(await membersOf(store, { ...page, limit: 100 }), ["a", "c", "f", "b", "d", "e"]);
    assert.deepEqual(await membersOf(store, { ...page, limit: 1, group: "x" }), ["b", "d"]);
    assert.deepEqual(await membersOf(store, { ...page, limit: 1, group: null }), ["a", "c"]);
    assert.deepEqual(await membersOf(store, { ...page, group: "absent" }), []);
  });

  check("a target whose stage fails is no longer a member", async ({ store }) => {
    const at = await site(store);
    await list(store, at, { targets: [target("a", toEnd("a"))] });
    const { build } = at;
    await store.enqueue([item({ build })]);
    const [lease] = await claim(store, { from: [{ queue: build.queue, lease: LEASE }] });
    await settleItem(store, lease as Claimed, undefined, { kind: "error", error: ERROR, retry: false });
    assert.deepEqual(await membersOf(store, { members: true, pipeline: "docs", segment: 0, limit: 10 }), []);
  });
}

/** Page by page. */
async function pathsOf(store: Store, page: TargetPage): Promise<string[]> {
  const paths: string[] = [];
  for (let rows = await store.work.targets(page); rows.length > 0;) {
    paths.push(...rows.map(({ path }) => path));
    rows = await store.work.targets({ ...page, after: paths.at(-1) as string });
  }
  return paths;
}

async function membersOf(store: Store, page: MemberPage): Promise<string[]> {
  const members: TargetRow[] = [];
  for (let rows = await store.work.targets(page); rows.length > 0;) {
    members.push(...rows);
    const { group, path } = rows.at(-1) as TargetRow;
    rows = await store.work.targets({ ...page, after: { group, path } });
  }
  return members.map(({ path }) => path);
}
