import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { describe, test, type TestContext } from "node:test";
import { BUILD_MOVES, BUILD_STATES, type BuildState } from "../../src/core/build.ts";
import { sql } from "../../src/store/sqlite/migrations/006-builds.ts";
import { SqliteStore } from "../../src/store/sqlite/sqlite-store.ts";
import type { Store } from "../../src/store/store.ts";
import { testClock } from "../../src/testing/index.ts";
import {
  bytes,
  made,
  newBuild,
  newLead,
  paused,
  PAUSED,
  refused,
  resuming,
  seeBuild,
  started,
  tokenOf,
} from "../conformance/build-parts.ts";
import { register } from "../conformance/parts.ts";

describe("the tables of builds", () => {
  test("have exactly the transitions of core's table", () => {
    const written = [...sql.matchAll(/'([A-Z_]+>[A-Z_]+)'/g)].map(([, move]) => move as string);
    assert.deepEqual(written.toSorted(), [...legal()].toSorted());
  });

  test("have exactly the states of core's table", () => {
    const [, list = ""] = /state in \(([^)]+)\)/.exec(sql) ?? [];
    assert.deepEqual(
      list.split(", "),
      BUILD_STATES.map((state) => `'${state}'`),
    );
  });

  test("refuse every other transition, whoever writes it", async (t) => {
    const { db, store } = await place(t);
    const { build } = await started(store);
    const put = db.prepare("update holdfast_builds set state = ?");
    for (const from of BUILD_STATES) {
      for (const to of BUILD_STATES) {
        db.exec("begin");
        db.exec("drop trigger holdfast_builds_moves");
        put.run(from);
        db.exec(trigger());
        const write = () => put.run(to);
        if (from === to || legal().has(`${from}>${to}`)) write();
        else assert.throws(write, /a build cannot make this transition/, `${from} → ${to}`);
        db.exec("rollback");
      }
    }
    assert.throws(() => put.run("RUNNING"), /cannot make this transition|CHECK/);
    assert.equal((await seeBuild(store, build)).state, "ACTIVE");
  });

  test("hold one build of a pipeline that has not ended", async (t) => {
    const { db, store } = await place(t);
    const { build } = await started(store);
    const columns = "pipeline, queue, state, reason, hash, description, options, created_at";
    const copy = db.prepare(`insert into holdfast_builds (id, ${columns}) select 'copy', ${columns} from holdfast_builds`);
    assert.throws(() => copy.run(), /UNIQUE/);
    await store.builds.abandon(build.id, "enough", "operator");
    copy.run();
  });
});

/** What work leaves in a build's row. */
describe("a build's money and failures", () => {
  test("a budget that is too small for what is spent and what was refused is refused, and the token is still good", async (t) => {
    const { db, store } = await place(t);
    const led = await paused(store);
    db.exec("update holdfast_builds set spent_micros = 4000000, refused_micros = 2500000, blocked = 'budget_precheck_block'");
    const token = tokenOf(1);
    const give = (usd: number) => ({ token, budget: { usd } });
    await refused(store, "BUDGET_TOO_SMALL", () => store.builds.resume(resuming(led, { approval: give(6) })));
    const error = await refused(store, "BUDGET_TOO_SMALL", () => store.builds.approve(led.build.id, give(6), "operator"));
    assert.match(error.hint, /\$6\.50/);
    const build = made(await store.builds.resume(resuming(led, { approval: give(6.5) })));
    assert.deepEqual([build.blocked, build.refused, build.budget.micros], [null, { micros: 0, tokens: 0 }, 6_500_000]);
  });

  test("what was in flight at the pause may cost more than was approved: then the approval is not enough any more", async (t) => {
    const { db, store } = await place(t);
    const led = await paused(store);
    await store.builds.approve(led.build.id, { token: tokenOf(1), budget: { usd: 6 } }, "operator");
    db.exec("update holdfast_builds set spent_micros = 7000000");
    await refused(store, "BUDGET_TOO_SMALL", () => store.builds.resume(resuming(led)));
    await store.builds.mintToken(led.build.id, { bytes: bytes(2) }, "operator");
    const approval = { token: tokenOf(2), budget: { usd: 8 } };
    assert.equal(made(await store.builds.resume(resuming(led, { approval }))).state, "ACTIVE");
  });

  test("what the budget refused before a crash is asked again after it", async (t) => {
    const { db, store } = await place(t);
    const led = await started(store);
    db.exec("update holdfast_builds set blocked = 'budget_exceeded', refused_tokens = 5");
    await store.builds.breakLead("docs", "operator");
    assert.equal((await seeBuild(store, led.build)).blocked, "budget_exceeded");
    const build = made(await store.builds.resume(resuming(led)));
    assert.deepEqual([build.blocked, build.refused], [null, { micros: 0, tokens: 0 }]);
  });

  test("a build succeeds when all is listed, nothing is open and nothing has failed", async (t) => {
    const { db, store } = await place(t);
    const { build, lock } = await started(store);
    const succeed = { move: "succeed", reason: "all_targets_done" } as const;
    const fail = { move: "fail", reason: "targets_failed" } as const;
    db.exec("update holdfast_builds set listing = 'done', open = 1");
    await refused(store, "BUILD_NOT_READY", () => store.builds.move(build.id, succeed, lock));
    db.exec("update holdfast_builds set open = 0, failed = 1");
    await refused(store, "BUILD_NOT_READY", () => store.builds.move(build.id, succeed, lock));
    db.exec("update holdfast_builds set failed = 0");
    await refused(store, "BUILD_NOT_READY", () => store.builds.move(build.id, fail, lock));
    assert.equal((await store.builds.move(build.id, succeed, lock))?.state, "SUCCESS");
    assert.equal(await store.builds.getLead("docs"), null);
  });

  test("a paused build whose last attempts have failed fails, without the lock", async (t) => {
    const { db, store } = await place(t);
    const { build } = await paused(store);
    const fail = { move: "fail", reason: "targets_failed" } as const;
    db.exec("update holdfast_builds set listing = 'done', failed = 1");
    const failed = await store.builds.move(build.id, fail, { by: "holdfast" });
    assert.deepEqual([failed?.state, failed?.reason], ["FAILED", "targets_failed"]);
  });

  test("a build does not fail while one of its attempts is in flight, whatever others do", async (t) => {
    const { db, store } = await place(t);
    const { build, lock } = await started(store);
    const blog = await started(store, { pipeline: "blog", lead: newLead(await register(store), "token-2") });
    db.exec("update holdfast_builds set listing = 'done', failed = 1, open = 1");
    const work = db.prepare(
      "insert or replace into holdfast_work (job, build, kind, stage, segment, path) values (?, ?, 'stage', 's', 0, 'p')",
    );
    const jobs = await store.claim({ from: [{ lease: 30_000 }], max: 10, holder: null, worker: "tester" });
    db.exec("delete from holdfast_work");
    for (const { job, queue } of jobs) work.run(job, queue === build.queue ? build.key : blog.build.key);
    const fail = { move: "fail", reason: "targets_failed" } as const;
    await refused(store, "BUILD_NOT_READY", () => store.builds.move(build.id, fail, lock));
    db.prepare("delete from holdfast_work where build = ?").run(build.key);
    assert.equal((await store.builds.move(build.id, fail, lock))?.state, "FAILED");
    await refused(store, "BUILD_NOT_READY", () => store.builds.move(blog.build.id, fail, blog.lock));
  });

  test("a build that pauses again has another token, and none of the first is left to use", async (t) => {
    const { db, store } = await place(t);
    const led = await paused(store);
    await store.builds.mintToken(led.build.id, { bytes: bytes(2) }, "operator");
    await store.builds.resume(resuming(led, { approval: { token: tokenOf(2), budget: { usd: 8 } } }));
    await store.builds.move(led.build.id, PAUSED, { pipeline: "docs", token: "token-2" }, { bytes: bytes(3) });
    const usable = db.prepare("select pause from holdfast_tokens where used_at is null and replaced_at is null").all();
    assert.deepEqual(
      usable.map(({ pause }) => pause),
      [4],
    );
    const all = JSON.stringify(db.prepare("select * from holdfast_tokens").all());
    for (const n of [1, 2, 3]) assert.ok(!all.includes(tokenOf(n)), "only hashes are kept");
    assert.deepEqual(await store.builds.start(newBuild(led.lead)), { paused: led.build.id });
  });
});

function legal(): Set<string> {
  const moves = Object.values(BUILD_MOVES).flatMap(({ from, to }) =>
    (Object.keys(from) as BuildState[]).map((state) => `${state}>${to}`),
  );
  return new Set(moves);
}

function trigger(): string {
  return /create trigger[\s\S]+?\nend;/.exec(sql)?.[0] ?? assert.fail();
}

/** A file, and somebody else who writes into it. */
async function place(t: TestContext): Promise<{ db: DatabaseSync; store: Store }> {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-builds-"));
  const path = join(folder, "work.db");
  const options = { driver: "node:sqlite", clock: testClock(), random: () => 0.5, busyTimeout: 20 } as const;
  const store = await SqliteStore.open(path, options);
  const db = new DatabaseSync(path);
  t.after(async () => {
    db.close();
    await store.close();
    rmSync(folder, { recursive: true });
  });
  return { db, store };
}
