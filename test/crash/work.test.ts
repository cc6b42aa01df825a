import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { type BuildRow, newestBuild } from "../../src/store/builds.ts";
import type { Judgement } from "../../src/store/recoveries.ts";
import type { Store } from "../../src/store/store.ts";
import type { Scene } from "./scene.ts";
import { MOMENTS, variantsAt, wherever } from "./wherever.ts";

/** What is found of two work items whose process was killed in an operation; in cents. */
interface Found {
  targets: number;
  items: number;
  results: number;
  reserved: number;
  spent: number;
  /** When all that was in its hands has been taken back. */
  charged: number;
}

const LISTED: Found = { targets: 2, items: 2, results: 0, reserved: 0, spent: 0, charged: 0 };
const BEGUN: Found = { ...LISTED, reserved: 100, charged: 100 };
const COSTS: Found = { ...BEGUN, charged: 140 };
const SETTLED: Found = { ...LISTED, results: 2, spent: 60, charged: 60 };

/** Before the commit of each operation, and after it. */
const OPERATIONS: Record<string, [before: Found, after: Found]> = {
  listed: [{ ...LISTED, targets: 0, items: 0 }, LISTED],
  begin: [LISTED, BEGUN],
  costs: [BEGUN, COSTS],
  settle: [COSTS, SETTLED],
};

const CENT = 10_000;

wherever((stage, place) => {
  describe("killed with work items of a build in hand", { concurrency: 3 }, () => {
    for (const [at, [operation, [before, after]]] of Object.entries(OPERATIONS).entries()) {
      for (const moment of variantsAt(place, MOMENTS, at)) {
        test(`${operation}:${moment} leaves all of a work item or nothing, and the totals are exact`, async (t) => {
          const scene = await stage(t);
          const child = scene.start("work-item", { point: `${operation}:${moment}` });
          assert.equal((await child.end()).signal, "SIGKILL", `it died there; on stderr: ${child.stderr}`);
          const { store } = (await scene.open()).engine;
          const expected = moment === "committed" ? after : before;
          const { charged, ...rest } = expected;
          assert.deepEqual(await found(scene, store), rest);
          await store.recoveries.reclaim(await held(scene), "a test");
          assert.deepEqual(await found(scene, store), { ...rest, reserved: 0, spent: charged });
        });
      }
    }
  });
});

async function found(scene: Scene, store: Store): Promise<Omit<Found, "charged">> {
  await checkBooks(scene);
  const build = (await newestBuild(store.builds, "docs")) as BuildRow;
  const targets = await store.work.targets({ pipeline: "docs", segment: 0, limit: 10 });
  const results = await store.work.results({ build: build.id, stage: "parse", limit: 10 });
  const { open, reserved, spent } = build;
  return {
    targets: targets.length,
    items: open,
    results: results.length,
    reserved: reserved.micros / CENT,
    spent: spent.micros / CENT,
  };
}

/** What the sums of builds say is what their parts say. */
async function checkBooks({ witness }: Scene): Promise<void> {
  const wrong = await witness.query(`
    select key from {builds} as build
    where open <> (select count(*) from {work} where build = build.key and kind <> 'listing')
      or open <> (select sum(open) from {build_stages} where build = build.key)
      or reserved_micros <> (select coalesce(sum(estimate_micros), 0) from {work} where build = build.key)
      or spent_micros <> (select coalesce(sum(micros), 0) from {results} where build = build.key)
        + (select coalesce(sum(charged_micros), 0) from {work} where build = build.key)`);
  assert.deepEqual(wrong, [], "sums are those of their parts");
  const ended = await witness.query(`
    select work.job from {work} as work left join {jobs} as job on job.key = work.job
    where job.state is null or job.state not in ('waiting', 'pending', 'running')`);
  assert.deepEqual(ended, [], "every open item has a job that has not ended");
}

/** Leases that a dead process has held. */
async function held({ witness }: Scene): Promise<Judgement[]> {
  const rows = await witness.query("select key, fence, expires_at, lease from {jobs} where state = 'running'");
  return rows.map((row) => {
    const [job, fence, expiresAt, lease] = [row["key"], row["fence"], row["expires_at"], row["lease"]].map(Number);
    return { job, fence, holder: null, expiresAt, lease, verdict: "crashed" } as Judgement;
  });
}
