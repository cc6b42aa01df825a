import assert from "node:assert/strict";
import { after, afterEach, before, beforeEach, describe, test } from "node:test";
import { NO_COST } from "../../src/core/pipelines/budget.ts";
import type { Outcome } from "../../src/core/jobs/retry.ts";
import type { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import type { Claimed, Settlement } from "../../src/store/store.ts";
import type { WorkView } from "../../src/store/work.ts";
import { seeBuild } from "../conformance/build-parts.ts";
import { addOne, claim, ERROR, LEASE, SUCCEEDED, takeBack } from "../conformance/parts.ts";
import {
  again,
  dollars,
  ended,
  list,
  parsing,
  result,
  type Site,
  site,
  target,
  toEnd,
  toWork,
} from "../conformance/work-parts.ts";
import { Random } from "../simulation/random.ts";
import { agree, type Handles, openHandles } from "./handles.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";
import { SEEDS } from "../seeds.ts";
import { LONG } from "../selection.ts";
import { abandonment } from "../../src/store/builds.ts";

const TURNS = LONG ? 300 : 13;
const PIPELINES = ["a", "b", "c"];
const OUTCOMES: Outcome[] = [
  SUCCEEDED,
  SUCCEEDED,
  SUCCEEDED,
  { kind: "released" },
  { kind: "error", error: ERROR },
  { kind: "error", error: ERROR, retry: false },
];

describe("work items of several processes", { skip: noServer }, () => {
  let server: PostgresServer;
  let handles: Handles;
  before(async () => void (server = await startServer()));
  after(() => server.close());
  beforeEach(async () => void (handles = await openHandles(server, 4)));
  afterEach(() => handles.close());
  const first = () => handles.stores[0] as PostgresStore;
  const second = () => handles.stores[1] as PostgresStore;

  for (const seed of SEEDS) {
    test(`concurrent work items leave totals that match the rows, without a deadlock (HOLDFAST_SEED=${seed})`, async (t) => {
      const earlier = await deadlocks(server);
      const budget = { micros: null, tokens: null };
      const sites: Site[] = [];
      for (const pipeline of PIPELINES) sites.push(await site(first(), { pipeline, token: pipeline, budget }));
      const since = performance.now();
      await Promise.all(handles.stores.map((store, n) => work(store, sites, new Random(seed, n + 1), n)));
      t.diagnostic(`${Math.round(performance.now() - since)} ms`);
      await checkBooks(handles);
      await agree(handles, first());
      for (const { build } of sites) {
        await first().builds.move(build.id, abandonment("enough"), { by: "test" });
        while ((await second().work.clearWork({ pipeline: build.pipeline, which: "all", limit: 10 })) > 0);
        const { open, reserved } = await seeBuild(first(), build);
        assert.deepEqual([open, reserved], [0, NO_COST]);
      }
      await checkBooks(handles);
      await handles.close();
      assert.equal((await deadlocks(server)) - earlier, 0, "there was no deadlock");
    });
  }

  test("concurrent attempts never reserve more than the budget", async () => {
    const at = await site(first(), { budget: { micros: dollars(100).micros, tokens: null } });
    const leases = await parsing(
      first(),
      at,
      Array.from({ length: 40 }, (_, i) => `${i}`),
    );
    const parts = handles.stores.map((_, n) => leases.filter((__, i) => i % handles.stores.length === n));
    const answers = await Promise.all(
      handles.stores.map((store, n) =>
        store.work.begin((parts[n] as Claimed[]).map(({ job, fence }) => ({ job, fence, estimate: dollars(10) }))),
      ),
    );
    assert.equal(answers.flat().filter((answer) => answer === "start").length, 10);
    assert.ok(answers.flat().every((answer) => answer === "start" || answer === "wait"));
    assert.equal((await seeBuild(first(), at.build)).reserved.micros, dollars(100).micros);
    await checkBooks(handles);
  });

  test("an artifact that one process is about to reference is reported as referenced to another", async () => {
    const at = await site(first());
    const [lease] = (await parsing(first(), at, ["a"])) as [Claimed];
    let asked: Promise<ReadonlySet<string>> | null = null;
    first().hooks.missingArtifacts = () => {
      // It has found it, and has not committed.
      asked ??= second().work.referenced(["o", "p"]);
      return [];
    };
    const { job, fence } = lease;
    const output = { hash: "bytes:o", text: null, artifact: "o", size: 3 } as const;
    await first().settle([{ job, fence, outcome: SUCCEEDED, work: ended({ result: result({ output }) }) }]);
    assert.deepEqual(await asked, new Set(["o"]));
  });

  test("work items are reclaimed from a process while it settles them", async () => {
    const at = await site(first());
    for (let round = 0; round < 10; round++) {
      const leases = await parsing(first(), at, [`${round} a`, `${round} b`, `${round} c`]);
      const settled = first().settle(leases.map(({ job, fence }) => ({ job, fence, outcome: SUCCEEDED, work: ended() })));
      await Promise.all([settled, takeBack(second(), "crashed", ...leases)]);
      await checkBooks(handles);
    }
  });
});

/** What one handle does: each turn is a few calls at the same instant, of one transaction or two. */
async function work(store: PostgresStore, sites: readonly Site[], random: Random, n: number): Promise<void> {
  let held: Claimed[] = [];
  for (let turn = 0; turn < TURNS; turn++) {
    const settling = held;
    held = [];
    const views = await store.work.works(settling.map(({ job }) => job));
    const settlements = settling.map((lease, i) => settlement(sites, lease, views[i] ?? null, random));
    const calls: (() => Promise<unknown>)[] = [
      () => store.settle(settlements),
      async () => {
        const { build } = random.pick(sites);
        const claimed = await claim(store, {
          from: [
            { queue: build.queue, lease: LEASE },
            { queue: "plain", lease: LEASE },
          ],
          max: 6,
        });
        const starts = claimed.map(({ job, fence }) => ({ job, fence, estimate: dollars(random.int(0, 3)) }));
        await store.work.begin(starts);
        await store.saveProgress(starts.map(({ job, fence }) => ({ job, fence, cost: dollars(1) })));
        held.push(...claimed);
      },
      () => {
        const at = random.pick(sites);
        const paths = Array.from({ length: 4 }, (_, i) => `${n}-${turn}-${i}`);
        return list(store, at, { targets: paths.map((path) => target(path, toWork(at.build, "parse", path))) });
      },
      async () => {
        const at = random.pick(sites);
        const page = await store.work.targets({ pipeline: at.build.pipeline, segment: 0, limit: 200 });
        if (page.length === 0) return;
        const row = random.pick(page);
        // It has changed: what is under way for it is dropped.
        await list(store, at, { targets: [again(row, toWork(at.build, "parse", row.path))] });
      },
      () => addOne(store, { name: "plain" }),
      async () => {
        const { items } = await store.queries.list({ queue: random.pick(sites).build.queue, limit: 50 });
        const open = items.filter(({ name, state }) => !name.endsWith("/") && state !== "succeeded");
        if (open.length > 0) await store.cancel(random.pick(open).id);
      },
    ];
    const turns = calls.map((call) => ({ call, at: random.next() })).sort((a, b) => a.at - b.at);
    await Promise.all(turns.map(({ call }) => call()));
  }
  await store.settle(held.map(({ job, fence }) => ({ job, fence, outcome: { kind: "released" } })));
}

function settlement(sites: readonly Site[], { job, fence }: Claimed, view: WorkView | null, random: Random): Settlement {
  const at = sites.find(({ build }) => build.key === view?.build.key);
  const outcome = random.pick(OUTCOMES);
  if (view === null || at === undefined || view.target === null || outcome.kind !== "succeeded") return { job, fence, outcome };
  const { path } = view.target;
  const on = view.stage === "parse" ? toWork(at.build, "index", path) : toEnd(path);
  return { job, fence, outcome, work: ended({ cost: dollars(random.int(0, 2)), target: again(view.target, on) }) };
}

/** What the sums of builds say is what their parts say. */
async function checkBooks({ query }: Handles): Promise<void> {
  const wrong = await query(`
    select key from builds as build
    where open <> (select count(*) from work where build = build.key and kind <> 'listing')
      or open <> (select sum(open) from build_stages where build = build.key)
      or failed <> (select count(*) from results where build = build.key and state = 'FAILED' and stage <> '')
      or failed <> (select sum(failed) from build_stages where build = build.key)
      or reserved_micros <> (select coalesce(sum(estimate_micros), 0) from work where build = build.key)
      -- What a crash or a cancellation was charged is spent, and no cost to learn from.
      or spent_micros < (select coalesce(sum(micros), 0) from stage_costs as cost where cost.pipeline = build.pipeline)`);
  assert.deepEqual(wrong, [], "sums are those of their parts");
  const over = await query(`
    select work.job from work left join jobs as job on job.key = work.job
    where job.state is null or job.state not in ('waiting', 'pending', 'running')`);
  assert.deepEqual(over, [], "every open item has a job that has not ended");
  const lost = await query(`
    select job.key from jobs as job join lanes as lane on lane.id = job.lane
    where lane.queue like 'pipeline/%' and job.state in ('waiting', 'pending', 'running')
      and not exists (select 1 from work where work.job = job.key)`);
  assert.deepEqual(lost, [], "and every such job is an open item");
}

async function deadlocks(server: PostgresServer): Promise<number> {
  const [row] = await server.query("select deadlocks from pg_stat_database where datname = current_database()");
  return Number(row?.["deadlocks"]);
}
