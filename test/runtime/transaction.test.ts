import assert from "node:assert/strict";
import { fork } from "node:child_process";
import { once } from "node:events";
import { readFileSync, symlinkSync } from "node:fs";
import { DatabaseSync } from "node:sqlite";
import { join } from "node:path";
import { describe, test } from "node:test";
import { setTimeout as passes } from "node:timers/promises";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { z } from "zod";
import { type Enqueued, job, type JobDef, open, type SqliteTx, type TransactionHandle } from "../../src/index.ts";
import { bestOfThree } from "../crash/scene.ts";
import { addOrder, DRIVERS, type Handle, openHandle, shop } from "./handles.ts";
import { code, memory, see, seeAll, unchecked } from "./parts.ts";

const ship = job({ name: "ship", input: z.object({ order: z.number() }), run: ({ input }) => input.order });
const bill = job<{ order: number }>({ name: "bill", run: () => {} });
const other = job<{ order: number }>({ name: "other", run: () => {} });
const slow = job({ name: "slow", input: z.number().refine(async () => false), run: () => {} });

for (const driver of DRIVERS) {
  describe(`hf.transaction on ${driver}`, () => {
    test("hf.transaction commits the user's row and the job together", async (t) => {
      const { hf, orders } = await shop(t, driver);
      const { id } = await hf.transaction(({ db }) => {
        addOrder(db, 7);
        return hf.enqueue(ship, { order: 7 }, { tx: db });
      });
      assert.deepEqual(orders(), [7]);
      assert.deepEqual((await see(hf, id)).input, { order: 7 });
    });

    test("hf.transaction passes the driver's own handle, directly and as { db }", async (t) => {
      const { hf } = await shop(t, driver);
      await hf.transaction((tx) => {
        assert.equal(tx.db instanceof DatabaseSync, driver === "node:sqlite");
        hf.enqueue(ship, { order: 1 }, { tx });
        hf.enqueue(ship, { order: 2 }, { tx: tx.db, priority: 1, key: "k" });
      });
      assert.deepEqual(
        (await seeAll(hf)).map(({ input, priority, key }) => [input, priority, key]),
        [
          [{ order: 1 }, 0, undefined],
          [{ order: 2 }, 1, "k"],
        ],
      );
    });

    const bad: Record<string, [(hf: Awaited<ReturnType<typeof open>>, tx: SqliteTx) => unknown, string]> = {
      "an input that does not fit its schema": [(hf, tx) => hf.enqueue(ship, unchecked({ order: "7" }), { tx }), "INPUT_INVALID"],
      "a schema that is asynchronous": [(hf, tx) => hf.enqueue(slow, 1, { tx }), "SCHEMA_ASYNC"],
      "an input that is no JSON": [(hf, tx) => hf.enqueue(bill, unchecked({ order: 7n }), { tx }), "NOT_JSON"],
      "an unknown job to come after": [(hf, tx) => hf.enqueue(bill, { order: 7 }, { tx, after: ["absent"] }), "NO_SUCH_JOB"],
      "an id of another job": [(hf, tx) => hf.enqueue(bill, { order: 7 }, { tx, id: "taken" }), "ID_TAKEN"],
      "an unknown option": [(hf, tx) => hf.enqueue(bill, { order: 7 }, unchecked({ tx, prio: 7 })), "OPTION_INVALID"],
      "no definition": [(hf, tx) => hf.enqueue(unchecked<JobDef>({}), 7, { tx }), "NOT_A_JOB"],
    };
    for (const [what, [enqueue, expected]] of Object.entries(bad)) {
      test(`with ${what} the user's row is absent, too`, async (t) => {
        const { hf, orders, handle } = await shop(t, driver);
        await hf.enqueue(ship, { order: 0 }, { id: "taken" });
        const transaction = hf.transaction(({ db }) => {
          addOrder(db, 7);
          enqueue(hf, db);
        });
        await assert.rejects(transaction, code(expected));
        assert.deepEqual(orders(), []);

        const own = handle();
        own.exec("begin immediate");
        addOrder(own, 7);
        assert.throws(() => enqueue(hf, own), code(expected), "with the user's own handle it throws at once");
        own.exec("rollback");
        assert.deepEqual(orders(), []);
        assert.equal((await seeAll(hf)).length, 1);
      });
    }

    test("an error of the callback rolls everything back and is thrown unchanged", async (t) => {
      const { hf, orders } = await shop(t, driver);
      const oops = new Error("oops");
      const transaction = hf.transaction(({ db }) => {
        addOrder(db, 1);
        hf.enqueue(ship, { order: 1 }, { tx: db });
        throw oops;
      });
      await assert.rejects(transaction, (error) => error === oops);
      // An error of SQLite that the user's own statement met is the user's, too.
      const twice = hf.transaction(({ db }) => {
        addOrder(db, 1);
        addOrder(db, 1);
      });
      await assert.rejects(twice, /UNIQUE constraint failed: orders.id/);
      assert.deepEqual([orders(), await seeAll(hf)], [[], []]);
    });

    test("an asynchronous callback is not called, and one that returns a promise is rolled back", async (t) => {
      const { hf, orders } = await shop(t, driver);
      const calls: string[] = [];
      const asynchronous = async () => void calls.push("async");
      await assert.rejects(hf.transaction(unchecked(asynchronous)), code("TX_ASYNC"));
      for (const later of [() => Promise.resolve(1), () => Promise.reject(new Error("unheard"))]) {
        const transaction = hf.transaction(
          unchecked(({ db }: { db: Handle }) => {
            addOrder(db, 1);
            return later();
          }),
        );
        await assert.rejects(transaction, code("TX_ASYNC"));
      }
      await assert.rejects(hf.transaction(unchecked("x")), code("OPTION_INVALID"));
      assert.deepEqual([calls, orders()], [[], []]);
    });

    const ends = ["commit", "rollback", "commit; begin", "rollback; begin immediate", "commit; savepoint holdfast"];
    for (const end of ends) {
      test(`a callback that runs "${end}" itself gets an error that says so, and the connection stays usable`, async (t) => {
        const { hf, orders } = await shop(t, driver);
        const transaction = hf.transaction(({ db }) => {
          addOrder(db, 1);
          db.exec(end);
          if (end === "commit") assert.throws(() => hf.enqueue(ship, { order: 1 }, { tx: db }), code("TX_ENDED"));
          else if (end.includes("begin")) addOrder(db, 2);
        });
        await assert.rejects(transaction, code("TX_ENDED"));
        assert.deepEqual(orders(), end.startsWith("commit") ? [1] : []);
        await hf.transaction(({ db }) => {
          addOrder(db, 3);
          hf.enqueue(ship, { order: 3 }, { tx: db });
        });
        await hf.enqueue(ship, { order: 4 });
        assert.equal((await seeAll(hf)).length, 2);
      });
    }

    test("a savepoint that the callback rolls back takes its job along, and leaves no trace in caches", async (t) => {
      const { hf, orders } = await shop(t, driver);
      await hf.transaction(({ db }) => {
        const undone = (def: typeof bill) => {
          db.exec("savepoint part");
          addOrder(db, 1);
          hf.enqueue(def, { order: 1 }, { tx: db });
          db.exec("rollback to part; release part");
        };
        undone(bill);
        addOrder(db, 2);
        hf.enqueue(ship, { order: 2 }, { tx: db });
        undone(bill);
      });
      // A name that is believed to be known from the undone part would be given to this one's number.
      await hf.enqueue(other, { order: 3 });
      await hf.enqueue(bill, { order: 4 });
      assert.deepEqual(orders(), [2]);
      assert.deepEqual(
        (await seeAll(hf)).map(({ name, input }) => [name, input]),
        [
          ["ship", { order: 2 }],
          ["other", { order: 3 }],
          ["bill", { order: 4 }],
        ],
      );
    });

    test("the user's foreign keys hold, also those that are checked at the commit", async (t) => {
      const { hf, orders, handle } = await shop(t, driver);
      handle().exec(`create table lines (o integer references orders (id));
        create table late (o integer references orders (id) deferrable initially deferred)`);
      for (const table of ["lines", "late"]) {
        const transaction = hf.transaction(({ db }) => {
          addOrder(db, 1);
          hf.enqueue(ship, { order: 1 }, { tx: db });
          db.prepare(`insert into ${table} (o) values (99)`).run();
        });
        await assert.rejects(transaction, /FOREIGN KEY constraint failed/);
      }
      assert.deepEqual([orders(), await seeAll(hf)], [[], []]);
      await hf.transaction(({ db }) => addOrder(db, 1));
      assert.deepEqual(orders(), [1]);
    });

    test("hf.transaction waits for another writer before it calls the callback, once", async (t) => {
      const { hf, orders, handle } = await shop(t, driver);
      const other = handle();
      other.exec("begin immediate");
      let calls = 0;
      const transaction = hf.transaction(({ db }) => {
        calls++;
        addOrder(db, 1);
      });
      const after = hf.enqueue(ship, { order: 1 });
      for (let turn = 0; turn < 5; turn++) await new Promise((next) => setImmediate(next));
      assert.equal(calls, 0);
      other.exec("commit");
      await Promise.all([transaction, after]);
      assert.deepEqual([calls, orders()], [1, [1]]);
      const busy = hf.transaction(() => {
        calls++;
        throw Object.assign(new Error("another database is busy"), { errcode: 5, code: "SQLITE_BUSY" });
      });
      await assert.rejects(busy, /another database is busy/);
      assert.equal(calls, 2, "even then");
    });

    test("a worker of this process runs the job at once, and a closed handle rejects the call", async (t) => {
      const { hf } = await shop(t, driver);
      hf.work([ship]);
      const answer = await hf.transaction(({ db }) => hf.enqueue(ship, { order: 7 }, { tx: db }));
      assert.equal((await hf.jobs.wait(answer)).output, 7);
      await hf.close();
      await assert.rejects(
        hf.transaction(() => 1),
        code("CLOSED"),
      );
      assert.throws(() => hf.enqueue(ship, { order: 7 }, { tx: unchecked<SqliteTx>({}) }), code("CLOSED"));
    });
  });

  describe(`a user's own handle of ${driver} as tx`, () => {
    test("a user's handle as tx commits row and job together, and answers synchronously", async (t) => {
      const { hf, orders, handle } = await shop(t, driver);
      const db = handle();
      db.exec("begin immediate");
      addOrder(db, 7);
      const answer: Enqueued = hf.enqueue(ship, { order: 7 }, { tx: db });
      assert.equal(answer.duplicate, false);
      assert.equal(hf.enqueue(ship, { order: 7 }, { tx: { db }, id: "mine", delay: "1h" }).id, "mine");
      assert.deepEqual([orders(), await seeAll(hf)], [[], []], "no other connection sees it before the commit");
      db.exec("commit");
      assert.deepEqual(orders(), [7]);
      assert.deepEqual(
        (await seeAll(hf)).map(({ id }) => id),
        [answer.id, "mine"],
      );
    });

    test("after a rollback neither row nor job exists, and ids and keys are free", async (t) => {
      const { hf, orders, handle } = await shop(t, driver);
      const db = handle();
      for (const end of ["rollback", "commit"]) {
        db.exec("begin immediate");
        addOrder(db, 1);
        assert.deepEqual(hf.enqueue(ship, { order: 1 }, { tx: db, id: "one" }), { id: "one", duplicate: false });
        db.exec(end);
        if (end === "rollback") await hf.enqueue(bill, { order: 0 });
      }
      assert.deepEqual(orders(), [1]);
      assert.deepEqual((await seeAll(hf)).map(({ name }) => name).sort(), ["bill", "ship"]);
    });

    test("duplicates by id and key are reported, within and across transactions", async (t) => {
      const { hf, handle } = await shop(t, driver);
      await hf.enqueue(ship, { order: 1 }, { id: "a", key: "k" });
      const db = handle();
      db.exec("begin immediate");
      assert.deepEqual(hf.enqueue(ship, { order: 1 }, { tx: db, id: "a" }), { id: "a", duplicate: true });
      assert.deepEqual(hf.enqueue(ship, { order: 1 }, { tx: db, key: "k" }), { id: "a", duplicate: true });
      const { id } = hf.enqueue(ship, { order: 2 }, { tx: db, key: "l" });
      assert.deepEqual(hf.enqueue(ship, { order: 2 }, { tx: db, key: "l" }), { id, duplicate: true });
      db.exec("commit");
      assert.deepEqual(await hf.enqueue(ship, { order: 2 }, { key: "l" }), { id, duplicate: true });
    });

    test("a deferred transaction takes the write lock, or is rejected with TX_BUSY", async (t) => {
      const { hf, orders, handle } = await shop(t, driver);
      const db = handle();
      db.exec("begin");
      hf.enqueue(ship, { order: 1 }, { tx: db });
      addOrder(db, 1);
      db.exec("commit");

      db.exec("begin");
      db.prepare("select id from orders").all();
      await hf.enqueue(ship, { order: 2 }, { id: "meanwhile" });
      // It has read what was before: it can no longer write, nor be told what is a duplicate now.
      for (const id of ["meanwhile", "new"]) {
        assert.throws(() => hf.enqueue(ship, { order: 2 }, { tx: db, id }), code("TX_BUSY"));
      }
      db.exec("rollback");

      const other = handle();
      other.exec("begin immediate");
      db.exec("begin");
      assert.throws(() => hf.enqueue(ship, { order: 3 }, { tx: db }), code("TX_BUSY"));
      db.exec("rollback");
      other.exec("rollback");
      assert.deepEqual(orders(), [1]);
      assert.equal((await seeAll(hf)).length, 2);
    });

    test("a handle without an open transaction is rejected with TX_NOT_OPEN", async (t) => {
      const { hf, handle } = await shop(t, driver);
      assert.throws(() => hf.enqueue(ship, { order: 1 }, { tx: handle() }), code("TX_NOT_OPEN"));
      assert.deepEqual(await seeAll(hf), []);
    });

    test("a handle with lower durability than the database is rejected with TX_DURABILITY", async (t) => {
      for (const [durability, least, less] of [
        ["power", "full", "normal"],
        ["process", "normal", "off"],
      ] as const) {
        const { hf, handle } = await shop(t, driver, { durability });
        const db = handle(less);
        db.exec("begin immediate");
        assert.throws(() => hf.enqueue(ship, { order: 1 }, { tx: db }), code("TX_DURABILITY"));
        db.exec(`rollback; pragma synchronous = ${least}; begin immediate`);
        hf.enqueue(ship, { order: 1 }, { tx: db });
        db.exec("commit");
        assert.equal((await seeAll(hf)).length, 1);
      }
    });

    test("a handle is accepted or rejected by its actual durability, as its library opens it", async (t) => {
      const { hf, handle } = await shop(t, driver);
      const db = handle(null);
      db.exec("begin immediate");
      const enqueue = () => hf.enqueue(ship, { order: 1 }, { tx: db });
      if (driver === "node:sqlite") enqueue();
      else assert.throws(enqueue, code("TX_DURABILITY"));
      db.exec("commit");
    });

    test("a handle of another library is rejected with DRIVER_DIFFERS", async (t) => {
      const { hf, folder } = await shop(t, driver);
      // Never on the same file: the two would drop each other's locks.
      const db = openHandle(driver === "node:sqlite" ? "better-sqlite3" : "node:sqlite", join(folder, "other.db"));
      t.after(() => db.close());
      db.exec("begin immediate");
      assert.throws(() => hf.enqueue(ship, { order: 1 }, { tx: db }), code("DRIVER_DIFFERS"));
    });

    test("a handle on another database is rejected with TX_OTHER_DATABASE, also attached or in memory", async (t) => {
      const { hf, folder, path } = await shop(t, driver);
      for (const where of [join(folder, "other.db"), ":memory:", ""]) {
        const db = openHandle(driver, where);
        db.exec(`attach '${path}' as shop; begin immediate`);
        assert.throws(() => hf.enqueue(ship, { order: 1 }, { tx: db }), code("TX_OTHER_DATABASE"));
        db.close();
      }
      const inMemory = await open(":memory:", { driver });
      const db = openHandle(driver, ":memory:");
      db.exec("begin immediate");
      assert.throws(() => inMemory.enqueue(ship, { order: 1 }, { tx: db }), code("TX_OTHER_DATABASE"));
      db.close();
      await inMemory.close();
    });

    test("a handle opened by another name of the file is accepted", async (t) => {
      const { hf, folder, path, orders } = await shop(t, driver);
      symlinkSync(path, join(folder, "link.db"));
      const db = openHandle(driver, join(folder, "link.db"));
      db.exec("pragma synchronous = full; begin immediate");
      addOrder(db, 1);
      hf.enqueue(ship, { order: 1 }, { tx: db });
      db.exec("commit");
      db.close();
      assert.deepEqual([orders(), (await seeAll(hf)).length], [[1], 1]);
    });

    test("a failed enqueue leaves nothing in a transaction that continues", async (t) => {
      const { hf, orders, handle } = await shop(t, driver);
      const db = handle();
      db.exec("begin immediate");
      addOrder(db, 1);
      // The job's id is written before its row, which meets the trigger.
      db.exec("create trigger stop before insert on holdfast_jobs begin select raise(abort, 'stop'); end");
      assert.throws(() => hf.enqueue(ship, { order: 1 }, { tx: db, id: "a" }), /stop/);
      db.exec("drop trigger stop; commit");
      assert.deepEqual(orders(), [1]);
      assert.deepEqual(await hf.enqueue(bill, { order: 1 }, { id: "a" }), { id: "a", duplicate: false });
    });

    test("on a full disk enqueue throws DISK_FULL, and neither row nor job exists", async (t) => {
      const { hf, orders, handle } = await shop(t, driver);
      const large = job<{ text: string }>({ name: "large", run: () => {} });
      const fill = (db: TransactionHandle) => {
        const { page_count: pages } = db.prepare("pragma page_count").get() as { page_count: number };
        db.prepare(`pragma max_page_count = ${pages}`).get();
        addOrder(db, 1);
        hf.enqueue(large, { text: "x".repeat(100_000) }, { tx: db });
      };
      const db = handle();
      db.exec("begin immediate");
      assert.throws(() => fill(db), code("DISK_FULL"));
      // SQLite has undone all of it already; what is enqueued now would be a commit of its own.
      assert.throws(() => hf.enqueue(ship, { order: 1 }, { tx: db }), code("TX_NOT_OPEN"));

      await assert.rejects(
        hf.transaction(({ db: own }) => fill(own)),
        code("DISK_FULL"),
      );
      const swallowed = hf.transaction(({ db: own }) => {
        assert.throws(() => fill(own), code("DISK_FULL"));
        assert.throws(() => hf.enqueue(ship, { order: 1 }, { tx: own }), code("TX_ENDED"));
      });
      await assert.rejects(swallowed, code("TX_ENDED"));
      assert.deepEqual([orders(), await seeAll(hf)], [[], []]);
    });

    test("the handle's row format does not matter, nor that it was closed and reopened", async (t) => {
      const { hf, path } = await shop(t, driver);
      const db =
        driver === "node:sqlite"
          ? new DatabaseSync(path, { readBigInts: true, returnArrays: true, allowBareNamedParameters: false })
          : unchecked<{ defaultSafeIntegers(): Handle }>(openHandle(driver, path)).defaultSafeIntegers();
      for (const round of [1, 2, 3]) {
        db.exec("pragma synchronous = full; begin immediate");
        const { id } = hf.enqueue(ship, { order: round }, { tx: db, key: "k" });
        assert.equal(typeof id, "string");
        assert.equal(hf.enqueue(ship, { order: round }, { tx: db, key: "k" }).id, id);
        db.exec("commit");
        assert.equal(await hf.jobs.cancel(id), true);
        if (!(db instanceof DatabaseSync)) continue;
        db.close();
        db.open();
      }
      db.close();
    });

    test("the commit wakes a worker of this process and one of another", async (t) => {
      const { hf, path, handle } = await shop(t, driver);
      const echo = job<number, number>({ name: "echo", run: ({ input }) => input });
      const db = handle();
      // The worker may still be writing when the next round begins.
      db.exec("pragma busy_timeout = 5000");
      const round = async (def: typeof echo, n: number) => {
        db.exec("begin immediate");
        const answer = hf.enqueue(def, n, { tx: db });
        db.exec("commit");
        assert.equal((await hf.jobs.wait(answer)).output, n);
      };
      const rounds = async (def: typeof echo) => {
        const start = performance.now();
        for (let n = 0; n < 10; n++) await round(def, n);
        return (performance.now() - start) / 10;
      };
      const here = job<number, number>({ name: "here", run: ({ input }) => input });
      const worker = hf.work([here]);
      // Were it left to the fallback, a round would take about a second.
      assert.ok((await rounds(here)) < 500, "here");
      await worker.stop();

      const child = fork(new URL("./children/echo-worker.ts", import.meta.url), [path, driver]);
      t.after(() => child.kill("SIGKILL"));
      await once(child, "message");
      assert.ok((await rounds(echo)) < 500, "there");
      const ended = once(child, "exit");
      child.kill("SIGKILL");
      await ended;
    });

    for (const begin of ["begin immediate", "begin", "begin immediate on a NORMAL handle"] as const) {
      test(`while a user's handle holds a transaction (${begin}), 100 enqueues wait, and the event loop does not`, async (t) => {
        const { hf, handle, orders } = await shop(t, driver);
        const db = handle(begin.includes("NORMAL") ? "normal" : "full");
        let order = 0;
        // What else stops the process for a moment does so once; a wait inside SQLite would come each time.
        const lag = await bestOfThree(50, async () => {
          db.exec(begin.split(" on ")[0] as string);
          addOrder(db, ++order);
          const loop = watchLoop();
          const calls = Promise.all(Array.from({ length: 100 }, (_, n) => hf.enqueue(ship, { order: n })));
          await passes(300);
          db.exec("commit");
          await calls;
          return loop();
        });
        assert.ok(lag < 50, `the event loop stood still for ${lag.toFixed(0)} ms`);
        assert.equal((await hf.jobs.counts()).pending, 100 * order);
        assert.equal(orders().length, order);
      });
    }
  });
}

test("hf.transaction works in memory, and its rows are readable by the user", async (t) => {
  const { hf } = await memory(t);
  await hf.transaction(({ db }) => {
    db.exec("create table orders (id integer primary key)");
    addOrder(db, 7);
    hf.enqueue(ship, { order: 7 }, { tx: db });
  });
  const rows = await hf.transaction(({ db }) => db.prepare("select id from orders").all());
  assert.deepEqual(
    rows.map((row) => (row as { id: number }).id),
    [7],
  );
  assert.equal((await seeAll(hf)).length, 1);
});

test("a handle that the user drops is freed despite prepared statements", async (t) => {
  const { hf, path } = await shop(t, "node:sqlite");
  const gone: number[] = [];
  const registry = new FinalizationRegistry((n: number) => gone.push(n));
  for (let n = 0; n < 20; n++) {
    const db = openHandle("node:sqlite", path);
    registry.register(db, n);
    db.exec("begin immediate");
    hf.enqueue(ship, { order: n }, { tx: db });
    db.exec("commit");
    db.close();
  }
  setFlagsFromString("--expose-gc");
  const collect = runInNewContext("gc") as () => void;
  for (let round = 0; round < 50 && gone.length < 10; round++) {
    await new Promise((next) => setImmediate(next));
    collect();
  }
  assert.ok(gone.length >= 10, `${gone.length} of 20 were let go`);
});

/** How long the event loop stood still at most, until it is asked; not counted is how long others had the processor. */
function watchLoop(): () => number {
  let worst = 0;
  let last = ready();
  const timer = setInterval(() => {
    const now = ready();
    worst = Math.max(worst, now - last);
    last = now;
  }, 1);
  return () => {
    clearInterval(timer);
    return worst;
  };
}

/** Milliseconds in which this thread ran, or waited for something else than a processor; where that is not known, all. */
function ready(): number {
  const now = performance.now();
  try {
    // How long it ran, how long it was ready to and could not, and how often, in nanoseconds.
    const [, waited = "0"] = readFileSync("/proc/thread-self/schedstat", "utf8").split(" ");
    return now - Number(waited) / 1e6;
  } catch {
    return now;
  }
}
