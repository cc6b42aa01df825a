import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { DatabaseSync } from "node:sqlite";
import { describe, test, type TestContext } from "node:test";
import { BUILD_MOVES, BUILD_STATES, type BuildState } from "../../src/core/pipelines/build.ts";
import { SCHEMA } from "../../src/store/sqlite/schema.ts";
import { SqliteStore } from "../../src/store/sqlite/sqlite-store.ts";
import type { Store } from "../../src/store/store.ts";
import { testClock } from "../../src/testing/index.ts";
import { bytes, paused, PAUSED, resuming, seeBuild, started, tokenOf } from "../conformance/build-parts.ts";
import { abandonment } from "../../src/store/builds.ts";

describe("the tables of builds", () => {
  test("the tables of builds allow exactly the transitions of core's table", () => {
    const written = [...SCHEMA.matchAll(/'([A-Z_]+>[A-Z_]+)'/g)].map(([, move]) => move as string);
    assert.deepEqual(written.toSorted(), [...legal()].toSorted());
  });

  test("the tables of builds allow exactly the states of core's table", () => {
    const [, list = ""] = /create table holdfast_builds [^;]*?state in \(([^)]+)\)/.exec(SCHEMA) ?? [];
    assert.deepEqual(
      list.split(", "),
      BUILD_STATES.map((state) => `'${state}'`),
    );
  });

  test("the tables of builds reject every other transition on every connection", async (t) => {
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

  test("the tables of builds allow one unfinished build of a pipeline", async (t) => {
    const { db, store } = await place(t);
    const { build } = await started(store);
    const columns = "pipeline, queue, state, reason, hash, description, options, created_at";
    const copy = db.prepare(`insert into holdfast_builds (id, ${columns}) select 'copy', ${columns} from holdfast_builds`);
    assert.throws(() => copy.run(), /UNIQUE/);
    await store.builds.move(build.id, abandonment("enough"), { by: "operator" });
    copy.run();
  });

  test("the tables of builds hold no token, only hashes", async (t) => {
    const { db, store } = await place(t);
    const led = await paused(store);
    await store.builds.authorize(led.build.id, { bytes: bytes(2) }, "operator");
    await store.builds.start(resuming(led, { approval: { token: tokenOf(2), budget: { usd: 8 } } }));
    await store.builds.move(led.build.id, PAUSED, { pipeline: "docs", token: "token-2" }, { bytes: bytes(3) });
    const usable = db.prepare("select pause from holdfast_tokens where used_at is null and replaced_at is null").all();
    assert.deepEqual(
      usable.map(({ pause }) => pause),
      [4],
    );
    const all = JSON.stringify(db.prepare("select * from holdfast_tokens").all());
    for (const n of [1, 2, 3]) assert.ok(!all.includes(tokenOf(n)), "only hashes are kept");
  });
});

function legal(): Set<string> {
  const moves = Object.values(BUILD_MOVES).flatMap(({ from, to }) =>
    (Object.keys(from) as BuildState[]).map((state) => `${state}>${to}`),
  );
  return new Set(moves);
}

function trigger(): string {
  return /create trigger holdfast_builds_moves[\s\S]+?\nend;/.exec(SCHEMA)?.[0] ?? assert.fail();
}

/** A file, and another connection that writes into it. */
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
