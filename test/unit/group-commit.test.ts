import assert from "node:assert/strict";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { describe, test } from "node:test";
import type { Fence, JobKey } from "../../src/core/text/ids.ts";
import { HoldfastError } from "../../src/core/text/errors.ts";
import { connect, type Connection, type DriverName } from "../../src/store/sqlite/driver.ts";
import { type Enqueue, EnqueueParts } from "../../src/store/sqlite/jobs/enqueue.ts";
import { statementsOn } from "../../src/store/sqlite/scripts.ts";
import { type Committed, GroupCommit } from "../../src/store/sqlite/group-commit.ts";
import { openSqlite } from "../../src/store/sqlite/open.ts";
import { newJob } from "../conformance/parts.ts";

const NOW = Date.UTC(2026, 0, 1);
const CALLS = 100;

for (const driver of ["node:sqlite", "better-sqlite3"] as const) {
  describe(driver, () => {
    // The disk fills up at each of the calls in turn: its row needs pages, and there are none. Another call is bad by itself.
    for (let decade = 0; decade < CALLS; decade += 10) {
      test(`of 100 calls with one bad and a disk full at ${decade} to ${decade + 9}, every verdict is what the file says`, async () => {
        for (let full = decade; full < decade + 10; full++) await fillUpAt(driver, full, (full * 7 + 13) % CALLS);
      });
    }

    test("with room for a few of 100 calls, every verdict is what the file says", async () => {
      for (let room = 0; room < 30; room++) {
        await tryAll(driver, (db, n) => {
          if (n === 0) limitPages(db, room);
          return "x".repeat(1_500);
        });
      }
    });

    test("a bad call is undone alone, and what it had to tell is not told", async () => {
      await withGroup(driver, async ({ group, told }) => {
        const verdicts = await Promise.allSettled([
          group.submit("cancel", (tx) => {
            tx.wrote();
            tx.ready("good");
            tx.ended(1 as JobKey, 1 as Fence);
          }),
          group.submit("cancel", (tx) => {
            tx.wrote();
            tx.ready("bad");
            tx.ended(2 as JobKey, 2 as Fence);
            throw new Error("bad");
          }),
        ]);
        assert.deepEqual(
          verdicts.map(({ status }) => status),
          ["fulfilled", "rejected"],
        );
        assert.deepEqual(told, [
          { ready: new Set(["good"]), ended: [{ job: 1, fence: 1 }], damaged: [], audit: null, commit: 1, key: 0 },
        ]);
      });
    });

    test("while another handle writes, calls wait for it and then all happen, in order", async () => {
      await withGroup(driver, async ({ group, enqueue, path, db }) => {
        const other = connect(driver, path, { busyTimeout: 0 });
        other.exec("begin immediate");
        const calls = Array.from({ length: 20 }, (_, n) => group.submit("enqueue", (tx) => enqueue.run(tx, [job(n)])));
        await new Promise((turn) => setImmediate(turn));
        assert.deepEqual(idsIn(db), []);
        other.exec("commit");
        other.close();
        await Promise.all(calls);
        assert.equal(idsIn(db).length, 20);
      });
    });

    test("a call waits longer than its patience while other processes commit, up to twelve times as long", async () => {
      for (const [waits, rounds] of [
        [true, 14],
        [false, 15],
      ] as const)
        await withGroup(driver, async ({ group, enqueue, path, db, time }) => {
          const other = new OtherWriter(driver, path, time);
          const call = other.watch(group.submit("enqueue", (tx) => enqueue.run(tx, [job(1)])));
          for (let round = 1; round <= rounds; round++) await other.commitsAfter(4_000);
          other.close();
          if (waits) await call;
          else await assert.rejects(call, { code: "BUSY" });
          assert.equal(idsIn(db).length, waits ? 1 : 0);
        });
    });

    test("a call waits as long after another one had waited and written nothing", async () => {
      await withGroup(driver, async ({ group, enqueue, path, db, time }) => {
        const first = new OtherWriter(driver, path, time);
        const idle = first.watch(group.submit("claim", () => {}));
        await first.commitsAfter(0);
        first.close();
        await idle;
        const second = new OtherWriter(driver, path, time, 1_000_000);
        const call = second.watch(group.submit("enqueue", (tx) => enqueue.run(tx, [job(1)])));
        for (let round = 1; round <= 5; round++) await second.commitsAfter(4_000);
        second.close();
        await call;
        assert.equal(idsIn(db).length, 1);
      });
    });

    test("a call that waited longer than its patience is rejected with BUSY, and nothing has changed", async () => {
      await withGroup(driver, async ({ group, enqueue, path, db, time }) => {
        const other = connect(driver, path, { busyTimeout: 0 });
        other.exec("begin immediate");
        const call = group.submit("enqueue", (tx) => enqueue.run(tx, [job(1)]));
        time.passed = 5_000;
        await assert.rejects(call, (error) => error instanceof HoldfastError && error.code === "BUSY" && error.hint !== "");
        other.exec("rollback");
        other.close();
        assert.deepEqual(idsIn(db), []);
        await group.submit("enqueue", (tx) => enqueue.run(tx, [job(2)]));
        assert.deepEqual(idsIn(db), ["job 2"]);
      });
    });

    test("a commit that fails is undone, every caller gets the error, and the next one goes through", async () => {
      await withGroup(driver, async ({ group, enqueue, db }) => {
        db.exec("create table parent (id integer primary key); pragma foreign_keys = on");
        db.exec("create table child (parent integer references parent (id) deferrable initially deferred)");
        const violate = db.prepare("insert into child (parent) values (99)");
        const verdicts = await Promise.allSettled([
          group.submit("enqueue", (tx) => enqueue.run(tx, [job(1)])),
          group.submit("lock", (tx) => {
            tx.wrote();
            violate.run();
          }),
        ]);
        assert.deepEqual(
          verdicts.map(({ status }) => status),
          ["rejected", "rejected"],
        );
        assert.equal(db.inTransaction, false);
        assert.deepEqual(idsIn(db), []);
        await group.submit("enqueue", (tx) => enqueue.run(tx, [job(2)]));
        assert.deepEqual(idsIn(db), ["job 2"]);
      });
    });

    test("fences and keys only rise, whatever was undone or removed in between", async () => {
      await withGroup(driver, async ({ group, enqueue, db }) => {
        const fences: number[] = [];
        const keys: number[] = [];
        for (let n = 0; n < 5; n++) {
          await group.submit("claim", (tx) => {
            tx.wrote();
            fences.push(tx.commit);
          });
          await group.submit("enqueue", (tx) => enqueue.run(tx, [job(n)]));
          keys.push((db.prepare("select max(key) from holdfast_jobs").row() as [number])[0]);
          await assert.rejects(
            group.submit("enqueue", (tx) => {
              enqueue.run(tx, [job(100 + n)]);
              throw new Error("bad");
            }),
          );
        }
        // Commits that add jobs have a number, too.
        assert.deepEqual(fences, [1, 3, 5, 7, 9]);
        assert.deepEqual(keys, [1, 2, 3, 4, 5]);
      });
    });
  });
}

/** Call `full` needs more room than there is; call `bad` throws. */
async function fillUpAt(driver: DriverName, full: number, bad: number): Promise<void> {
  const verdicts = await tryAll(driver, (db, n) => {
    if (n === bad) throw new Error("bad");
    if (n !== full) return "small";
    // One by one each has a commit of its own, whose number takes a byte more: a page may have to be split for it.
    limitPages(db, 3);
    return "x".repeat(100_000);
  });
  assert.equal(verdicts[bad]?.status, "rejected");
  const verdict = verdicts[full];
  assert.ok(verdict?.status === "rejected");
  assert.equal((verdict.reason as HoldfastError).code, full === bad ? undefined : "DISK_FULL");
  const before = verdicts.slice(0, full).filter(({ status }, n) => n !== bad && status === "rejected");
  assert.deepEqual(before, [], "what came before fits");
}

/** Makes 100 calls in one turn and compares what each was told with the reopened file. */
async function tryAll(
  driver: DriverName,
  input: (db: Connection, n: number) => string,
): Promise<PromiseSettledResult<unknown>[]> {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-group-"));
  try {
    const path = join(folder, "work.db");
    const { db, group, enqueue } = await open(driver, path);
    const verdicts = await Promise.allSettled(
      Array.from({ length: CALLS }, (_, n) =>
        group.submit("enqueue", (tx) => enqueue.run(tx, [{ ...job(n), input: input(db, n) }])),
      ),
    );
    assert.equal(db.inTransaction, false);
    db.close();
    const reopened = connect(driver, path, { busyTimeout: 0 });
    const accepted = verdicts.flatMap(({ status }, n) => (status === "fulfilled" ? [`job ${n}`] : []));
    assert.deepEqual(idsIn(reopened), accepted.sort());
    assert.deepEqual(remembered(reopened), accepted);
    assert.deepEqual(reopened.prepare("pragma integrity_check").row(), ["ok"]);
    reopened.close();
    return verdicts;
  } finally {
    rmSync(folder, { recursive: true });
  }
}

interface Opened {
  db: Connection;
  path: string;
  group: GroupCommit;
  enqueue: Enqueue;
  told: Committed[];
  time: { passed: number };
}

async function open(driver: DriverName, path: string): Promise<Opened> {
  const { db } = await openSqlite(path, { driver, durability: "process", now: () => NOW, busyTimeout: 0 });
  const parts = new EnqueueParts(db, { canDeclare: true });
  const told: Committed[] = [];
  const time = { passed: 0 };
  const group = new GroupCommit(db, {
    path,
    statements: statementsOn(db),
    now: () => NOW,
    monotonic: () => time.passed,
    patience: 5_000,
    onWritten: null,
    onCommit: (committed) => told.push(committed),
    onFault: () => {},
    onReady: () => {},
    replaced: () => null,
    onUndo: () => parts.forget(),
  });
  return { db, path, group, enqueue: parts.enqueue, told, time };
}

async function withGroup(driver: DriverName, run: (opened: Opened) => Promise<void>): Promise<void> {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-group-"));
  const opened = await open(driver, join(folder, "work.db"));
  try {
    await run(opened);
  } finally {
    opened.db.close();
    rmSync(folder, { recursive: true });
  }
}

/** The file may grow by this many pages and no more. */
function limitPages(db: Connection, more: number): void {
  const [pages] = db.prepare("pragma page_count").row() as [number];
  db.prepare(`pragma max_page_count = ${pages + more}`).row();
}

function job(n: number) {
  return newJob({ id: `job ${n}` });
}

function idsIn(db: Connection): unknown[] {
  return db.prepare("select id from holdfast_jobs order by id").rows().flat();
}

function remembered(db: Connection): unknown[] {
  return db.prepare("select id from holdfast_ids order by id").rows().flat();
}

/** Holds the write lock, and takes it again after each of its commits. The group's clock is moved from here. */
class OtherWriter {
  readonly #db: Connection;
  readonly #seen: { passed: number; looks: number; isOver: boolean };

  constructor(driver: DriverName, path: string, time: { passed: number }, passed = 0) {
    const seen = (this.#seen = { passed, looks: 0, isOver: false });
    Object.defineProperty(time, "passed", { configurable: true, get: () => (seen.looks++, seen.passed) });
    this.#db = connect(driver, path, { busyTimeout: 0 });
    this.#db.exec("create table if not exists others (x)");
    this.#db.exec("begin immediate");
  }

  watch<T>(call: Promise<T>): Promise<T> {
    call.catch(() => {}).finally(() => (this.#seen.isOver = true));
    return call;
  }

  async commitsAfter(millis: number): Promise<void> {
    await this.#looked();
    this.#db.exec("insert into others values (1)");
    this.#db.exec("commit");
    this.#db.exec("begin immediate");
    this.#seen.passed += millis;
    await this.#looked();
  }

  close(): void {
    this.#db.exec("commit");
    this.#db.close();
  }

  /** A wait looks at the time twice. */
  async #looked(): Promise<void> {
    const enough = this.#seen.looks + 4;
    while (this.#seen.looks < enough && !this.#seen.isOver) await new Promise((turn) => setImmediate(turn));
  }
}
