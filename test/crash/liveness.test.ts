import assert from "node:assert/strict";
import { hostname } from "node:os";
import { describe, test } from "node:test";
import { checkInvariants } from "./invariants.ts";
import { workJob } from "./jobs.ts";
import { bestOfThree, Scene } from "./scene.ts";
import { type Child, whyNoNamespace } from "./spawn.ts";
import { registeredProcesses } from "../../src/store/processes.ts";

/** The promise: killed here, running again there. */
const SECOND = 1_000;
const noNamespace = whyNoNamespace();

describe("who is alive", { concurrency: 2 }, () => {
  test("a killed worker's jobs run again in another process within a second, without any call", async (t) => {
    const scene = new Scene(t);
    await scene.prepare();
    const hf = await scene.open();
    const took = await bestOfThree(SECOND, async () => {
      const doomed = await scene.worker({ concurrency: 3 });
      const jobs = await hf.enqueueMany(workJob(scene.effects), [{ hold: true }, { hold: true }, { hold: true }]);
      for (const _ of jobs) await doomed.next("started");
      const other = await scene.worker({ concurrency: 3 });
      const killed = performance.now();
      doomed.kill();
      // One after the other: a process holds one job at a time that may have taken a worker down.
      for (const _ of jobs) {
        await other.next("started");
        other.send({ type: "finish" });
      }
      const took = performance.now() - killed;
      for (const { id } of jobs) {
        const { state, attempt, crashes } = await hf.jobs.wait(id);
        assert.deepEqual({ state, attempt, crashes }, { state: "succeeded", attempt: 2, crashes: 1 });
      }
      other.kill();
      await other.end();
      return took;
    });
    t.diagnostic(`they ran again after ${Math.round(took)} ms`);
    assert.ok(took < SECOND, `they ran again after ${Math.round(took)} ms`);
    await checkInvariants(scene, hf);
  });

  test(
    "of two workers with pid 1, no live job is reclaimed, and a killed one's job runs again within a second",
    { skip: noNamespace ?? false },
    async (t) => {
      const scene = new Scene(t);
      await scene.prepare();
      const hf = await scene.open();
      const work = workJob(scene.effects);
      const alone = { pidNamespace: true };
      const took = await bestOfThree(SECOND, async () => {
        // One at a time in the doomed one, so that the other gets the second.
        const doomed = await scene.worker({ concurrency: 1, lease: 500 }, alone);
        const first = await hf.enqueue(work, { hold: true });
        assert.equal((await doomed.next("started"))["pid"], 1);
        const other = await scene.worker({ concurrency: 2, lease: 500 }, alone);
        const second = await hf.enqueue(work, { hold: true });
        assert.equal((await other.next("started"))["pid"], 1);
        const seen = (await registeredProcesses(hf.engine.store.processes)).filter(({ pid }) => pid === 1);
        assert.deepEqual(new Set(seen.map(({ host }) => host)), new Set([hostname()]), "they look the same");

        // Each is asked to clean up again and again, while both leases are renewed several times over.
        const renewed = await renewals(scene, hf, [first.id, second.id], 4, async () => {
          for (const one of [doomed, other]) {
            one.send({ type: "recover" });
            assert.equal((await one.next("recovered"))["entriesReclaimed"], 0, "no live job is reclaimed");
          }
        });
        assert.deepEqual(renewed, [1, 1], "both are in their first attempt");

        const killed = performance.now();
        doomed.kill();
        assert.equal((await other.next("started"))["id"], first.id);
        const took = performance.now() - killed;
        other.send({ type: "finish" });
        assert.equal((await hf.jobs.wait(first.id)).crashes, 1);
        assert.equal((await hf.jobs.wait(second.id)).crashes, 0);
        other.kill();
        await other.end();
        return took;
      });
      t.diagnostic(`it ran again after ${Math.round(took)} ms`);
      assert.ok(took < SECOND, `it ran again after ${Math.round(took)} ms`);
      await checkInvariants(scene, hf);
    },
  );

  test("the next process that opens the database reclaims a killed process's work before it works", async (t) => {
    const scene = new Scene(t);
    await scene.prepare();
    const before = await scene.open();
    const doomed = await scene.worker();
    const { id } = await before.enqueue(workJob(scene.effects), { hold: true });
    await doomed.next("started");
    await stop(doomed);
    assert.equal((await before.jobs.get(id))?.state, "running");
    await before.close();
    const hf = await scene.open({});
    const { state, crashes } = (await hf.jobs.get(id)) ?? {};
    assert.deepEqual({ state, crashes }, { state: "pending", crashes: 1 });
    await checkInvariants(scene, hf);
  });

  test("a handler that blocks the event loop for longer than its lease keeps its job", async (t) => {
    const scene = new Scene(t);
    await scene.prepare();
    const hf = await scene.open();
    const blocked = await scene.worker({ concurrency: 1, lease: 500 });
    const { id } = await hf.enqueue(workJob(scene.effects), { block: 2_000 });
    await blocked.next("started");
    const watcher = await scene.worker({ concurrency: 1, lease: 500 });
    while (blocked.taken("unblocked").length === 0) {
      watcher.send({ type: "recover" });
      assert.equal((await watcher.next("recovered"))["entriesReclaimed"], 0, "it is not reclaimed");
    }
    const { state, attempt, crashes } = await hf.jobs.wait(id);
    assert.deepEqual({ state, attempt, crashes }, { state: "succeeded", attempt: 1, crashes: 0 });
    assert.equal(scene.ran().length, 1, "no other process ran it");
    await stop(blocked, watcher);
    await checkInvariants(scene, hf);
  });

  test("a handler past its timeout loses its job, also while it blocks the event loop", async (t) => {
    const scene = new Scene(t);
    await scene.prepare();
    const hf = await scene.open();
    const blocked = await scene.worker({ concurrency: 1 });
    const once = workJob(scene.effects, { timeout: 400, retry: { attempts: 1 } });
    const { id } = await hf.enqueue(once, { block: 4_000 });
    await blocked.next("started");
    const { state, attempt, crashes, error } = await hf.jobs.wait(id);
    assert.deepEqual(
      { state, attempt, crashes, code: error?.code },
      { state: "failed", attempt: 1, crashes: 0, code: "TIMEOUT" },
      "it is an error, no crash",
    );
    assert.deepEqual(blocked.taken("unblocked"), [], "it is over while the handler still blocks");

    // What it does afterwards is in vain.
    await blocked.next("unblocked");
    const next = await hf.enqueue(workJob(scene.effects), {});
    await hf.jobs.wait(next.id);
    assert.equal((await hf.jobs.get(id))?.state, "failed");
    await stop(blocked);
    await checkInvariants(scene, hf);
  });

  test("a job past its timeout is retried by another worker while its first handler ignores its signal", async (t) => {
    const scene = new Scene(t);
    await scene.prepare();
    const hf = await scene.open();
    const blocked = await scene.worker({ concurrency: 1 });
    // The second attempt has to end within the same time, also on a busy machine.
    const { id } = await hf.enqueue(workJob(scene.effects, { timeout: 2_000 }), { block: 200, hold: true, deaf: true });
    await blocked.next("started");
    const other = await scene.worker({ concurrency: 1 });
    assert.equal((await blocked.next("aborted"))["code"], "TIMEOUT");
    assert.equal((await other.next("started"))["attempt"], 2);
    other.send({ type: "finish" });
    const { state, attempt, crashes } = await hf.jobs.wait(id);
    assert.deepEqual({ state, attempt, crashes }, { state: "succeeded", attempt: 2, crashes: 0 });
    blocked.send({ type: "finish" });
    await blocked.next("unblocked");
    await stop(blocked, other);
    await checkInvariants(scene, hf);
  });
});

/** Until each lease was renewed so many times, doing something meanwhile; the jobs' attempts then. */
async function renewals(
  scene: Scene,
  hf: Awaited<ReturnType<Scene["open"]>>,
  ids: string[],
  times: number,
  meanwhile: () => Promise<void>,
): Promise<(number | undefined)[]> {
  const seen = new Map<unknown, Set<unknown>>();
  while (seen.size < ids.length || [...seen.values()].some((expiries) => expiries.size <= times)) {
    await meanwhile();
    const running = await scene.witness.query("select key, expires_at from {jobs} where state = 'running'");
    for (const { key, expires_at } of running) {
      seen.set(key, (seen.get(key) ?? new Set()).add(expires_at));
    }
  }
  const jobs = await Promise.all(ids.map((id) => hf.jobs.get(id)));
  return jobs.map((job) => job?.attempt);
}

async function stop(...children: Child[]): Promise<void> {
  for (const child of children) child.kill();
  for (const child of children) await child.end();
}
