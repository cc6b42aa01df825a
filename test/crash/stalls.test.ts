import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";
import { renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { describe, test, type TestContext } from "node:test";
import type { Holdfast } from "../../src/index.ts";
import { checkInvariants } from "./invariants.ts";
import { workJob } from "./jobs.ts";
import { bestOfThree, freeze, passes, type Scene } from "./scene.ts";
import type { Child, How } from "./spawn.ts";
import { firstOnServer, type Stage, variantsAt, wherever } from "./wherever.ts";

const LEASE = 800;
const HOUR = 3_600_000;
const WAYS = [
  ["forward", HOUR],
  ["back", -HOUR],
] as const;
/** How often the others look around. */
const LOOK = 400;
/** What is left of the lease, at most a lease more until it is taken back, and the looks that notice, on a busy machine. */
const RECLAIMED = 2 * LEASE + 3 * LOOK;
/** A lease that expires in an hour by another's clock is looked for every two seconds. */
const SKEWED = 2_500;

wherever((stage, place) => {
  let turn = 0;
  const trial = (promise: string, attempt: (t: TestContext) => Promise<void>) => {
    void test(promise, firstOnServer(place, 4, turn++), attempt);
  };
  describe("a lease that runs out under a living process", { concurrency: 3 }, () => {
    trial(
      "a process stopped for longer than its lease loses its job within a lease, and its late success is rejected",
      async (t) => {
        const { scene, hf } = await setUp(stage, t);
        const took = await bestOfThree(RECLAIMED, async () => {
          const { stopped, other, id } = await pair(scene, hf);
          const took = await takenOver(scene, stopped, other);
          other.send({ type: "finish" });
          await hf.jobs.wait(id);
          stopped.send({ type: "finish" });
          stopped.kill("SIGCONT");
          // It tries to commit, or notices first.
          const { code } = await stopped.next("aborted");
          assert.ok(code === "LEASE_LOST" || code === "REFUSED", String(code));
          await succeeded(hf, id, { attempt: 2, crashes: 1 });
          await gone(stopped, other);
          return took;
        });
        t.diagnostic(`taken over after ${Math.round(took)} ms`);
        assert.ok(took < RECLAIMED, `it was taken over after ${Math.round(took)} ms`);
        await checkInvariants(scene, hf);
      },
    );

    trial("a job whose live holders stall more often than `crashes` is quarantined", async (t) => {
      const { scene, hf } = await setUp(stage, t);
      const first = await scene.worker({ lease: LEASE });
      const { id } = await hf.enqueue(workJob(scene.effects, { crashes: 1 }), { hold: true });
      await first.next("started");
      const second = await scene.worker({ lease: LEASE });
      await takenOver(scene, first, second);
      assert.equal((await hf.jobs.get(id))?.crashes, 1, "the first stall ends no job");
      const third = await scene.worker({ lease: LEASE });
      await freeze(scene, second);
      const { state, crashes, error } = await hf.jobs.wait(id);
      assert.deepEqual([state, crashes, error?.code], ["quarantined", 2, "STALLED"]);
      assert.deepEqual(third.taken("started"), []);
      await gone(first, second, third);
      await checkInvariants(scene, hf);
    });

    trial("after a whole host slept for longer than the lease, no worker steals a job", async (t) => {
      const { scene, hf } = await setUp(stage, t);
      const { stopped, other, id } = await pair(scene, hf);
      for (let night = 0; night < 3; night++) {
        await freeze(scene, stopped, other);
        await passes(LEASE + 100);
        // The one that could steal wakes up first.
        for (const one of [other, stopped]) one.kill("SIGCONT");
        await renewed(scene, 2);
      }
      for (const one of [stopped, other]) one.send({ type: "finish" });
      await hf.jobs.wait(id);
      await succeeded(hf, id, { attempt: 1, crashes: 0 });
      assert.deepEqual(other.taken("started"), []);
      await gone(stopped, other);
      await checkInvariants(scene, hf);
    });

    for (const [say, offset] of variantsAt(place, WAYS)) {
      trial(`with the clock set ${say} by an hour, the holder keeps its job`, async (t) => {
        const { scene, hf } = await setUp(stage, t);
        const clock = clockAt(scene, 0);
        const { stopped: holder, other, id } = await pair(scene, hf, { holder: clock, other: clock });
        for (const to of [offset, 0, offset]) {
          setClock(clock, to);
          await renewed(scene, 4);
        }
        holder.send({ type: "finish" });
        await hf.jobs.wait(id);
        await succeeded(hf, id, { attempt: 1, crashes: 0 });
        await gone(holder, other);
        await checkInvariants(scene, hf);
      });

      trial(
        `with the clock set ${say} by an hour while the holder is stopped, its job is taken over within a lease`,
        async (t) => {
          const { scene, hf } = await setUp(stage, t);
          const took = await bestOfThree(RECLAIMED, async () => {
            const clock = clockAt(scene, 0);
            const { stopped, other, id } = await pair(scene, hf, { holder: clock, other: clock });
            await freeze(scene, stopped);
            setClock(clock, offset);
            const took = await takenOver(scene, stopped, other);
            other.send({ type: "finish" });
            await hf.jobs.wait(id);
            stopped.kill("SIGCONT");
            assert.equal((await stopped.next("aborted"))["code"], "LEASE_LOST");
            await succeeded(hf, id, { attempt: 2, crashes: 1 });
            await gone(stopped, other);
            return took;
          });
          t.diagnostic(`taken over after ${Math.round(took)} ms`);
          assert.ok(took < RECLAIMED, `it was taken over after ${Math.round(took)} ms`);
          await checkInvariants(scene, hf);
        },
      );

      trial(`when a process whose clock is an hour ${say} is stopped, its job is taken over soon`, async (t) => {
        const { scene, hf } = await setUp(stage, t);
        const took = await bestOfThree(RECLAIMED + SKEWED, async () => {
          const { stopped, other, id } = await pair(scene, hf, { holder: clockAt(scene, offset) });
          await renewed(scene, 2);
          const took = await takenOver(scene, stopped, other);
          other.send({ type: "finish" });
          await hf.jobs.wait(id);
          stopped.kill("SIGCONT");
          assert.equal((await stopped.next("aborted"))["code"], "LEASE_LOST");
          await succeeded(hf, id, { attempt: 2, crashes: 1 });
          await gone(stopped, other);
          return took;
        });
        t.diagnostic(`taken over after ${Math.round(took)} ms`);
        assert.ok(took < RECLAIMED + SKEWED, `it was taken over after ${Math.round(took)} ms`);
        await checkInvariants(scene, hf);
      });
    }

    for (const alone of variantsAt(place, [true, false])) {
      trial(
        `a claim whose answer was lost runs again within its lease, ${alone ? "in the same process" : "in another"}`,
        async (t) => {
          const { scene, hf } = await setUp(stage, t);
          const took = await bestOfThree(RECLAIMED, async () => {
            const { id } = await hf.enqueue(workJob(scene.effects), {});
            const loser = scene.start("holder", { lease: LEASE });
            await loser.next("ready");
            const other = scene.start("holder", { lease: LEASE });
            await other.next("ready");
            loser.send({ type: "lose a claim", lease: LEASE });
            assert.equal((await loser.next("claim lost"))["length"], 1);
            const lost = performance.now();
            const worker = alone ? loser : other;
            worker.send({ type: "work" });
            assert.equal((await worker.next("started"))["id"], id);
            const took = performance.now() - lost;
            await hf.jobs.wait(id);
            await succeeded(hf, id, alone ? { attempt: 1, crashes: 0 } : { attempt: 2, crashes: 1 });
            await gone(loser, other);
            return took;
          });
          t.diagnostic(`ran after ${Math.round(took)} ms`);
          assert.ok(took < RECLAIMED, `it ran after ${Math.round(took)} ms`);
          await checkInvariants(scene, hf);
        },
      );
    }

    trial("a late settle is rejected after another worker ran the job and it was pruned", async (t) => {
      const { scene, hf } = await setUp(stage, t);
      const work = workJob(scene.effects);
      const zombie = scene.start("holder");
      await zombie.next("ready");
      const { id } = await hf.enqueue(work, {});
      zombie.send({ type: "claim", lease: 300 });
      assert.equal((await zombie.next("claimed"))["id"], id);
      await freeze(scene, zombie);
      const other = await scene.worker();
      await hf.jobs.wait(id);
      await gone(other);
      assert.ok((await hf.engine.store.prune({ state: "succeeded", limit: 100 })).removed >= 1);
      assert.equal(await hf.jobs.get(id), null);

      // Another worker's job, made and claimed since: neither its key nor its fence can be the zombie's.
      const stranger = await hf.enqueue(work, {});
      const claim = await hf.claim("work", { worker: "another", lease: "10m" });
      assert.equal(claim?.job.id, stranger.id);
      zombie.kill("SIGCONT");
      zombie.send({ type: "succeed" });
      assert.equal((await zombie.next("answered"))["code"], "LEASE_LOST");
      assert.equal((await hf.jobs.get(stranger.id))?.state, "running");
      await claim?.release();
      await gone(zombie);
    });

    trial("a late settle of a worker is rejected after its job was pruned", async (t) => {
      const { scene, hf } = await setUp(stage, t);
      const { stopped, other, id } = await pair(scene, hf);
      await takenOver(scene, stopped, other);
      other.send({ type: "finish" });
      await hf.jobs.wait(id);
      const follow = (await hf.jobs.list({ name: "after" })).items[0];
      await hf.jobs.wait(follow?.id as string);
      assert.equal((await hf.engine.store.prune({ state: "succeeded", limit: 100 })).removed, 2);
      stopped.send({ type: "finish" });
      stopped.kill("SIGCONT");
      const { code } = await stopped.next("aborted");
      assert.ok(code === "LEASE_LOST" || code === "REFUSED", String(code));
      // It is well again, and takes new jobs.
      await gone(other);
      const next = await hf.enqueue(workJob(scene.effects), {});
      await hf.jobs.wait(next.id);
      const { items } = await hf.jobs.list();
      assert.deepEqual(new Set(items.map(({ name }) => name)), new Set(["work", "after"]));
      assert.equal(items.length, 2, "nothing of the zombie's came back");
    });
  });
});

async function setUp(stage: Stage, t: TestContext): Promise<{ scene: Scene; hf: Holdfast }> {
  const scene = await stage(t);
  return { scene, hf: await scene.open() };
}

/** One that holds a job, and one that has nothing to do. */
async function pair(
  scene: Scene,
  hf: Holdfast,
  clocks: { holder?: string; other?: string } = {},
): Promise<{ stopped: Child; other: Child; id: string }> {
  const stopped = await scene.worker({ lease: LEASE }, withClock(clocks.holder));
  const { id } = await hf.enqueue(workJob(scene.effects), { hold: true });
  await stopped.next("started");
  const other = await scene.worker({ lease: LEASE }, withClock(clocks.other));
  return { stopped, other, id };
}

/** How long after the stop the other one starts the job. */
async function takenOver(scene: Scene, stopped: Child, other: Child): Promise<number> {
  await freeze(scene, stopped);
  const from = performance.now();
  await other.next("started");
  return performance.now() - from;
}

/** A host's clock, that is wrong by so much. */
function clockAt(scene: Scene, offset: number): string {
  const clock = join(scene.folder, `clock-${randomUUID()}`);
  setClock(clock, offset);
  return clock;
}

/** At one instant for all who look at it. */
function setClock(clock: string, offset: number): void {
  writeFileSync(`${clock}-next`, String(offset));
  renameSync(`${clock}-next`, clock);
}

function withClock(clock: string | undefined): How {
  return clock === undefined ? {} : { clock };
}

/** Until the one running job's lease was renewed so many times. */
async function renewed(scene: Scene, times: number): Promise<void> {
  const seen = new Set<unknown>();
  while (seen.size <= times) {
    const running = await scene.witness.query("select expires_at from {jobs} where state = 'running'");
    for (const { expires_at } of running) seen.add(expires_at);
    await passes(20);
  }
}

async function succeeded(hf: Holdfast, id: string, charged: { attempt: number; crashes: number }): Promise<void> {
  const { state, attempt, crashes } = (await hf.jobs.get(id)) ?? {};
  assert.deepEqual({ state, attempt, crashes }, { state: "succeeded", ...charged });
}

async function gone(...children: Child[]): Promise<void> {
  for (const child of children) child.kill();
  for (const child of children) await child.end();
}
