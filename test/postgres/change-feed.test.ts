import assert from "node:assert/strict";
import { after, before, beforeEach, describe, test, type TestContext } from "node:test";
import { setTimeout as passes } from "node:timers/promises";
import postgres from "postgres";
import { notificationText, parseNotification } from "../../src/store/postgres/change-feed.ts";
import { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import type { Fence, JobKey } from "../../src/core/text/ids.ts";
import type { Change, Durability } from "../../src/store/store.ts";
import { type TestClock, testClock } from "../../src/testing/index.ts";
import { add, addOne, claimOne, newJob } from "../conformance/parts.ts";
import { Proxy } from "./proxy.ts";
import { noRestart, noServer, type PostgresServer, startServer } from "./server.ts";
import { countJobs } from "../../src/store/queries.ts";

describe("a commit of another process, on PostgreSQL", { skip: noServer }, () => {
  let server: PostgresServer;
  let url: string;
  let clock: TestClock;
  before(async () => void (server = await startServer()));
  after(() => server.close());
  beforeEach(async () => {
    url = await server.createDatabase();
    clock = testClock();
  });

  /** The clock stands still: what is heard is not found by looking. */
  const open = async (t: TestContext, where = url, durability: Durability = "power") => {
    const store = await PostgresStore.open(where, { clock, injected: true, random: () => 0.5, durability });
    t.after(() => store.close());
    return store;
  };
  /** Of each connection that listens. */
  const ears = (what: string) =>
    server.query(`select ${what} from pg_stat_activity where application_name like 'holdfast hears%'`, url);

  test("a commit notifies every listener, with the queues that have jobs", async (t) => {
    const [one, other] = [await open(t), await open(t)];
    const ear = listen(one);
    await ear.heard(isDoubt);
    await add(other, { name: "a" }, { name: "b" });
    assert.deepEqual(new Set((await ear.heard(({ ready }) => ready !== null)).ready), new Set(["a", "b"]));
  });

  test("a commit notifies listeners of the leases that it ended", async (t) => {
    const [one, other] = [await open(t), await open(t)];
    const id = await addOne(one);
    const { job, fence } = await claimOne(one);
    const ear = listen(one);
    await ear.heard(isDoubt);
    await other.cancel(id);
    assert.deepEqual((await ear.heard(({ ended }) => ended.length > 0)).ended, [{ job, fence }]);
  });

  test("a commit notifies other processes once, and close commits share a few notifications", async (t) => {
    const [one, other] = [await open(t), await open(t)];
    const [ear, own] = [listen(one), listen(other)];
    await Promise.all([ear.heard(isDoubt), own.heard(isDoubt)]);
    for (let i = 0; i < 200; i++) await addOne(other, { name: i === 199 ? "last" : "work" });
    await ear.heard(({ ready }) => ready?.has("last") === true);
    const foreign = ear.all.filter(({ own: isOwn, ready }) => !isOwn && ready !== null);
    assert.ok(foreign.length <= 200, `${foreign.length} notices of 200 commits`);
    assert.deepEqual(
      own.all.filter(({ own: isOwn }) => !isOwn).map(({ ready }) => ready),
      [null],
      "its own are told by the commit",
    );
  });

  test("a commit succeeds although the server has no room for notifications", { skip: noRestart }, async (t) => {
    const crowded = await startServer({ settings: { max_notify_queue_pages: "64" } });
    t.after(() => crowded.close());
    const place = await crowded.createDatabase();
    const [one, other] = [await open(t, place), await open(t, place)];
    const ear = listen(one);
    await ear.heard(isDoubt);
    const job = newJob();
    await other.enqueue([job]);
    await ear.heard(({ ready }) => ready !== null);
    // One who listens, and does not read.
    const deaf = postgres(place, { max: 1 });
    t.after(() => deaf.end({ timeout: 0 }));
    await deaf.unsafe("listen something").simple();
    await deaf.unsafe("begin; select 1").simple();
    const fill = postgres(place, { max: 1, onnotice: () => {} });
    t.after(() => fill.end({ timeout: 0 }));
    const filled = async () => {
      for (let i = 0; i < 1_000; i++) await fill`select pg_notify('something', ${String(i) + "x".repeat(7_900)})`;
    };
    await assert.rejects(filled(), { code: "54000" });
    for (let i = 0; i < 20; i++) {
      await other.enqueue([job]);
      await passes(6);
    }
    assert.equal((await countJobs(other.queries)).pending, 21);
  });

  for (const [which, settings] of Object.entries({ "of its own": {}, "of a fifth of a second": { lock_timeout: "200ms" } })) {
    const what = "is committed also while another process that announces a commit waits for a replica";
    test(`${what}, with a limit ${which} for locks`, { skip: noRestart, timeout: 30_000 }, async (t) => {
      const alone = { synchronous_standby_names: "absent", synchronous_commit: "local" };
      const waiting = await startServer({ durable: true, settings: { ...alone, ...settings } });
      t.after(() => waiting.close());
      const place = await waiting.createDatabase();
      const [one, other] = [await open(t, place, "process"), await open(t, place, "process")];
      const ear = listen(one);
      await ear.heard(isDoubt);
      const job = newJob({ name: "lone" });
      const tell = async () => {
        await other.enqueue([job]);
        await ear.heard(({ ready }) => ready?.has("lone") === true);
      };
      await tell();
      const stranger = postgres(place, { max: 1, onnotice: () => {} });
      t.after(() => stranger.end({ timeout: 0 }));
      await stranger`create table theirs (n integer)`;
      const theirs = "set synchronous_commit = on; begin; insert into theirs values (1); notify theirs; commit";
      stranger
        .unsafe(theirs)
        .simple()
        .catch(() => {});
      const asked = "select 1 from pg_stat_activity where wait_event = 'SyncRep'";
      while ((await waiting.query(asked, place)).length === 0) await passes(5);
      const { pending } = await countJobs(other.queries);
      let slow = 0;
      for (let i = 0; i < 8; i++) {
        const since = performance.now();
        await other.enqueue([job]);
        if (performance.now() - since > 900) slow++;
        // So long that it would be announced.
        await passes(10);
      }
      assert.equal((await countJobs(other.queries)).pending, pending + 8);
      assert.ok(slow <= 1, `only the first may wait for it, and ${slow} did`);
    });
  }

  test("a commit is announced before its process has closed", { timeout: 20_000 }, async (t) => {
    const ear = listen(await open(t));
    await ear.heard(isDoubt);
    for (let i = 0; i < 10; i++) {
      const other = await open(t);
      await addOne(other, { name: "first" });
      await addOne(other, { name: `last ${i}` });
      await other.close();
      await ear.heard(({ ready }) => ready?.has(`last ${i}`) === true);
    }
  });

  test("no notification is sent if no process listens", async (t) => {
    const store = await open(t);
    const stranger = postgres(url, { max: 1 });
    t.after(() => stranger.end({ timeout: 0 }));
    const { promise, resolve } = Promise.withResolvers<string>();
    await stranger.listen("holdfast:holdfast", resolve);
    await add(store, {}, {});
    await addOne(store);
    await store.close();
    await stranger.notify("holdfast:holdfast", "the first");
    assert.equal(await promise, "the first");
  });

  test("notifications continue after a lost connection, and changes in between are not missed", async (t) => {
    const [one, other] = [await open(t), await open(t)];
    const ear = listen(one);
    await ear.heard(isDoubt);
    await ears("pg_terminate_backend(pid)");
    await ear.heard(isDoubt);
    await addOne(other, { name: "after" });
    await ear.heard(({ ready }) => ready?.has("after") === true);
  });

  test("a commit whose answer was lost is announced, too", { timeout: 30_000 }, async (t) => {
    const proxy = await Proxy.before(url);
    t.after(() => proxy.close());
    const [one, other] = [await open(t), await open(t, proxy.url(url))];
    const ear = listen(one);
    await ear.heard(isDoubt);
    await add(other, { name: "a" }, { name: "b" });
    const cut = proxy.cut({ of: "holdfast writes", at: "commit", when: "after" });
    await add(other, { name: "c" }, { name: "d" });
    assert.match(cut.at ?? "", /^commit/, "or this test shows nothing");
    await ear.heard(({ ready }) => ready?.has("c") === true);
  });

  test("behind a pooler that changes connections, commits are found by polling", async (t) => {
    const pooled = `${url}?pooler=transaction`;
    const [one, other] = [await open(t, pooled), await open(t, pooled)];
    const ear = listen(one);
    for (let i = 0; i < 3; i++) {
      await addOne(other);
      await ear.heard(isDoubt);
    }
  });

  test("a call that changes nothing sends no notification", async (t) => {
    const [one, other] = [await open(t), await open(t)];
    const ear = listen(one);
    await ear.heard(isDoubt);
    await countJobs(other.queries);
    // What the server does by itself, for this database or another, may look like a change: now and then, not each time.
    await clock.advance("1m");
    await countJobs(one.queries);
    assert.ok(ear.all.length < 6, `told ${ear.all.length} times in a minute`);
  });

  test("a process listens only while a caller has subscribed", async (t) => {
    const store = await open(t);
    store.onChange(() => {}, { ownOnly: true });
    await addOne(store);
    assert.equal((await ears("pid")).length, 0);
    const ear = listen(store);
    await ear.heard(isDoubt);
    assert.equal((await ears("pid")).length, 1);
    await store.close();
    // The server takes a moment to notice.
    while ((await ears("pid")).length > 0) await passes(5);
  });
});

test("a notification that is too long says that something changed, not what", () => {
  const many = Array.from({ length: 1_000 }, (_, i) => [i as JobKey, i as Fence] as const);
  const queues = Array.from({ length: 50 }, (_, i) => `queue ${i} äöü`);
  const notice = (ready: string[] | null, ended: typeof many) =>
    parseNotification(notificationText({ from: "me", ready, ended }));
  assert.deepEqual(notice(["a"], many.slice(0, 3)), { from: "me", ready: ["a"], ended: many.slice(0, 3) });
  assert.deepEqual(notice(queues, many), { from: "me", ready: queues, ended: [] });
  assert.deepEqual(notice(["ä".repeat(7_000)], many), { from: "me", ready: null, ended: [] });
  for (const ready of [queues, ["ä".repeat(3_960)], ["ä".repeat(7_000)]]) {
    assert.ok(Buffer.byteLength(notificationText({ from: "me", ready, ended: many })) < 8_000);
  }
  assert.equal(parseNotification("from a newer version"), null);
  assert.equal(parseNotification("{}"), null);
});

function isDoubt({ own, ready }: Change): boolean {
  return !own && ready === null;
}

/** Collects the changes announced from now on; those not asked for yet are kept. */
function listen(store: PostgresStore) {
  const all: Change[] = [];
  let unread: Change[] = [];
  let tell: (() => void) | null = null;
  store.onChange((change) => {
    all.push(change);
    unread.push(change);
    tell?.();
  });
  return {
    all,
    async heard(wanted: (change: Change) => boolean): Promise<Change> {
      for (;;) {
        const at = unread.findIndex(wanted);
        const found = unread[at];
        unread = unread.slice(at + 1);
        if (found !== undefined) return found;
        await new Promise<void>((resolve) => (tell = resolve));
      }
    },
  };
}
