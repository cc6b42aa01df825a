import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test, type TestContext } from "node:test";
import { type CommitRows, type CommitTx, type Holdfast, job, NonRetryableError, open } from "../../src/index.ts";
import { noServer, type PostgresServer, startServer } from "../postgres/server.ts";
import { addOrder, type Driver, DRIVERS, type Handle, shop } from "./handles.ts";
import { code, unchecked } from "./parts.ts";

/** A database with a table `orders` of the user's own. */
interface Place {
  hf: Holdfast;
  /** A callback for `commit` that adds an order. */
  add(id: number): CommitRows;
  orders(): Promise<number[]>;
}

const quiet = { log: { debug() {}, info() {}, warn() {}, error() {} } };
/** A log, and the messages of its warnings and errors. */
function recorded() {
  const warnings: string[] = [];
  const keep = (message: string) => void warnings.push(message);
  return { warnings, log: { debug() {}, info() {}, warn: keep, error: keep } };
}
const retried = { retry: { attempts: 3, delay: 1, maxDelay: 1 } };

async function inFile(t: TestContext, driver: Driver): Promise<Place> {
  const { hf, orders } = await shop(t, driver, quiet);
  return { hf, add: (id) => (tx) => addOrder(tx.db, id), orders: async () => orders() };
}

const addOnServer = (id: number) => async (tx: CommitTx) => void (await tx.query("insert into orders (id) values ($1)", [id]));

for (const driver of DRIVERS) {
  const stand = (t: TestContext) => inFile(t, driver);
  describe(`commit on ${driver}`, () => {
    cases(stand);

    for (const [what, run] of Object.entries<CommitRows>({
      "an async function": async () => {},
      "a function that returns a promise": () => Promise.resolve(),
    })) {
      test(`${what} fails the attempt with TX_ASYNC and commits nothing`, async (t) => {
        const { hf, orders } = await stand(t);
        const write = job({
          name: "write",
          ...retried,
          run: ({ commit }) => {
            commit(({ db }) => addOrder(db, 1));
            commit(run);
          },
        });
        hf.work([write]);
        const done = await hf.jobs.wait(await hf.enqueue(write, {}));
        assert.deepEqual([done.state, done.error?.code, done.attempt], ["failed", "TX_ASYNC", 3]);
        assert.deepEqual(await orders(), []);
      });
    }

    test("tx.query is rejected with TX_INVALID", async (t) => {
      const { hf } = await stand(t);
      const write = job({
        name: "write",
        retry: { attempts: 1 },
        run: ({ commit }) => commit((tx) => void tx.query("select 1")),
      });
      hf.work([write]);
      assert.equal((await hf.jobs.wait(await hf.enqueue(write, {}))).error?.code, "TX_INVALID");
    });

    test("a violated deferred foreign key fails the attempt at COMMIT", async (t) => {
      const { hf, orders } = await stand(t);
      await hf.transaction(({ db }) =>
        db.exec("create table lines (o integer references orders (id) deferrable initially deferred)"),
      );
      const write = job({
        name: "write",
        retry: { attempts: 1 },
        run: ({ commit }) => commit(({ db }) => void db.prepare("insert into lines (o) values (7)").run()),
      });
      hf.work([write]);
      const { state, error } = await hf.jobs.wait(await hf.enqueue(write, {}));
      assert.equal(state, "failed");
      assert.match(error?.message ?? "", /FOREIGN KEY/);
      assert.deepEqual(await orders(), []);
    });

    for (const statement of ["rollback", "commit", "end", "commit; begin", "commit; begin immediate; savepoint a"]) {
      const isCommitted = statement !== "rollback";

      test(`a callback that runs "${statement}" fails the attempt with TX_ENDED, and other attempts are settled`, async (t) => {
        const { warnings, log } = recorded();
        const { hf, orders } = await shop(t, driver, { log });
        const next = job({ name: "next", run: () => {} });
        const write = job<number>({
          name: "write",
          retry: { attempts: 2, delay: 1, maxDelay: 1 },
          run: ({ commit, input, attempt }) => {
            commit(({ db }) => {
              addOrder(db, 10 * input + attempt);
              if (input !== 2) return;
              hf.enqueue(next, {}, { tx: db });
              db.exec(statement);
            });
            commit(({ db }) => addOrder(db, 100 + 10 * input + attempt));
          },
        });
        hf.work([write], { concurrency: 4 });
        const jobs = await hf.enqueueMany(write, [1, 2, 3]);
        const [first, ended, third] = await Promise.all(jobs.map((one) => hf.jobs.wait(one)));
        assert.deepEqual([first?.state, third?.state], ["succeeded", "succeeded"]);
        assert.deepEqual([ended?.state, ended?.attempt, ended?.error?.code], ["failed", 2, "TX_ENDED"]);
        assert.match(ended?.error?.message ?? "", /^The callback of `commit` ended/);
        assert.deepEqual(
          warnings.filter((message) => message.includes("lease")),
          [],
        );
        // What the callback committed by itself is there; the second callback is not called.
        assert.deepEqual(orders(), isCommitted ? [11, 21, 22, 31, 111, 131] : [11, 31, 111, 131]);
        assert.equal((await hf.jobs.counts({ name: "next" })).pending, isCommitted ? 2 : 0);
      });

      test(`a claim whose callback runs "${statement}" gets TX_ENDED and is still held`, async (t) => {
        const { hf, orders } = await shop(t, driver, quiet);
        const write = job({ name: "write", run: () => {} });
        const { id } = await hf.enqueue(write, {});
        await using claim = await hf.claim(write, { worker: "me" });
        assert.ok(claim !== null);
        const succeeded = claim.succeed(1, {
          commit: ({ db }) => {
            addOrder(db, 1);
            db.exec(statement);
          },
        });
        await assert.rejects(succeeded, code("TX_ENDED"));
        assert.equal((await hf.jobs.get(id))?.state, "running");
        assert.deepEqual(orders(), isCommitted ? [1] : []);
        await claim.succeed(2, { commit: ({ db }) => addOrder(db, 2) });
        const { state, output } = await hf.jobs.wait(id);
        assert.deepEqual([state, output, orders()], ["succeeded", 2, isCommitted ? [1, 2] : [2]]);
      });
    }
  });
}

/** In a process of its own: what must not happen is an uncaught exception. */
const CLOSES = join(import.meta.dirname, "children/closes-connection.ts");

for (const driver of DRIVERS) {
  describe(`a callback that closes the connection of ${driver}`, () => {
    test("db.close() in a callback throws TX_ENDED, the attempt fails, and the connection stays open", async (t) => {
      const { hf, orders } = await shop(t, driver, quiet);
      const write = job<number>({
        name: "write",
        retry: { attempts: 1 },
        run: ({ commit, input }) =>
          commit(({ db }) => {
            addOrder(db, input);
            if (input === 2) (db as Handle).close();
          }),
      });
      hf.work([write]);
      const jobs = await hf.enqueueMany(write, [1, 2, 3]);
      const [first, closes, third] = await Promise.all(jobs.map((one) => hf.jobs.wait(one)));
      assert.deepEqual([first?.state, third?.state], ["succeeded", "succeeded"]);
      assert.deepEqual([closes?.state, closes?.error?.code], ["failed", "TX_ENDED"]);
      assert.match(closes?.error?.message ?? "", /^db\.close\(\) was called on the connection of Holdfast/);
      await assert.rejects(
        hf.transaction(({ db }) => {
          addOrder(db, 4);
          (db as Handle).close();
        }),
        code("TX_ENDED"),
      );
      let kept: Handle | undefined;
      await hf.transaction(({ db }) => void (kept = db as Handle));
      assert.throws(() => kept?.close(), code("TX_ENDED"));
      assert.deepEqual(orders(), [1, 3]);
    });

    test("a callback that closes the connection by other means gets TX_ENDED, and later calls get CLOSED", (t) => {
      const folder = mkdtempSync(join(tmpdir(), "holdfast-closes-"));
      t.after(() => rmSync(folder, { recursive: true, force: true }));
      const { status, stdout, stderr } = spawnSync(process.execPath, [CLOSES, join(folder, "a.db"), driver], {
        encoding: "utf8",
      });
      assert.equal(status, 0, stderr);
      assert.deepEqual(JSON.parse(stdout), ["TX_ENDED", "CLOSED", "CLOSED", "CLOSED", "closed"]);
    });
  });
}

describe("commit on PostgreSQL", { skip: noServer }, () => {
  let server: PostgresServer;
  before(async () => void (server = await startServer()));
  after(() => server.close());
  const stand = async (t: TestContext): Promise<Place & { url: string }> => {
    const url = await server.createDatabase();
    const hf = await open(url, quiet);
    t.after(() => hf.close());
    await server.query("create table orders (id integer primary key)", url);
    const orders = async () => (await server.query("select id from orders order by id", url)).map(({ id }) => Number(id));
    return { hf, add: addOnServer, orders, url };
  };
  cases(stand);

  test("tx.db is rejected with TX_INVALID", async (t) => {
    const { hf } = await stand(t);
    const write = job({
      name: "write",
      retry: { attempts: 1 },
      run: ({ commit }) => commit(({ db }) => void db.exec("select 1")),
    });
    hf.work([write]);
    assert.equal((await hf.jobs.wait(await hf.enqueue(write, {}))).error?.code, "TX_INVALID");
  });

  test("a failed statement fails the attempt although the callback ignores its error", async (t) => {
    const { hf, orders, add } = await stand(t);
    const write = job({
      name: "write",
      retry: { attempts: 1 },
      run: ({ commit }) => {
        commit(add(1));
        commit(async (tx) => void (await tx.query("insert into no_such_table values (1)").catch(() => {})));
      },
    });
    hf.work([write]);
    const { state, error } = await hf.jobs.wait(await hf.enqueue(write, {}));
    assert.equal(state, "failed");
    assert.match(error?.message ?? "", /no_such_table/);
    assert.deepEqual(await orders(), []);
  });

  test("a statement that fails inside a savepoint can be rolled back", async (t) => {
    const { hf, orders, add } = await stand(t);
    const write = job({
      name: "write",
      run: ({ commit }) =>
        commit(async (tx) => {
          await add(1)(tx);
          await tx.query("savepoint a");
          await assert.rejects(tx.query("insert into orders (id) values (1)"), { code: "23505" });
          await tx.query("rollback to a");
          await add(2)(tx);
        }),
    });
    hf.work([write]);
    assert.equal((await hf.jobs.wait(await hf.enqueue(write, {}))).state, "succeeded");
    assert.deepEqual(await orders(), [1, 2]);
  });

  test("a callback that ends the transaction fails the attempt with TX_ENDED", async (t) => {
    const { hf } = await stand(t);
    for (const [name, statement] of Object.entries({
      rolls: "rollback",
      commits: "commit",
      ends: "end",
      restarts: "commit; begin",
    })) {
      const write = job({
        name,
        retry: { attempts: 1 },
        run: ({ commit }) => commit(async (tx) => void (await tx.query(statement))),
      });
      hf.work([write]);
      const done = await hf.jobs.wait(await hf.enqueue(write, {}));
      assert.deepEqual([done.state, done.error?.code], ["failed", "TX_ENDED"]);
    }
  });

  test("a callback whose connection is lost runs again, and its row is there once", async (t) => {
    const { hf, orders, add } = await stand(t);
    let calls = 0;
    const write = job({
      name: "write",
      run: ({ commit }) =>
        commit(async (tx) => {
          await add(1)(tx);
          if (++calls === 1) await tx.query("select pg_terminate_backend(pg_backend_pid())");
        }),
    });
    hf.work([write]);
    const done = await hf.jobs.wait(await hf.enqueue(write, {}));
    assert.deepEqual([done.state, done.attempt, calls], ["succeeded", 1, 2]);
    assert.deepEqual(await orders(), [1]);
  });

  test("tx.query returns rows as objects, and is rejected with TX_OVER after the callback", async (t) => {
    const { hf } = await stand(t);
    let kept: CommitTx | undefined;
    let rows: unknown[] = [];
    const write = job({
      name: "write",
      run: ({ commit }) =>
        commit(async (tx) => {
          kept = tx;
          ({ rows } = await tx.query("select 1 as a, $1::text as b", ["x"]));
        }),
    });
    hf.work([write]);
    await hf.jobs.wait(await hf.enqueue(write, {}));
    assert.deepEqual(rows, [{ a: 1, b: "x" }]);
    await assert.rejects((kept as CommitTx).query("select 1"), { code: "TX_OVER" });
  });

  test("tx.query accepts dates, bytes, lists, objects and JSON texts as values", async (t) => {
    const { hf } = await stand(t);
    let rows: unknown[] = [];
    const write = job({
      name: "write",
      retry: { attempts: 1 },
      run: ({ commit }) =>
        commit(async (tx) => {
          const day = new Date("2026-05-01T10:00:00Z");
          ({ rows } = await tx.query(
            `select to_json(answer) as answer from (select $1::int[] as numbers, $2::text[] as texts, $3::boolean[] as flags,
               $4::jsonb->>'a' as of_object, $5::jsonb->>'a' as of_text, $6::timestamptz = $7 as is_same_time,
               $8::boolean as flag, encode($9::bytea, 'hex') as bytes, $10::timestamptz as ever, $11::int8 as big) as answer`,
            [[1, 2], ['a "b"', "c\\", null], [true], { a: 1 }, '{"a":2}', day, day, "true", Buffer.from("x"), "infinity", 7n],
          ));
        }),
    });
    hf.work([write]);
    const { error } = await hf.jobs.wait(await hf.enqueue(write, {}));
    assert.equal(error?.message, undefined);
    const lists = { numbers: [1, 2], texts: ['a "b"', "c\\", null], flags: [true] };
    const others = { of_object: "1", of_text: "2", is_same_time: true, flag: true, bytes: "78", ever: "infinity", big: 7 };
    assert.deepEqual(rows, [{ answer: { ...lists, ...others } }]);
  });

  test("tx.query rejects a non-statement and a non-list of values with TX_INVALID", async (t) => {
    const { hf } = await stand(t);
    for (const [name, args] of Object.entries({ text: [42], values: ["select $1", "x"], missing: [] })) {
      const write = job({
        name,
        retry: { attempts: 1 },
        run: ({ commit }) => commit(async (tx) => void (await tx.query(...(args as [string, unknown[]])))),
      });
      hf.work([write]);
      assert.equal((await hf.jobs.wait(await hf.enqueue(write, {}))).error?.code, "TX_INVALID", name);
    }
  });

  test("a failed statement that the callback does not await is the error of the attempt", async (t) => {
    const { hf, orders, add } = await stand(t);
    const write = job({
      name: "write",
      retry: { attempts: 1 },
      run: ({ commit }) =>
        commit((tx) => {
          void add(1)(tx);
          void tx.query("insert into no_such_table values (1)");
        }),
    });
    hf.work([write]);
    const { error } = await hf.jobs.wait(await hf.enqueue(write, {}));
    assert.match(error?.message ?? "", /no_such_table/);
    assert.deepEqual(await orders(), []);
  });

  test("other attempts are settled while callbacks run, however many wait", async (t) => {
    const { hf, orders, add } = await stand(t);
    const gate = Promise.withResolvers<void>();
    const slow = job<number>({
      name: "slow",
      run: ({ commit, input }) =>
        commit(async (tx) => {
          await add(input)(tx);
          await gate.promise;
        }),
    });
    const quick = job({ name: "quick", run: () => {} });
    hf.work([slow, quick], { concurrency: 20 });
    const waiting = await hf.enqueueMany(slow, [1, 2, 3, 4, 5, 6, 7, 8]);
    assert.equal((await hf.jobs.wait(await hf.enqueue(quick, {}))).state, "succeeded");
    assert.deepEqual(await orders(), []);
    gate.resolve();
    for (const one of waiting) assert.equal((await hf.jobs.wait(one)).state, "succeeded");
    assert.deepEqual(await orders(), [1, 2, 3, 4, 5, 6, 7, 8]);
  });
});

/** Awaited where the database answers later. */
function enqueued(answer: unknown): void | Promise<void> {
  return answer instanceof Promise ? answer.then(() => {}) : undefined;
}

function cases(stand: (t: TestContext) => Promise<Place>): void {
  test("rows are committed with the success, in the order of the calls", async (t) => {
    const { hf, add, orders } = await stand(t);
    const seen: number[] = [];
    const write = job({
      name: "write",
      run: async ({ commit }) => {
        for (const id of [3, 1, 2])
          commit((tx) => {
            seen.push(id);
            return add(id)(tx);
          });
        assert.deepEqual(await orders(), [], "not before the handler has returned");
        return "output";
      },
    });
    hf.work([write]);
    const done = await hf.jobs.wait(await hf.enqueue(write, {}));
    assert.deepEqual([done.state, done.output], ["succeeded", "output"]);
    assert.deepEqual(
      [seen, await orders()],
      [
        [3, 1, 2],
        [1, 2, 3],
      ],
    );
  });

  test("failed attempts leave no row: after a retry there is one row for one success", async (t) => {
    const { hf, add, orders } = await stand(t);
    const write = job({
      name: "write",
      ...retried,
      run: ({ commit, attempt }) => {
        commit(add(attempt));
        if (attempt < 3) throw new Error("not yet");
      },
    });
    hf.work([write]);
    assert.equal((await hf.jobs.wait(await hf.enqueue(write, {}))).state, "succeeded");
    assert.deepEqual(await orders(), [3]);
  });

  test("a callback that throws fails the attempt as if the handler had thrown, and commits nothing", async (t) => {
    const { hf, add, orders } = await stand(t);
    const next = job({ name: "next", run: () => {} });
    const write = job({
      name: "write",
      ...retried,
      run: ({ commit, enqueue, attempt }) => {
        enqueue(next, {});
        commit(add(attempt));
        commit(() => {
          if (attempt < 2) throw new Error("refused");
        });
      },
    });
    const final = job({
      name: "final",
      ...retried,
      run: ({ commit }) =>
        commit(() => {
          throw new NonRetryableError("never");
        }),
    });
    hf.work([write, final]);
    const done = await hf.jobs.wait(await hf.enqueue(write, {}));
    assert.deepEqual([done.state, done.attempt], ["succeeded", 2]);
    assert.deepEqual(await orders(), [2]);
    assert.equal((await hf.jobs.counts({ name: "next" })).pending, 1, "one follow-up for one success");
    const failed = await hf.jobs.wait(await hf.enqueue(final, {}));
    assert.deepEqual([failed.state, failed.attempt, failed.error?.message], ["failed", 1, "never"]);
  });

  test("the callback of a cancelled attempt is not called", async (t) => {
    const { hf, orders, add } = await stand(t);
    let calls = 0;
    const started = Promise.withResolvers<void>();
    const ended = Promise.withResolvers<void>();
    const write = job({
      name: "write",
      run: async ({ commit, signal }) => {
        started.resolve();
        await new Promise((resolve) => signal.addEventListener("abort", resolve));
        commit((tx) => {
          calls++;
          return add(1)(tx);
        });
        ended.resolve();
      },
    });
    const worker = hf.work([write]);
    const { id } = await hf.enqueue(write, {});
    await started.promise;
    await hf.jobs.cancel(id);
    await ended.promise;
    await worker.stop();
    assert.deepEqual([calls, await orders()], [0, []]);
  });

  test("jobs enqueued with { tx } in the callback commit with it", async (t) => {
    const { hf, orders, add } = await stand(t);
    const next = job<number>({ name: "next", run: () => {} });
    const write = job({
      name: "write",
      ...retried,
      run: ({ commit, attempt }) => {
        commit(add(attempt));
        commit((tx) => enqueued(hf.enqueue(next, attempt, { tx })));
        commit(() => {
          if (attempt === 1) throw new Error("undone");
        });
      },
    });
    hf.work([write]);
    assert.equal((await hf.jobs.wait(await hf.enqueue(write, {}))).state, "succeeded");
    assert.deepEqual(await orders(), [2]);
    const { items } = await hf.jobs.list({ name: "next" });
    assert.deepEqual(
      items.map(({ input }) => input),
      [2],
    );
  });

  test("a success with a rejected follow-up is a failure and commits no row", async (t) => {
    const { hf, orders, add } = await stand(t);
    const other = job({ name: "other", run: () => {} });
    const next = job({ name: "next", run: () => {} });
    await hf.enqueue(other, {}, { id: "taken" });
    const write = job({
      name: "write",
      run: ({ commit, enqueue }) => {
        enqueue(next, {}, { id: "taken" });
        commit(add(1));
      },
    });
    hf.work([write]);
    const done = await hf.jobs.wait(await hf.enqueue(write, {}));
    assert.deepEqual([done.state, done.error?.code], ["failed", "ID_TAKEN"]);
    assert.deepEqual(await orders(), []);
  });

  test("jobs with limits release their slots", async (t) => {
    const { hf, orders, add } = await stand(t);
    const write = job<number>({
      name: "write",
      limit: { key: () => "one", concurrency: 1 },
      run: ({ commit, input }) => commit(add(input)),
    });
    hf.work([write]);
    for (const one of await hf.enqueueMany(write, [1, 2, 3, 4, 5])) assert.equal((await hf.jobs.wait(one)).state, "succeeded");
    assert.deepEqual(await orders(), [1, 2, 3, 4, 5]);
  });

  test("commit rejects a value that is not a function, and a call after the handler has ended", async (t) => {
    const { hf } = await stand(t);
    let late: ((run: CommitRows) => void) | undefined;
    const write = job({
      name: "write",
      run: ({ commit }) => {
        assert.throws(() => commit(unchecked("insert")), code("OPTION_INVALID"));
        late = commit;
      },
    });
    hf.work([write]);
    assert.equal((await hf.jobs.wait(await hf.enqueue(write, {}))).state, "succeeded");
    assert.throws(() => late?.(() => {}), code("TOO_LATE"));
  });

  test("claim.succeed commits rows, and a callback that throws leaves the claim held", async (t) => {
    const { hf, orders, add } = await stand(t);
    const work = job({ name: "work", run: () => {} });
    await hf.enqueue(work, {});
    for (const renew of ["manual", "auto"] as const) {
      await using claim = await hf.claim(work, { worker: "me", renew });
      assert.ok(claim !== null);
      const boom = new Error("boom");
      const throwing: CommitRows = () => {
        throw boom;
      };
      await assert.rejects(claim.succeed(1, { commit: throwing }), (error) => error === boom);
      assert.equal((await hf.jobs.get(claim.job.id))?.state, "running", "the claim is held");
      await claim.succeed({ renew }, { commit: add(renew === "auto" ? 2 : 1) });
      assert.equal((await hf.jobs.get(claim.job.id))?.state, "succeeded");
      await hf.enqueue(work, {});
    }
    assert.deepEqual(await orders(), [1, 2]);
    await using claim = await hf.claim(work, { worker: "me" });
    assert.ok(claim !== null);
    await hf.jobs.cancel(claim.job.id);
    let calls = 0;
    const refused = claim.succeed(1, { commit: () => void calls++ });
    await assert.rejects(refused, code("LEASE_LOST"));
    assert.deepEqual([calls, await orders()], [0, [1, 2]]);
    await assert.rejects(claim.succeed(1, unchecked({ comit: () => {} })), code("OPTION_INVALID"));
  });
}
