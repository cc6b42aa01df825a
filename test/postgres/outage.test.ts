import assert from "node:assert/strict";
import { after, before, beforeEach, describe, test, type TestContext } from "node:test";
import { setTimeout as passes } from "node:timers/promises";
import { Busy } from "../crash/busy.ts";
import { HoldfastError } from "../../src/core/text/errors.ts";
import { systemClock } from "../../src/engine/host.ts";
import { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import type { Change, Store } from "../../src/store/store.ts";
import { addOne, badJob, claim, claimOne, LEASE, newJob, running, see, SUCCEEDED } from "../conformance/parts.ts";
import { testAllOnly } from "../selection.ts";
import { Proxy } from "./proxy.ts";
import { noRestart, noServer, type PostgresServer, startServer } from "./server.ts";
import { countJobs } from "../../src/store/queries.ts";

const WRITER = "holdfast writes";
const READER = "holdfast reads";

describe("a server that cannot be reached for a while", { skip: noServer }, () => {
  let server: PostgresServer;
  let url: string;
  before(async () => void (server = await startServer()));
  after(() => server.close());
  beforeEach(async () => void (url = await server.createDatabase()));

  /** A store behind a proxy, and one that is not. */
  const setUp = async (t: TestContext, patience?: number) => {
    const proxy = await Proxy.before(url);
    t.after(() => proxy.close());
    const direct = await openAt(t, url);
    const store = await openAt(t, `${proxy.url(url)}?connect_timeout=1`, patience);
    await addOne(store, { name: "first" });
    return { proxy, direct, store };
  };

  test("callers wait out an outage of three seconds, and are answered", { timeout: 30_000 }, async (t) => {
    const { proxy, direct, store } = await setUp(t);
    const held = await running(direct, { name: "held" });
    await addOne(direct, { name: "seen" });
    await proxy.down();
    const early = [addOne(store, { name: "a" }), addOne(store, { name: "b", id: "b" })];
    const looks = countJobs(store.queries, { name: "seen" });
    const settled = store.settle([{ job: held.job, fence: held.fence, outcome: SUCCEEDED }]);
    await passes(3_000);
    const late = claim(store, { from: [{ name: "first", lease: LEASE }] });
    await proxy.up();
    for (const [i, id] of (await Promise.all(early)).entries()) assert.deepEqual(await idsOf(direct, ["a", "b"][i]), [id]);
    assert.equal((await looks).pending, 1);
    assert.deepEqual(await settled, ["held"]);
    assert.equal((await late).length, 1);
  });

  for (const how of ["refuses", "hangs up"] as const) {
    test(
      `in an outage beyond a caller's patience (it ${how}) the call fails unexecuted, and later callers are served`,
      { timeout: 30_000, ...testAllOnly },
      async (t) => {
        const { proxy, direct, store } = await setUp(t, 500);
        await proxy.down(how);
        const refused = [addOne(store, { name: "never" }), claim(store), countJobs(store.queries), store.cancel("x")];
        for (const answer of await Promise.allSettled(refused)) {
          assert.ok(answer.status === "rejected" && answer.reason instanceof HoldfastError);
          const error = answer.reason;
          assert.equal(error.code, "SERVER_GONE");
          assert.match(error.message, /127\.0\.0\.1:\d+\/holdfast_test_\w+ cannot be reached/);
        }
        await proxy.up();
        const id = await addOne(store, { name: "later" });
        assert.equal((await store.queries.get(id))?.state, "pending");
        assert.deepEqual(await idsOf(direct, "never"), []);
        assert.deepEqual(await idsOf(direct, "later"), [id]);
      },
    );
  }

  test(
    "a silent outage, as of a pulled cable, is noticed, and calls in flight are executed once",
    { timeout: 60_000 },
    async (t) => {
      const { proxy, direct, store } = await setUp(t, 2_000);
      for (const back of [true, false]) {
        const name = back ? "back in time" : "too late";
        const from = performance.now();
        const busy = new Busy();
        proxy.mute();
        const answers = [addOne(store, { name }), countJobs(store.queries, { name })].map((one) =>
          one.then(() => "answered", codeOf),
        );
        if (back) {
          // The old connections stay as they are; new ones get through.
          proxy.unmute();
          assert.deepEqual(await Promise.all(answers), ["answered", "answered"]);
          assert.equal((await idsOf(direct, name)).length, 1);
        } else {
          assert.deepEqual(await Promise.all(answers), ["SERVER_GONE", "SERVER_GONE"]);
          // Twice the caller's patience, and the time until a connection is given up: one second here.
          assert.ok(busy.fair(performance.now() - from) < 2 * 2_000 + 1_000 + 500, "in time");
          proxy.unmute();
          await addOne(store, { name: "afterwards" });
          assert.deepEqual(await idsOf(direct, name), []);
        }
      }
    },
  );

  test("a slow statement is left alone", { timeout: 30_000, ...testAllOnly }, async (t) => {
    const { proxy, direct, store } = await setUp(t, 800);
    const held = await running(direct, { name: "locked" });
    // The store looks several times, and finds the statement at work.
    await server.query(
      `
      create function wait() returns trigger language plpgsql as $$ begin perform pg_sleep(2); return new; end $$;
      create trigger wait before update on holdfast.jobs for each row when (new.state = 'succeeded') execute function wait()`,
      url,
    );
    const before = proxy.connections(WRITER);
    const cut = proxy.count("holdfast asks");
    assert.deepEqual(await store.settle([{ job: held.job, fence: held.fence, outcome: SUCCEEDED }]), ["held"]);
    assert.ok(cut.statements.length > 2, "it was asked for");
    assert.equal(proxy.connections(WRITER), before);
    assert.equal((await see(direct, held.id)).state, "succeeded");
  });

  for (const how of ["sent", "lost"] as const) {
    test(
      `a commit that the server does not know yet to be ${how === "sent" ? "on its way" : "lost"} is waited for`,
      { timeout: 30_000 },
      async (t) => {
        const { proxy, direct, store } = await setUp(t);
        const cut = proxy.cut({ of: WRITER, at: "commit", when: "held" });
        const added = addOne(store, { name: "held" });
        await cut.happened;
        // It is asked for over another connection, while the old one still waits.
        const asked = proxy.count(WRITER);
        await until(() => asked.statements.filter((text) => text.includes("returning batch, made, made_at")).length > 1);
        assert.deepEqual(await idsOf(direct, "held"), []);
        cut.release(how);
        const id = await added;
        assert.deepEqual(await idsOf(direct, "held"), [id]);
      },
    );
  }

  test("a statement whose end never reaches the server is cancelled there, and sent again", { timeout: 30_000 }, async (t) => {
    const { proxy, direct, store } = await setUp(t, 2_000);
    const held = await running(direct, { name: "held" });
    const cut = proxy.cut({ of: WRITER, at: 1, when: "unsynced" });
    const settled = store.settle([{ job: held.job, fence: held.fence, outcome: SUCCEEDED }]);
    await cut.happened;
    assert.deepEqual(await settled, ["held"]);
    assert.equal((await see(direct, held.id)).state, "succeeded");
  });

  test(
    "a single enqueue whose answer is lost is answered, even if its job has ended and was removed",
    { timeout: 30_000, ...testAllOnly },
    async (t) => {
      const { proxy, direct, store } = await setUp(t);
      const job = newJob({ name: "fleeting" });
      await store.enqueue([job]);
      await claimOne(direct, { from: [{ name: "fleeting", lease: LEASE }] });
      const cut = proxy.cut({ of: WRITER, at: 1, when: "after" });
      const added = store.enqueue([job]);
      await cut.happened;
      await proxy.down();
      const { job: key, fence, id } = await claimOne(direct, { from: [{ name: "fleeting", lease: LEASE }] });
      assert.deepEqual(await direct.settle([{ job: key, fence, outcome: SUCCEEDED }]), ["held"]);
      assert.equal((await direct.prune({ state: "succeeded", queue: "fleeting", limit: 10 })).removed, 1);
      await proxy.up();
      assert.deepEqual(await added, [{ id, duplicate: false }]);
    },
  );

  test("a single claim whose policy cannot be read is answered when the server is back", { timeout: 60_000 }, async (t) => {
    const { proxy, direct, store } = await setUp(t, 1_000);
    const from = [{ name: "warm", lease: 60_000 }];
    await addOne(direct, { name: "warm" });
    assert.equal((await claim(store, { from })).length, 1);
    const id = await addOne(direct, { name: "warm", policy: { delay: 77 } });
    const cut = proxy.cut({ of: READER, at: 1, when: "before" });
    const claimed = claim(store, { from }).then(
      (claims) => claims.map((one) => one.id),
      (error: HoldfastError) => error.code,
    );
    await cut.happened;
    await proxy.down();
    await passes(2_000);
    await proxy.up();
    assert.deepEqual(await claimed, [id]);
  });

  test("a single claim continues after a column that it reads was changed", { timeout: 30_000, ...testAllOnly }, async (t) => {
    const { direct, store } = await setUp(t);
    const from = [{ name: "first", lease: LEASE }];
    // Once to learn, then by one statement, which is prepared from then on.
    for (let i = 0; i < 3; i++) await claim(store, { from });
    await server.query("alter table holdfast.jobs alter column attempt type bigint", url);
    const id = await addOne(direct, { name: "first" });
    assert.deepEqual(
      (await claim(store, { from })).map((claimed) => claimed.id),
      [id],
    );
  });

  test("nothing is executed after a failed begin", { timeout: 30_000 }, async (t) => {
    const { proxy, direct, store } = await setUp(t);
    for (const job of [{ name: "first" }, { name: "other", id: "x" }]) {
      const before = await idsOf(direct, job.name);
      const cut = proxy.cut({ of: WRITER, at: 1, when: "spoiled" });
      await assert.rejects(addOne(store, job), /syntax error/);
      assert.match(cut.at ?? "", /^begin/);
      assert.deepEqual(await idsOf(direct, job.name), before);
    }
    // Of several each is tried by itself.
    proxy.cut({ of: WRITER, at: 1, when: "spoiled" });
    const [one, two] = await Promise.all([addOne(store, { name: "one" }), addOne(store, { name: "two" })]);
    assert.deepEqual([await idsOf(direct, "one"), await idsOf(direct, "two")], [[one], [two]]);
  });

  test(
    "a failed call neither removes nor leaves behind anything of other calls",
    { timeout: 30_000, ...testAllOnly },
    async (t) => {
      const { direct, store } = await setUp(t);
      for (let round = 0; round < 5; round++) {
        const name = `round ${round}`;
        // Another job waits for it, so it takes many statements to settle it, which continue while the other one fails.
        const held = await running(direct, { name });
        const waits = await addOne(direct, { name: "waits", after: [held.id] });
        const answers = await Promise.allSettled([
          store.settle([{ job: held.job, fence: held.fence, outcome: SUCCEEDED }]),
          addOne(store, { name: "bad", input: "\0" }),
          store.enqueue([badJob({ name: "bad" })]),
          addOne(store, { name: `good ${round}` }),
        ]);
        assert.deepEqual(
          answers.map(({ status }) => status),
          ["fulfilled", "rejected", "rejected", "fulfilled"],
        );
        assert.equal((await countJobs(direct.queries, { name })).succeeded, 1);
        assert.equal((await see(direct, waits)).state, "pending");
        assert.equal((await idsOf(direct, `good ${round}`)).length, 1);
        assert.deepEqual(await idsOf(direct, "bad"), []);
      }
    },
  );

  for (const name of [WRITER, READER, "holdfast hears%"]) {
    test(`a connection that an operator ends (${name}) is opened again`, { timeout: 30_000, ...testAllOnly }, async (t) => {
      const { direct, store } = await setUp(t);
      const heard: Change[] = [];
      const stop = store.onChange((change) => heard.push(change));
      t.after(stop);
      const there = `from pg_stat_activity where application_name like '${name}' and datname = current_database()`;
      for (let round = 0; round < 3; round++) {
        await untilTrue(async () => (await server.query(`select 1 ${there}`, url)).length > 0);
        await server.query(`select pg_terminate_backend(pid) ${there}`, url);
        const id = await addOne(store, { name: "after" });
        assert.equal((await store.queries.get(id))?.state, "pending");
        const told = await addOne(direct, { name: `told ${round}` });
        assert.ok(await direct.queries.get(told));
        await until(() => heard.some(({ own, ready }) => !own && (ready === null || ready.has(`told ${round}`))));
        heard.length = 0;
      }
    });
  }

  test("with connections ended again and again under load, every answered call is there once", { timeout: 60_000 }, async (t) => {
    const { direct, store } = await setUp(t);
    const answered: string[] = [];
    const caller = async (n: number) => {
      for (let i = 0; i < 40; i++) {
        const id =
          i % 2 === 0 ? await addOne(store, { name: "stormy" }) : await addOne(store, { name: "stormy", id: `${n}-${i}` });
        answered.push(id);
      }
    };
    const callers = Promise.all(Array.from({ length: 8 }, (_, n) => caller(n)));
    while (answered.length < 300) {
      const before = answered.length;
      await server.query(
        `select pg_terminate_backend(pid) from pg_stat_activity
           where application_name = '${WRITER}' and datname = current_database() and state <> 'idle'`,
        url,
      );
      await until(() => answered.length > before);
    }
    await callers;
    assert.deepEqual((await idsOf(direct, "stormy")).toSorted(), answered.toSorted());
  });
});

describe("a server that crashes", { skip: noRestart }, () => {
  let server: PostgresServer;
  before(async () => {
    // What is not committed stays in memory for long.
    server = await startServer({ settings: { wal_writer_delay: "10s", bgwriter_lru_maxpages: "0" } });
  });
  after(() => server.close());

  test(
    "after a crash of the server in a storm of commits, answered calls are there once, and rejected ones are not",
    { timeout: 60_000 },
    async (t) => {
      const url = await server.createDatabase();
      const store = await openAt(t, url);
      const direct = await openAt(t, url);
      const [answered, refused]: [string[], string[]] = [[], []];
      const storm = new AbortController();
      const caller = async (n: number) => {
        for (let i = 0; !storm.signal.aborted; i++) {
          const id = `${n}-${i}`;
          await addOne(i % 2 === 0 ? store : direct, { name: "stormy", id }).then(
            () => answered.push(id),
            () => refused.push(id),
          );
        }
      };
      const callers = Array.from({ length: 20 }, (_, n) => caller(n));
      for (let crash = 0; crash < 3; crash++) {
        const before = answered.length;
        await until(() => answered.length > before + 200);
        await server.restart("immediate");
      }
      storm.abort();
      await Promise.all(callers);
      assert.deepEqual(refused, [], "no caller had to wait for longer than its patience");
      assert.deepEqual((await idsOf(store, "stormy")).toSorted(), answered.toSorted());
      t.diagnostic(`${answered.length} jobs, 3 crashes`);
    },
  );

  for (const reused of [false, true]) {
    test(
      `after a crash during a commit whose number is ${reused ? "then another's" : "unknown from then on"}, the commit is repeated`,
      { timeout: 60_000 },
      async (t) => {
        const url = await server.createDatabase();
        const proxy = await Proxy.before(url);
        t.after(() => proxy.close());
        const store = await openAt(t, proxy.url(url));
        await addOne(store, { name: "first" });
        await server.query("checkpoint", url);

        const cut = proxy.cut({ of: WRITER, at: "commit", when: "held" });
        const added = addOne(store, { name: "lost" });
        await cut.happened;
        const [row] = await server.query(
          "select backend_xid::text as xid from pg_stat_activity where backend_xid is not null",
          url,
        );
        const xid = Number(row?.["xid"]);
        await proxy.down();
        await server.restart("immediate");
        if (reused) {
          let next = await nextXid(server, url);
          assert.ok(next <= xid, `${next} <= ${xid}: the number is given again, or this test shows nothing`);
          while (next < xid) next = await nextXid(server, url);
        }
        await proxy.up();
        const id = await added;
        assert.deepEqual(await idsOf(store, "lost"), [id]);
        assert.equal((await claimOne(store, { from: [{ name: "lost", lease: LEASE }] })).id, id);
      },
    );
  }
});

/** Takes it, and commits. */
async function nextXid(server: PostgresServer, url: string): Promise<number> {
  const [row] = await server.query("select pg_current_xact_id()::text as xid", url);
  return Number(row?.["xid"]);
}

async function openAt(t: TestContext, url: string, patience?: number): Promise<PostgresStore> {
  const store = await PostgresStore.open(url, {
    clock: systemClock,
    injected: false,
    random: Math.random,
    ...(patience === undefined ? {} : { patience }),
  });
  t.after(() => store.close());
  return store;
}

async function idsOf(store: Store, name: string | undefined): Promise<string[]> {
  const ids: string[] = [];
  for (let after: string | undefined; ;) {
    const page = await store.queries.list({
      ...(name !== undefined && { name }),
      limit: 1_000,
      ...(after !== undefined && { after }),
    });
    ids.push(...page.items.map(({ id }) => id));
    if (page.next === undefined) return ids;
    after = page.next;
  }
}

function codeOf(error: unknown): string {
  return error instanceof HoldfastError ? error.code : String(error);
}

async function until(condition: () => boolean): Promise<void> {
  while (!condition()) await passes(5);
}

async function untilTrue(condition: () => Promise<boolean>): Promise<void> {
  while (!(await condition())) await passes(5);
}
