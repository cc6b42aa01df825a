import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import type { Outcome } from "../../src/core/jobs/retry.ts";
import { verifyAudit } from "../../src/engine/maintenance/check.ts";
import type { Claimed, Declaration, NewJob, Store } from "../../src/store/store.ts";
import { claim, declaring, ERROR, limitRule, newJob, SUCCEEDED, breakLock } from "../conformance/parts.ts";
import { SEEDS } from "../seeds.ts";
import { LONG } from "../selection.ts";
import { LimitRows, rowsOfSchema } from "../limits/rows.ts";
import { Random } from "../simulation/random.ts";
import { agree, openHandles } from "./handles.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";
import { countJobs } from "../../src/store/queries.ts";

const HANDLES = 4;
const TURNS = LONG ? 500 : 15;
/** Some with limits, some without, so that locks of queues are wanted before, between and after others. */
const LIMITED = ["a", "c", "e"].map((queue) =>
  declaring([limitRule({ of: "queue", keyed: false, concurrency: 40 })], {
    queue,
    name: queue,
    settings: { events: false, keep: {} },
  }),
);
const FREE = ["b", "d"];
const OUTCOMES: Outcome[] = [
  SUCCEEDED,
  SUCCEEDED,
  SUCCEEDED,
  { kind: "released" },
  { kind: "error", error: ERROR, retry: false },
];

describe("concurrent operations never deadlock", { skip: noServer }, () => {
  let server: PostgresServer;
  before(async () => void (server = await startServer({ settings: { deadlock_timeout: "100ms" } })));
  after(() => server.close());

  const deadlocks = async () => {
    const [row] = await server.query("select deadlocks from pg_stat_database where datname = current_database()");
    return Number(row?.["deadlocks"]);
  };

  const storms = {
    "chains over queues with limits, each turn a transaction": chains,
    "jobs that come after two of other queues, each queue with workers of its own": joins,
    "chains, new names, new words, cancels and retries, in any order": anything,
    "acts that are written down, several in each transaction": acts,
  };
  for (const [what, act] of Object.entries(storms)) {
    for (const seed of SEEDS)
      test(`${what} (HOLDFAST_SEED=${seed})`, async (t) => {
        const random = new Random(seed);
        const handles = await openHandles(server, HANDLES, () => random.next());
        try {
          const before = await deadlocks();
          const first = handles.stores[0] as Store;
          await first.queues.declare(LIMITED);
          const since = performance.now();
          await Promise.all(handles.stores.map((store, n) => act(store, new Random(seed, n + 1), n)));
          t.diagnostic(`${Math.round(performance.now() - since)} ms`);
          for (const queue of FREE) await first.queues.setPaused(queue, false);
          await workOff(first);
          await agree(handles, first);
          assert.deepEqual((await verifyAudit(first)).fault, null, "the audit is one chain");
          const rows = new LimitRows(rowsOfSchema(server.url(), handles.schema));
          await rows.check(Date.now(), false);
          await rows.close();
          await handles.close();
          assert.equal((await deadlocks()) - before, 0, "there was no deadlock");
        } finally {
          await handles.close();
        }
      });
  }
});

/** What was held is settled, a pair is added of which one comes after the other, and the next are claimed: one turn. */
async function chains(store: Store, random: Random): Promise<void> {
  let held: Claimed[] = [];
  for (let turn = 0; turn < TURNS; turn++) {
    const settling = held;
    held = [];
    await Promise.all([
      store.settle(settling.map(({ job, fence }) => ({ job, fence, outcome: SUCCEEDED }))),
      store.enqueue(pair(random)),
      claim(store, { max: random.int(1, 6) }).then((claimed) => held.push(...claimed)),
    ]);
  }
  await store.settle(held.map(({ job, fence }) => ({ job, fence, outcome: SUCCEEDED })));
}

/** Each handle works on one queue, and its settles free jobs of another queue, which another handle's settles may free, too. */
async function joins(store: Store, random: Random, n: number): Promise<void> {
  const from = [{ queue: LIMITED[n % LIMITED.length]?.queue as string, lease: 30_000 }];
  let held: Claimed[] = [];
  for (let turn = 0; turn < TURNS; turn++) {
    const settling = held;
    held = [];
    await Promise.all([
      store.settle(settling.map(({ job, fence }) => ({ job, fence, outcome: SUCCEEDED }))),
      claim(store, { from, max: 10 }).then((claimed) => held.push(...claimed)),
    ]);
    await store.enqueue(Array.from({ length: 4 }, () => join(random)).flat());
  }
  await store.settle(held.map(({ job, fence }) => ({ job, fence, outcome: SUCCEEDED })));
}

async function anything(store: Store, random: Random): Promise<void> {
  const held: Claimed[] = [];
  const some = async () => (await store.queries.list({ limit: 50 })).items;
  const acts: (() => Promise<unknown>)[] = [
    () => store.enqueue(pair(random)),
    // A lane that no process knows yet.
    () => store.enqueue([{ ...pair(random)[0], version: random.int(2, 30) }]),
    async () => {
      const jobs = await some();
      const after = jobs.length === 0 ? [] : [random.pick(jobs).id, random.pick(jobs).id];
      await store.enqueue([{ ...anyJob(random), after }, anyJob(random)]);
    },
    async () => held.push(...(await claim(store, { max: random.int(1, 6) }))),
    () => settleSome(store, held, random),
    () => settleSome(store, held, random),
    async () => {
      const jobs = await some();
      if (jobs.length > 0) await store.cancel(random.pick(jobs).id);
    },
    async () => {
      const jobs = (await store.queries.list({ state: "failed", limit: 20 })).items;
      if (jobs.length > 0) await store.retry(random.pick(jobs).id);
    },
    async () => {
      const { queue } = random.pick(LIMITED);
      const rule = limitRule({ of: "queue", keyed: false, concurrency: random.int(30, 50) });
      await store.queues.declare([declaring([rule], { queue, name: queue, settings: { events: false, keep: {} } })]);
    },
    () => store.prune({ state: "succeeded", limit: 5 }),
    // An audit entry locks the head of the audit, which every operation wants.
    () => store.queues.setPaused(random.pick(FREE), true),
    () => store.queues.setPaused(random.pick(FREE), false),
    () => breakLock(store, "held"),
    () => store.locks.acquire("held", "anna", String(random.next()), 1_000),
  ];
  for (let turn = 0; turn < TURNS; turn++) {
    await Promise.all(Array.from({ length: random.int(1, 4) }, () => random.pick(acts)()));
  }
  await store.settle(held.map(({ job, fence }) => ({ job, fence, outcome: SUCCEEDED })));
}

/** Rows in any order: locks, schedules, sinks and pauses; and the head of the audit, which all want. */
async function acts(store: Store, random: Random): Promise<void> {
  const when = { cron: "0 * * * *", timezone: "UTC", missed: "once", within: null, overlap: true } as const;
  const one = (name: string): (() => Promise<unknown>)[] => [
    () => store.locks.acquire(name, "anna", `${random.next()}`, 60_000),
    () => store.locks.acquire(name, "anna", `${random.next()}`, 1),
    () => breakLock(store, name),
    () => store.locks.clean(),
    () => store.schedules.save({ key: name, ...when, template: newJob({ name }), nextAt: Date.now() + 3_600_000 }),
    () => store.schedules.update(name, "paused"),
    () => store.schedules.trigger(name),
    () => store.schedules.update(name, "removed"),
    () => store.events.position({ name, kind: "file" }),
    () => store.events.dropSink(name),
    () => store.queues.setPaused(name, true),
    () => store.queues.setPaused(name, false),
  ];
  for (let turn = 0; turn < TURNS * 2; turn++) {
    const some = Array.from({ length: random.int(1, 4) }, () => random.pick(["w", "x", "y", "z"]));
    await Promise.all(some.map((name) => random.pick(one(name))()));
  }
  // A lock of its name keeps a queue closed.
  for (const name of ["w", "x", "y", "z"]) await Promise.all([store.queues.setPaused(name, false), breakLock(store, name)]);
}

async function settleSome(store: Store, held: Claimed[], random: Random): Promise<void> {
  const settling = held.splice(0, random.int(1, 5));
  await store.settle(
    settling.map(({ job, fence }) => {
      const outcome = random.pick(OUTCOMES);
      return { job, fence, outcome, followUps: outcome === SUCCEEDED && random.chance(0.3) ? [anyJob(random)] : [] };
    }),
  );
}

let pairs = 0;

/** The second comes after the first, most often in another queue. */
function pair(random: Random): [NewJob, NewJob] {
  const id = nextId(random);
  return [
    { ...anyJob(random), id },
    { ...anyJob(random), after: [id] },
  ];
}

/** The last comes after the two others, each in a queue of its own. */
function join(random: Random): NewJob[] {
  const first = random.pick(LIMITED);
  const others = LIMITED.filter((one) => one !== first);
  const ids = others.map(() => nextId(random));
  const ups = others.map((declares, i) => limitedJob(declares, { id: ids[i] as string }));
  return [...ups, limitedJob(first, { after: ids })];
}

function nextId(random: Random): string {
  return `up-${++pairs}-${random.int(0, 1_000_000_000)}`;
}

function anyJob(random: Random): NewJob {
  const declares = random.pick([...LIMITED, ...LIMITED, ...FREE]);
  return typeof declares === "string" ? newJob({ queue: declares, name: declares }) : limitedJob(declares);
}

function limitedJob(declares: Declaration, given: Pick<NewJob, "id" | "after"> = {}): NewJob {
  const { queue, name } = declares;
  return newJob({ queue, name, declares, limitKeys: [""], ...given });
}

async function workOff(store: Store): Promise<void> {
  for (;;) {
    const held = await claim(store);
    await store.settle(held.map(({ job, fence }) => ({ job, fence, outcome: SUCCEEDED })));
    const { waiting, pending, running } = await countJobs(store.queries);
    if (waiting + pending + running === 0) return;
  }
}
