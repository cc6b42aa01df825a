import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { once } from "node:events";
import { after, before, describe, test, type TestContext } from "node:test";
import { setTimeout as stall } from "node:timers/promises";
import postgres from "postgres";
import type { Event as Told } from "../../src/core/jobs/event.ts";
import { open } from "../../src/index.ts";
import { parseAddress } from "../../src/store/postgres/connection/address.ts";
import { loadDriver } from "../../src/store/postgres/connection/driver.ts";
import { EventNumbering } from "../../src/store/postgres/events.ts";
import { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import { Reader } from "../../src/store/postgres/connection/session.ts";
import { systemClock } from "../../src/engine/host.ts";
import type { Durability, Store } from "../../src/store/store.ts";
import { newJob, register } from "../conformance/parts.ts";
import { telling } from "../crash/jobs.ts";
import { randomFrom, SEEDS } from "../seeds.ts";
import { LONG } from "../selection.ts";
import { EventWriter } from "./event-writer.ts";
import { noRestart, noServer, type PostgresServer, startServer } from "./server.ts";

const ROUNDS = LONG ? 2_000 : 30;

describe("the outbox on PostgreSQL", { skip: noServer }, () => {
  let server: PostgresServer;
  before(async () => void (server = await startServer()));
  after(() => server.close());

  test("an event of a stalled transaction is not skipped, and delays no other event", async (t) => {
    const { store, newWriter } = await ground(t, server);
    const [slow, quick] = [await newWriter(), await newWriter()];
    await slow.begin();
    await slow.tell("slow");
    await quick.begin();
    await quick.tell("quick");
    await quick.end();
    const first = await store.events.page({ after: 0, limit: 10 });
    assert.deepEqual(first.map(nameOf), ["quick"], "whatever else is open in this cluster");
    assert.equal(await store.events.position(), 1);
    await slow.end();
    const then = await store.events.page({ after: first[0]?.seq as number, limit: 10 });
    assert.deepEqual(then.map(nameOf), ["slow"], "though it was written first");
    assert.deepEqual(await seqs(store), [1, 2]);
  });

  test("a subscriber gets the events of a user's own transaction after its commit, however long it takes", async (t) => {
    const { schema } = await ground(t, server);
    const hf = await open(server.url(), { schema });
    t.after(() => hf.close());
    const got: unknown[] = [];
    const news = new EventTarget();
    hf.events.subscribe(
      ({ job }) => {
        got.push(job);
        news.dispatchEvent(new Event("news"));
      },
      { name: "all", types: ["job.enqueued"] },
    );
    const hasGot = async (...jobs: string[]) => {
      while (got.length < jobs.length) await once(news, "news");
      assert.deepEqual(got, jobs);
    };
    const sql = postgres(server.url(), { max: 1, onnotice: () => {} });
    t.after(() => sql.end({ timeout: 0 }));
    const slow = await sql.begin(async (tx) => {
      const first = await hf.enqueue(telling, 1, { tx });
      const second = await hf.enqueue(telling, 2);
      await hasGot(second.id);
      return { first, second };
    });
    await hasGot(slow.second.id, slow.first.id);
    const third = await hf.enqueue(telling, 3);
    await hasGot(slow.second.id, slow.first.id, third.id);
  });

  test("however many transactions stall, each event is read after its commit", async (t) => {
    const { store, newWriter } = await ground(t, server);
    const quick = await newWriter();
    const slow = [await newWriter(), await newWriter(), await newWriter()];
    const expected: string[] = [];
    const happens = async (name: string) => {
      await quick.begin();
      await quick.tell(name);
      await quick.end();
      expected.push(name);
    };
    const isRead = async () => assert.deepEqual((await store.events.page({ after: 0, limit: 100 })).map(nameOf), expected);
    // Not read before the others have begun: those have higher numbers than any transaction that is over.
    await happens("first");
    for (const [i, one] of slow.entries()) {
      await one.begin();
      await one.tell(`slow ${i}`);
    }
    await isRead();
    for (const i of [0, 2, 1]) {
      await slow[i]?.end();
      expected.push(`slow ${i}`);
      await isRead();
      for (let n = 0; n < 3; n++) {
        await happens(`quick ${i} ${n}`);
        await isRead();
      }
    }
  });

  test("polling costs no more for events read while an old snapshot is open", async (t) => {
    const { schema, newWriter, query } = await ground(t, server);
    const [past, one] = [await newWriter(), await newWriter()];
    await past.begin("repeatable read");
    await past.pid();
    const to = { driver: await loadDriver(), address: parseAddress(server.url()), silence: 1_000 };
    const reader = new Reader(to, { most: 1, patience: 0, random: Math.random });
    t.after(() => reader.close());
    const numbering = new EventNumbering(schema, reader, { readInTurn: () => assert.fail() });
    for (let i = 0; i < 5; i++) {
      await one.begin();
      await one.tell(...Array.from({ length: 800 }, (_, n) => `${i} ${n}`));
      await one.end();
      await numbering.number(1);
    }
    const pages = async (low: number) => {
      const rows = await query(
        `explain (analyze, buffers, format json) select ${numbering.isBehind.replace(":low", String(low))}`,
      );
      const [{ "QUERY PLAN": plans }] = rows as [{ "QUERY PLAN": [{ Plan: Record<string, number> }] }];
      const { Plan: plan } = plans[0];
      return (plan["Shared Hit Blocks"] as number) + (plan["Shared Read Blocks"] as number);
    };
    assert.ok((await pages(0)) > 50, "what was read is still in the way, or this test shows nothing");
    assert.ok((await pages(numbering.low)) < 30, "less than a fourth of it is");
  });

  for (const isReadBetween of [false, true]) {
    const when = isReadBetween ? "when it is read in between, too" : "when both are read at once, too";
    test(`the second change of a job has the second event, although its transaction has the lower number: ${when}`, async (t) => {
      const { store, newWriter, job } = await ground(t, server);
      const [first, second] = [await newWriter(), await newWriter()];
      await second.begin();
      await second.tell("something else");
      await first.begin();
      await first.step(job);
      const [xid, lower] = [await first.xid(), await second.xid()];
      assert.ok(lower < xid, "the one that comes second began to write before");
      const waiting = second.step(job);
      await isWaiting(server, await first.pid());
      await first.end();
      await waiting;
      if (isReadBetween) assert.deepEqual(await steps(store, job), [1]);
      await second.end();
      assert.deepEqual(await steps(store, job), [1, 2]);
      assert.deepEqual(await seqs(store), [1, 2, 3]);
    });
  }

  test("a rolled back event takes no number", async (t) => {
    const { store, newWriter } = await ground(t, server);
    const one = await newWriter();
    for (const how of ["commit", "rollback", "commit"] as const) {
      await one.begin();
      await one.tell(how);
      await one.end(how);
    }
    assert.deepEqual(await seqs(store), [1, 2]);
  });

  test("many unread events are numbered in steps, in order", async (t) => {
    const { store, newWriter } = await ground(t, server);
    const one = await newWriter();
    const names = Array.from({ length: 2_500 }, (_, i) => String(i));
    await one.begin();
    await one.tell(...names);
    await one.end();
    assert.deepEqual((await store.events.page({ after: 0, limit: 5 })).map(nameOf), names.slice(0, 5));
    assert.deepEqual((await store.events.page({ after: 0, limit: 1, last: true })).map(nameOf), ["2499"]);
    assert.deepEqual((await store.events.page({ after: 0, limit: 9_999 })).map(nameOf), names);
    assert.equal(await store.events.position(), 2_500);
  });

  test("a reader that finds nothing new, or is rejected, writes nothing", async (t) => {
    const { store, newWriter, query } = await ground(t, server);
    const one = await newWriter();
    await one.begin();
    await one.tell("one");
    await one.end();
    await store.events.position({ name: "s", kind: "x" });
    const by = { holder: await register(store), ttl: 30_000, token: null };
    assert.ok((await store.events.hold("s", by))?.token);
    const written = () => query("select n.xmin::text as trimmed, s.xmin::text as sink from $.trimmed as n, $.sinks as s");
    const before = await written();
    await store.events.page({ after: 1, limit: 10 });
    await store.events.page({ after: 0, limit: 10, types: ["test.*"] });
    await store.events.position();
    await store.events.sinks();
    await store.events.position({ name: "s", kind: "x" });
    assert.equal((await store.events.hold("s", by))?.token, null);
    await store.events.trim({ olderThan: 86_400_000, limit: 10 });
    assert.deepEqual(await written(), before);
  });

  test("trimming numbers the events if there is no reader", async (t) => {
    const { store, newWriter, query } = await ground(t, server);
    const one = await newWriter();
    await one.begin();
    await one.tell("one");
    await one.end();
    assert.equal(await store.events.trim({ olderThan: 86_400_000, limit: 10 }), 0);
    assert.deepEqual(await query("select (select count(*)::int from $.outbox) as outbox, seq::int from $.events"), [
      { outbox: 0, seq: 1 },
    ]);
  });

  test("read events are still there after a crash of the server, at every durability", { skip: noRestart }, async (t) => {
    // Nothing reaches the disk by itself.
    const fragile = await startServer({ settings: { wal_writer_delay: "10s", synchronous_commit: "off" } });
    t.after(() => fragile.close());
    const { store } = await ground(t, fragile, { durability: "process" });
    for (const [i, numbered] of [() => seqs(store), () => store.events.position()].entries()) {
      await happens(store);
      await numbered();
      const read = await store.events.page({ after: 0, limit: 10 });
      assert.equal(read.length, i + 1);
      const last = await leavesUnwritten(store, fragile);
      await fragile.restart("immediate");
      assert.deepEqual(await store.events.page({ after: 0, limit: 10 }), read);
      assert.equal(await store.queries.get(last), null, "an unsynced commit is gone, or this test shows nothing");
    }
    await happens(store);
    assert.deepEqual(await seqs(store), [1, 2, 3]);
  });

  for (const seed of SEEDS) {
    test(`four stalling writers with readers: each event once, without a gap, each job's in order (HOLDFAST_SEED=${seed})`, async (t) => {
      const url = await server.createDatabase();
      // Nothing may rely on what an administrator chose.
      await server.query(`alter database ${new URL(url).pathname.slice(1)} set default_transaction_isolation = 'serializable'`);
      await storm(t, server, url, randomFrom(seed));
    });
  }
});

const JOBS = 5;

async function storm(t: TestContext, server: PostgresServer, url: string, random: () => number): Promise<void> {
  const { store, another, newWriter, query, jobs } = await ground(t, server, { url });
  const told = new Set<string>();
  const maybeStall = async () => void (random() < 0.5 && (await stall(random() * 6)));

  // A session whose transaction has nothing to do with it, and stays open for the first half.
  const idle = await newWriter();
  await idle.begin();
  await idle.tell("never");

  const write = async (writer: number) => {
    const own = await newWriter();
    for (let round = 0; round < ROUNDS; round++) {
      if (writer === 0 && round === ROUNDS / 2) await idle.end("rollback");
      await own.begin();
      const names: string[] = [];
      // Some have their number long before they come to a job.
      if (random() < 0.5) {
        names.push(`${writer}:${round}`);
        await own.tell(`${writer}:${round}`);
        await maybeStall();
      }
      // In one order, or they would wait for each other for ever.
      const chosen = jobs.filter(() => random() < 2 / JOBS);
      for (const job of chosen) {
        await own.step(job);
        await maybeStall();
      }
      const how = random() < 0.15 ? "rollback" : "commit";
      await own.end(how);
      if (how === "commit") for (const name of names) told.add(name);
    }
  };

  const written = new AbortController();
  const over = new AbortController();
  const follow = async (reader: Store): Promise<Told[]> => {
    const got: Told[] = [];
    for (;;) {
      const wasOver = over.signal.aborted;
      const limit = 1 + Math.floor(random() * 20);
      const page = await reader.events.page({ after: got.at(-1)?.seq ?? 0, limit });
      got.push(...page);
      if (page.length === 0 && wasOver) return got;
      await maybeStall();
    }
  };
  /** Comes in at any time, and must get all that is committed from then on. */
  const join = async (reader: Store, name: string) => {
    while (!written.signal.aborted) {
      const cursor = random() < 0.5 ? await reader.events.position({ name, kind: "test" }) : await reader.events.position();
      const [first] = await reader.events.page({ after: cursor, limit: 1 });
      assert.ok(first === undefined || first.seq === cursor + 1, "numbers have no gaps");
      await reader.events.dropSink(name);
      await maybeStall();
    }
  };

  const readers = [store, await another(), await another()];
  const following = readers.map(follow);
  const joining = readers.map((reader, i) => join(reader, `sink ${i}`));
  await Promise.all([0, 1, 2, 3].map(write));
  written.abort();
  await Promise.all(joining);
  over.abort();
  const all = await Promise.all(following);

  const [got = []] = all;
  for (const other of all) assert.deepEqual(other, got, "every reader reads the same");
  assert.deepEqual(
    got.map(({ seq }) => seq),
    got.map((_, i) => i + 1),
  );
  assert.equal(new Set(got.map(({ dedupeKey }) => dedupeKey)).size, got.length);
  const names = got.filter(({ type }) => type === "test.told").map(nameOf);
  assert.deepEqual(names.toSorted(), [...told].toSorted());
  let sum = 0;
  for (const { key, attempt } of await query("select key::int, attempt from $.jobs")) {
    const own = got.filter(({ job }) => job === String(key)).map(({ data }) => (data as { n: number }).n);
    assert.deepEqual(
      own,
      Array.from({ length: attempt as number }, (_, i) => i + 1),
      `job ${String(key)}`,
    );
    sum += own.length;
  }
  t.diagnostic(`${sum} steps of ${JOBS} jobs among ${got.length} events`);
}

interface Ground {
  schema: string;
  store: Store;
  another(): Promise<Store>;
  newWriter(): Promise<EventWriter>;
  /** In its schema, which is written as $. */
  query(text: string): Promise<Record<string, unknown>[]>;
  job: number;
  jobs: number[];
}

/** A schema of its own with a few jobs in it. */
async function ground(
  t: TestContext,
  server: PostgresServer,
  { url = server.url(), ...options }: { url?: string; durability?: Durability } = {},
): Promise<Ground> {
  const schema = `outbox_${randomBytes(4).toString("hex")}`;
  const another = async () => {
    const store = await PostgresStore.open(url, {
      ...options,
      schema,
      clock: systemClock,
      injected: false,
      random: Math.random,
    });
    t.after(() => store.close());
    return store;
  };
  const newWriter = async () => {
    const one = await EventWriter.at(url, schema);
    t.after(() => one[Symbol.asyncDispose]());
    return one;
  };
  const query = async (text: string) => [...(await server.query(text.replaceAll("$", schema), url))];
  const store = await another();
  await store.enqueue(Array.from({ length: JOBS }, () => newJob()));
  const jobs = (await query("select key::int from $.jobs order by key")).map(({ key }) => key as number);
  return { schema, store, another, newWriter, query, jobs, job: jobs[0] as number };
}

/** An operator's act that is always told. */
async function happens(store: Store): Promise<void> {
  await store.events.position({ name: "something", kind: "test" });
  await store.events.dropSink("something");
}

/**
 * The id of a job whose commit is not the end of a page of the server's log: PostgreSQL 15 writes each page as soon as it
 * is full, whatever `wal_writer_delay` is, and a commit that ends with one survives.
 */
async function leavesUnwritten(store: Store, server: PostgresServer): Promise<string> {
  for (let n = 0; ; n++) {
    const id = `unread ${n}`;
    await store.enqueue([newJob({ id })]);
    const [row] = await server.query("select ((pg_current_wal_insert_lsn() - '0/0') % 8192)::int as into_page");
    // A page begins with a header, of 40 bytes at most.
    if ((row?.["into_page"] as number) > 40) return id;
  }
}

function nameOf({ data }: Told): string {
  return (data as { name: string }).name;
}

async function seqs(store: Store): Promise<number[]> {
  return (await store.events.page({ after: 0, limit: 1_000 })).map(({ seq }) => seq);
}

async function steps(store: Store, job: number): Promise<number[]> {
  const events = await store.events.page({ after: 0, limit: 1_000 });
  return events.filter((event) => event.job === String(job)).map(({ data }) => (data as { n: number }).n);
}

/** Resolves when another session waits for this connection's transaction. */
async function isWaiting(server: PostgresServer, pid: number): Promise<void> {
  const waiting = `select 1 from pg_stat_activity where ${pid} = any(pg_blocking_pids(pid))`;
  while ((await server.query(waiting)).length === 0) await stall(5);
}
