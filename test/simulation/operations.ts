import type { Actor } from "./actor.ts";
import { asks, declare, enqueueBad, ref } from "./asks.ts";
import { force, reclaim, reclaimAndClaim, judgeByHand, outwait, race, start, watch } from "./reclaim.ts";
import { HOUR, newJobs, QUEUES } from "./made-up.ts";
import type { Random } from "./random.ts";
import { tickAll } from "./ticking.ts";
import type { World } from "./world.ts";

/** One step: an action of an actor, or an event of the world. */
export type Operation = (world: World, random: Random) => Promise<unknown>;

/** Every kind of step, by name. */
export const operations: Record<string, { weight: number; run: Operation }> = {
  ask: { weight: 50, run: one },
  turn: { weight: 14, run: turn },
  enqueueMuch: { weight: 1, run: enqueueMuch },
  declare: { weight: 2, run: async (world, random) => declare(world, await anyActor(world, random), random) },
  ticks: {
    weight: 5,
    run: async (world, random) => tickAll(world, await anyActor(world, random), await anyActor(world, random), random),
  },
  expire: {
    weight: 2,
    run: async (world, random) =>
      (await anyActor(world, random)).store.prune({ expired: { minAge: 0 }, limit: random.pick([1, 3, 250]) }),
  },
  look: { weight: 3, run: look },
  pass: { weight: 12, run: (world, random) => world.pass(random.pick([1, 40, 450, 2_111, 7_013, 21_777, 61_003])) },
  tick: { weight: 8, run: (world, random) => reclaim(world, random, (actor) => actor.tick()) },
  watch: { weight: 3, run: watch },
  recover: { weight: 2, run: (world, random) => reclaim(world, random, (actor) => actor.janitor?.recover()) },
  reclaimAndClaim: { weight: 5, run: reclaimAndClaim },
  judge: { weight: 3, run: judgeByHand },
  race: { weight: 2, run: race },
  outwait: { weight: 2, run: outwait },
  force: { weight: 1, run: force },
  crash: { weight: 4, run: crash },
  stall: { weight: 4, run: stall },
  start: { weight: 2, run: (world, random) => start(world, random) },
  jump: { weight: 2, run: async (world, random) => world.jump(random.pick([-HOUR, HOUR, random.int(-5_000, 5_000)])) },
  skew: { weight: 1, run: skew },
};

async function one(world: World, random: Random): Promise<void> {
  await random.weighted(asks)(world, await anyActor(world, random), random);
}

/** Several calls in one turn are one commit; on a file, two processes may have theirs in the same turn. */
async function turn(world: World, random: Random): Promise<void> {
  const actor = await anyActor(world, random);
  const other = world.isShared || random.chance(0.5) ? actor : await anyActor(world, random);
  const calls = Array.from({ length: random.int(2, 5) }, () => {
    const who = random.chance(0.5) ? actor : other;
    return random.chance(0.04) ? enqueueBad(who) : random.weighted(asks)(world, who, random);
  });
  const ends = await Promise.allSettled(calls);
  for (const end of ends) if (end.status === "rejected") throw end.reason;
}

/** More than fit into one statement. */
async function enqueueMuch(world: World, random: Random): Promise<void> {
  const actor = await anyActor(world, random);
  const count = random.int(25, 55);
  await actor.store.enqueue(newJobs(world, actor, random, count));
}

async function look(world: World, random: Random): Promise<void> {
  const actor = await anyActor(world, random);
  await actor.store.outlook([random.chance(0.5) ? { lease: 1 } : { queue: random.pick(QUEUES), lease: 1 }]);
  await actor.store.locks.list();
  await actor.store.inspect([...actor.holds.values(), ...world.spent.slice(-5)].map(ref));
}

async function crash(world: World, random: Random): Promise<void> {
  const candidates = world.actors.filter(
    ({ id, condition }) => id !== null && (condition === "working" || condition === "stalled"),
  );
  if (candidates.length < 2) return;
  await world.crash(random.pick(candidates), random.chance(0.2) ? "rebooted" : "dead");
  if (random.chance(0.7)) await start(world, random);
}

async function stall(world: World, random: Random): Promise<void> {
  if (world.workingProcesses.length < 2) return;
  world.stall(random.pick(world.workingProcesses), random.pick([900, 2_500, 15_000, 70_000]));
}

async function skew(world: World, random: Random): Promise<void> {
  world.skew(random.pick(world.actors), random.pick([0, -HOUR, HOUR, random.int(-90_000, 90_000)]));
}

async function anyActor(world: World, random: Random): Promise<Actor> {
  return world.working.length > 0 ? random.pick(world.working) : start(world, random);
}
