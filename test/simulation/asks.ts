import { type Fence, followUpId, type JobKey } from "../../src/core/text/ids.ts";
import type { FinishedState } from "../../src/core/jobs/job.ts";
import type { Policy } from "../../src/core/jobs/retry.ts";
import type { ClaimRequest, NewJob, Settlement } from "../../src/store/store.ts";
import type { Actor, Held } from "./actor.ts";
import { anyId, chain, declarations, idOf, LEASES, newJobs, outcome, progress, QUEUES, source, token } from "./made-up.ts";
import type { Random } from "./random.ts";
import { useSchedule } from "./ticking.ts";
import type { World } from "./world.ts";
import { saveCheckpoint, breakLock } from "../conformance/parts.ts";

const TTLS = [400, 20_000, 120_000];

const FINISHED: FinishedState[] = ["succeeded", "failed", "cancelled", "quarantined"];

/** What one actor asks of the store: calls of one turn are made together. */
type Ask = (world: World, actor: Actor, random: Random) => Promise<unknown>;

export const asks: { weight: number; value: Ask }[] = [
  { weight: 12, value: enqueue },
  { weight: 4, value: enqueueWithin },
  { weight: 14, value: claim },
  { weight: 14, value: settle },
  { weight: 3, value: renew },
  { weight: 5, value: takeNotes },
  { weight: 6, value: writeLate },
  { weight: 3, value: (world, actor, random) => actor.store.cancel(anyId(world, random)) },
  { weight: 5, value: (world, actor, random) => actor.store.retry(idOf(world, random, ["failed", "quarantined"])) },
  { weight: 5, value: prune },
  { weight: 8, value: useLock },
  { weight: 2, value: (_world, actor, random) => actor.store.queues.setPaused(random.pick(QUEUES), true) },
  {
    weight: 5,
    value: (world, actor, random) => actor.store.queues.setPaused(random.pick([...world.model.queues.paused, ...QUEUES]), false),
  },
  { weight: 3, value: reclaimLate },
  { weight: 5, value: useSchedule },
];

export function declare(world: World, actor: Actor, random: Random): Promise<void> {
  const said = declarations(random);
  // An older program, started again: it does not overrule what was said since.
  if (random.chance(0.25)) return actor.store.queues.declare(said.map((one) => ({ ...one, old: true })));
  for (const one of said) world.declared.set(`${one.queue} ${one.name}`, one);
  return actor.store.queues.declare(said);
}

function enqueue(world: World, actor: Actor, random: Random): Promise<unknown> {
  const jobs = newJobs(world, actor, random, random.pick([1, 1, 1, 2, 3]));
  return actor.store.enqueue(jobs, random.chance(0.3) ? { whole: random.chance(0.7) } : undefined);
}

/** Together with a caller's own rows, which may be undone with all that was enqueued beside them. */
function enqueueWithin(world: World, actor: Actor, random: Random): Promise<void> {
  const parts = Array.from({ length: random.int(1, 2) }, () => newJobs(world, actor, random, random.int(1, 3)));
  return actor.store.enqueueWithin(parts, random.chance(0.3));
}

/** A job that no store can take fails alone. */
export async function enqueueBad(actor: Actor): Promise<void> {
  const policy = Object.defineProperty({ attempts: 0 }, "attempts", {
    enumerable: true,
    get: () => {
      throw new RangeError("bad");
    },
  }) as unknown as Policy;
  const job: NewJob = { name: "bad", queue: "bad", version: 1, policy, input: null, priority: 0, delay: 0 };
  const refused = await actor.store.enqueue([job]).then(
    () => false,
    (error: unknown) => String(error).includes("bad"),
  );
  if (!refused) throw new Error("A job that cannot be stored was accepted.");
}

export async function claim(world: World, actor: Actor, random: Random): Promise<void> {
  const request = requestOf(actor, random);
  const claimed = await actor.store.claim(request);
  // A reply that is lost was committed all the same.
  if (random.chance(0.08)) world.trace.add(actor.name, "never gets the reply", []);
  else actor.take(claimed, world.time);
}

function requestOf(actor: Actor, random: Random): ClaimRequest {
  const request: ClaimRequest = {
    from: Array.from({ length: random.pick([1, 1, 1, 2, 3]) }, () => source(random)),
    max: random.pick([1, 1, 2, 5, 20]),
    holder: actor.id,
    worker: actor.name,
  };
  if (!random.chance(0.1)) return request;
  return { ...request, from: [{ queue: random.pick(QUEUES), lease: random.pick(LEASES) }], max: 1, exclusive: token(random) };
}

async function settle(world: World, actor: Actor, random: Random): Promise<void> {
  const ended = random.some([...actor.holds.values()]);
  if (ended.length === 0) return;
  // The same end said twice counts once.
  if (ended.length > 0 && random.chance(0.1)) ended.push(random.pick(ended));
  const settlements = ended.map((held) => settlement(world, actor, held, random));
  await actor.store.settle(withRows(world, settlements, random));
  for (const held of ended) world.drop(actor, held);
}

function settlement(world: World, actor: Actor, { job, fence }: Held, random: Random): Settlement {
  const followUps = newJobs(world, actor, random, random.chance(0.3) ? random.int(1, 3) : 0);
  for (const [index, followUp] of followUps.entries()) {
    followUp.followUpId = followUpId(actor.clock.now(), job, fence, index + world.spent.length * 10);
  }
  chain(random, followUps);
  return { job, fence, outcome: outcome(random), ...(followUps.length > 0 && { followUps }) };
}

/** A success that is alone may commit a row of the user's own. */
function withRows(world: World, settlements: Settlement[], random: Random): Settlement[] {
  const [first, ...others] = settlements as [Settlement, ...Settlement[]];
  if (others.length > 0 || first.outcome.kind !== "succeeded" || !random.chance(0.5)) return settlements;
  return [{ ...first, commit: [(tx) => world.place.rows.add(tx, first.job)] }];
}

async function renew(world: World, actor: Actor, random: Random): Promise<void> {
  const renewed = random.some([...actor.holds.values()]);
  if (renewed.length === 0) return;
  const fates = await actor.store.renew(renewed.map(({ job, fence, lease }) => ({ job, fence, lease })));
  for (const [i, held] of renewed.entries()) {
    if (fates[i] === "held") held.renewedAt = world.time;
    else world.drop(actor, held);
  }
}

async function takeNotes(_world: World, actor: Actor, random: Random): Promise<void> {
  const held = [...actor.holds.values()];
  if (held.length === 0) return;
  if (random.chance(0.6)) {
    const value = random.chance(0.9) ? JSON.stringify({ at: random.int(0, 99) }) : null;
    await saveCheckpoint(actor.store, random.pick(held), value);
  } else await actor.store.saveProgress(random.some(held).map((one) => Object.assign(ref(one), progress(random))));
}

/** A zombie's writes: under a fence that is no longer the job's. */
async function writeLate(world: World, actor: Actor, random: Random): Promise<void> {
  const late = world.spent.filter((held) => world.model.fate(held) !== "held");
  if (late.length === 0) return;
  const held = random.pick(late);
  const leases = [ref(held)];
  switch (random.int(0, 4)) {
    case 0:
      return void (await actor.store.renew([{ ...ref(held), lease: held.lease }]));
    case 1:
      return void (await saveCheckpoint(actor.store, held, '"late"'));
    case 2:
      return void (await actor.store.saveProgress([{ ...ref(held), fraction: 1, message: "late" }]));
    case 3:
      return void (await actor.store.inspect(leases));
    default:
      return void (await actor.store.settle(withRows(world, [settlement(world, actor, held, random)], random)));
  }
}

function prune(world: World, actor: Actor, random: Random): Promise<unknown> {
  return actor.store.prune({
    state: random.chance(0.5) ? "succeeded" : random.pick(FINISHED),
    limit: random.pick([1, 1, 3, 100]),
    ...(random.chance(0.3) && { queue: random.pick(QUEUES) }),
    ...(random.chance(0.2) && { ids: [anyId(world, random), anyId(world, random)] }),
    ...(random.chance(0.2) && { finishedBefore: actor.clock.now() - 1_000 }),
  });
}

/** Mostly of a lock that there is, by its own token or by another. */
function useLock(world: World, actor: Actor, random: Random): Promise<unknown> {
  const known = world.model.locks.all();
  const lock = known.length > 0 && random.chance(0.7) ? random.pick(known) : undefined;
  const name = lock?.name ?? random.pick(QUEUES);
  const said = lock !== undefined && random.chance(0.8) ? lock.token : token(random);
  switch (random.pick(["acquire", "acquire", "extend", "release", "release", "clean", "break"] as const)) {
    case "acquire":
      return actor.store.locks.acquire(name, actor.name, token(random), random.pick(TTLS));
    case "extend":
      return actor.store.locks.renew(name, said, random.pick(TTLS));
    case "release":
      return actor.store.locks.renew(name, said, null);
    case "clean":
      return actor.store.locks.clean();
    case "break":
      return random.chance(0.5) ? breakLock(actor.store, name) : actor.store.locks.list();
  }
}

export function reclaimLate(world: World, actor: Actor): Promise<unknown> {
  const due = world.judgements.splice(0);
  // What was judged by another clock was judged by that one; here only what still holds by this one.
  const sound = due.filter(({ expiresAt, lease, verdict }) =>
    verdict === "cut" ? expiresAt > actor.clock.now() + lease : expiresAt <= actor.clock.now(),
  );
  return actor.store.recoveries.reclaim(sound, "judged a while ago");
}

export function ref({ job, fence }: Held): { job: JobKey; fence: Fence } {
  return { job, fence };
}
