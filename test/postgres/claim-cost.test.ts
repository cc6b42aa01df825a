import assert from "node:assert/strict";
import { after, before, describe, test, type TestContext } from "node:test";
import postgres from "postgres";
import { systemClock } from "../../src/engine/host.ts";
import { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import { RELIED_SET } from "../../src/store/postgres/connection/session-settings.ts";
import { Session } from "../../src/store/postgres/connection/session.ts";
import type { ClaimSource } from "../../src/store/store.ts";
import { add, claim, SUCCEEDED, settle } from "../conformance/parts.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";

const FEW = 10;
/** Enough for a claim to ask first which lanes have jobs. */
const SOME = 100;
const MANY = 1_000;

describe("a claim of a worker with many definitions", { skip: noServer }, () => {
  let server: PostgresServer;
  before(async () => void (server = await startServer()));
  after(() => server.close());

  for (const [jobs, named] of [
    ["a job in every queue", (count: number) => Array.from({ length: count }, (_, i) => i)],
    ["one job", () => [FEW - 1]],
  ] as const) {
    test(`with ${jobs}, a claim costs as many bytes and pages for ${MANY} definitions as for ${FEW}, and one more statement`, async (t) => {
      const few = await cost(t, server, FEW, named(FEW));
      const some = await cost(t, server, SOME, named(SOME));
      const many = await cost(t, server, MANY, named(MANY));
      assert.deepEqual([few.claim.statements, few.outlook.statements], [1, 1]);
      assert.ok(many.claim.statements <= 2, `${many.claim.statements} statements`);
      assert.equal(many.outlook.statements, 1);
      for (const what of ["claim", "outlook"] as const) {
        assert.ok(many[what].bytes <= 2 * few[what].bytes, `${what}: ${many[what].bytes} bytes, not ${few[what].bytes}`);
        // Few definitions have another statement, which reads each lane.
        assert.ok(many[what].pages <= 2 * some[what].pages, `${what}: ${many[what].pages} pages, not ${some[what].pages}`);
      }
    });
  }

  test("claims of one job at a time reach each queue once before any of them twice", async (t) => {
    const all = Array.from({ length: SOME }, (_, i) => i);
    const { store, from } = await filled(t, server, SOME, [...all, ...all]);
    const seen: string[] = [];
    for (let i = 0; i < 2 * SOME; i++) seen.push((await claim(store, { from, max: 1 }))[0]?.queue ?? "nothing");
    for (const round of [seen.slice(0, SOME), seen.slice(SOME)]) assert.equal(new Set(round).size, SOME);
  });

  test("a claim takes jobs of other queues if another transaction holds the first ones", async (t) => {
    const { store, from, url } = await filled(t, server, SOME, [1, 2, 3]);
    const other = postgres(url, { max: 1, onnotice: () => {} });
    t.after(() => other.end());
    await other.unsafe("begin; select key from holdfast.jobs where state = 'pending' order by key limit 2 for update");
    assert.deepEqual(
      (await claim(store, { from, max: 1 })).map(({ name }) => name),
      ["job 3"],
    );
    await other.unsafe("rollback");
    assert.equal((await claim(store, { from, max: 5 })).length, 2);
  });

  test("a claim reads only new lanes after others have added definitions", async (t) => {
    const { store, from, url } = await filled(t, server, MANY, [1]);
    const another = await openAt(t, url);
    await add(another, { name: "first" });
    await store.outlook(from);
    const { mock } = t.mock.method(Session.prototype, "rows");
    for (let i = 0; i < FEW; i++) await add(another, { name: `new ${i}` });
    assert.equal((await claim(store, { from, max: 1 })).length, 1);
    await store.outlook(from);
    // A claim that does not know of them yet is refused, and made again.
    const answers = await Promise.allSettled(mock.calls.map(({ result }) => result));
    const rows = answers.flatMap((answer) => (answer.status === "fulfilled" ? (answer.value ?? []) : [])).length;
    assert.ok(rows < MANY, `${rows} rows`);
  });

  test("a claim finds a definition that another process added since, with its first job", async (t) => {
    const { store, url } = await filled(t, server, SOME, []);
    const from = [{ lease: 30_000 }];
    assert.deepEqual(await claim(store, { from }), []);
    const another = await openAt(t, url);
    await add(another, { name: "new" });
    assert.equal((await store.outlook(from)).ready, true);
    assert.equal((await claim(store, { from }))[0]?.name, "new");
  });
});

interface Cost {
  statements: number;
  /** Of their values. */
  bytes: number;
  /** That the server reads to run them again. */
  pages: number;
}

/** Of a claim of one job, and of the look of an idle worker, after the first of each has learnt the lanes. */
async function cost(
  t: TestContext,
  server: PostgresServer,
  count: number,
  jobs: readonly number[],
): Promise<{ claim: Cost; outlook: Cost }> {
  const { store, from, url } = await filled(t, server, count, [...jobs, ...jobs, ...jobs]);
  const [first] = await claim(store, { from, max: 1 });
  assert.ok(first !== undefined);
  await settle(store, first, SUCCEEDED);
  await store.outlook(from);
  const outlook = await costOf(t, url, async () => assert.ok((await store.outlook(from)).ready));
  return { outlook, claim: await costOf(t, url, async () => assert.equal((await claim(store, { from, max: 1 })).length, 1)) };
}

async function costOf(t: TestContext, url: string, run: () => Promise<void>): Promise<Cost> {
  const { mock } = t.mock.method(Session.prototype, "rows");
  await run();
  // Others may be notified at the same time of what was done before.
  const sent = mock.calls
    .map((call) => call.arguments as unknown as [text: string, values: (string | number | null)[]])
    .filter(([text]) => text.includes(".jobs"));
  mock.restore();
  const sql = postgres(url, { max: 1, onnotice: () => {} });
  let pages = 0;
  try {
    await sql.unsafe(`select ${RELIED_SET}`);
    await sql.unsafe("begin");
    for (const [text, values] of sent) {
      // Its receipt is there already, and a second one of the same number would be refused.
      const again = values.map((value, i) => (text.includes("receipts") && i === values.length - 4 ? 1_000_000 : value));
      const [row] = await sql.unsafe(`explain (analyze, buffers, format json) ${text}`, again, { prepare: true });
      const { "QUERY PLAN": plan } = row as unknown as { "QUERY PLAN": [{ Plan: Record<string, number> }] };
      const [{ Plan }] = plan;
      pages += (Plan["Shared Hit Blocks"] ?? 0) + (Plan["Shared Read Blocks"] ?? 0);
    }
    await sql.unsafe("rollback");
  } finally {
    await sql.end();
  }
  return { statements: sent.length, bytes: JSON.stringify(sent.map(([, values]) => values)).length, pages };
}

async function filled(
  t: TestContext,
  server: PostgresServer,
  count: number,
  jobs: readonly number[],
): Promise<{ store: PostgresStore; from: ClaimSource[]; url: string }> {
  const url = await server.createDatabase();
  const store = await openAt(t, url);
  const names = Array.from({ length: count }, (_, i) => `job ${i}`);
  await add(store, ...names.map((name) => ({ name })));
  const claimed = await claim(store, { max: count });
  await store.settle(claimed.map(({ job, fence }) => ({ job, fence, outcome: SUCCEEDED })));
  await add(store, ...jobs.map((i) => ({ name: names[i] as string })));
  return { store, url, from: names.map((name) => ({ name, lease: 30_000 })) };
}

async function openAt(t: TestContext, url: string): Promise<PostgresStore> {
  const store = await PostgresStore.open(url, { schema: "holdfast", clock: systemClock, injected: false, random: () => 0 });
  t.after(() => store.close());
  return store;
}
