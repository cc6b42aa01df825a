import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, truncateSync } from "node:fs";
import { join } from "node:path";
import { describe, test, type TestContext } from "node:test";
import { open } from "../../src/index.ts";
import { verifyAudit } from "../../src/runtime/audit.ts";
import type { Finding } from "../../src/store/findings.ts";
import { connect, type DriverName } from "../../src/store/sqlite/driver.ts";
import { type Known, knownIn } from "../../src/store/sqlite/epoch.ts";
import { GUARDS } from "../../src/store/sqlite/migrations/008-audit.ts";
import { SqliteStore, type SqliteStoreOptions } from "../../src/store/sqlite/sqlite-store.ts";
import { mostSeen, readSlots, witnessFolder } from "../../src/store/sqlite/witness/slots.ts";
import { testClock } from "../../src/testing/index.ts";
import { add, claimOne, newJob, settle } from "../conformance/parts.ts";
import { alter, flip, place } from "./place.ts";

const FRAME = 4_096 + 24;

for (const driver of ["node:sqlite", "better-sqlite3"] as const) {
  describe(`a database against its witness (${driver})`, () => {
    test("that was killed has lost nothing", async (t) => {
      const { image } = await crashed(t, { driver });
      const { store, found } = await opened(t, image(), { driver });
      assert.deepEqual(found, []);
      assert.equal((await store.counts({})).pending, 10);
    });

    test("that was closed has lost nothing, and one slot goes from hand to hand", async (t) => {
      const { path } = place(t);
      for (let i = 0; i < 20; i++) {
        const { store, found } = await opened(t, path, { driver });
        assert.deepEqual(found, []);
        await add(store, {});
        await store.close();
      }
      assert.equal(readdirSync(witnessFolder(path)).length, 1);
    });

    test("without its log is behind, by as many commits as are told", async (t) => {
      const { image, commits } = await crashed(t, { driver });
      const path = image();
      rmSync(`${path}-wal`);
      const [finding] = (await opened(t, path, { driver })).found;
      assert.equal(finding?.severity, "loss");
      assert.match(finding?.what ?? "", /-wal\) is missing/);
      assert.ok(
        (finding?.commitsMissing ?? 0) >= 10 && (finding?.commitsMissing ?? 0) <= commits,
        String(finding?.commitsMissing),
      );
    });

    test("whose log was cut off is behind, wherever the cut is", async (t) => {
      const { image } = await crashed(t, { driver });
      const size = statSync(`${image()}-wal`).size;
      for (const left of [0, 40, 0.3 * size, size - FRAME, size - 1]) {
        const path = image();
        truncateSync(`${path}-wal`, Math.floor(left));
        const [finding] = (await opened(t, path, { driver })).found;
        assert.equal(finding?.severity, "loss", String(left));
        assert.ok((finding?.commitsMissing ?? 0) >= 1);
      }
    });

    test("with a flipped bit in its log is damaged: it is only read, and its log stays as it is", async (t) => {
      const { image } = await crashed(t, { driver });
      // The header, and a frame's number, salt, checksum and page.
      for (const at of [3, 9, 17, 25, 32 + 2 * FRAME, ...[9, 17, 500].map((n) => 32 + 3 * FRAME + n)]) {
        const path = image();
        flip(`${path}-wal`, at, 2);
        const before = readFileSync(`${path}-wal`);
        const { store, found } = await opened(t, path, { driver });
        assert.equal(found[0]?.severity, "damage", String(at));
        assert.match(found[0]?.what ?? "", /write-ahead log .* damaged/);
        assert.ok((found[0]?.commitsMissing ?? 0) > 5);
        await assert.rejects(store.enqueue([newJob()]), { code: "DAMAGED" });
        await store.close();
        assert.deepEqual(readFileSync(`${path}-wal`), before);
      }
    });

    test("with a flipped bit in its last commit is behind by that", async (t) => {
      const { image } = await crashed(t, { driver });
      const path = image();
      flip(`${path}-wal`, statSync(`${path}-wal`).size - 1_000, 0);
      const { found } = await opened(t, path, { driver });
      assert.deepEqual(
        found.map(({ severity, commitsMissing }) => [severity, commitsMissing]),
        [["loss", 1]],
      );
    });

    test("that only lost jobs, in commits without a number, is behind all the same", async (t) => {
      const { image } = await crashed(t, { driver }, async (store) => {
        for (let i = 0; i < 5; i++) await add(store, {}, {});
      });
      const path = image();
      truncateSync(`${path}-wal`, statSync(`${path}-wal`).size - 1);
      const [finding] = (await opened(t, path, { driver })).found;
      assert.match(finding?.what ?? "", /At least 1 commit, with 2 jobs,/);
    });

    test("in whose place an older file was put is behind by all that came since", async (t) => {
      const { path, folder } = place(t);
      const first = await opened(t, path, { driver });
      await first.store.close();
      const old = join(folder, "old.db");
      execFileSync("cp", [path, old]);
      const second = await opened(t, path, { driver });
      for (let i = 0; i < 7; i++) await second.store.acquireLock(`lock ${i}`, "me", `token ${i}`, 1_000);
      await second.store.close();
      execFileSync("cp", [old, path]);
      const { found, store } = await opened(t, path, { driver });
      assert.equal(found.length, 1);
      // And the process that made them has come and gone, in a commit each.
      assert.ok((found[0]?.commitsMissing ?? 0) >= 7 && (found[0]?.commitsMissing ?? 0) <= 10);
      await store.close();
      assert.equal((await opened(t, path, { driver })).found.length, 1, "until it stands in a report, and not again");
    });

    test("in whose place another was put, or that is gone, is missed", async (t) => {
      const { image } = await crashed(t, { driver });
      const other = await crashed(t, { driver });
      const path = image();
      for (const end of ["", "-wal"]) execFileSync("cp", [other.image() + end, path + end]);
      assert.match((await opened(t, path, { driver })).found[0]?.what ?? "", /Another database was put into its place/);
      const gone = image();
      for (const end of ["", "-wal"]) rmSync(gone + end);
      const { found } = await opened(t, gone, { driver });
      assert.match(found[0]?.what ?? "", /was gone, and a new one was made: the one that was here had \d+ commits/);
      assert.ok((found[0]?.commitsMissing ?? 0) > 10);
    });

    test("that went down with its host may be behind at durability process, and says by how much", async (t) => {
      const { image } = await crashed(t, { driver, durability: "process", boot: "before" });
      const [cut, flipped] = [image(), image()];
      truncateSync(`${cut}-wal`, 32 + 5 * FRAME);
      flip(`${flipped}-wal`, 32 + 3 * FRAME + 500, 0);
      for (const path of [cut, flipped]) {
        const { found, store } = await opened(t, path, { driver, durability: "process", boot: "after" });
        assert.ok(
          found.every(({ severity }) => severity === "expected"),
          JSON.stringify(found),
        );
        assert.ok((found[0]?.commitsMissing ?? 0) >= 5);
        await add(store, {});
      }
      // While the host was up all the while, it is damage.
      const same = image();
      flip(`${same}-wal`, 32 + 3 * FRAME + 500, 0);
      const { found } = await opened(t, same, { driver, durability: "process", boot: "before" });
      assert.equal(found[0]?.severity, "damage");
    });

    test("goes on with fences and keys that nobody has had", async (t) => {
      const { image, fence, key } = await crashed(t, { driver });
      const path = image();
      rmSync(`${path}-wal`);
      const { store } = await opened(t, path, { driver });
      await add(store, {});
      const claimed = await claimOne(store);
      assert.ok(claimed.fence > fence);
      assert.ok(claimed.job > key);
    });

    test("is compared by those who only look, and nothing is written by them", async (t) => {
      const { image } = await crashed(t, { driver });
      const path = image();
      rmSync(`${path}-wal`);
      const store = await SqliteStore.open(path, { ...options(), driver, looks: true });
      assert.equal((await store.damage.findings())[0]?.severity, "loss");
      await store.close();
      assert.ok(!existsSync(`${path}-findings`));
      assert.equal((await opened(t, path, { driver })).found.length, 1);
    });

    test("is not taken to be behind for what was undone, or pruned", async (t) => {
      const { path } = place(t);
      const { store } = await opened(t, path, { driver });
      await add(store, {});
      const bad = { ...newJob(), policy: undefined as never };
      const verdicts = await Promise.allSettled([
        store.enqueue([newJob(), bad]),
        store.cancel("nobody"),
        store.enqueue([newJob(), bad]),
      ]);
      assert.deepEqual(
        verdicts.map(({ status }) => status),
        ["rejected", "fulfilled", "rejected"],
      );
      await Promise.allSettled([store.enqueue([newJob(), bad]), store.declare([]), store.acquireLock("a", "me", "token", 1_000)]);
      await store
        .transact(() => {
          store.enqueueWithin({}, [newJob()]);
        })
        .catch(() => {});
      await settle(store, await claimOne(store), { kind: "succeeded", output: null });
      await store.prune({ state: "succeeded", limit: 10 });
      await store.close();
      assert.deepEqual((await opened(t, path, { driver })).found, []);
    });
  });
}

test("what is missing stands in one report, which waits for an operator", async (t) => {
  const { image } = await crashed(t, { driver: "node:sqlite" });
  const path = image();
  rmSync(`${path}-wal`);
  for (let round = 0; round < 2; round++) {
    await using hf = await open(path);
    const [report, ...others] = await hf.recovery.history();
    assert.deepEqual(others, []);
    assert.equal(report?.wasSuccessful, false);
    assert.ok((report?.commitsMissing ?? 0) >= 10);
    assert.match(report?.errors.join() ?? "", /were acknowledged and are gone/);
  }
});

test("what durability process lets a crash of the host take is told, and is no error", async (t) => {
  const { image } = await crashed(t, { driver: "node:sqlite", durability: "process", boot: "before" });
  const path = image();
  rmSync(`${path}-wal`);
  await using hf = await open(path);
  const report = await hf.recovery.lastReport();
  assert.deepEqual(report?.errors, []);
  assert.ok((report?.commitsMissing ?? 0) >= 10);
});

test("an entry that was cut off from the end of the audit is missed", async (t) => {
  const { path } = place(t);
  {
    await using hf = await open(path);
    await hf.queues.pause("one");
    await hf.queues.pause("two");
    assert.equal((await verifyAudit(hf.engine.store)).ok, true);
  }
  // By somebody who knows his way around: the guards are as they were, and the chain is whole.
  const drop = GUARDS.map(({ name }) => `drop trigger ${name};`).join("");
  const make = GUARDS.map(({ sql }) => `${sql};`).join("");
  const cut = `delete from holdfast_audit where seq = (select max(seq) from holdfast_audit);
    update holdfast_audit_head set (seq, hash) = (select seq, hash from holdfast_audit order by seq desc limit 1);`;
  alter(path, drop + cut + make);
  await using hf = await open(path);
  const { fault } = await verifyAudit(hf.engine.store);
  assert.match(fault?.message ?? "", /cut off|gone|missing/);
});

function options(): Omit<SqliteStoreOptions, "driver"> {
  return { clock: testClock(), random: Math.random, busyTimeout: 10 };
}

async function opened(
  t: TestContext,
  path: string,
  how: Partial<SqliteStoreOptions> & Pick<SqliteStoreOptions, "driver">,
): Promise<{ store: SqliteStore; found: Finding[] }> {
  const store = await SqliteStore.open(path, { ...options(), boot: "now", ...how });
  t.after(() => store.close());
  const found = await store.damage.findings();
  if (store.damage.damaged === null) {
    await store.register({ pid: 1, host: "here", boot: how.boot ?? "now", program: "test", identity: "", stoppable: false });
  }
  return { store, found };
}

/** A database whose process was killed after some commits; each `image` is a copy of what it has left, at this instant. */
async function crashed(
  t: TestContext,
  how: Partial<SqliteStoreOptions> & Pick<SqliteStoreOptions, "driver">,
  last: (store: SqliteStore) => Promise<unknown> = async () => {},
) {
  const { folder, path } = place(t);
  const { store } = await opened(t, path, how);
  await store.close();
  const again = await opened(t, path, how);
  for (let i = 0; i < 10; i++) await add(again.store, { input: JSON.stringify("x".repeat(1_900)) });
  for (let i = 0; i < 10; i++) await again.store.acquireLock(`lock ${i}`, "me", `token ${i}`, 1_000);
  const { job: key, fence } = await claimOne(again.store);
  await again.store.settle([{ job: key, fence, outcome: { kind: "released" } }]);
  await last(again.store);
  // It is written down a few milliseconds later.
  const { commits, key: highest } = extent(path, how.driver);
  for (let seen = mostSeen(readSlots(path)); (seen?.commits ?? 0) < commits || (seen?.key ?? 0) < highest;) {
    await new Promise((resolve) => setImmediate(resolve));
    seen = mostSeen(readSlots(path));
  }
  let images = 0;
  const image = (): string => {
    const to = join(folder, `image ${images++}`);
    mkdirSync(to);
    // Not the lock that proves its life: that is gone with the process.
    for (const end of ["", "-wal", "-witness"]) execFileSync("cp", ["-r", path + end, to]);
    mkdirSync(join(to, "work.db-alive"));
    return join(to, "work.db");
  };
  return { image, commits, fence, key };
}

function extent(path: string, driver: DriverName): Known {
  const db = connect(driver, path, { busyTimeout: 1_000 });
  const known = knownIn(db);
  db.close();
  return known;
}
