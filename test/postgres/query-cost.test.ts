import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { JOB_STATES } from "../../src/core/jobs/job.ts";
import { systemClock } from "../../src/engine/host.ts";
import { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import type { Store } from "../../src/store/store.ts";
import { add, claim, claimIds, declaring, LEASE, limitRule, newJob } from "../conformance/parts.ts";
import { firstOf } from "../selection.ts";
import { until } from "./handles.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";

/** Finished jobs before and after the few that are not. */
const HISTORY = 20_000;
const LOOKS: Record<string, (store: Store) => Promise<unknown>> = {
  "a list": (store) => store.queries.list({ limit: 20 }),
  ...Object.fromEntries(
    JOB_STATES.map((state) => [`a list of what is ${state}`, (store: Store) => store.queries.list({ state, limit: 20 })]),
  ),
  "a list of what is pending in a queue": (store) => store.queries.list({ state: "pending", queue: "work", limit: 20 }),
  "the second page of what is pending": async (store) => {
    const { next } = await store.queries.list({ state: "pending", limit: 5 });
    return store.queries.list({ state: "pending", limit: 5, after: next as string });
  },
  counts: (store) => store.queries.overview(),
  "an outlook": (store) => store.outlook([{ lease: LEASE }]),
  "a look whether something need not be kept": (store) => store.prune({ expired: { minAge: 0 }, limit: 100 }),
};

describe("what a query reads on PostgreSQL", { skip: noServer }, () => {
  let server: PostgresServer;
  let url: string;
  const open = () => PostgresStore.open(url, { clock: systemClock, injected: false, random: Math.random });
  before(async () => {
    server = await startServer();
    url = await server.createDatabase();
    const store = await open();
    await store.enqueue([newJob(), newJob({ name: "rare" })]);
    await store.close();
    const finished = `
      insert into holdfast.jobs (state, lane, priority, policy, run_at, created_at, started_at, finished_at)
      select case when n % 100 = 0 then 'failed' else 'succeeded' end, 1, n % 5, 1, n, n, n, n from generate_series(1, ${HISTORY}) as n`;
    await server.query(
      `${finished};
       insert into holdfast.jobs (state, lane, priority, policy, run_at, created_at, gate, crashes, expires_at, lease)
       select state, 1 + n % 2, n % 3, 1, 9e15, n, gate, crashes, expires_at, 1 from generate_series(1, 15) as n, (values
         ('pending', null, 0, null), ('pending', null, 1, null), ('pending', 'time', 0, null), ('running', null, 0, 1),
         ('waiting', null, 0, null)) as kind (state, gate, crashes, expires_at);
       ${finished}`,
      url,
    );
  });
  after(() => server.close());

  for (const analysed of [false, true]) {
    describe(`is never history, ${analysed ? "as the planner knows the table" : "before the planner knows the table"}`, () => {
      before(async () => void (analysed && (await server.query("analyze holdfast.jobs", url))));

      for (const [turn, [name, look]] of Object.entries(LOOKS).entries()) {
        test(name, firstOf(2, turn + Number(analysed)), async () => {
          const read = await readBy(look);
          assert.ok(read < 500, `${read} rows and entries were read of ${2 * HISTORY}`);
        });
      }
    });
  }

  test("a claim past a key with thousands of parked jobs reads no more than past one with hundreds", async (t) => {
    const declares = declaring([limitRule({ concurrency: 2 })]);
    const waiting = (count: number, key: string) => Array.from({ length: count }, () => newJob({ declares, limitKeys: [key] }));
    const reads: number[] = [];
    for (const pending of [200, 10_000]) {
      url = await server.createDatabase();
      const store = await open();
      for (let left = pending; left > 0; left -= 1_000) await store.enqueue(waiting(Math.min(left, 1_000), "great"));
      const others = await Promise.all(Array.from({ length: 10 }, (_, n) => add(store, ...waiting(1, `other ${n}`))));
      assert.equal((await claim(store, { max: 2 })).length, 2);
      await store.close();
      reads.push(await readBy(async (claimant) => assert.deepEqual(await claimIds(claimant, { max: 10 }), others.flat())));
    }
    const [few, many] = reads as [number, number];
    t.diagnostic(`${few} rows and entries past 200, ${many} past 10,000`);
    assert.ok(many <= 1.5 * few, `${many} rows and entries were read, and ${few} past a fiftieth of it`);
  });

  for (const [name, look] of Object.entries<(store: Store) => Promise<unknown>>({
    "an outlook": (store) => store.outlook([{ lease: LEASE }]),
    "a claim": (store) => claim(store),
    // From the second on by one statement.
    "a claim like the one before": async (store) => {
      for (let n = 0; n < 2; n++) assert.deepEqual(await claim(store, { from: [{ name: "work", lease: LEASE }] }), []);
    },
    "a claim of a queue with limits": async (store) => {
      await store.queues.declare([declaring([limitRule({ concurrency: 2 })], { queue: "work", name: "work" })]);
      assert.deepEqual(await claim(store), []);
    },
    "a claim of two lanes": async (store) => {
      for (let n = 0; n < 2; n++) assert.deepEqual(await claim(store, { from: [{ queue: "work", lease: LEASE }] }), []);
    },
  })) {
    test(`${name} that finds nothing reads next to nothing, where the planner last saw a table full of it`, async () => {
      url = await server.createDatabase();
      const store = await open();
      for (let n = 0; n < 5; n++) await store.enqueue(Array.from({ length: 1_000 }, () => newJob()));
      // Of each lane some that no worker can have yet.
      for (const name of ["work", "other"])
        await store.enqueue(Array.from({ length: 1_000 }, () => newJob({ name, queue: "work", delay: 3_600_000 })));
      await store.close();
      await server.query("analyze holdfast.jobs", url);
      await server.query("update holdfast.jobs set state = 'succeeded' where gate is null", url);
      await server.query("vacuum holdfast.jobs", url);
      const read = await readBy(look);
      assert.ok(read < 500, `${read} rows and entries were read of 7,000`);
    });
  }

  /** How many rows, and entries of indexes, are read; told by a connection when it ends. */
  async function readBy(look: (store: Store) => Promise<unknown>): Promise<number> {
    const before = await readSoFar();
    const store = await open();
    await look(store);
    await store.close();
    await until(async () => {
      const connected = `select 1 from pg_stat_activity where datname = current_database() and application_name like 'holdfast%'`;
      return (await server.query(connected, url)).length === 0;
    }, "no client is connected");
    return (await readSoFar()) - before;
  }

  async function readSoFar(): Promise<number> {
    const [row] = await server.query(
      `select (select sum(seq_tup_read) from pg_stat_user_tables) + (select sum(idx_tup_read) from pg_stat_user_indexes) as n`,
      url,
    );
    return Number(row?.["n"]);
  }
});
