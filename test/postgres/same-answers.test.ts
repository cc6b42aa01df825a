import assert from "node:assert/strict";
import { after, before, describe, test, type TestContext } from "node:test";
import postgres from "postgres";
import type { Outcome } from "../../src/core/jobs/retry.ts";
import { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import type { Claimed, ClaimRequest, Enqueued, NewJob, Store } from "../../src/store/store.ts";
import { testClock, type TestClock } from "../../src/testing/index.ts";
import { declaring, ERROR, LEASE, limitRule, newJob, POLICY, breakLock } from "../conformance/parts.ts";
import { misjudged } from "../conformance/postgres-store.ts";
import { SEEDS } from "../seeds.ts";
import { LONG } from "../selection.ts";
import { Random } from "../simulation/random.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";

const STORIES = LONG ? 30 : 2;
const STEPS = 100;
const NAMES = ["x", "y", "z"];
const QUEUES = ["a", "b", "c"];
/** One object each, as definitions have: else nothing ever goes in by one statement. */
const POLICIES = [POLICY, { ...POLICY, attempts: 2, crashes: 2, delay: 0 }];
const LIMITED = declaring([limitRule({ concurrency: 1 })], { queue: "c", name: "z" });
/** From the first three on nothing has to be waited for. */
const OUTCOMES: Outcome[] = [
  { kind: "succeeded", output: '"done"' },
  { kind: "succeeded", output: null },
  { kind: "released" },
  { kind: "error", error: ERROR },
  { kind: "error", error: ERROR, retry: false },
  { kind: "crashed" },
];

/** One of two worlds in which the same is done. */
interface World {
  store: Store;
  clock: TestClock;
  /** A call by itself, or together with another one, which does nothing. */
  call<T>(act: () => Promise<T>): Promise<T>;
  /** What was made, in its order: ids and fences need not be the same. */
  ids: string[];
  held: Claimed[];
  rows(): Promise<unknown>;
  /** Whether what was written since the last time was one statement. */
  wasLone(): Promise<boolean>;
}

describe("calls that are one statement, and the same calls in a longer transaction", { skip: noServer }, () => {
  let server: PostgresServer;
  before(async () => void (server = await startServer()));
  after(() => server.close());

  for (let story = 0; story < STORIES; story++) {
    // In the other half hardly anything happens that takes more than a statement.
    const isCalm = story % 2 === 0;
    const what = isCalm ? "where little else happens" : "whatever else happens";
    for (const seed of SEEDS)
      test(`single statements and longer transactions give the same answers and rows, ${what} (HOLDFAST_SEED=${seed}, ${story})`, async (t) => {
        const worlds = [await open(t, server, true), await open(t, server, false)] as const;
        const random = new Random(seed, story);
        let lone = 0;
        for (let step = 0; step < STEPS; step++) {
          const operation = anyOperation(random, worlds[0], isCalm);
          const answers = [await operation.act(worlds[0]), await operation.act(worlds[1])];
          assert.deepEqual(answers[0], answers[1], `step ${step}: ${operation.what}`);
          assert.deepEqual(await worlds[0].rows(), await worlds[1].rows(), `after step ${step}: ${operation.what}`);
          if (await worlds[0].wasLone()) lone++;
          assert.equal(await worlds[1].wasLone(), false);
        }
        t.diagnostic(`${lone} of ${STEPS} were one statement`);
        if (isCalm) assert.ok(lone > STEPS / 10, "or this test shows nothing");
      });
  }
});

async function open(t: TestContext, server: PostgresServer, isLone: boolean): Promise<World> {
  const url = await server.createDatabase();
  const clock = testClock();
  const store = await PostgresStore.open(url, { clock, injected: true, random: () => 0.5 });
  t.after(() => store.close());
  const sql = postgres(url, { max: 1, onnotice: () => {}, connection: { search_path: "holdfast" } });
  t.after(() => sql.end());
  let batch: unknown;
  return {
    store,
    clock,
    call: async (act) => (isLone ? act() : (await Promise.all([act(), store.settle([])]))[0]),
    ids: [],
    held: [],
    async rows() {
      assert.deepEqual([...(await sql.unsafe(misjudged("holdfast")))], [], "what the claims say runs is what runs");
      return [...(await sql.unsafe(ROWS).values())];
    },
    async wasLone() {
      const [row] = await sql`select batch, made is not null as lone from receipts order by batch desc limit 1`;
      const before = batch;
      batch = row?.["batch"];
      return batch !== before && row?.["lone"] === true;
    },
  };
}

/** Keys and fences by their order only. */
const ROWS = `
  select rank() over (order by key) as nth, state, gate, lane.queue, lane.name, lane.version, priority, policy.body as policy, run_at,
    created_at, attempt, errors, crashes, quiet, ready, suspect, holder, lease, expires_at, started_at, finished_at, worker, limits,
    case when job.id is null then null else 'chosen ' || job.id end as id, slot, input, output, error,
    case when fence > 0 then dense_rank() over (order by fence) end as fence
  from jobs as job join lanes as lane on lane.id = job.lane join policies as policy on policy.id = job.policy order by key`;

interface Operation {
  what: string;
  act(world: World): Promise<unknown>;
}

function anyOperation(random: Random, { ids, held }: World, isCalm: boolean): Operation {
  const calm: { weight: number; value: () => Operation }[] = [
    { weight: 10, value: () => enqueue([{ ...plainJob(random), delay: 0 }]) },
    { weight: 8, value: () => claim(random, isCalm ? 0 : 0.05) },
    { weight: 4, value: () => settle(random, held, isCalm ? OUTCOMES.slice(0, 3) : OUTCOMES) },
    { weight: 1, value: () => enqueue(Array.from({ length: random.int(2, 5) }, () => ({ ...plainJob(random), delay: 0 }))) },
    { weight: 3, value: () => enqueue(kin(random)) },
    { weight: 2, value: () => enqueueApart(kin(random)) },
    { weight: 1, value: () => passTime(random.int(1, 100)) },
    { weight: 1, value: () => pause(random.pick(QUEUES), random.chance(0.3)) },
  ];
  const uneasy: typeof calm = [
    { weight: 4, value: () => enqueue([plainJob(random)]) },
    { weight: 2, value: () => enqueue([oddJob(random)]) },
    { weight: 1, value: () => enqueueAfter(random, ids) },
    { weight: 3, value: () => passTime(random.pick([1, 50, 200, 1_000, 5_000])) },
    { weight: 1, value: () => lock(random.pick(QUEUES), random.chance(0.4)) },
    { weight: 1, value: () => tell(random.chance(0.5)) },
    { weight: 1, value: () => cancel(random, ids) },
  ];
  return random.weighted(isCalm ? calm : [...calm, ...uneasy])();
}

function enqueue(jobs: NewJob[]): Operation {
  return {
    what: `enqueue ${JSON.stringify(jobs)}`,
    async act({ store, call, ids }) {
      return (await call(() => store.enqueue(jobs))).map((answer) => added(answer, ids));
    },
  };
}

/** Each with a call of its own, at the same instant. */
function enqueueApart(jobs: NewJob[]): Operation {
  return {
    what: `enqueue apart ${JSON.stringify(jobs)}`,
    async act({ store, call, ids }) {
      const answers = await call(() => Promise.all(jobs.map((job) => store.enqueue([job]))));
      return answers.flat().map((answer) => added(answer, ids));
    },
  };
}

function added(answer: Enqueued, ids: string[]): unknown {
  const { id, ...rest } = answer;
  if (!ids.includes(id)) ids.push(id);
  return { nth: ids.indexOf(id), ...rest };
}

function enqueueAfter(random: Random, made: readonly string[]): Operation {
  const job = plainJob(random);
  const nth = random.int(0, Math.max(0, made.length - 1));
  if (made.length === 0) return enqueue([job]);
  return {
    what: `enqueue after ${nth}`,
    async act({ store, call, ids }) {
      return (await call(() => store.enqueue([{ ...job, after: [ids[nth] as string] }]))).map((answer) => added(answer, ids));
    },
  };
}

function claim(random: Random, exclusive: number): Operation {
  const request: ClaimRequest = {
    from: sources(random),
    max: random.pick([1, 1, 2, 3, 6, 20]),
    holder: null,
    worker: "tester",
    ...(random.chance(exclusive) && { exclusive: `token ${random.next()}` }),
  };
  return {
    what: `claim ${JSON.stringify(request)}`,
    async act({ store, call, ids, held }) {
      const claimed = await call(() => store.claim(request));
      held.push(...claimed);
      return claimed.map((one) => Object.assign({}, one, { job: 0, fence: 0, id: ids.indexOf(one.id) }));
    },
  };
}

function sources(random: Random): ClaimRequest["from"] {
  const lease = random.pick([LEASE, 1_000]);
  const source = (given: object) => {
    return Object.assign({ lease }, given, random.chance(0.3) ? { max: random.int(0, 3) } : {});
  };
  const kinds = [
    () => [source({})],
    () => [source({ queue: random.pick(QUEUES) })],
    () => random.some(QUEUES).map((queue) => source({ queue })),
    () => random.some(NAMES).map((name) => source({ name })),
    () => random.some(NAMES).map((name) => source({ name, version: random.int(1, 2) })),
  ];
  return random.pick(kinds)();
}

function settle(random: Random, held: readonly Claimed[], how: readonly Outcome[]): Operation {
  const n = random.int(1, 4);
  const outcomes = held.slice(0, n).map(() => random.pick(how));
  return {
    what: `settle ${JSON.stringify(outcomes)}`,
    act({ store, call, held }) {
      const ended = held.splice(0, n);
      return call(() => store.settle(ended.map(({ job, fence }, i) => ({ job, fence, outcome: outcomes[i] as Outcome }))));
    },
  };
}

function passTime(millis: number): Operation {
  return { what: `${millis} ms pass`, act: async ({ clock }) => clock.set(clock.now() + millis) };
}

function pause(queue: string, paused: boolean): Operation {
  const what = `${paused ? "pause" : "resume"} ${queue}`;
  return { what, act: ({ store, call }) => call(() => store.queues.setPaused(queue, paused)) };
}

function lock(name: string, taken: boolean): Operation {
  return {
    what: `${taken ? "lock" : "unlock"} ${name}`,
    act: ({ store, call }) => call(() => (taken ? store.locks.acquire(name, "me", "token", 500) : breakLock(store, name))),
  };
}

function tell(events: boolean): Operation {
  const declares = declaring([], { queue: "b", name: "x", settings: { events, keep: {} } });
  return { what: `events of b: ${events}`, act: ({ store, call }) => call(() => store.queues.declare([declares])) };
}

function cancel(random: Random, made: readonly string[]): Operation {
  const nth = random.int(0, Math.max(0, made.length - 1));
  return { what: `cancel ${nth}`, act: ({ store, call, ids }) => call(() => store.cancel(ids[nth] ?? "none")) };
}

function plainJob(random: Random): NewJob {
  return {
    ...newJob({ name: random.pick(NAMES), queue: random.pick(QUEUES) }),
    version: random.int(1, 2),
    priority: random.int(0, 2),
    policy: random.pick(POLICIES),
    input: anyInput(random),
    delay: random.pick([0, 0, 0, 100, 2_000]),
  };
}

/** Some that differ in nothing but their inputs. */
function kin(random: Random): NewJob[] {
  const job = { ...plainJob(random), delay: 0 };
  return Array.from({ length: random.int(2, 6) }, () => Object.assign({}, job, { input: anyInput(random) }));
}

function anyInput(random: Random): string | null {
  const inputs = [undefined, 1, "", "\n \\ \" '", "\u001e", "\u00e9\u{1f600}", { a: random.next() }, [null]];
  return JSON.stringify(random.pick(inputs)) ?? null;
}

/** With what has to be looked up, or decided about. */
function oddJob(random: Random): NewJob {
  const kinds: (() => Partial<NewJob>)[] = [
    () => ({ id: `id ${random.int(0, 5)}` }),
    () => ({ key: `key ${random.int(0, 2)}` }),
    () => ({ name: "z", queue: "c", declares: LIMITED, limitKeys: [`k${random.int(0, 1)}`] }),
    () => ({ runAt: random.pick([0, 4_000_000_000_000]) }),
  ];
  return { ...plainJob(random), ...random.pick(kinds)() };
}
