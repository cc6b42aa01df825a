import { buildById } from "../../src/store/builds.ts";
import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, test, type TestContext } from "node:test";
import type { Fence } from "../../src/core/text/ids.ts";
import { items, open, pipeline } from "../../src/index.ts";
import { connect, type DriverName } from "../../src/store/sqlite/driver.ts";
import { knownIn, raiseEpoch } from "../../src/store/sqlite/maintenance/epoch.ts";
import { SqliteStore } from "../../src/store/sqlite/sqlite-store.ts";
import { testClock } from "../../src/testing/index.ts";
import { add, addOne, claim, claimIds, claimOne, ERROR, newJob, running, settle, saveCheckpoint } from "../conformance/parts.ts";
import { silent } from "./place.ts";
import { countJobs } from "../../src/store/queries.ts";

const DAMAGED = { code: "DAMAGED" };
const LARGE = JSON.stringify("x".repeat(5_000));

for (const driver of ["node:sqlite", "better-sqlite3"] as const) {
  describe(`a row that is not what was written (${driver})`, () => {
    // Whatever the column, and whether it grows, shrinks or becomes another.
    const changes: Record<string, string> = {
      "its input": `input = '{"n":2}'`,
      "its input, gone": "input = null",
      "its input, a blob of the same bytes": "input = cast(input as blob)",
      "its priority": "priority = priority + 1",
      "its policy": "policy = policy + 64",
      "its time of birth": "created_at = created_at + 4294967296",
      "its id": "id = 'another'",
      "its slot": "slot = 'work\nanother'",
      "its tick": "scheduled_for = 1",
      "its tags": `meta = '{"tags":["red"]}'`,
    };
    for (const [what, change] of Object.entries(changes)) {
      test(`a changed row is given to no worker: ${what}`, async (t) => {
        const { store, alter } = await place(t, driver);
        await add(store, {}, {}, {});
        alter(`update holdfast_jobs set ${change} where key = 2`);
        assert.deepEqual(
          (await claim(store)).map(({ job }) => job),
          [1, 3],
        );
        const { items } = await store.queries.list({ limit: 10, state: "quarantined" });
        assert.deepEqual(
          items.map(({ input, error }) => [input, error?.code]),
          [[undefined, "DAMAGED"]],
        );
        assert.equal((await countJobs(store.queries)).quarantined, 1);
      });
    }

    test("a changed row does not block a claim of one job behind it", async (t) => {
      const { store, alter } = await place(t, driver);
      const ids = await add(store, {}, {}, {});
      alter("update holdfast_jobs set input = '[]' where key < 3");
      assert.deepEqual(await claimIds(store, { max: 1 }), ids.slice(2));
    });

    test("a large input that was changed or lost is found", async (t) => {
      const { store, alter } = await place(t, driver);
      await add(store, { input: LARGE }, { input: LARGE }, { input: LARGE });
      alter("update holdfast_inputs set body = replace(body, 'xx', 'xy') where job = 1");
      alter("delete from holdfast_inputs where job = 2");
      const [whole] = await claim(store);
      assert.equal(whole?.job, 3);
      assert.equal(whole?.input, LARGE);
    });

    test("a changed row is rejected for every reader, and listed without its contents", async (t) => {
      const { store, alter } = await place(t, driver);
      const ids = await add(store, { id: "one" }, { id: "two" });
      alter("update holdfast_jobs set input = '[]' where key = 1");
      await assert.rejects(store.queries.get("one"), DAMAGED);
      assert.equal((await store.queries.get("two"))?.id, "two");
      const { items } = await store.queries.list({ limit: 10 });
      assert.deepEqual(
        items.map(({ id }) => id),
        ids,
      );
      assert.equal(items[0]?.input, undefined);
    });

    test("a row keeps a valid checksum over errors, retries and new outputs", async (t) => {
      const { store, clock } = await place(t, driver);
      const first = await running(store);
      await settle(store, first, { kind: "error", error: ERROR });
      assert.deepEqual((await store.queries.get(first.id))?.error, ERROR);
      await clock.advance("1m");
      const second = await claimOne(store);
      await settle(store, second, { kind: "error", error: { name: "Error", message: "again" }, retry: false });
      assert.equal((await store.queries.get(first.id))?.error?.message, "again");
      await store.retry(first.id);
      await settle(store, await claimOne(store), { kind: "succeeded", output: "[1]" });
      assert.deepEqual((await store.queries.get(first.id))?.output, [1]);
    });

    test("a changed checkpoint, schedule or event is rejected", async (t) => {
      const { store, alter } = await place(t, driver);
      const held = await running(store);
      await saveCheckpoint(store, held, '{"page":7}');
      assert.equal(await store.loadCheckpoint(held.job), '{"page":7}');
      alter(`update holdfast_notes set checkpoint = '{"page":8}'`);
      await assert.rejects(store.loadCheckpoint(held.job), DAMAGED);
      const timing = { cron: "0 3 * * *", timezone: "UTC", missed: "once", within: null, overlap: false, nextAt: 1 } as const;
      await store.schedules.save({ key: "nightly", ...timing, template: newJob() });
      alter("update holdfast_schedules set template = replace(template, 'work', 'word')");
      await assert.rejects(store.schedules.trigger("nightly"), DAMAGED);
      await store.retry("absent");
      await store.cancel(held.id);
      assert.equal((await store.events.page({ after: 0, limit: 10 })).length, 2);
      alter("update holdfast_events set data = replace(data, 'work', 'word')");
      await assert.rejects(store.events.page({ after: 0, limit: 10 }), DAMAGED);
    });

    test("a row without a checksum counts as damaged", async (t) => {
      const { store, alter } = await place(t, driver);
      const id = await addOne(store);
      alter("update holdfast_jobs set checksum = null");
      await assert.rejects(store.queries.get(id), DAMAGED);
      assert.deepEqual(await claim(store), []);
    });

    test("a changed build, target or result is rejected, and a changed result is not reused", async (t) => {
      const { path } = await place(t, driver);
      let made = 0;
      const built = pipeline("docs")
        .source(items(() => ["a", "b"], { id: (value) => value }))
        .stage("shout", {}, ({ input }) => {
          made++;
          return input.toUpperCase();
        });
      await using hf = await open(path, { driver, log: silent });
      const { id } = await (await hf.builds.start(built)).done();
      const { store } = hf.engine;
      const damage = (sql: string) => damaged(path, driver, sql);
      {
        using _ = damage("update holdfast_builds set description = replace(description, 'shout', 'shoot')");
        await assert.rejects(buildById(store.builds, id), DAMAGED);
      }
      {
        using _ = damage("update holdfast_builds set checksum = checksum + 1");
        await assert.rejects(buildById(store.builds, id), DAMAGED);
      }
      {
        using _ = damage("update holdfast_targets set value_text = replace(value_text, 'a', 'c')");
        await assert.rejects(store.work.targets({ pipeline: "docs", segment: 0, paths: ["a"] }), DAMAGED);
        assert.equal((await store.work.targets({ pipeline: "docs", segment: 0, paths: ["b"] })).length, 1);
      }
      const [result] = await store.work.results({ build: id, stage: "shout", limit: 1 });
      const asked = [{ stage: "shout", hash: result?.hash as string, path: result?.path as string }];
      assert.notEqual((await store.work.lookUp("docs", asked))[0], null);
      for (const change of [
        "parts = parts || ' '",
        "micros = micros + 1",
        "output_hash = replace(output_hash, 'json', 'jton')",
      ]) {
        using _ = damage(`update holdfast_results set ${change} where key = ${result?.key as number}`);
        await assert.rejects(store.work.results({ build: id, stage: "shout", limit: 1 }), DAMAGED);
        assert.deepEqual(await store.work.lookUp("docs", asked), [null]);
      }
      assert.equal(made, 2);
      assert.deepEqual(await hf.check(), { ok: true, findings: [] }, "it was put back each time");
    });
  });

  test(`fences and keys of a new epoch are above all earlier ones (${driver})`, async (t) => {
    const { store, path, clock } = await place(t, driver);
    const before = await running(store);
    await store.close();
    const db = connect(driver, path, { busyTimeout: 0 });
    const known = knownIn(db);
    assert.deepEqual(known, { epoch: 0, commits: before.fence, key: before.job });
    db.exec("begin immediate");
    assert.equal(raiseEpoch(db, { epoch: 6, commits: 70, key: 800 }), 7);
    assert.equal(raiseEpoch(db, { epoch: 0, commits: 0, key: 0 }), 8);
    db.exec("commit");
    db.close();
    const after = await SqliteStore.open(path, { driver, clock, random: Math.random, busyTimeout: 10 });
    t.after(() => after.close());
    const next = await running(after);
    assert.ok(next.fence > 8 * 2 ** 40 && Number.isSafeInteger(next.fence));
    assert.ok(next.job > 800 + 2 ** 20);
    assert.deepEqual(await after.renew([{ ...next, fence: (next.fence - 1) as Fence, lease: 1_000 }]), ["lost"]);
  });
}

/** Until it is disposed of. */
function damaged(path: string, driver: DriverName, sql: string): Disposable {
  const db = connect(driver, path, { busyTimeout: 1_000 });
  const [, table] = /^update (\w+)/.exec(sql) as unknown as [string, string];
  db.exec(`create temp table before as select * from ${table}`);
  db.exec(sql);
  return {
    [Symbol.dispose]: () => {
      db.exec(`replace into ${table} select * from before`);
      db.close();
    },
  };
}

async function place(t: TestContext, driver: DriverName) {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-rows-"));
  const path = join(folder, "work.db");
  const clock = testClock();
  const store = await SqliteStore.open(path, { driver, clock, random: Math.random, busyTimeout: 10 });
  t.after(async () => {
    await store.close();
    rmSync(folder, { recursive: true, force: true });
  });
  /** As a bad disk would, but where it hurts. */
  const alter = (sql: string): void => {
    const db = connect(driver, path, { busyTimeout: 1_000 });
    db.exec(sql);
    db.close();
  };
  return { store, path, clock, alter };
}
