import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { breakOrchestratorLock, type BuildRow } from "../../src/store/builds.ts";
import type { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import { made, newLead, resuming, seeBuild, STOPPED } from "../conformance/build-parts.ts";
import { claim, LEASE, register, SUCCEEDED } from "../conformance/parts.ts";
import { dollars, ended, FREE, list, settleItem, type Site, site, target, toWork } from "../conformance/work-parts.ts";
import { Random } from "../simulation/random.ts";
import { openHandles } from "./handles.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";
import { SEEDS } from "../seeds.ts";
import { LONG } from "../selection.ts";

const PIPELINES = ["a", "b", "c"];
const TARGETS = LONG ? 1_000 : 16;
const WORKERS = 4;
/** Each stops and resumes builds, or has their locks broken. */
const LEADERS = 2;
const SUCCEED = { move: "succeed", reason: "all_targets_done" } as const;
const CENT = dollars(1);

describe("builds that are stopped and resumed while others work on them", { skip: noServer }, () => {
  let server: PostgresServer;
  before(async () => void (server = await startServer()));
  after(() => server.close());

  for (const seed of SEEDS) {
    test(`builds that are stopped and resumed while others work on them end with every item done and paid once (HOLDFAST_SEED=${seed})`, async (t) => {
      const handles = await openHandles(server, WORKERS + LEADERS + 1);
      const deadlocks = async () => {
        const [row] = await server.query("select deadlocks from pg_stat_database where datname = current_database()");
        return Number(row?.["deadlocks"]);
      };
      try {
        const [first, ...others] = handles.stores as [PostgresStore, ...PostgresStore[]];
        const sites: Site[] = [];
        for (const pipeline of PIPELINES) sites.push(await listedAll(first, pipeline));
        const before = await deadlocks();
        let done = 0;
        let stops = 0;
        const all = PIPELINES.length * TARGETS;
        const isOver = () => done >= all;
        const workers = others.slice(0, WORKERS).map(async (store, i) => {
          const random = new Random(seed, i);
          for (let n = 0; !isOver(); done += n) n = await workTurn(store, sites, random);
        });
        const leaders = others.slice(WORKERS).map(async (store, i) => {
          const random = new Random(seed, 100 + i);
          const lead = newLead(await register(store));
          for (let n = 0; !isOver(); stops += n) n = await stopAndResume(store, random.pick(sites), lead, random);
        });
        await Promise.all([...workers, ...leaders]);
        t.diagnostic(`${stops} stops while ${done} items were done`);
        assert.equal(done, all);
        for (const at of sites) await isWhole(first, at);
        assert.equal((await deadlocks()) - before, 0, "there was no deadlock");
      } finally {
        await handles.close();
      }
    });
  }
});

async function listedAll(store: PostgresStore, pipeline: string): Promise<Site> {
  const at = await site(store, { pipeline, budget: { micros: null, tokens: null } });
  const paths = Array.from({ length: TARGETS }, (_, i) => `t${i}`);
  await list(store, at, { targets: paths.map((path) => target(path, toWork(at.build, "parse", path))) });
  await settleItem(store, at.lister, { cost: FREE, result: null, target: null });
  return at;
}

/** Claims some, of several builds, and settles them, in any order: how many it has done. */
async function workTurn(store: PostgresStore, sites: readonly Site[], random: Random): Promise<number> {
  const queues = sites.map(({ build }) => ({ queue: build.queue, lease: LEASE }));
  const claimed = await claim(store, { from: random.chance(0.5) ? queues : [random.pick(queues)], max: 4 });
  const begun = await store.work.begin(claimed.map(({ job, fence }) => ({ job, fence, estimate: CENT })));
  const fates = await Promise.all(
    claimed.map(({ job, fence }, i) => {
      // A build that was stopped meanwhile lets nothing start: it is given back.
      const outcome = begun[i] === "start" ? SUCCEEDED : ({ kind: "released" } as const);
      return store.settle([{ job, fence, outcome, ...(begun[i] === "start" && { work: ended({ cost: CENT }) }) }]);
    }),
  );
  assert.deepEqual(
    fates.flat(),
    claimed.map(() => "held"),
  );
  return begun.filter((one) => one === "start").length;
}

/** 1 if it has stopped it. Another process may be faster with any of it. */
async function stopAndResume(
  store: PostgresStore,
  { build, lock: { pipeline } }: Site,
  given: ReturnType<typeof newLead>,
  random: Random,
): Promise<number> {
  const lead = { ...given, token: `token ${random.next()}` };
  const lock = { pipeline, token: lead.token };
  await breakOrchestratorLock(store.builds, pipeline, { by: "operator" });
  const led = { build, lead, lock };
  const resumed = await store.builds.start(resuming(led, { token: lead.token })).catch(() => null);
  if (resumed === null || "conflict" in resumed) return 0;
  const stopped = await store.builds.move(build.id, STOPPED, lock);
  await store.builds.start(resuming(led, { token: lead.token })).catch(() => null);
  return stopped === null ? 0 : 1;
}

async function isWhole(store: PostgresStore, { build }: Site): Promise<void> {
  const { pipeline } = build;
  await breakOrchestratorLock(store.builds, pipeline, { by: "operator" });
  const lead = newLead(await register(store), `last of ${pipeline}`);
  const lock = { pipeline, token: lead.token };
  const before = made(await store.builds.start(resuming({ build, lead, lock }, { token: lead.token })));
  assert.deepEqual(booksOf(before), {
    open: 0,
    failed: 0,
    spent: CENT.micros * TARGETS,
    reserved: 0,
    ran: [TARGETS, 0],
    left: [0, 0],
  });
  assert.equal((await store.builds.move(build.id, SUCCEED, lock))?.state, "SUCCESS");
  const { seq } = await seeBuild(store, build);
  const told = await store.events.page({ after: 0, limit: 10_000, build: build.id, types: ["build.*"] });
  assert.deepEqual(
    told.map(({ data }) => (data as { seq: number }).seq),
    Array.from({ length: seq }, (_, i) => i + 1),
  );
}

function booksOf({ open, failed, spent, reserved, stages }: BuildRow): object {
  const counts = { ran: stages.map(({ ran }) => ran), left: stages.map((stage) => stage.open) };
  return { open, failed, spent: spent.micros, reserved: reserved.micros, ...counts };
}
