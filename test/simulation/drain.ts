import type { Random } from "./random.ts";
import { must } from "./violation.ts";
import type { World } from "./world.ts";

const ROUNDS = 80;

/**
 * The end of a schedule: the clocks are right again, who stalled has died, and one well-behaved process works on with
 * no call from outside. Then nothing may be stuck.
 */
export async function drain(world: World, random: Random): Promise<void> {
  for (const actor of world.actors) {
    if (actor.clock.skew !== 0) world.skew(actor, 0);
    if (actor.condition === "stalled") await world.crash(actor, "dead");
  }
  for (const actor of world.working) {
    const ended = [...actor.holds.values()];
    if (ended.length === 0) continue;
    await actor.store.settle(ended.map(({ job, fence }) => ({ job, fence, outcome: { kind: "succeeded", output: null } })));
    for (const held of ended) world.drop(actor, held);
  }
  const worker = await world.start("local", random);
  for (const queue of world.model.queues.paused) await worker.store.queues.setPaused(queue, false);
  // Limits let some of them through one by one.
  const rounds = ROUNDS + 3 * unfinished(world);
  for (let round = 0; unfinished(world) > 0; round++) {
    must(round < rounds, () => `${unfinished(world)} jobs are stuck`);
    await worker.tick();
    if (world.violation !== null) throw world.violation;
    const claimed = await worker.store.claim({ from: [{ lease: 30_000 }], max: 100, holder: worker.id, worker: worker.name });
    worker.take(claimed, world.time);
    await worker.store.settle(claimed.map(({ job, fence }) => ({ job, fence, outcome: { kind: "succeeded", output: null } })));
    for (const held of worker.holds.values()) world.drop(worker, held);
    await world.checkStep(false);
    if (claimed.length > 0) continue;
    const { nextIn } = await worker.store.outlook([{ lease: 30_000 }]);
    await world.pass(Math.max(16_000, Math.min(nextIn ?? 0, 2 * 3_600_000)));
  }
  await world.checkStep(true);
}

function unfinished(world: World): number {
  return [...world.model.jobs.values()].filter((job) => job.unfinished).length;
}
