import assert from "node:assert/strict";
import { describe, test, type TestContext } from "node:test";
import type { Holdfast } from "../../src/index.ts";
import { checkInvariants } from "./invariants.ts";
import { type WorkInput, workJob } from "./jobs.ts";
import type { Scene } from "./scene.ts";
import type { Child } from "./spawn.ts";
import { inFile, type Stage, wherever } from "./wherever.ts";
import { registeredProcesses } from "../../src/store/processes.ts";

wherever((stage, place) => {
  describe("a signal", { concurrency: 2 }, () => {
    test("a signal lets the running job finish, and nothing new starts", inFile(place), async (t) => {
      const { scene, hf, worker, id } = await running(stage, t, { hold: true });
      worker.kill("SIGTERM");
      await worker.next("signalled");
      const later = await hf.enqueue(workJob(scene.effects), {});
      worker.send({ type: "finish" });
      assert.deepEqual(await worker.end(), { code: 143, signal: null });
      const { state, attempt } = (await hf.jobs.get(id)) ?? {};
      assert.deepEqual({ state, attempt }, { state: "succeeded", attempt: 1 });
      assert.equal((await hf.jobs.get(later.id))?.attempt, 0, "it was not claimed any more");
      assert.equal((await registeredProcesses(hf.engine.store.processes)).length, 1, "it has signed off");
      await checkInvariants(scene, hf);
    });

    for (const deaf of [false, true]) {
      const who = deaf ? "a handler that is deaf to it" : "a handler that heeds it";
      test(`jobs left after the drain are released without counting an attempt: ${who}`, inFile(place), async (t) => {
        const { hf, scene, worker, id } = await running(stage, t, { hold: true, deaf }, { drain: 100 });
        worker.kill("SIGINT");
        assert.equal((await worker.next("aborted"))["code"], "STOPPING");
        assert.deepEqual(await worker.end(), { code: 130, signal: null });
        const { state, attempt, crashes } = (await hf.jobs.get(id)) ?? {};
        assert.deepEqual({ state, attempt, crashes }, { state: "pending", attempt: 0, crashes: 0 });

        const next = await scene.worker();
        assert.equal((await next.next("started"))["attempt"], 1);
        next.send({ type: "finish" });
        assert.equal((await hf.jobs.wait(id)).state, "succeeded");
      });
    }

    test("a second signal ends the process at once, and its job runs again", inFile(place), async (t) => {
      const { scene, hf, worker, id } = await running(stage, t, { hold: true, deaf: true });
      worker.kill("SIGTERM");
      await worker.next("signalled");
      worker.kill("SIGTERM");
      assert.deepEqual(await worker.end(), { code: 143, signal: null });
      assert.equal((await hf.jobs.get(id))?.state, "running", "there was no time to give it back");
      const jobs = await checkInvariants(scene, hf);
      assert.equal(jobs.find((job) => job.id === id)?.state, "succeeded");
    });
  });
});

async function running(
  stage: Stage,
  t: TestContext,
  input: WorkInput,
  options: object = {},
): Promise<{ scene: Scene; hf: Holdfast; worker: Child; id: string }> {
  const scene = await stage(t);
  const hf = await scene.open();
  const worker = await scene.worker({ signals: true, ...options });
  const { id } = await hf.enqueue(workJob(scene.effects), input);
  await worker.next("started");
  return { scene, hf, worker, id };
}
