import { type Fence, followUpId, type JobKey, type ProcessId } from "../../src/core/ids.ts";
import type { FinishedState, JobError, JobState } from "../../src/core/job.ts";
import { type Holder, judge } from "../../src/core/lease.ts";
import type { Outcome, Policy } from "../../src/core/retry.ts";
import type { ClaimRequest, ClaimSource, NewJob } from "../../src/store/store.ts";
import type { Actor, Held } from "./actor.ts";
import { checkHealed } from "./invariants.ts";
import type { Random } from "./random.ts";
import { must } from "./violation.ts";
import type { World } from "./world.ts";

/** One step: something that somebody does, or that happens. */
export type Operation = (world: World, random: Random) => Promise<unknown>;

const NAMES = ["mail", "scan"] as const;
const QUEUES = ["mail", "scan", "slow"] as const;
const LEASES = [1_500, 9_000, 30_000];
const TTLS = [400, 20_000, 120_000];
const HOUR = 3_600_000;
const ERROR: JobError = { name: "Error", message: "boom" };
const FINISHED: FinishedState[] = ["succeeded", "failed", "cancelled", "quarantined"];
const KINDS = ["succeeded", "error", "later", "unreadable", "released", "interrupted"] as const;

/** What one actor asks of the store: calls of one turn are made together. */
type Ask = (world: World, actor: Actor, random: Random) => Promise<unknown>;

const asks: { weight: number; value: Ask }[] = [
  { weight: 12, value: enqueue },
  { weight: 14, value: claim },
  { weight: 14, value: settle },
  { weight: 3, value: renew },
  { weight: 5, value: takeNotes },
  { weight: 6, value: writeLate },
  { weight: 3, value: (world, actor, random) => actor.store.cancel(anyId(world, random)) },
  { weight: 5, value: (world, actor, random) => actor.store.retry(idOf(world, random, ["failed", "quarantined"])) },
  { weight: 5, value: prune },
  { weight: 8, value: useLock },
  { weight: 3, value: reclaimLate },
];

/** Every kind of step, by name. */
export const operations: Record<string, { weight: number; run: Operation }> = {
  ask: { weight: 50, run: one },
  turn: { weight: 14, run: turn },
  enqueueMuch: { weight: 1, run: enqueueMuch },
  look: { weight: 3, run: look },
  pass: { weight: 12, run: (world, random) => world.pass(random.pick([1, 40, 450, 2_111, 7_013, 21_777, 61_003])) },
  tick: { weight: 8, run: (world, random) => heal(world, random, (actor) => actor.tick()) },
  watch: { weight: 3, run: watch },
  recover: { weight: 2, run: (world, random) => heal(world, random, (actor) => actor.janitor?.recover()) },
  healAndClaim: { weight: 5, run: healAndClaim },
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

export async function start(world: World, random: Random): Promise<Actor> {
  return world.start(random.chance(0.7) ? "local" : "remote", random);
}

// ── asking ──

async function one(world: World, random: Random): Promise<void> {
  await random.weighted(asks)(world, await somebody(world, random), random);
}

/** Several calls in one turn are one commit; on a file, two processes may have theirs in the same turn. */
async function turn(world: World, random: Random): Promise<void> {
  const actor = await somebody(world, random);
  const other = world.isShared || random.chance(0.5) ? actor : await somebody(world, random);
  const calls = Array.from({ length: random.int(2, 5) }, () => {
    const who = random.chance(0.5) ? actor : other;
    return random.chance(0.04) ? enqueueBad(who) : random.weighted(asks)(world, who, random);
  });
  const ends = await Promise.allSettled(calls);
  for (const end of ends) if (end.status === "rejected") throw end.reason;
}

function enqueue(world: World, actor: Actor, random: Random): Promise<unknown> {
  const jobs = newJobs(world, actor, random, random.pick([1, 1, 1, 2, 3]));
  return actor.store.enqueue(jobs, random.chance(0.3) ? { whole: random.chance(0.7) } : undefined);
}

/** More than fit into one statement. */
async function enqueueMuch(world: World, random: Random): Promise<void> {
  const actor = await somebody(world, random);
  const count = random.int(25, 55);
  await actor.store.enqueue(newJobs(world, actor, random, count));
}

/** A job that no store can take fails alone. */
async function enqueueBad(actor: Actor): Promise<void> {
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

async function claim(world: World, actor: Actor, random: Random): Promise<void> {
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

function source(random: Random): ClaimSource {
  return {
    lease: random.pick(LEASES),
    ...(random.chance(0.5) && { queue: random.pick(QUEUES) }),
    ...(random.chance(0.3) && { name: random.pick(NAMES) }),
    ...(random.chance(0.1) && { version: random.int(1, 2) }),
    ...(random.chance(0.12) && { max: random.int(0, 3) }),
  };
}

async function settle(world: World, actor: Actor, random: Random): Promise<void> {
  const ended = random.some([...actor.holds.values()]);
  if (ended.length === 0) return;
  // The same end said twice counts once.
  if (ended.length > 0 && random.chance(0.1)) ended.push(random.pick(ended));
  const settlements = ended.map((held) => settlement(world, actor, held, random));
  await actor.store.settle(settlements);
  for (const held of ended) world.drop(actor, held);
}

function settlement(world: World, actor: Actor, { job, fence }: Held, random: Random) {
  const followUps = newJobs(world, actor, random, random.chance(0.3) ? random.int(1, 3) : 0);
  for (const [index, followUp] of followUps.entries()) {
    followUp.followUpId = followUpId(actor.clock.now(), job, fence, index + world.spent.length * 10);
  }
  return { job, fence, outcome: outcome(random), ...(followUps.length > 0 && { followUps }) };
}

function outcome(random: Random): Outcome {
  const kind = random.chance(0.35) ? "succeeded" : random.pick(KINDS);
  switch (kind) {
    case "succeeded":
      return { kind, output: random.chance(0.5) ? JSON.stringify(random.int(0, 99)) : null };
    case "error":
      return {
        kind,
        error: { ...ERROR, message: `boom ${random.int(0, 99)}` },
        ...(random.chance(0.2) && { retry: false }),
        ...(random.chance(0.2) && { delay: random.pick([0, 700]) }),
      };
    case "later":
      return { kind, error: ERROR, delay: random.pick([0, 5_000]) };
    case "unreadable":
      return { kind, error: ERROR };
    default:
      return { kind };
  }
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
    await actor.store.saveCheckpoint(ref(random.pick(held)), value);
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
      return void (await actor.store.saveCheckpoint(ref(held), '"late"'));
    case 2:
      return void (await actor.store.saveProgress([{ ...ref(held), fraction: 1, message: "late" }]));
    case 3:
      return void (await actor.store.inspect(leases));
    default:
      return void (await actor.store.settle([settlement(world, actor, held, random)]));
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
      return actor.store.acquireLock(name, actor.name, token(random), random.pick(TTLS));
    case "extend":
      return actor.store.extendLock(name, said, random.pick(TTLS));
    case "release":
      return actor.store.releaseLock(name, said);
    case "clean":
      return actor.store.cleanLocks();
    case "break":
      return random.chance(0.5) ? actor.store.breakLock(name) : actor.store.locks();
  }
}

async function look(world: World, random: Random): Promise<void> {
  const actor = await somebody(world, random);
  await actor.store.outlook([random.chance(0.5) ? { lease: 1 } : { queue: random.pick(QUEUES), lease: 1 }]);
  await actor.store.locks();
  await actor.store.inspect([...actor.holds.values(), ...world.spent.slice(-5)].map(ref));
}

// ── healing ──

async function heal(world: World, random: Random, act: (actor: Actor) => Promise<unknown> | undefined): Promise<void> {
  const actor = await someProcess(world, random);
  await act(actor);
  if (world.violation !== null) throw world.violation;
  checkHealed(world, actor);
}

/** The same janitor a few times in a row, as it does by itself; the clock may be set shortly before. */
async function watch(world: World, random: Random): Promise<void> {
  const actor = await someProcess(world, random);
  if (random.chance(0.3)) world.jump(random.pick([-HOUR, HOUR]));
  for (let ticks = random.int(2, 4); ticks > 0; ticks--) {
    await actor.tick();
    if (world.violation !== null) throw world.violation;
    checkHealed(world, actor);
    await world.pass(400);
  }
}

async function healAndClaim(world: World, random: Random): Promise<void> {
  const actor = await someProcess(world, random);
  await actor.janitor?.heal();
  await claim(world, actor, random);
}

/** Somebody looks now and acts later, when what was judged may be over. */
async function judgeByHand(world: World, random: Random): Promise<void> {
  const actor = await someProcess(world, random);
  const stale = await actor.store.stale({ dead: [], skewed: random.chance(0.5), limit: 1_000 });
  for (const lease of stale) {
    // As somebody would judge who has watched it since it ran out.
    const renewedAt = world.model.held(lease)?.lease?.renewedAt ?? world.time;
    const watched = Math.max(0, world.time - renewedAt - lease.lease);
    const verdict = judge(lease, holderOf(world, actor, lease), actor.clock.now(), watched);
    if (verdict !== "keep") world.judgements.push({ ...lease, verdict });
  }
}

/** A holder stalls for long: whoever watches has its jobs back within a lease and a renewal, and it comes back as a zombie. */
async function outwait(world: World, random: Random): Promise<void> {
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
async function race(world: World, random: Random): Promise<void> {
  const holder = holderWithWork(world, random);
  if (holder === undefined) return;
  const longest = longestLease(world, holder);
  world.stall(holder, 2 * longest);
  await world.pass(Math.ceil((longest * 4) / 3));
  await judgeByHand(world, random);
  await world.wake(holder);
  await reclaimLate(world, await someProcess(world, random));
}

function reclaimLate(world: World, actor: Actor): Promise<unknown> {
  const due = world.judgements.splice(0);
  // What was judged by another clock was judged by that one; here only what still holds by this one.
  const sound = due.filter(({ expiresAt, lease, verdict }) =>
    verdict === "cut" ? expiresAt > actor.clock.now() + lease : expiresAt <= actor.clock.now(),
  );
  return actor.store.reclaim(sound, "judged a while ago");
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

async function force(world: World, random: Random): Promise<void> {
  const actor = await someProcess(world, random);
  world.isOperatorForcing = true;
  await actor.janitor?.reclaimStale(random.pick([0, 5_000, 60_000]));
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

// ── misfortune ──

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

// ── parts ──

async function somebody(world: World, random: Random): Promise<Actor> {
  return world.working.length > 0 ? random.pick(world.working) : start(world, random);
}

async function someProcess(world: World, random: Random): Promise<Actor> {
  return world.workingProcesses.length > 0 ? random.pick(world.workingProcesses) : start(world, random);
}

function newJobs(world: World, actor: Actor, random: Random, count: number): NewJob[] {
  const jobs = Array.from({ length: count }, () => newJob(world, actor, random));
  // One id for two of them, of whatever names.
  const [first, second] = jobs;
  if (first !== undefined && second !== undefined && random.chance(0.1)) second.id = first.id ??= `id-${random.int(1, 12)}`;
  return jobs;
}

function newJob(world: World, actor: Actor, random: Random): NewJob {
  const name = random.pick(NAMES);
  return {
    name,
    queue: random.chance(0.7) ? name : "slow",
    version: name === "mail" && random.chance(0.1) ? 2 : 1,
    policy: policy(random),
    input: random.chance(0.05) ? JSON.stringify("x".repeat(2_500)) : JSON.stringify({ n: random.int(0, 99) }),
    priority: random.weighted([0, 5, -5, 9].map((value, i) => ({ weight: 8 >> i, value }))),
    delay: random.chance(0.75) ? 0 : random.pick([300, 10_000, 120_000]),
    ...(random.chance(0.05) && { runAt: actor.clock.now() + random.int(-5_000, 5_000) }),
    ...(random.chance(0.2) && { id: random.chance(0.9) ? `id-${random.int(1, 12)}` : anyId(world, random) }),
    ...(random.chance(0.25) && { key: `key-${random.int(1, 4)}` }),
  };
}

function policy(random: Random): Policy {
  return {
    attempts: random.int(1, 3),
    backoff: random.pick(["fixed", "exponential"]),
    delay: random.pick([0, 1_000]),
    maxDelay: 60_000,
    crashes: random.int(1, 3),
    onInterrupt: random.pick(["retry", "retry", "resume", "fail"]),
    timeout: HOUR,
  };
}

function anyId(world: World, random: Random): string {
  const ids = [...(random.chance(0.8) ? world.model.jobs.keys() : world.model.owners.keys())];
  return ids.length === 0 || random.chance(0.03) ? "nobody" : random.pick(ids);
}

/** Most often of a job in one of these states. */
function idOf(world: World, random: Random, states: readonly JobState[]): string {
  const fitting = [...world.model.jobs.values()].filter(({ state }) => states.includes(state));
  return fitting.length > 0 && random.chance(0.8) ? random.pick(fitting).id : anyId(world, random);
}

function progress(random: Random): { fraction: number; message: string | null } {
  return { fraction: random.int(0, 4) / 4, message: random.chance(0.5) ? "on it" : null };
}

function token(random: Random): string {
  return `token-${random.int(0, 2 ** 31)}`;
}

function ref({ job, fence }: Held): { job: JobKey; fence: Fence } {
  return { job, fence };
}
