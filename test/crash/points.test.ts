import assert from "node:assert/strict";
import { describe, test } from "node:test";
import type { Holdfast, Job } from "../../src/index.ts";
import { type BuildRow, newestBuild } from "../../src/store/builds.ts";
import { schemaVersion as ON_SERVER } from "../../src/store/postgres/migrate.ts";
import { schemaVersion as IN_FILE } from "../../src/store/sqlite/migrate.ts";
import { newLead } from "../conformance/build-parts.ts";
import { checkInvariants, everyJob } from "./invariants.ts";
import type { Scene } from "./scene.ts";
import { firstOnServer, MOMENTS, type Place, variantsAt, wherever } from "./wherever.ts";
import { registeredProcesses } from "../../src/store/processes.ts";

interface Found {
  hf: Holdfast;
  scene: Scene;
  place: Place;
  /** The process was killed after the commit, before any caller got its answer. */
  committed: boolean;
  /** As they were found, before any worker ran. */
  before: Job[];
}

/** Each operation, and what is found after its process was killed in it; more is in the invariants. */
const OPERATIONS: Record<string, (found: Found) => Promise<(after: Job[]) => void> | ((after: Job[]) => void)> = {
  enqueue({ before, committed }) {
    assert.equal(before.length, committed ? 4 : 3, "a job is there from its commit on");
    return allSucceed;
  },
  async transaction({ before, scene, committed }) {
    assert.equal(before.length, committed ? 2 : 1);
    const orders = await scene.witness.query("select id from orders");
    assert.equal(orders.length, committed ? 1 : 0, "the user's row is there with the job");
    return allSucceed;
  },
  claim({ before, committed }) {
    assert.deepEqual(states(before), committed ? ["running", "running", "running"] : ["pending", "pending", "pending"]);
    return (after) => {
      allSucceed(after);
      assert.deepEqual(crashes(after), committed ? [1, 1, 1] : [0, 0, 0], "only jobs in hand are charged");
    };
  },
  renew({ before }) {
    assert.deepEqual(states(before), ["running"]);
    return allSucceed;
  },
  settle({ before, scene, committed }) {
    // The first settle is of one job or of both: each is whole.
    const settled = before.filter(({ name, state }) => name === "work" && state === "succeeded");
    if (committed) assert.ok(settled.length >= 1);
    else assert.equal(settled.length, 0);
    assert.equal(before.filter(({ name }) => name === "after").length, settled.length, "follow-ups commit with the success");
    const ids = new Set(settled.map(({ id }) => id));
    return (after) => {
      allSucceed(after);
      const runs = scene.ran().filter(({ id }) => ids.has(id));
      assert.equal(runs.length, ids.size, "what is committed does not run again");
    };
  },
  reclaim({ before, committed }) {
    const work = before.filter(({ name }) => name === "work");
    assert.deepEqual(states(work), committed ? ["pending", "pending", "pending"] : ["running", "running", "running"]);
    return (after) => {
      allSucceed(after);
      assert.deepEqual(crashes(after), [1, 1, 1], "one crash is charged once");
    };
  },
  checkpoint({ before, scene, committed }) {
    assert.deepEqual(states(before), ["running"]);
    return (after) => {
      allSucceed(after);
      const loaded = scene.ran().map(({ checkpoint }) => checkpoint);
      assert.deepEqual(
        loaded,
        [undefined, committed ? { step: 1 } : undefined],
        "the next attempt continues from what is committed",
      );
    };
  },
  progress({ before, committed }) {
    assert.deepEqual(before[0]?.progress, committed ? { fraction: 0.5, message: "half" } : undefined);
    return allSucceed;
  },
  async cancel({ hf, before, committed }) {
    assert.deepEqual(states(before), [committed ? "cancelled" : "pending"]);
    assert.deepEqual(await audited(hf), committed ? ["job.cancelled"] : []);
    return (after) => assert.deepEqual(states(ofWork(after)), [committed ? "cancelled" : "succeeded"]);
  },
  async retry({ hf, before, scene, committed }) {
    assert.deepEqual(states(before), [committed ? "pending" : "failed"]);
    assert.deepEqual(await audited(hf), committed ? ["job.retried"] : []);
    return (after) => {
      assert.deepEqual(states(after), ["failed"]);
      assert.equal(scene.ran().length, committed ? 2 : 1);
    };
  },
  async prune({ hf, before, committed }) {
    assert.deepEqual(states(before), committed ? [] : ["cancelled"]);
    assert.deepEqual(await audited(hf), ["job.cancelled", ...(committed ? ["jobs.removed"] : [])]);
    return () => {};
  },
  async audit({ hf, committed }) {
    assert.deepEqual(await audited(hf), committed ? ["backup.made"] : []);
    const told = await hf.engine.store.events.page({ after: 0, limit: 10, types: ["backup.made"] });
    assert.equal(told.length, committed ? 1 : 0);
    return allSucceed;
  },
  async lock({ hf, committed }) {
    const lock = hf.lock("a lock");
    assert.equal((await lock.get())?.holder, committed ? "anna" : undefined);
    assert.equal((await lock.acquire("another", "1m")) === null, committed);
    return allSucceed;
  },
  async acknowledge({ hf, committed }) {
    const { store } = hf.engine;
    const [report] = (await store.recoveries.history({ limit: 1 })).reports;
    assert.equal(report?.state, committed ? "acknowledged" : "failed");
    const told = await store.events.page({ after: 0, limit: 10, types: ["recovery.acknowledged"] });
    const audited = (await store.audit.page({ after: 0, limit: 10 })).filter(({ action }) => action === "recovery.acknowledged");
    assert.deepEqual([told.length, audited.length], committed ? [1, 1] : [0, 0]);
    return () => {};
  },
  async schedule({ hf, before, committed }) {
    assert.equal((await hf.schedules.list()).length, committed ? 1 : 0);
    assert.deepEqual(before, []);
    return () => {};
  },
  async tick({ hf, before, committed }) {
    // Claimed already, where the worker's claim was in the same commit.
    assert.equal(before.length, committed ? 1 : 0, "the job is there when the tick is over, and not before");
    await hf.engine.scheduler.check();
    return (after) => {
      allSucceed(after);
      assert.equal(ofWork(after).length, 1, "a tick is one job");
    };
  },
  async build({ hf, before, committed }) {
    const { builds } = hf.engine.store;
    assert.equal(before.length, committed ? 1 : 0, "the job that lists its source is there with the build");
    const found = await newestBuild(builds, "docs");
    assert.deepEqual([found?.state, found?.seq], committed ? ["ACTIVE", 1] : [undefined, undefined]);
    assert.equal((await builds.orchestratorLocks()).length, committed ? 1 : 0);
    assert.deepEqual(await audited(hf), committed ? ["build.started"] : []);
    assert.equal((await hf.engine.store.events.page({ after: 0, limit: 10, types: ["build.*"] })).length, committed ? 1 : 0);
    if (committed) await goesOn(hf);
    return allSucceed;
  },
  async beat({ hf }) {
    await goesOn(hf);
    return allSucceed;
  },
  async unregister({ scene, committed }) {
    // This test's own handle is one.
    assert.equal((await scene.witness.query("select id from {processes}")).length, committed ? 1 : 2);
    return allSucceed;
  },
  async register({ scene, committed, before }) {
    assert.equal((await scene.witness.query("select id from {processes}")).length, committed ? 2 : 1);
    assert.deepEqual(before, []);
    return () => {};
  },
  async migrate({ scene, place, before }) {
    const versions = await scene.witness.query("select version from {migrations}");
    assert.equal(versions.length, place === "file" ? IN_FILE() : ON_SERVER(), "the next open completes it");
    assert.deepEqual(before, []);
    return () => {};
  },
};

wherever((stage, place) => {
  describe("killed at a named point", { concurrency: 3 }, () => {
    for (const [at, [operation, expected]] of Object.entries(OPERATIONS).entries()) {
      // Synchronous work of the user's own connection cannot wait for a server.
      if (operation === "transaction" && place === "server") continue;
      // Not there yet.
      if ((operation === "build" || operation === "beat") && place === "server") continue;
      for (const moment of variantsAt(place, MOMENTS, at)) {
        test(
          `${operation}:${moment} loses nothing, repeats nothing and leaves nothing stuck`,
          firstOnServer(place, 3, at),
          async (t) => {
            const scene = await stage(t, { bare: operation === "migrate" });
            if (operation === "reclaim") await dies(scene, "claim:committed");
            await dies(scene, `${operation}:${moment}`);
            if (operation === "migrate" && moment !== "committed") {
              assert.deepEqual(await scene.witness.tables(), [], "half a migration is none");
            }

            const hf = await scene.open();
            await scene.witness.watchMoves();
            const found = { hf, scene, place, committed: moment === "committed", before: await everyJob(hf) };
            const check = await expected(found);
            check(await checkInvariants(scene, hf));
          },
        );
      }
    }
  });
});

async function dies(scene: Scene, point: string): Promise<void> {
  const child = scene.start("point", { point });
  assert.equal((await child.end()).signal, "SIGKILL", `it died at ${point}; on stderr: ${child.stderr}`);
}

/** The build that a dead process has led is CRASHED, once, and led by this one then. */
async function goesOn(hf: Holdfast): Promise<void> {
  const { store } = hf.engine;
  const { others } = await store.processes.probe();
  const self = (await registeredProcesses(store.processes)).find(({ id }) => others.every(({ process }) => process.id !== id));
  assert.ok(self !== undefined);
  const dead = others.filter(({ life }) => life === "dead").map(({ process }) => process.id);
  const orphans = await store.builds.orphan({ dead, alive: [] }, "orphaned_at_startup");
  assert.deepEqual(
    orphans.map(({ pipeline, state }) => [pipeline, state]),
    [["docs", "CRASHED"]],
  );
  assert.deepEqual(await store.builds.orphan({ dead, alive: [] }, "orphaned_at_startup"), []);
  const { id, hash, description } = orphans[0] as BuildRow;
  const resumed = await store.builds.start({ build: id, hash, description, lead: newLead(self.id, "the next") });
  assert.equal("state" in resumed && resumed.state, "ACTIVE");
}

/** What is written down. */
async function audited(hf: Holdfast): Promise<string[]> {
  return (await hf.engine.store.audit.page({ after: 0, limit: 10 })).map(({ action }) => action);
}

function allSucceed(jobs: Job[]): void {
  const others = jobs.filter(({ state }) => state !== "succeeded");
  assert.deepEqual(others, [], "every job succeeds in the end");
}

function ofWork(jobs: Job[]): Job[] {
  return jobs.filter(({ name }) => name === "work");
}

function states(jobs: Job[]): string[] {
  return jobs.map(({ state }) => state);
}

function crashes(jobs: Job[]): number[] {
  return ofWork(jobs).map((job) => job.crashes);
}
