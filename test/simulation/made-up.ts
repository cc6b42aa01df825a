import { FINISHED_STATES, type JobError, type JobState } from "../../src/core/jobs/job.ts";
import type { LimitRule } from "../../src/core/limits/limit.ts";
import type { Keep, QueueSettings } from "../../src/core/jobs/claiming.ts";
import type { Outcome, Policy } from "../../src/core/jobs/retry.ts";
import type { ClaimSource, Declaration, NewJob } from "../../src/store/store.ts";
import type { Actor } from "./actor.ts";
import { Random } from "./random.ts";
import type { World } from "./world.ts";

/** Few of everything, so that they meet. */
const NAMES = ["mail", "scan"] as const;
export const QUEUES = ["mail", "scan", "slow"] as const;
export const LEASES = [1_500, 9_000, 30_000];
export const HOUR = 3_600_000;
const RATES = [
  { starts: 1, per: 1_000 },
  { starts: 2, per: 10_000 },
  { starts: 3, per: 60_000 },
];
const ERROR: JobError = { name: "Error", message: "boom" };
const POLICIES = Array.from({ length: 16 }, (_, i) => policy(new Random(i)));
const KINDS = ["succeeded", "error", "later", "unreadable", "released", "interrupted"] as const;

export function newJobs(world: World, actor: Actor, random: Random, count: number): NewJob[] {
  const jobs = Array.from({ length: count }, () => newJob(world, actor, random));
  if (world.declared.size > 0) declareAll(world, random, jobs);
  // One id for two of them, of whatever names.
  const [first, second] = jobs;
  if (first !== undefined && second !== undefined && random.chance(0.1)) second.id = first.id ??= `id-${random.int(1, 12)}`;
  if (random.chance(0.5)) chain(random, jobs);
  return jobs;
}

/** As a definition does: the same words for all its jobs, and a key for each limit that has keys. */
function declareAll(world: World, random: Random, jobs: readonly NewJob[]): void {
  // Each time in new words, so that the newest is always the one that was said last.
  const said = new Map([...world.declared].map(([lane, declaration]) => [lane, { ...declaration }]));
  for (const job of jobs) {
    const declaration = said.get(`${job.queue} ${job.name}`);
    if (declaration === undefined || random.chance(0.1)) continue;
    job.declares = declaration;
    job.limitKeys = declaration.limits.map(({ keyed }) => (keyed ? random.pick(["a", "b"]) : ""));
  }
}

/** What the definitions of a queue's jobs say from now on. */
export function declarations(random: Random): Declaration[] {
  const queue = random.pick(QUEUES);
  const ofQueue = limits(random, "queue", random.pick([0, 0, 1, 2]));
  const settings: QueueSettings = { events: random.chance(0.5), keep: random.chance(0.5) ? keep(random) : {} };
  const names = queue === "slow" ? NAMES : ([queue] as const);
  return names.map((name) => {
    const all = [...limits(random, "job", random.pick([0, 1, 1, 2])), ...ofQueue];
    // The narrow ones first.
    const inOrder = [...all.filter(({ keyed }) => keyed), ...all.filter(({ keyed }) => !keyed)];
    return { queue, name, limits: inOrder, settings };
  });
}

function keep(random: Random): QueueSettings["keep"] {
  const keep: QueueSettings["keep"] = {};
  for (const state of random.some(FINISHED_STATES)) {
    const age = random.pick([0, 1_000, 30_000]);
    const count = random.int(0, 3);
    keep[state] = random.pick<Keep>([{ age }, { count }, { age, count }]);
  }
  return keep;
}

function limits(random: Random, of: "queue" | "job", count: number): LimitRule[] {
  return Array.from({ length: count }, (_, position): LimitRule => {
    const concurrency = random.chance(0.7) ? random.int(1, 3) : null;
    const rate = concurrency === null || random.chance(0.3) ? random.pick(RATES) : null;
    return { of, position, keyed: random.chance(0.5), concurrency, rate };
  });
}

/** Some come after one that stands before them in the list. */
export function chain(random: Random, jobs: readonly NewJob[]): void {
  for (const [i, job] of jobs.entries()) {
    const before = jobs.slice(0, i).flatMap(({ id, followUpId }) => id ?? followUpId ?? []);
    if (before.length > 0 && random.chance(0.3)) job.after = [...(job.after ?? []), random.pick(before)];
  }
}

function newJob(world: World, actor: Actor, random: Random): NewJob {
  const name = random.pick(NAMES);
  return {
    name,
    queue: random.chance(0.7) ? name : "slow",
    version: name === "mail" && random.chance(0.1) ? 2 : 1,
    policy: random.pick(POLICIES),
    input: random.chance(0.05) ? JSON.stringify("x".repeat(2_500)) : JSON.stringify({ n: random.int(0, 99) }),
    priority: random.weighted([0, 5, -5, 9].map((value, i) => ({ weight: 8 >> i, value }))),
    delay: random.chance(0.75) ? 0 : random.pick([300, 10_000, 120_000]),
    ...(random.chance(0.05) && { runAt: actor.clock.now() + random.int(-5_000, 5_000) }),
    ...(random.chance(0.2) && { id: random.chance(0.9) ? `id-${random.int(1, 12)}` : anyId(world, random) }),
    ...(random.chance(0.2) && { after: upstreams(world, random) }),
    ...(random.chance(0.25) && { key: `key-${random.int(1, 4)}` }),
  };
}

/** Mostly of those that have not ended. */
function upstreams(world: World, random: Random): string[] {
  return Array.from({ length: random.pick([1, 1, 2, 3]) }, () => idOf(world, random, ["waiting", "pending", "running"]));
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

export function outcome(random: Random): Outcome {
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

export function source(random: Random): ClaimSource {
  return {
    lease: random.pick(LEASES),
    ...(random.chance(0.5) && { queue: random.pick(QUEUES) }),
    ...(random.chance(0.3) && { name: random.pick(NAMES) }),
    ...(random.chance(0.1) && { version: random.int(1, 2) }),
    ...(random.chance(0.12) && { max: random.int(0, 3) }),
  };
}

export function progress(random: Random): { fraction: number; message: string | null } {
  return { fraction: random.int(0, 4) / 4, message: random.chance(0.5) ? "on it" : null };
}

export function token(random: Random): string {
  return `token-${random.int(0, 2 ** 31)}`;
}

export function anyId(world: World, random: Random): string {
  const ids = [...(random.chance(0.8) ? world.model.jobs.keys() : world.model.enqueues.owners.keys())];
  return ids.length === 0 || random.chance(0.03) ? "absent" : random.pick(ids);
}

/** Most often of a job in one of these states. */
export function idOf(world: World, random: Random, states: readonly JobState[]): string {
  const fitting = [...world.model.jobs.values()].filter(({ state }) => states.includes(state));
  return fitting.length > 0 && random.chance(0.8) ? random.pick(fitting).id : anyId(world, random);
}
