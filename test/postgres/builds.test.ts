import assert from "node:assert/strict";
import { after, afterEach, before, beforeEach, describe, test } from "node:test";
import { BUILD_MOVES, BUILD_STATES, type BuildState } from "../../src/core/pipelines/build.ts";
import { HoldfastError } from "../../src/core/text/errors.ts";
import type { AuditEntry } from "../../src/store/audit.ts";
import {
  abandonment,
  breakOrchestratorLock,
  type BuildRow,
  leadOf,
  type OrchestratedBuild,
  newestBuild,
} from "../../src/store/builds.ts";
import type { PostgresStore } from "../../src/store/postgres/postgres-store.ts";
import { listing, newBuild, newLead, resuming, seeBuild, started, STOPPED, toldOf } from "../conformance/build-parts.ts";
import { register } from "../conformance/parts.ts";
import { Random } from "../simulation/random.ts";
import { type Handles, openHandles } from "./handles.ts";
import { noServer, type PostgresServer, startServer } from "./server.ts";
import { SEEDS } from "../seeds.ts";
import { LONG } from "../selection.ts";

const LOST = "orchestrator_lost";
const SUCCEED = { move: "succeed", reason: "all_targets_done" } as const;
/** How often many do the same at once. */
const ROUNDS = LONG ? 8 : 4;
const TURNS = LONG ? 200 : 10;

describe("builds of several processes", { skip: noServer }, () => {
  let server: PostgresServer;
  let handles: Handles;
  before(async () => void (server = await startServer()));
  after(() => server.close());
  beforeEach(async () => void (handles = await openHandles(server, 8)));
  afterEach(() => handles.close());

  const first = () => handles.stores[0] as PostgresStore;
  const deadlocks = async () => {
    const [row] = await server.query("select deadlocks from pg_stat_database where datname = current_database()");
    return Number(row?.["deadlocks"]);
  };

  test("the database rejects every transition that is not core's, whichever role writes it", async () => {
    await started(first());
    for (const from of BUILD_STATES) {
      for (const to of BUILD_STATES) {
        const write = handles.query(
          `begin;
           alter table builds disable trigger builds_moves;
           update builds set state = '${from}';
           alter table builds enable trigger builds_moves;
           update builds set state = '${to}';
           rollback`,
        );
        if (from === to || legal().has(`${from}>${to}`)) await write;
        else await assert.rejects(write, /a build cannot make this transition/, `${from} → ${to}`);
      }
    }
    await assert.rejects(handles.query("update builds set state = 'RUNNING'"), /cannot make this transition|check/);
  });

  test("the database allows one unfinished build of a pipeline", async () => {
    const { build } = await started(first());
    const columns = "pipeline, queue, state, reason, hash, description, options, created_at";
    const copy = `insert into builds (id, ${columns}) select 'copy', ${columns} from builds`;
    await assert.rejects(handles.query(copy), /builds_unended/);
    await first().builds.move(build.id, abandonment("enough"), { by: "operator" });
    await handles.query(copy);
  });

  test("of many concurrent starts one succeeds, and the others get its orchestrator", async () => {
    const { stores } = handles;
    const holders = await Promise.all(stores.map((store) => register(store)));
    for (let round = 0; round < ROUNDS; round++) {
      // Several of each process, too.
      const tries = [0, 1, 2].flatMap((n) => stores.map((store, i) => ({ store, i, token: `${round}-${n}-${i}` })));
      const answers = await Promise.all(
        tries.map(({ store, i, token }) => store.builds.start(newBuild(newLead(holders[i] as never, token)))),
      );
      const builds = answers.filter((answer) => "seq" in answer);
      assert.equal(builds.length, 1, `round ${round}`);
      const [build] = builds as [OrchestratedBuild];
      for (const answer of answers) if ("conflict" in answer) assert.equal(answer.conflict.build, build.id);
      const { token, i } = tries[answers.indexOf(build)] as (typeof tries)[number];
      assert.equal((await leadOf(first().builds, "docs"))?.holder, holders[i]);
      assert.notEqual(await first().builds.move(build.id, STOPPED, { pipeline: "docs", token }), null);
    }
    assert.equal((await first().builds.list({ limit: 100 })).items.length, ROUNDS);
  });

  test("of many processes that find, resume and start builds, one is the orchestrator, and each transition exists once", async () => {
    const { stores } = handles;
    for (let round = 0; round < ROUNDS; round++) {
      const led = await started(first(), { token: `led ${round}` });
      const lead = newLead(await register(first()));
      await first().processes.unregister(led.lead.holder);
      const answers = await Promise.allSettled(
        stores.flatMap((store, i): Promise<unknown>[] => [
          store.builds.orphan({ dead: [], alive: [] }, LOST),
          store.builds.start(resuming({ ...led, lead }, { token: `resumed ${round}-${i}` })),
          store.builds.start(newBuild({ ...lead, token: `started ${round}-${i}` })),
        ]),
      );
      areRefusedByCore(answers);
      const { items } = await first().builds.list({ limit: 100 });
      const active = items.filter(({ state }) => state === "ACTIVE");
      assert.equal(active.length, 1, `round ${round}`);
      assert.equal((await leadOf(first().builds, "docs"))?.build, active[0]?.id);
      for (const build of items) await isNumbered(build);
      await first().builds.move(active[0]?.id as string, abandonment("the next round"), { by: "test" });
    }
  });

  test("a transaction that waits for a build's row decides by what it finds then", async () => {
    const { build, lock } = await started(first());
    await handles.query("update builds set listing = 'done'");
    const settling = await handles.bystander();
    await settling.query("update builds set open = open + 1");
    const moving = first().builds.move(build.id, SUCCEED, lock);
    moving.catch(() => {});
    await handles.blocked(1);
    await settling.end("commit");
    await assert.rejects(moving, (error) => error instanceof HoldfastError && error.code === "BUILD_NOT_READY");
    await handles.query("update builds set open = 0");
    assert.equal((await first().builds.move(build.id, SUCCEED, lock))?.state, "SUCCESS");
  });

  test("an orchestrator whose lock is broken while it waits moves nothing", async () => {
    const { build, lock } = await started(first());
    const settling = await handles.bystander();
    await settling.query("update builds set open = 0");
    const broken = breakOrchestratorLock((handles.stores[1] as PostgresStore).builds, "docs", { by: "operator" });
    await handles.blocked(1);
    const moving = first().builds.move(build.id, STOPPED, lock);
    await handles.blocked(2);
    await settling.end("commit");
    assert.deepEqual(await Promise.all([broken, moving]), [true, null]);
    assert.deepEqual((await seeBuild(first(), build)).reason, LOST);
  });

  for (const seed of SEEDS) {
    test(`concurrent operations on builds never deadlock, and a reader of the audit misses no entry (HOLDFAST_SEED=${seed})`, async (t) => {
      const { stores } = handles;
      const before = await deadlocks();
      const holder = await register(first());
      const pipelines = ["a", "b", "c"];
      for (const pipeline of pipelines) await started(first(), { pipeline });
      let over = false;
      const followed: AuditEntry[] = [];
      const following = (async () => {
        for (let last = false; !last;) {
          last = over;
          followed.push(...(await first().audit.page({ after: followed.at(-1)?.seq ?? 0, limit: 7 })));
        }
      })();
      const since = performance.now();
      await Promise.all(
        stores.map(async (store, n) => {
          const random = new Random(seed, n + 1);
          const pick = () => random.pick(pipelines);
          for (let turn = 0; turn < TURNS; turn++) {
            // One transaction, in an order of its own.
            areRefusedByCore(
              await Promise.allSettled(
                Array.from({ length: 3 }, () => anything(store, pick(), newLead(holder, `${n}-${turn}`), random)),
              ),
            );
          }
        }),
      );
      t.diagnostic(`${Math.round(performance.now() - since)} ms`);
      over = true;
      await following;
      for (let more = true; more;) {
        const rest = await first().audit.page({ after: followed.at(-1)?.seq ?? 0, limit: 100 });
        followed.push(...rest);
        more = rest.length > 0;
      }
      const all = await handles.query("select seq from audit order by seq");
      assert.deepEqual(
        followed.map(({ seq }) => seq),
        all.map(({ seq }) => Number(seq)),
      );
      const { items } = await first().builds.list({ limit: 10_000 });
      for (const build of items) await isNumbered(build);
      const [row] = await handles.query("select count(*)::int as n from builds group by pipeline order by 1 limit 1");
      assert.ok(Number(row?.["n"]) > 1, "each pipeline has had builds");
      assert.equal((await deadlocks()) - before, 0, "no deadlock");
    });
  }

  /** From 1 on, each once, as it was told. */
  async function isNumbered(build: BuildRow): Promise<void> {
    const told = await toldOf(first(), build);
    const seqs = told.filter(({ type }) => type !== "lead.broken").map(({ data }) => data["seq"]);
    assert.deepEqual(
      seqs,
      Array.from({ length: build.seq }, (_, i) => i + 1),
      build.id,
    );
  }
});

/** What may be done to a pipeline's builds, by whom and when it may be. */
async function anything(
  store: PostgresStore,
  pipeline: string,
  lead: ReturnType<typeof newLead>,
  random: Random,
): Promise<unknown> {
  const last = (await newestBuild(store.builds, pipeline)) as BuildRow;
  const lock = { pipeline, token: lead.token };
  switch (random.int(0, 5)) {
    case 0:
      return store.builds.start(newBuild(lead, { pipeline }));
    case 1:
      return store.builds.start(resuming({ build: last, lead, lock }, { token: lead.token }));
    case 2:
      return breakOrchestratorLock(store.builds, pipeline, { by: "operator" });
    case 3:
      return store.builds.orphan({ dead: [lead.holder], alive: [] }, LOST);
    case 4:
      return store.builds.advance(last.id, lock, { round: last.round + 1, listing: listing(pipeline, last.round + 1) });
    default:
      await store.builds.beat(lock);
      return store.queues.setPaused(last.queue, true);
  }
}

/** Whatever fails does so because the build is not in the state for it, and not because others were at it, too. */
function areRefusedByCore(answers: readonly PromiseSettledResult<unknown>[]): void {
  for (const answer of answers) {
    if (answer.status === "rejected") assert.equal((answer.reason as HoldfastError).code, "BUILD_STATE", String(answer.reason));
  }
}

function legal(): Set<string> {
  const moves = Object.values(BUILD_MOVES).flatMap(({ from, to }) =>
    (Object.keys(from) as BuildState[]).map((one) => `${one}>${to}`),
  );
  return new Set(moves);
}
