import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import type { Outcome } from "../../src/core/jobs/retry.ts";
import type { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import { Session } from "../../src/store/postgres/connection/session.ts";
import type { Claimed, Declaration, NewJob, Store } from "../../src/store/store.ts";
import { add, claim, claimIds, claimOne, declaring, ERROR, limitRule, newJob, settle, SUCCEEDED } from "../conformance/parts.ts";
import { LimitRows, rowsOfSchema } from "../limits/rows.ts";
import { Random } from "../simulation/random.ts";
import { type Handles, openHandles } from "./handles.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";
import { SEEDS } from "../seeds.ts";
import { LONG } from "../selection.ts";
import { countJobs } from "../../src/store/queries.ts";

const TURNS = LONG ? 400 : 20;
const QUEUES = ["alpha", "beta", "gamma"];

/** Two of a key at once, three of the queue, and for one of them a rate. */
const LIMITS = QUEUES.map((queue) =>
  declaring(
    [
      limitRule({ concurrency: 2, rate: queue === "gamma" ? { starts: 50, per: 100 } : null }),
      limitRule({ of: "queue", keyed: false, concurrency: 3 }),
    ],
    { queue, name: queue, settings: { events: false, keep: {} } },
  ),
);

const OUTCOMES: Outcome[] = [SUCCEEDED, { kind: "released" }, { kind: "error", error: ERROR, retry: false }];

describe("limits of several queues, at the same instant", { skip: noServer }, () => {
  let server: PostgresServer;
  before(async () => void (server = await startServer()));
  after(() => server.close());

  /** Counters are what the jobs are. */
  async function checkRows({ schema }: Handles): Promise<void> {
    const rows = new LimitRows(rowsOfSchema(server.url(), schema));
    await rows.check(Date.now(), false);
    await rows.close();
  }

  for (const seed of SEEDS) {
    test(`limits of several queues hold whichever process works on them, without a deadlock (HOLDFAST_SEED=${seed})`, async () => {
      const random = new Random(seed);
      const handles = await openHandles(server, 4, () => random.next());
      try {
        await witness(handles);
        await (handles.stores[0] as Store).queues.declare(LIMITS);
        await Promise.all(handles.stores.map((store, n) => work(store, new Random(seed, n + 1))));
        assert.deepEqual(await handles.query("select * from test_over"), [], "no limit was exceeded");
        await checkRows(handles);
        await workOff(handles.stores[0] as Store);
        const [row] = await server.query("select deadlocks from pg_stat_database where datname = current_database()");
        assert.equal(Number(row?.["deadlocks"]), 0, "there was no deadlock");
      } finally {
        await handles.close();
      }
    });
  }

  test("a rate starts as many jobs as it allows, however many processes claim at once", async () => {
    const handles = await openHandles(server, 8);
    try {
      const declares = declaring([limitRule({ rate: { starts: 5, per: 3_600_000 } })]);
      const [first] = handles.stores as [PostgresStore];
      for (const key of ["a", "b"]) {
        await add(first, ...Array.from({ length: 40 }, () => ({ declares, limitKeys: [key] })));
      }
      const claimed = (await Promise.all(handles.stores.map((store) => claim(store, { max: 10 })))).flat();
      assert.equal(new Set(claimed.map(({ job }) => job)).size, claimed.length, "each once");
      // Those that come to their end do not give their starts back.
      await first.settle(claimed.map(({ job, fence }) => ({ job, fence, outcome: SUCCEEDED })));
      for (const store of handles.stores) claimed.push(...(await claim(store, { max: 10 })));
      assert.equal(claimed.length, 10, "five of each key");
    } finally {
      await handles.close();
    }
  });

  test("a batch over many keys is decided in a handful of statements, however many jobs wait at each", async (t) => {
    const handles = await openHandles(server, 1);
    const [store] = handles.stores as [PostgresStore];
    const declares = declaring([limitRule({ concurrency: 20 })]);
    const each = (times: number) =>
      Array.from({ length: 60 * times }, (_, i) => newJob({ declares, limitKeys: [`key-${i % 60}`] }));
    /** How many statements it takes. */
    const cost = async <T>(act: () => Promise<T>): Promise<[statements: number, answer: T]> => {
      const { mock } = t.mock.method(Session.prototype, "rows");
      const answer = await act();
      const statements = mock.callCount();
      mock.restore();
      return [statements, answer];
    };
    try {
      await store.enqueue(each(25));
      const [enqueuing] = await cost(() => store.enqueue(each(4)));
      const [claiming, claimed] = await cost(() => claim(store, { max: 600 }));
      assert.equal(claimed.length, 600);
      const all = claimed.map(({ job, fence }) => ({ job, fence, outcome: SUCCEEDED }));
      const [settling] = await cost(() => store.settle(all));
      t.diagnostic(`${enqueuing} statements to enqueue, ${claiming} to claim, ${settling} to settle`);
      for (const statements of [enqueuing, claiming, settling]) assert.ok(statements < 40, `${statements} statements`);
    } finally {
      await handles.close();
    }
  });

  test("a process alone on a queue reads no counter twice, and rereads each that another may have changed", async (t) => {
    const handles = await openHandles(server, 2);
    const [one, two] = handles.stores as [PostgresStore, PostgresStore];
    const declares = atOnce(2);
    const texts: string[] = [];
    const { rows, together } = Session.prototype;
    t.mock.method(Session.prototype, "rows", function (this: Session, text: string, values?: []) {
      texts.push(text);
      return rows.call(this, text, values);
    });
    t.mock.method(Session.prototype, "together", function (this: Session, ...[before, statements]: Parameters<typeof together>) {
      texts.push(...statements.map(({ text }) => text));
      return together.call(this, before, statements);
    });
    /** How many statements have read counters, or what is parked there. */
    const reads = () => texts.splice(0).filter((text) => text.includes("asked_rule")).length;
    try {
      await one.enqueue(Array.from({ length: 600 }, (_, i) => newJob({ declares, limitKeys: [`key-${i % 60}`] })));
      assert.equal(await turn(one), 60);
      reads();
      for (let i = 0; i < 3; i++) assert.equal(await turn(one), 60);
      assert.equal(reads(), 0, "it is as it was left");
      assert.equal(await turn(two), 60);
      reads();
      assert.equal(await turn(one), 60);
      assert.ok(reads() > 0, "another process has changed it");
      // Alone again, it reads further ahead.
      assert.equal(await turn(one), 60);
      reads();
      assert.equal(await turn(one), 60);
      assert.equal(reads(), 0, "no other process has changed it since");
    } finally {
      t.mock.restoreAll();
      await handles.close();
    }
  });

  test("a start or settle of another process counts for a process with cached counts", async () => {
    const handles = await openHandles(server, 2);
    const [one, two] = handles.stores as [PostgresStore, PostgresStore];
    try {
      const declares = atOnce(2);
      await add(one, ...Array.from({ length: 6 }, () => ({ declares, limitKeys: ["a"] })));
      const first = await claim(one);
      assert.equal(first.length, 2);
      await two.settle(first.map(({ job, fence }) => ({ job, fence, outcome: SUCCEEDED })));
      const next = await claim(one);
      assert.equal(next.length, 2, "their places are free");
      await two.settle(next.slice(1).map(({ job, fence }) => ({ job, fence, outcome: SUCCEEDED })));
      const last = await claim(two);
      assert.equal(last.length, 1);
      assert.equal((await claim(one)).length, 0, "two run");
      await checkRows(handles);
      await one.settle([...next.slice(0, 1), ...last].map(({ job, fence }) => ({ job, fence, outcome: SUCCEEDED })));
      assert.equal((await claim(one)).length, 1);
      await checkRows(handles);
    } finally {
      await handles.close();
    }
  });

  test("rolled back decisions are not remembered", async () => {
    const handles = await openHandles(server, 1);
    const [store] = handles.stores as [PostgresStore];
    try {
      const declares = atOnce(2);
      await add(store, ...Array.from({ length: 6 }, () => ({ declares, limitKeys: ["a"] })));
      await handles.query(
        `create function test_refuse() returns trigger language plpgsql as $$ begin raise 'no'; end $$;
         create trigger test_refuse before insert on claims for each row execute function test_refuse();`,
      );
      await assert.rejects(claim(store));
      await handles.query("drop trigger test_refuse on claims");
      assert.equal((await claim(store)).length, 2, "none of them had started");
      await checkRows(handles);
    } finally {
      await handles.close();
    }
  });

  test("a job does not wait for a job that ends at the same instant", async () => {
    const handles = await openHandles(server, 1);
    const [store] = handles.stores as [PostgresStore];
    try {
      const [id] = (await add(store, { declares: atOnce(2), limitKeys: ["a"] })) as [string];
      const upstream = await claimOne(store);
      await add(store, { after: [id] });
      const [wait] = await handles.query("delete from waits returning job, upstream");
      const bystander = await handles.bystander();
      await bystander.query(`select 1 from jobs where key = ${wait?.["upstream"]} for update`);
      await bystander.query(`insert into waits (job, upstream) values (${wait?.["job"]}, ${wait?.["upstream"]})`);
      const settled = settle(store, upstream, SUCCEEDED);
      await handles.blocked(1);
      await bystander.end("commit");
      await settled;
      assert.equal((await claim(store)).length, 1, "it comes after nothing any more");
    } finally {
      await handles.close();
    }
  });

  test("a limit raised while others park jobs by the old one lets them start", async () => {
    const handles = await openHandles(server, 3);
    try {
      const [one, two, three] = handles.stores as Store[] as [Store, Store, Store];
      const old = atOnce(1);
      await add(one, { declares: old, limitKeys: ["a"] });
      const held = await claimOne(one);
      // It has said so, too; from now on it is an old word.
      await add(three, { declares: old, limitKeys: ["a"] });
      for (let round = 2; round < 12; round++) {
        const jobs = () => [newJob({ declares: old, limitKeys: ["a"] })];
        await Promise.all([one.enqueue(jobs()), two.queues.declare([atOnce(round)]), three.enqueue(jobs()), one.enqueue(jobs())]);
        const started = await claimIds(two);
        assert.equal(started.length, 1, `one more may run than before, round ${round}`);
      }
      await settle(one, held, SUCCEEDED);
      assert.equal((await claim(three)).length, 1);
    } finally {
      await handles.close();
    }
  });
});

/** What was held is settled, and the next are claimed, in one turn: one transaction, which needs the locks of all its queues. */
async function work(store: Store, random: Random): Promise<void> {
  const held: Claimed[] = [];
  for (let turn = 0; turn < TURNS; turn++) {
    const settling = held.splice(0, random.int(0, held.length));
    const calls: Promise<unknown>[] = [
      store.settle(
        settling.map(({ job, fence, queue }) => {
          const outcome = random.pick(OUTCOMES);
          return { job, fence, outcome, followUps: outcome === SUCCEEDED ? [anyJob(random, queue)].slice(random.int(0, 1)) : [] };
        }),
      ),
      store.enqueue(Array.from({ length: random.int(0, 3) }, () => anyJob(random))),
      claim(store, { max: random.int(1, 4) }).then((claimed) => held.push(...claimed)),
    ];
    if (random.next() < 0.3) calls.push(cancelOne(store, random));
    await Promise.all(calls);
  }
  await store.settle(held.map(({ job, fence }) => ({ job, fence, outcome: SUCCEEDED })));
}

/** How many were claimed and settled. */
async function turn(store: Store): Promise<number> {
  const claimed = await claim(store, { max: 60 });
  await store.settle(claimed.map(({ job, fence }) => ({ job, fence, outcome: SUCCEEDED })));
  return claimed.length;
}

function atOnce(concurrency: number): Declaration {
  return declaring([limitRule({ concurrency })]);
}

async function cancelOne(store: Store, random: Random): Promise<void> {
  const { items } = await store.queries.list({ state: "pending", limit: 20 });
  if (items.length > 0) await store.cancel(random.pick(items).id);
}

/** Of another queue than this one. */
function anyJob(random: Random, not?: string): NewJob {
  const declares = random.pick(LIMITS.filter(({ queue }) => queue !== not));
  const { queue, name } = declares;
  return newJob({ queue, name, declares, limitKeys: [random.pick(["a", "b", "c"]), ""], priority: random.int(0, 1) });
}

async function workOff(store: Store): Promise<void> {
  for (;;) {
    const held = await claim(store);
    await store.settle(held.map(({ job, fence }) => ({ job, fence, outcome: SUCCEEDED })));
    const { waiting, pending, running } = await countJobs(store.queries);
    if (waiting + pending + running === 0) return;
  }
}

/** A transaction that starts one job too many of a queue is recorded by that transaction. */
async function witness({ query }: Handles): Promise<void> {
  await query(
    `create table test_over (key bigint not null);
     create function test_over() returns trigger language plpgsql as $$ begin
       insert into test_over select new.key where (select count(*) from jobs where state = 'running' and lane = new.lane) > 3
         or (select count(*) from jobs where state = 'running' and limits = new.limits) > 2;
       return null;
     end $$ set search_path from current;
     create trigger test_limit after update of state on jobs for each row when (new.state = 'running') execute function test_over();`,
  );
}
