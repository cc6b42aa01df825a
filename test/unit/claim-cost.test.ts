import assert from "node:assert/strict";
import { StatementSync } from "node:sqlite";
import { test, type TestContext } from "node:test";
import { systemClock } from "../../src/engine/host.ts";
import { SqliteStore } from "../../src/store/sqlite/sqlite-store.ts";
import type { ClaimSource, Store } from "../../src/store/store.ts";
import { add, claim, SUCCEEDED, settle } from "../conformance/parts.ts";

const FEW = 10;
const MANY = 1_000;

for (const [jobs, named] of [
  ["a job in every queue", (count: number) => Array.from({ length: count }, (_, i) => i)],
  ["one job", () => [FEW - 1]],
] as const) {
  test(`with ${jobs}, a claim runs as many statements for ${MANY} definitions as for ${FEW}`, async (t) => {
    const few = await cost(t, FEW, named(FEW));
    const many = await cost(t, MANY, named(MANY));
    assert.ok(many.claim <= 2 * few.claim, `${many.claim} statements, ${few.claim} for ${FEW} definitions`);
    assert.ok(many.outlook <= 2 * few.outlook, `${many.outlook} statements to look, ${few.outlook} for ${FEW} definitions`);
  });
}

test("a claim compares no source with lanes that it has compared before", async (t) => {
  const { store, from } = await filled(t, MANY, [1, 2, 3]);
  let reads = 0;
  const counted = from.map(({ name, lease }) => ({
    lease,
    get name() {
      reads++;
      return name as string;
    },
  }));
  await store.outlook(counted);
  reads = 0;
  assert.equal((await claim(store, { from: counted, max: 1 })).length, 1);
  assert.equal(reads, 0);
});

test("claims of one job at a time reach each of many queues once before any of them twice", async (t) => {
  const all = Array.from({ length: MANY / 10 }, (_, i) => i);
  const { store, from } = await filled(t, all.length, [...all, ...all]);
  const seen: string[] = [];
  for (let i = 0; i < 2 * all.length; i++) {
    const [claimed] = await claim(store, { from, max: 1 });
    seen.push(claimed?.queue ?? "nothing");
  }
  for (const round of [seen.slice(0, all.length), seen.slice(all.length)]) assert.equal(new Set(round).size, all.length);
});

/** Statements run: by a claim of one job, and by the look of an idle worker, after the first of each has learnt the lanes. */
async function cost(t: TestContext, count: number, jobs: readonly number[]): Promise<{ claim: number; outlook: number }> {
  const { store, from } = await filled(t, count, [...jobs, ...jobs]);
  const [first] = await claim(store, { from, max: 1 });
  assert.ok(first !== undefined);
  await settle(store, first, SUCCEEDED);
  const outlook = await statements(t, async () => assert.ok((await store.outlook(from)).ready));
  return { outlook, claim: await statements(t, async () => assert.equal((await claim(store, { from, max: 1 })).length, 1)) };
}

async function filled(t: TestContext, count: number, jobs: readonly number[]): Promise<{ store: Store; from: ClaimSource[] }> {
  const options = { driver: "node:sqlite", clock: systemClock, random: () => 0, busyTimeout: 0 } as const;
  const store = await SqliteStore.open(":memory:", options);
  t.after(() => store.close());
  const names = Array.from({ length: count }, (_, i) => `job ${i}`);
  await add(store, ...names.map((name) => ({ name })));
  for (const one of await claim(store, { max: count })) await settle(store, one, SUCCEEDED);
  await add(store, ...jobs.map((i) => ({ name: names[i] as string })));
  return { store, from: names.map((name) => ({ name, lease: 30_000 })) };
}

async function statements(t: TestContext, run: () => Promise<void>): Promise<number> {
  const calls = (["get", "all", "run"] as const).map((name) => t.mock.method(StatementSync.prototype, name));
  await run();
  const count = calls.reduce((sum, { mock }) => sum + mock.callCount(), 0);
  for (const { mock } of calls) mock.restore();
  assert.ok(count > 0);
  return count;
}
