import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, readFileSync, rmSync, statSync, truncateSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, test, type TestContext } from "node:test";
import { open } from "../../src/index.ts";
import { verifyAudit } from "../../src/engine/maintenance/check.ts";
import type { Finding } from "../../src/store/maintenance.ts";
import { connect, type DriverName } from "../../src/store/sqlite/driver.ts";
import { type Known, knownIn } from "../../src/store/sqlite/maintenance/epoch.ts";
import { GUARDS } from "../../src/store/sqlite/schema.ts";
import { SqliteStore, type SqliteStoreOptions } from "../../src/store/sqlite/sqlite-store.ts";
import { readSlots, witnessFolder } from "../../src/store/sqlite/maintenance/witness.ts";
import { testClock } from "../../src/testing/index.ts";
import { isSelected } from "../selection.ts";
import { add, claimOne, newJob, settle } from "../conformance/parts.ts";
import { alter, flip, place } from "./place.ts";
import { countJobs } from "../../src/store/queries.ts";

const HEADER = 32;
const FRAME = 4_096 + 24;

for (const driver of ["node:sqlite", "better-sqlite3"] as const) {
  describe(`a database against its witness (${driver})`, () => {
    test("a killed database has lost nothing", async (t) => {
      const { image } = await crashed(t, { driver });
      const { store, found } = await opened(t, image(), { driver });
      assert.deepEqual(found, []);
      assert.equal((await countJobs(store.queries)).pending, 10);
    });

    test("a closed database has lost nothing, and processes reuse one witness slot", async (t) => {
      const { path } = place(t);
      for (let i = 0; i < 20; i++) {
        const { store, found } = await opened(t, path, { driver });
        assert.deepEqual(found, []);
        await add(store, {});
        await store.close();
      }
      assert.equal(readdirSync(witnessFolder(path)).length, 1);
    });

    test("a database without its WAL is behind by the reported number of commits", async (t) => {
      const { image } = await crashed(t, { driver });
      const path = image();
      const missing = commitsIn(readFileSync(`${path}-wal`)).length;
      rmSync(`${path}-wal`);
      const [finding] = (await opened(t, path, { driver })).found;
      assert.equal(finding?.severity, "loss");
      assert.match(finding?.what ?? "", /^\d+ commits, with 10 jobs, were acknowledged and are gone\. .* \(-wal\) is missing/);
      assert.equal(finding?.commitsMissing, missing);
    });

    test("a database with a truncated WAL is behind by the lost commits, at every frame and within each", async (t) => {
      const { image } = await crashed(t, { driver }, async (store) => {
        for (let i = 0; i < 5; i++) await add(store, {}, {});
      });
      const log = readFileSync(`${image()}-wal`);
      const all = commitsIn(log).length;
      const frames = Math.floor((log.length - HEADER) / FRAME);
      const ends = [0, 5, HEADER, ...Array.from({ length: frames }, (_, i) => HEADER + i * FRAME)];
      for (const [i, end] of ends.entries()) {
        if (!isSelected(i, 12)) continue;
        for (const left of end < HEADER ? [end] : [end, end + 12, end + 24 + 2_000, end + FRAME - 1]) {
          const path = image();
          truncateSync(`${path}-wal`, left);
          const [finding] = (await opened(t, path, { driver })).found;
          const missing = all - commitsIn(log.subarray(0, left)).length;
          assert.deepEqual([finding?.severity, finding?.commitsMissing], ["loss", missing], `${left} bytes are left`);
          assert.match(finding?.what ?? "", new RegExp(`^${missing} commit`));
        }
      }
    });

    test("a flipped bit in any frame of the WAL is reported", async (t) => {
      const { image } = await crashed(t, { driver });
      const log = readFileSync(`${image()}-wal`);
      const all = commitsIn(log);
      for (let frame = 0; frame < Math.floor((log.length - HEADER) / FRAME); frame++) {
        if (!isSelected(frame, 12)) continue;
        const start = HEADER + frame * FRAME;
        // Its page's number, the size after a commit, salts, checksums, and the page.
        for (const at of [1, 6, 10, 14, 17, 21, 30, 2_000, 4_100].filter((_, i) => (i + frame) % 3 === 0)) {
          const path = image();
          flip(`${path}-wal`, start + at, (frame + at) % 8);
          const [finding] = (await opened(t, path, { driver })).found;
          const missing = all.filter((end) => end > start).length;
          assert.ok(finding !== undefined, `frame ${frame} byte ${at}`);
          assert.equal(finding.commitsMissing, missing, `frame ${frame} byte ${at}: ${finding.what}`);
        }
      }
    });

    test("a database with a flipped bit in its WAL is read-only, and its WAL stays unchanged", async (t) => {
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

    test("a database with a flipped bit in its last commit is behind by that commit", async (t) => {
      const { image } = await crashed(t, { driver });
      const path = image();
      flip(`${path}-wal`, statSync(`${path}-wal`).size - 1_000, 0);
      const { found } = await opened(t, path, { driver });
      assert.deepEqual(
        found.map(({ severity, commitsMissing }) => [severity, commitsMissing]),
        [["loss", 1]],
      );
    });

    test("a database that lost only jobs is behind by the commits that added them", async (t) => {
      const { image } = await crashed(t, { driver }, async (store) => {
        for (let i = 0; i < 5; i++) await add(store, {}, {});
      });
      const path = image();
      const log = readFileSync(`${path}-wal`);
      truncateSync(`${path}-wal`, commitsIn(log).at(-4));
      const [finding] = (await opened(t, path, { driver })).found;
      assert.match(finding?.what ?? "", /^3 commits, with 6 jobs, were acknowledged and are gone/);
    });

    test("a database of two processes is behind by what either has seen", async (t) => {
      const { image } = await crashed(t, { driver }, async (store, path) => {
        const other = await opened(t, path, { driver });
        for (let i = 0; i < 3; i++) {
          await add(store, {});
          await other.store.locks.acquire(`other ${i}`, "me", `token ${i}`, 1_000);
        }
        await other.store.enqueue([newJob()]);
      });
      const path = image();
      assert.equal(readSlots(path).length, 2);
      const all = commitsIn(readFileSync(`${path}-wal`));
      truncateSync(`${path}-wal`, all.at(-6));
      const { found, store } = await opened(t, path, { driver });
      assert.deepEqual(
        found.map(({ severity, commitsMissing }) => [severity, commitsMissing]),
        [["loss", 5]],
      );
      // And what they have seen is not taken for what is there from now on.
      await add(store, {});
      await store.close();
      assert.equal((await opened(t, path, { driver })).found.length, 1);
    });

    test("a witness that was removed while the database was open is written again", async (t) => {
      const { path } = place(t);
      const { store } = await opened(t, path, { driver });
      rmSync(witnessFolder(path), { recursive: true });
      await add(store, {});
      await store.close();
      const [slot] = readSlots(path);
      assert.deepEqual([slot?.seen.commits, slot?.seen.key], [extent(path, driver).commits, 1]);
      assert.deepEqual((await opened(t, path, { driver })).found, []);
    });

    test("a database whose witness cannot be written is not opened, with the reason", async (t) => {
      const { path } = place(t);
      await (await open(path, { driver })).close();
      rmSync(witnessFolder(path), { recursive: true });
      writeFileSync(witnessFolder(path), "in its way");
      await assert.rejects(open(path, { driver }), { code: "CANNOT_OPEN", message: /work\.db-witness/ });
      rmSync(witnessFolder(path));
      await using hf = await open(path, { driver });
      assert.deepEqual(await hf.recovery.history(), []);
    });

    test("a witness with a flipped bit is compared with the other records", async (t) => {
      const { image } = await crashed(t, { driver });
      const [token] = readdirSync(witnessFolder(image()));
      for (let at = 3; at < 2 * 512; at += 97) {
        const path = image();
        const slot = join(witnessFolder(path), token as string);
        if (at < statSync(slot).size) flip(slot, at, at % 8);
        rmSync(`${path}-wal`);
        assert.equal((await opened(t, path, { driver })).found[0]?.severity, "loss", String(at));
      }
    });

    test("a database replaced by an older file is behind by everything since", async (t) => {
      const { path, folder } = place(t);
      const first = await opened(t, path, { driver });
      await first.store.close();
      const old = join(folder, "old.db");
      execFileSync("cp", [path, old]);
      const second = await opened(t, path, { driver });
      for (let i = 0; i < 7; i++) await second.store.locks.acquire(`lock ${i}`, "me", `token ${i}`, 1_000);
      await second.store.close();
      execFileSync("cp", [old, path]);
      const { found, store } = await opened(t, path, { driver });
      // And the process that made them has come, in a commit of its own.
      assert.deepEqual(
        found.map(({ commitsMissing }) => commitsMissing),
        [8],
      );
      await store.close();
      assert.equal((await opened(t, path, { driver })).found.length, 1, "until it stands in a report, and not again");
    });

    test("a database that was replaced or removed is missed", async (t) => {
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

    test('a database with durability "process" may be behind after its host crashed, and says by how much', async (t) => {
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

    test("a database behind its witness continues with unused fences and keys", async (t) => {
      const { image, fence, key } = await crashed(t, { driver });
      const path = image();
      rmSync(`${path}-wal`);
      const { store } = await opened(t, path, { driver });
      await add(store, {});
      const claimed = await claimOne(store);
      assert.ok(claimed.fence > fence);
      assert.ok(claimed.job > key);
    });

    test("read-only processes compare with the witness, and write nothing", async (t) => {
      const { image } = await crashed(t, { driver });
      const path = image();
      rmSync(`${path}-wal`);
      const store = await SqliteStore.open(path, { ...options(), driver, onlyReads: true });
      assert.equal((await store.damage.findings())[0]?.severity, "loss");
      await store.close();
      assert.ok(!existsSync(`${path}-findings`));
      assert.equal((await opened(t, path, { driver })).found.length, 1);
    });

    test("rolled back and pruned jobs do not count as missing", async (t) => {
      const { path } = place(t);
      const { store } = await opened(t, path, { driver });
      await add(store, {});
      const bad = { ...newJob(), policy: undefined as never };
      const verdicts = await Promise.allSettled([
        store.enqueue([newJob(), bad]),
        store.cancel("absent"),
        store.enqueue([newJob(), bad]),
      ]);
      assert.deepEqual(
        verdicts.map(({ status }) => status),
        ["rejected", "fulfilled", "rejected"],
      );
      await Promise.allSettled([
        store.enqueue([newJob(), bad]),
        store.queues.declare([]),
        store.locks.acquire("a", "me", "token", 1_000),
      ]);
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

test("a database that is gone with its WAL is not taken for a new one", async (t) => {
  const { path } = place(t);
  await (await open(path)).close();
  rmSync(path);
  await assert.rejects(open(path, { create: false }), { code: "DATABASE_GONE", message: /it had 2 commits and 0 jobs/ });
  rmSync(witnessFolder(path), { recursive: true });
  await assert.rejects(open(path, { create: false }), { code: "NO_DATABASE" });
});

test("missing commits are in one report, which waits for an operator", async (t) => {
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

test('a loss that durability "process" permits in a crash of the host is reported, and is no error', async (t) => {
  const { image } = await crashed(t, { driver: "node:sqlite", durability: "process", boot: "before" });
  const path = image();
  rmSync(`${path}-wal`);
  await using hf = await open(path);
  const report = await hf.recovery.lastReport();
  assert.deepEqual(report?.errors, []);
  assert.ok((report?.commitsMissing ?? 0) >= 10);
});

/** Statements of an expert attacker: the guards are as they were, and the chain is whole. */
const CUT = [
  ...GUARDS.map(({ name }) => `drop trigger ${name};`),
  "delete from holdfast_audit where seq = (select max(seq) from holdfast_audit);",
  "update holdfast_audit_head set (seq, hash) = (select seq, hash from holdfast_audit order by seq desc limit 1);",
  ...GUARDS.map(({ sql }) => `${sql};`),
].join("\n");

test("an entry removed from the end of the audit is missed", async (t) => {
  const { path } = place(t);
  {
    await using hf = await open(path);
    await hf.queues.pause("one");
    await hf.queues.pause("two");
    assert.equal((await verifyAudit(hf.engine.store)).ok, true);
  }
  alter(path, CUT);
  {
    await using hf = await open(path);
    const { fault } = await verifyAudit(hf.engine.store);
    assert.match(fault?.message ?? "", /cut off/);
  }
  for (const queue of ["three", "four", "five", "six"]) {
    await using hf = await open(path);
    await hf.queues.pause(queue);
    assert.equal((await verifyAudit(hf.engine.store)).ok, false, "whatever is written since");
  }
  await using hf = await open(path);
  for (const queue of ["seven", "eight"]) await hf.queues.pause(queue);
  const { fault } = await verifyAudit(hf.engine.store);
  assert.deepEqual([fault?.kind, fault?.seq], ["altered", 2], "and by whomever");
});

test("an audit entry removed while a process has the database open is missed, whatever that process writes since", async (t) => {
  const { path } = place(t);
  await using hf = await open(path);
  for (const queue of ["one", "two"]) await hf.queues.pause(queue);
  alter(path, CUT);
  for (const queue of ["three", "four", "five"]) await hf.queues.pause(queue);
  const { fault } = await verifyAudit(hf.engine.store);
  assert.deepEqual([fault?.kind, fault?.seq], ["altered", 2]);
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
    await store.processes.register({
      pid: 1,
      host: "here",
      boot: how.boot ?? "now",
      program: "test",
      identity: "",
      stoppable: false,
    });
  }
  return { store, found };
}

/** A database whose process was killed after some commits; each `image` is a copy of what it has left, at this instant. */
async function crashed(
  t: TestContext,
  how: Partial<SqliteStoreOptions> & Pick<SqliteStoreOptions, "driver">,
  last: (store: SqliteStore, path: string) => Promise<unknown> = async () => {},
) {
  const { folder, path } = place(t);
  const { store } = await opened(t, path, how);
  await store.close();
  const again = await opened(t, path, how);
  for (let i = 0; i < 10; i++) await add(again.store, { input: JSON.stringify("x".repeat(1_900)) });
  for (let i = 0; i < 10; i++) await again.store.locks.acquire(`lock ${i}`, "me", `token ${i}`, 1_000);
  const { job: key, fence } = await claimOne(again.store);
  await again.store.settle([{ job: key, fence, outcome: { kind: "released" } }]);
  await last(again.store, path);
  let images = 0;
  const image = (): string => {
    const to = join(folder, `image ${images++}`);
    mkdirSync(to);
    // Not the lock that proves its life: that is gone with the process.
    for (const end of ["", "-wal", "-witness"]) execFileSync("cp", ["-r", path + end, to]);
    mkdirSync(join(to, "work.db-alive"));
    return join(to, "work.db");
  };
  return { image, fence, key };
}

/** Where each commit in a log ends. */
function commitsIn(log: Buffer): number[] {
  const ends: number[] = [];
  for (let at = HEADER; at + FRAME <= log.length; at += FRAME) if (log.readUInt32BE(at + 4) > 0) ends.push(at + FRAME);
  return ends;
}

function extent(path: string, driver: DriverName): Known {
  const db = connect(driver, path, { busyTimeout: 1_000 });
  const known = knownIn(db);
  db.close();
  return known;
}
