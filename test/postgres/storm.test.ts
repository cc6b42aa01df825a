import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { FINISHED_STATES } from "../../src/core/jobs/job.ts";
import type { Outcome } from "../../src/core/jobs/retry.ts";
import { verifyAudit } from "../../src/engine/maintenance/check.ts";
import type { Claimed, NewJob, Store } from "../../src/store/store.ts";
import { claim, declaring, ERROR, LEASE, limitRule, newJob } from "../conformance/parts.ts";
import { misjudged } from "../conformance/postgres-store.ts";
import { Random } from "../simulation/random.ts";
import { agree, type Handles, openHandles } from "./handles.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";
import { SEEDS } from "../seeds.ts";
import { LONG } from "../selection.ts";

const HANDLES = 4;
const ROUNDS = LONG ? 250 : 13;
/** What the definition of one of the jobs says: two of each key at once. */
const LIMITED = declaring([limitRule({ concurrency: 2 })], { queue: "q0", name: "n2" });
/** One object, as a definition has: else each job is looked up before it goes in. */
const POLICY = newJob({ policy: { attempts: 2, crashes: 2 } }).policy;
const OUTCOMES: Outcome[] = [
  { kind: "succeeded", output: null },
  { kind: "error", error: ERROR, delay: 0 },
  { kind: "error", error: ERROR, retry: false },
  { kind: "unreadable", error: ERROR },
  { kind: "released" },
  { kind: "crashed" },
];

describe("a storm of operations from several handles", { skip: noServer }, () => {
  let server: PostgresServer;
  before(async () => void (server = await startServer()));
  after(() => server.close());

  for (const seed of SEEDS) {
    test(`a storm of operations leaves counts that match the rows, and no job that waits for ever (HOLDFAST_SEED=${seed})`, async () => {
      const random = new Random(seed);
      const handles = await openHandles(server, HANDLES, () => random.next());
      try {
        await Promise.all(handles.stores.map((store, n) => rage(store, new Random(seed, n + 1))));
        await hold(handles);
      } finally {
        await handles.close();
      }
    });
  }
});

/** Several calls in each turn, which share a transaction; others' transactions run beside it. */
async function rage(store: Store, random: Random): Promise<void> {
  const held: Claimed[] = [];
  const some = async () => (await store.queries.list({ limit: 30 })).items;
  const acts: (() => Promise<unknown>)[] = [
    async () => store.enqueue(Array.from({ length: random.int(1, 5) }, () => anyJob(random, []))),
    async () => {
      const jobs = await some();
      await store.enqueue([anyJob(random, jobs.length === 0 ? [] : [random.pick(jobs).id, random.pick(jobs).id])]);
    },
    async () => held.push(...(await claim(store, { max: random.int(1, 6) }))),
    // From a queue without limits, which takes one statement.
    async () => held.push(...(await claim(store, { from: [{ queue: "q1", lease: LEASE }], max: random.int(1, 3) }))),
    async () => {
      const ended = held.splice(0, random.int(1, 4));
      await store.settle(ended.map(({ job, fence }) => ({ job, fence, outcome: random.pick(OUTCOMES) })));
    },
    async () => {
      const jobs = await some();
      if (jobs.length > 0) await store.cancel(random.pick(jobs).id);
    },
    async () => {
      const jobs = (await some()).filter(({ state }) => state === "failed" || state === "quarantined");
      if (jobs.length > 0) await store.retry(random.pick(jobs).id);
    },
    () => store.prune({ state: random.pick(FINISHED_STATES), limit: random.int(1, 3) }),
    () => store.prune({ expired: { minAge: 0 }, limit: random.int(1, 5) }),
    () => {
      const keep = random.chance(0.5) ? { succeeded: { count: random.int(0, 4) } } : {};
      return store.queues.declare([declaring([], { queue: "q0", name: "n0", settings: { events: random.chance(0.5), keep } })]);
    },
  ];
  for (let round = 0; round < ROUNDS; round++) {
    await Promise.all(Array.from({ length: random.int(1, 4) }, () => random.pick(acts)()));
  }
}

function anyJob(random: Random, after: string[]): NewJob {
  const n = random.int(0, 2);
  const job = newJob({
    name: `n${n}`,
    queue: `q${n % 2}`,
    priority: random.int(0, 2),
    ...(random.chance(0.3) && { key: `k${random.int(0, 3)}` }),
    ...(n === 2 && { declares: LIMITED, limitKeys: [`l${random.int(0, 1)}`] }),
    ...(random.chance(0.2) && { id: `id${random.int(0, 50)}` }),
    ...(after.length > 0 && { after: [...new Set(after)] }),
  });
  return { ...job, policy: POLICY };
}

async function hold(handles: Handles): Promise<void> {
  for (const store of handles.stores) {
    await agree(handles, store);
    assert.equal((await verifyAudit(store)).fault, null, "the audit is one chain");
  }
  const none = async (what: string, text: string) => assert.deepEqual(await handles.query(text), [], what);
  const unfinished = "state in ('waiting', 'pending', 'running')";
  await none(
    "each lane and state counts what is there",
    `select lane, state, coalesce(told, 0) as told, coalesce(there, 0) as there
     from (select lane, state, sum(n)::int as told from tally group by lane, state) as tally
     full join (select lane, state, count(*)::int as there from jobs where not ${unfinished} group by lane, state) as rows
       using (lane, state)
     where coalesce(told, 0) <> coalesce(there, 0)`,
  );
  await none(
    "who waits, waits for something unfinished",
    `select key from jobs as job where state = 'waiting' and not exists (
       select 1 from waits join jobs as upstream on upstream.key = upstream
       where waits.job = job.key and upstream.${unfinished})`,
  );
  await none(
    "a job that does not wait is in no list of waiting jobs",
    `select * from waits join jobs as job on job.key = waits.job where job.state <> 'waiting'`,
  );
  await none("what the claims say runs is what runs", misjudged(handles.schema));
  await none("finished is what has an end", `select key from jobs where (finished_at is null) <> (${unfinished})`);
  await none(
    "a key has one unfinished job",
    `select slot from jobs where ${unfinished} group by slot having count(*) > 1 and slot is not null`,
  );
  await none(
    "a limit counts what runs and what is parked, and lets no more run than may",
    `select * from (
       select coalesce(sum(running), 0)::int as running, coalesce(sum(parked), 0)::int as parked from counters) as counted,
       (select count(*)::int as running from jobs where state = 'running' and limits is not null) as rows,
       (select count(*)::int as parked from jobs where gate = 'limit') as gates,
       (select count(*)::int as parked from parked join jobs on key = job and gate = 'limit') as listed
     where counted.running <> rows.running or counted.parked <> gates.parked or gates.parked <> listed.parked
     union all
     select sum(running)::int, 0, 0, 0, 0 from counters group by rule, key having sum(running) > 2`,
  );
  await none(
    "an id that was chosen is known for ever",
    `select id from jobs where id is not null and id not in (select id from ids)`,
  );
}
