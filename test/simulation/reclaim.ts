import type { Fence, JobKey, ProcessId } from "../../src/core/text/ids.ts";
import { type Holder, judgeLease } from "../../src/core/jobs/lease.ts";
import type { Actor } from "./actor.ts";
import { claim, reclaimLate } from "./asks.ts";
import { checkHealed } from "./invariants.ts";
import { HOUR } from "./made-up.ts";
import type { Random } from "./random.ts";
import { must } from "./violation.ts";
import type { World } from "./world.ts";

export async function reclaim(world: World, random: Random, act: (actor: Actor) => Promise<unknown> | undefined): Promise<void> {
  const actor = await someProcess(world, random);
  await act(actor);
  if (world.violation !== null) throw world.violation;
  checkHealed(world, actor);
}

/** The same janitor a few times in a row, as it does by itself; the clock may be set shortly before. */
export async function watch(world: World, random: Random): Promise<void> {
  const actor = await someProcess(world, random);
  if (random.chance(0.3)) world.jump(random.pick([-HOUR, HOUR]));
  for (let ticks = random.int(2, 4); ticks > 0; ticks--) {
    await actor.tick();
    if (world.violation !== null) throw world.violation;
    checkHealed(world, actor);
    await world.pass(400);
  }
}

export async function reclaimAndClaim(world: World, random: Random): Promise<void> {
  const actor = await someProcess(world, random);
  await actor.janitor?.reclaimBeforeClaim();
  // What it leaves for later comes before the claim here: of one turn the model hears in its own order.
  await actor.janitor?.recovery.settled();
  await claim(world, actor, random);
}

/** An actor looks now and acts later, when what was judged may be over. */
export async function judgeByHand(world: World, random: Random): Promise<void> {
  const actor = await someProcess(world, random);
  const stale = await actor.store.recoveries.stale({ dead: [], skewed: random.chance(0.5), limit: 1_000 });
  for (const lease of stale) {
    // As a janitor would judge that has watched it since it expired.
    const renewedAt = world.model.held(lease)?.lease?.renewedAt ?? world.time;
    const watched = Math.max(0, world.time - renewedAt - lease.lease);
    const verdict = judgeLease(lease, holderOf(world, actor, lease), watched);
    if (verdict !== "keep") world.judgements.push({ ...lease, verdict });
  }
}

/** A holder stalls for long: a watching janitor reclaims its jobs within a lease and a renewal, and it comes back as a zombie. */
export async function outwait(world: World, random: Random): Promise<void> {
  const holder = holderWithWork(world, random);
  if (holder === undefined) return;
  world.stall(holder, 24 * HOUR);
  const watcher = await someProcess(world, random);
  const longest = longestLease(world, holder);
  await watcher.janitor?.recover();
  await world.pass(longest);
  await watcher.tick();
  await world.pass(Math.floor(longest / 3));
  await watcher.tick();
  if (world.violation !== null) throw world.violation;
  for (const { id, lease } of world.model.running()) must(lease.holder !== holder.id, `${id} is still held by ${holder.name}`);
  await world.wake(holder);
}

/** A holder stalls beyond its lease, and comes back and renews between the judgement and its execution. */
export async function race(world: World, random: Random): Promise<void> {
  const holder = holderWithWork(world, random);
  if (holder === undefined) return;
  const longest = longestLease(world, holder);
  world.stall(holder, 2 * longest);
  await world.pass(Math.ceil((longest * 4) / 3));
  await judgeByHand(world, random);
  await world.wake(holder);
  await reclaimLate(world, await someProcess(world, random));
}

function holderOf(
  world: World,
  by: Actor,
  { job, fence, holder }: { job: JobKey; fence: Fence; holder: ProcessId | null },
): Holder {
  if (holder === null) return "by-hand";
  const actor = world.actorOf(holder);
  if (actor === by) return by.holds.get(job)?.fence === fence ? "alive" : "orphan";
  return actor.life();
}

export async function force(world: World, random: Random): Promise<void> {
  const actor = await someProcess(world, random);
  world.isOperatorForcing = true;
  await actor.janitor?.reclaimStale(random.pick([0, 5_000, 60_000]), "an operator");
  world.isOperatorForcing = false;
}

function holderWithWork(world: World, random: Random): Actor | undefined {
  const holders = world.workingProcesses.filter(({ holds }) => holds.size > 0);
  if (holders.length === 0 || world.workingProcesses.length < 2) return undefined;
  return random.pick(holders);
}

/** Of all its leases, also those that it does not know of. */
function longestLease(world: World, { id }: Actor): number {
  return Math.max(0, ...world.model.running().map(({ lease }) => (lease.holder === id ? lease.lease : 0)));
}

async function someProcess(world: World, random: Random): Promise<Actor> {
  return world.workingProcesses.length > 0 ? random.pick(world.workingProcesses) : start(world, random);
}

export async function start(world: World, random: Random): Promise<Actor> {
  return world.start(random.chance(0.7) ? "local" : "remote", random);
}
