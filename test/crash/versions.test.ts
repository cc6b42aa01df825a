import assert from "node:assert/strict";
import { describe, test, type TestContext } from "node:test";
import type { Enqueued, Finished, Holdfast } from "../../src/index.ts";
import { type Rendered, render } from "./jobs.ts";
import type { Scene } from "./scene.ts";
import type { Child } from "./spawn.ts";
import { inFile, type Stage, wherever } from "./wherever.ts";

const v1 = render(1);
const v2 = render(2);

wherever((stage, place) => {
  describe("an old and a new worker side by side", { concurrency: 2 }, () => {
    test("old and new workers run their own version's jobs only, also when one of them is stopped", inFile(place), async (t) => {
      const { scene, hf, older, newer } = await deploy(stage, t);
      const accepted = await interleaved(hf, 40);
      assert.deepEqual(await ranBy(hf, accepted), expected(accepted, older, newer));

      older.kill("SIGTERM");
      assert.deepEqual(await older.end(), { code: 143, signal: null });
      const later = await interleaved(hf, 10);
      const [mine, theirs] = [later.filter(({ version }) => version === 2), later.filter(({ version }) => version === 1)];
      assert.deepEqual(await ranBy(hf, mine), expected(mine, older, newer));
      for (const { job } of theirs) {
        const left = await hf.jobs.get(job.id);
        assert.deepEqual([left?.state, left?.attempt], ["pending", 0], "no worker that knows it is there");
      }

      // The old program comes back, for what it has left: a deploy that is rolled back.
      const again = await start(scene, 1);
      assert.deepEqual(await ranBy(hf, theirs), expected(theirs, again, newer));
      newer.kill("SIGTERM");
      await newer.end();
      const last = await interleaved(hf, 4);
      const old = last.filter(({ version }) => version === 1);
      assert.deepEqual(await ranBy(hf, old), expected(old, again, newer));
      assert.equal((await hf.jobs.counts()).pending, 2);
    });

    test("a killed old worker's job is reclaimed, and waits for an old worker", inFile(place), async (t) => {
      const { scene, hf, older, newer } = await deploy(stage, t);
      const held = await hf.enqueue(v1, { hang: true });
      await older.next("started");
      older.kill("SIGKILL");
      for await (const { state } of hf.jobs.watch(held.id)) if (state === "pending") break;
      // The new worker reclaimed it, and continues working; it does not run it.
      const mine = [{ version: 2, job: await hf.enqueue(v2, {}) }];
      assert.deepEqual(await ranBy(hf, mine), expected(mine, older, newer));
      const left = await hf.jobs.get(held.id);
      assert.deepEqual([left?.state, left?.attempt, left?.crashes], ["pending", 1, 1]);

      const again = await start(scene, 1);
      const done = await hf.jobs.wait(held);
      assert.deepEqual([done.output, done.attempt], [{ version: 1, pid: again.pid }, 2]);
    });
  });
});

interface Accepted {
  version: number;
  job: Enqueued<Rendered>;
}

async function deploy(stage: Stage, t: TestContext): Promise<{ scene: Scene; hf: Holdfast; older: Child; newer: Child }> {
  const scene = await stage(t);
  const hf = await scene.open();
  const [older, newer] = await Promise.all([start(scene, 1), start(scene, 2)]);
  return { scene, hf, older, newer };
}

async function start(scene: Scene, version: number): Promise<Child> {
  const child = scene.start("versioned", { version });
  await child.next("ready");
  return child;
}

/** Old and new by turns, half of them each. */
async function interleaved(hf: Holdfast, count: number): Promise<Accepted[]> {
  const versions = Array.from({ length: count }, (_, i) => 1 + (i % 2));
  return Promise.all(versions.map(async (version) => ({ version, job: await hf.enqueue(version === 1 ? v1 : v2, {}) })));
}

async function ranBy(hf: Holdfast, accepted: readonly Accepted[]): Promise<unknown[]> {
  const ends: Finished<Rendered>[] = await Promise.all(accepted.map(({ job }) => hf.jobs.wait(job, { timeout: "30s" })));
  return ends.map(({ output }) => output);
}

function expected(accepted: readonly Accepted[], older: Child, newer: Child): Rendered[] {
  return accepted.map(({ version }) => ({ version, pid: version === 1 ? older.pid : newer.pid }));
}
