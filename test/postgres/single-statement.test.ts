import assert from "node:assert/strict";
import postgres from "postgres";
import { after, before, describe, test, type TestContext } from "node:test";
import { HoldfastError } from "../../src/core/text/errors.ts";
import { systemClock } from "../../src/engine/host.ts";
import { PostgresStore, type PostgresStoreOptions } from "../../src/store/postgres/postgres-store.ts";
import type { Claimed, Enqueued, ClaimOutlook, Settlement, Store } from "../../src/store/store.ts";
import { add, claim, claimIds, LEASE, newJob, see, SUCCEEDED } from "../conformance/parts.ts";
import { misjudged } from "../conformance/postgres-store.ts";
import { openHandles, until } from "./handles.ts";
import { Proxy } from "./proxy.ts";
import { noRestart, noServer, type PostgresServer, startServer } from "./server.ts";
import { countJobs } from "../../src/store/queries.ts";

const WRITER = "holdfast writes";
/** Its definition is one object, as in a program: else it is looked up each time, and never goes in by one statement. */
const JOB = newJob({ name: "lone" });
type Five = [Settlement, Settlement, Settlement, Settlement, Settlement];
const FROM = [{ name: "lone", lease: LEASE }];

/** By itself it is one statement; with another call at the same instant it is part of a longer transaction. */
const WAYS = {
  "by itself": <T>(_: Store, call: () => Promise<T>) => call(),
  "with another call": async <T>(store: Store, call: () => Promise<T>) => (await Promise.all([call(), store.settle([])]))[0],
};

describe("a call that is one statement", { skip: noServer }, () => {
  let server: PostgresServer;
  before(async () => void (server = await startServer()));
  after(() => server.close());

  for (const [how, way] of Object.entries(WAYS)) {
    for (const queues of [["a"], ["a", "b"]]) {
      const what = queues.length === 1 ? "one queue" : "two queues";
      test(`a job that another session changes while it is claimed ${how} from ${what} is claimed, and no claim is empty`, async () => {
        const { stores, schema, query, bystander, blocked, close } = await openHandles(server, 1);
        const [store] = stores as [PostgresStore];
        try {
          await add(store, ...queues.map((name) => ({ name })));
          for (let i = 0; i < 2; i++) await claim(store);
          const ids = await add(store, ...queues.map((name) => ({ name })));
          // The statement sees the rows as they were before it waits for the time, and comes to them after that.
          await query(`
            create or replace function clock(given bigint) returns bigint language plpgsql volatile as $$ begin
              perform pg_advisory_xact_lock_shared(1);
              return floor(extract(epoch from clock_timestamp()) * 1000)::bigint; end $$`);
          const other = await bystander();
          await other.query("select pg_advisory_xact_lock(1)");
          const claiming = way(store, () => claimIds(store, { max: 5 }));
          await blocked(1);
          await query("update jobs set quiet = false where state = 'pending' and lane = 1");
          await other.end("commit");
          assert.deepEqual((await claiming).toSorted(), ids.toSorted());
          assert.deepEqual(await query(misjudged(schema)), []);
        } finally {
          await close();
        }
      });
    }
  }

  for (const names of [["lone"], ["lone", "other"]]) {
    const what = names.length === 1 ? "one lane" : "two queues";
    test(`a claim from ${what} returns the outlook, unless others hold some jobs or there may be more`, async () => {
      const { stores, bystander, close } = await openHandles(server, 1);
      const [store] = stores as [PostgresStore];
      const from = names.map((name) => ({ name, lease: LEASE }));
      const left = async (max: number): Promise<[taken: number, left: ClaimOutlook | null]> => {
        let said: ClaimOutlook | null = null;
        const { length } = await claim(store, { from, max, left: (outlook) => (said = outlook) });
        return [length, said];
      };
      try {
        for (const name of names) await add(store, { name, queue: name });
        // The first does not know the lanes yet.
        for (const _ of names) assert.deepEqual(await left(1), [1, null]);
        for (const _ of names) assert.deepEqual(await left(1), [0, { ready: false, nextIn: null }]);
        await store.enqueue([JOB]);
        assert.deepEqual(await left(1), [1, null]);
        await store.enqueue([JOB]);
        const other = await bystander();
        await other.query("select key from jobs where state = 'pending' for update");
        assert.deepEqual(await left(2), [0, null]);
        await other.end("rollback");
        assert.deepEqual(await left(2), [1, { ready: false, nextIn: null }]);
        await store.enqueue([{ ...JOB, delay: 60_000 }]);
        const [, later] = await left(2);
        assert.equal(later?.ready, false);
        assert.ok(later.nextIn !== null && later.nextIn > 0 && later.nextIn <= 60_000, `in ${later.nextIn} ms`);
      } finally {
        await close();
      }
    });
  }

  test("a call that reaches the server after its caller was answered is rejected", async (t) => {
    const url = await server.createDatabase();
    const proxy = await Proxy.before(url);
    t.after(() => proxy.close());
    const direct = await openAt(t, url);
    const store = await openAt(t, proxy.url(url));
    for (let i = 0; i < 3; i++) await store.enqueue([JOB]);
    for (let i = 0; i < 2; i++) assert.equal((await claim(store, { from: FROM, max: 1 })).length, 1);
    const writers = async () =>
      (
        await server.query(
          `select 1 from pg_stat_activity where application_name = '${WRITER}' and datname = current_database()`,
          url,
        )
      ).length;
    const calls = { enqueue: () => store.enqueue([JOB]), claim: () => claim(store, { from: FROM, max: 1 }) };
    for (const call of Object.values(calls)) {
      const cut = proxy.cut({ of: WRITER, at: 1, when: "held" });
      const answer = await call();
      assert.equal(answer.length, 1);
      assert.match(cut.at ?? "", /^\s*with\s+(clock|given) as/, "or this test shows nothing");
      assert.equal(await writers(), 3, "the server has not heard of its end");
      cut.release("sent");
      await until(async () => (await writers()) === 2, "the server has come to its end");
    }
    const { pending, running } = await countJobs(direct.queries, { name: "lone" });
    assert.deepEqual([pending, running], [1, 3], "each once");
  });

  for (const [what, when] of Object.entries({
    "before it reaches the server": "before",
    "before its answer comes back": "after",
  } as const)) {
    test(`settles cut off ${what} have each their own outcome, and are counted once`, async (t) => {
      const url = await server.createDatabase();
      const proxy = await Proxy.before(url);
      t.after(() => proxy.close());
      const direct = await openAt(t, url);
      const store = await openAt(t, proxy.url(url));
      for (let i = 0; i < 5; i++) await store.enqueue([JOB]);
      const held = await claim(store, { from: FROM, max: 5 });
      const [first, awaited, gone, second, last] = held.map(({ job, fence }) => ({ job, fence, outcome: SUCCEEDED })) as Five;
      // More follows from the end of one than its own row, and another has ended already.
      const [behind] = (await direct.enqueue([newJob({ name: "behind", after: [(held[1] as Claimed).id] })])) as [Enqueued];
      await direct.settle([gone]);
      assert.deepEqual(await store.settle([first]), ["held"]);
      const cut = proxy.cut({ of: WRITER, at: 1, when });
      assert.deepEqual(await store.settle([second, last]), ["held", "held"]);
      assert.deepEqual(await store.settle([awaited, gone, { ...second }]), ["held", "lost", "lost"]);
      assert.match(cut.at ?? "", /^\s*with\s+clock .*receipt as/s, "or this test shows nothing");
      assert.equal((await countJobs(direct.queries, { name: "lone" })).succeeded, 5);
      assert.equal((await see(direct, behind.id)).state, "pending");
      assert.deepEqual([...(await server.query(misjudged("holdfast"), url))], []);
    });
  }

  for (const [how, way] of Object.entries(WAYS)) {
    test(`calls ${how} whose commit stays unknown for a minute fail with that answer, and are not repeated`, async (t) => {
      const url = await server.createDatabase();
      const proxy = await Proxy.before(url);
      t.after(() => proxy.close());
      const direct = await openAt(t, url);
      const store = await openAt(t, proxy.url(url));
      await store.enqueue([JOB]);
      const cut = proxy.cut({ of: WRITER, at: how === "by itself" ? 1 : "commit", when: "after" });
      const both = way(store, () => Promise.all([store.enqueue([JOB]), store.enqueue([JOB])]));
      const told = assert.rejects(both, { code: "COMMIT_UNKNOWN" });
      await cut.happened;
      await proxy.down();
      // A minute is over after a few looks at the time.
      const now = performance.now.bind(performance);
      let looks = 0;
      const time = t.mock.method(performance, "now", () => now() + looks++ * 10_000);
      await told;
      time.mock.restore();
      await proxy.up();
      await store.enqueue([JOB]);
      assert.equal((await countJobs(direct.queries)).pending, 4);
    });
  }

  test("the end of a job with a dependent is written by a store that is being closed", async (t) => {
    const url = await server.createDatabase();
    const direct = await openAt(t, url);
    const store = await openAt(t, url);
    for (let i = 0; i < 2; i++) await store.enqueue([JOB]);
    const [first, awaited] = (await claim(store, { from: FROM, max: 2 })) as [Claimed, Claimed];
    const [behind] = (await direct.enqueue([newJob({ name: "behind", after: [awaited.id] })])) as [Enqueued];
    await store.settle([{ ...first, outcome: SUCCEEDED }]);
    const settled = store.settle([{ ...awaited, outcome: SUCCEEDED }]);
    const closed = store.close();
    assert.deepEqual(await settled, ["held"]);
    await closed;
    assert.equal((await see(direct, behind.id)).state, "pending");
  });

  test("a statement that the server still executes is awaited, and answered as it ends", async (t) => {
    const url = await server.createDatabase();
    const proxy = await Proxy.before(url);
    t.after(() => proxy.close());
    const direct = await openAt(t, url);
    const store = await openAt(t, proxy.url(url));
    for (let i = 0; i < 3; i++) await store.enqueue([JOB]);
    for (let i = 0; i < 2; i++) assert.equal((await claim(store, { from: FROM, max: 1 })).length, 1);
    const by = postgres(url, { max: 1, onnotice: () => {} });
    t.after(() => by.end());
    // It has left its receipt, and is held up before its commit.
    await by.unsafe(`
      create function held() returns trigger language plpgsql as $$ begin
        perform pg_advisory_xact_lock_shared(2); return null; end $$;
      create trigger held after insert or update on holdfast.receipts for each row
        when (new.made is not null) execute function held()`);
    const waiting = async () =>
      (await by`select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()`).length;
    const calls: Record<string, () => Promise<string[]>> = {
      pending: async () => (await store.enqueue([JOB])).map(({ id }) => id),
      running: () => claimIds(store, { from: FROM, max: 1 }),
    };
    let told = 0;
    t.after(store.onChange(({ own }) => void (told += own ? 1 : 0), { ownOnly: true }));
    for (const [state, call] of Object.entries(calls)) {
      told = 0;
      const before = (await countJobs(direct.queries, { name: "lone" }))[state as "pending"];
      await by`select pg_advisory_lock(2)`;
      const answer = call();
      await until(async () => (await waiting()) === 1, "it is held up");
      // A server that is at something does not hear of the connection's end before it has an answer to give.
      await proxy.down();
      await proxy.up();
      await until(async () => (await waiting()) === 2, "it is asked for");
      await by`select pg_advisory_unlock(2)`;
      const [id] = (await answer) as [string];
      assert.equal((await direct.queries.get(id))?.state, state);
      assert.equal((await countJobs(direct.queries, { name: "lone" }))[state as "pending"], before + 1, "once");
      assert.equal(told, 1, "listeners for this process's commits are notified");
    }
  });

  test("no commit skips the wait for the disk, even if the connection's setting was changed", async (t) => {
    const url = await server.createDatabase();
    const store = await openAt(t, url);
    await store.enqueue([JOB]);
    // As behind an undeclared pooler: the connection is another than the one that was set up.
    await server.query(
      `create function forgets() returns trigger language plpgsql as $$ begin
        perform set_config('synchronous_commit', 'off', false); return null; end $$;
      create trigger forgets before insert on holdfast.jobs for each statement execute function forgets()`,
      url,
    );
    for (const way of Object.values(WAYS)) {
      await assert.rejects(
        way(store, () => store.enqueue([JOB])),
        (error) =>
          error instanceof HoldfastError && error.code === "POOLER_UNDECLARED" && /\?pooler=transaction/.test(error.hint ?? ""),
      );
    }
    assert.equal((await countJobs(store.queries)).pending, 1);
  });

  for (const what of ["id", "key"] as const) {
    test(`of eight concurrent enqueues with one ${what} one creates the job, time after time`, async () => {
      const { stores, query, close } = await openHandles(server, 8);
      try {
        for (let round = 0; round < 20; round++) {
          const given = { name: "same", [what]: `${what} ${round}` };
          const enqueue = async (store: Store): Promise<Enqueued> => (await store.enqueue([newJob(given)]))[0] as Enqueued;
          const answers = await Promise.all(stores.map(enqueue));
          assert.equal(new Set(answers.map(({ id }) => id)).size, 1, "all callers get one job");
          assert.equal(answers.filter((answer) => "duplicate" in answer && !answer.duplicate).length, 1);
        }
        assert.deepEqual(await query("select count(*)::int as n from jobs"), [{ n: 20 }]);
      } finally {
        await close();
      }
    });
  }
});

describe("a server that by itself would not wait for its disk", { skip: noRestart }, () => {
  let server: PostgresServer;
  before(async () => {
    // What is not synced by a commit stays in memory for long.
    const settings = { synchronous_commit: "off", wal_writer_delay: "10s", bgwriter_lru_maxpages: "0" };
    server = await startServer({ settings });
  });
  after(() => server.close());

  test("a server with synchronous_commit off loses nothing that was answered before a crash", { timeout: 60_000 }, async (t) => {
    const url = await server.createDatabase();
    const store = await openAt(t, url);
    // Another process listens, so that a notification, which waits for nothing, is sent right behind each of them.
    const listener = await openAt(t, url);
    t.after(listener.onChange(() => {}));
    for (let i = 0; i < 5; i++) await store.enqueue([JOB]);
    for (const way of Object.values(WAYS)) {
      for (let i = 0; i < 2; i++) await claim(store, { from: FROM, max: 1 });
      const [added] = (await way(store, () => store.enqueue([JOB]))) as [Enqueued];
      const [claimed] = (await way(store, () => claim(store, { from: FROM, max: 1 }))) as [Claimed];
      await server.stop("immediate");
      await server.start();
      assert.equal((await store.queries.get(added.id))?.state, "pending");
      const [row] = await server.query(`select state from holdfast.jobs where fence = ${claimed.fence}`, url);
      assert.equal(row?.["state"], "running");
    }
  });
});

async function openAt(t: TestContext, url: string, options: Partial<PostgresStoreOptions> = {}): Promise<PostgresStore> {
  const store = await PostgresStore.open(url, { clock: systemClock, injected: false, random: Math.random, ...options });
  t.after(() => store.close());
  return store;
}
