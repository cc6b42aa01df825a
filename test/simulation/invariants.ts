import type { Job, JobError } from "../../src/core/jobs/job.ts";
import type { Judgement } from "../../src/store/recoveries.ts";
import type { ClaimSource, ClaimOutlook, Store } from "../../src/store/store.ts";
import type { Actor } from "./actor.ts";
import { plain } from "./checked-store.ts";
import { isHeldBack } from "./held-back.ts";
import type { Model } from "./model.ts";
import type { ModelJob } from "./model-job.ts";
import { must, mustEqual } from "./violation.ts";
import type { World } from "./world.ts";
import { countJobs } from "../../src/store/queries.ts";

/** After each step: what the step had to do with is as the model says. */
export async function checkTouched(store: Store, model: Model): Promise<void> {
  for (const id of model.touched) {
    const job = model.jobs.get(id);
    checkJob(await store.queries.get(id), job, id);
    if (job?.jobKey) mustEqual(await store.loadCheckpoint(job.jobKey), job.checkpoint, `the checkpoint of ${id}`);
  }
  model.touched.clear();
}

/** Now and then, and at the end: everything is. */
export async function checkEverything(world: World, store: Store): Promise<void> {
  const { model } = world;
  checkModel(model);
  const jobs = [...model.jobs.values()];
  const listed = await listAll(store);
  mustEqual(
    listed.map(({ id }) => id),
    jobs.map(({ id }) => id),
    "the list of all jobs, in the order of acceptance",
  );
  for (const [i, job] of jobs.entries()) checkJob(listed[i] as Job, job, job.id);
  for (const { id, jobKey, checkpoint } of jobs) {
    if (checkpoint !== null && jobKey !== null)
      mustEqual(await store.loadCheckpoint(jobKey), checkpoint, `the checkpoint of ${id}`);
  }
  for (const state of new Set(jobs.map((job) => job.state))) {
    const { items } = await store.queries.list({ state, limit: 1_000 });
    mustEqual(
      items.map(({ id }) => id),
      jobs.filter((job) => job.state === state).map(({ id }) => id),
      `the list of jobs that are ${state}`,
    );
  }
  await checkCounts(store, model);
  const running = new Map<number | null, number>();
  for (const { lease } of model.running()) running.set(lease.holder, (running.get(lease.holder) ?? 0) + 1);
  mustEqual(sorted((await store.queries.overview()).running), sorted(running), "how many jobs each process runs");
  mustEqual((await world.place.processes(store)).sort(byNumber), [...model.processes].sort(byNumber), "the processes");
  mustEqual(plain(await store.locks.list()), model.locks.views(world.nowOf(store)), "the locks");
  mustEqual(await store.schedules.list(), model.schedules.views(), "the schedules");
  mustEqual(
    (await world.place.rows.all(store)).sort(byNumber),
    [...model.rows].sort(byNumber),
    "the jobs whose rows of the user's own are committed",
  );
  const { entriesReclaimed, locksCleaned } = (await store.recoveries.history({ limit: 0 })).totals;
  mustEqual({ entries: entriesReclaimed, locks: locksCleaned }, model.reclaims.recovered, "what was recovered in all");
}

/** Promises about the whole, which no single answer shows. */
function checkModel(model: Model): void {
  const keys = new Set<string>();
  const suspects = new Set<number>();
  for (const job of model.jobs.values()) {
    must(job.successes <= 1, () => `${job.id} was committed once at most`);
    must((job.state === "running") === (job.lease !== null), () => `${job.id} is held exactly while it runs`);
    must(
      (job.state === "waiting") === job.upstreams.size > 0,
      () => `${job.id} waits exactly while it has an unfinished upstream`,
    );
    for (const id of job.upstreams)
      must(model.jobs.get(id)?.unfinished ?? false, () => `${job.id} waits for ${id}, which is over`);
    if (!job.unfinished) continue;
    must(job.errors < job.policy.attempts, () => `${job.id} has had all its attempts and is not finished`);
    must(job.crashes <= job.policy.crashes, () => `${job.id} has crashed or stalled too often and is not finished`);
    if (job.key !== undefined) {
      const slot = `${job.name}\n${job.key}`;
      must(!keys.has(slot), () => `key ${job.key} belongs to one unfinished ${job.name}`);
      keys.add(slot);
    }
    const holder = job.crashes > 0 ? job.lease?.holder : undefined;
    if (holder === undefined || holder === null) continue;
    must(!suspects.has(holder), () => `process ${holder} holds two suspects`);
    suspects.add(holder);
  }
}

function checkJob(seen: Job | null, job: ModelJob | undefined, id: string): void {
  if (job === undefined) return must(seen === null, () => `${id} was pruned and is there`);
  must(seen !== null, () => `${id} was accepted and is not there`);
  // Where it runs is the process's to say, which may be struck off by now.
  const { runAt, error, host: _, pid: __, ...rest } = seen;
  mustEqual(rest, job.view(), `job ${id}`);
  must(runAt >= job.runAt.from && runAt <= job.runAt.to, () => `${id} runs at ${runAt}, not within ${JSON.stringify(job.runAt)}`);
  job.runAt = { from: runAt, to: runAt };
  mustEqual(sayError(error), sayError(job.error), `the error of ${id}`);
}

function sayError(error: JobError | undefined): string | undefined {
  return error && (error.code ?? `${error.name}: ${error.message}`);
}

async function checkCounts(store: Store, model: Model): Promise<void> {
  mustEqual(await countJobs(store.queries), model.counts({}), "the counts");
  const lanes = [...model.lanes].map((lane) => lane.split("\n") as [string, string]);
  for (const name of new Set(lanes.map(([, name]) => name))) {
    mustEqual(await countJobs(store.queries, { name }), model.counts({ name }), `the counts of the jobs ${name}`);
  }
  const queues = [...new Set([...lanes.map(([queue]) => queue), ...model.queues.spokenOf])].sort();
  const overview = (await store.queries.overview()).queues.map(({ name, paused, counts }) => ({ name, paused, counts }));
  mustEqual(
    overview,
    queues.map((queue) => ({ name: queue, paused: model.queues.paused.has(queue), counts: model.counts({ queue }) })),
    "the queues",
  );
}

async function listAll(store: Store): Promise<Job[]> {
  const jobs: Job[] = [];
  for (let after: string | undefined; ;) {
    const page = await store.queries.list({ limit: 64, ...(after !== undefined && { after }) });
    jobs.push(...page.items);
    if (page.next === undefined) return jobs;
    after = page.next;
  }
}

/** What is sure is announced; what the clock has put in doubt may be either way. */
export function checkOutlook(model: Model, at: number, from: readonly ClaimSource[], outlook: ClaimOutlook): void {
  const matching = [...model.jobs.values()].filter(
    (job) =>
      job.state === "pending" &&
      !model.isShut(job.queue, at) &&
      from.some(
        ({ queue, name, version }) =>
          (queue ?? job.queue) === job.queue && (name ?? job.name) === job.name && (version ?? job.version) === job.version,
      ),
  );
  const unlimited = matching.filter((job) => !isHeldBack(model, at, job));
  const ready = new Set(unlimited.map((job) => job.readyAt(at)));
  if (ready.has("yes")) must(outlook.ready, "something can be claimed, and the outlook denies it");
  else if (!ready.has("maybe") && !model.limits.any) must(!outlook.ready, "nothing can be claimed, and the outlook promises it");
  const { nextIn } = outlook;
  if (nextIn !== null && !model.limits.any)
    must(
      matching.some(({ runAt }) => Math.max(0, runAt.from - at) === nextIn),
      `no delayed job is due in ${nextIn} ms`,
    );
  for (const job of matching) {
    const wait = job.isParked ? Math.max(...job.counters.map((counter) => model.limits.wait(counter) ?? Infinity)) : Infinity;
    must(
      wait === Infinity || outlook.ready || (nextIn !== null && nextIn <= wait),
      () => `no worker comes back for ${job.id} in ${wait} ms`,
    );
    if (job.readyAt(at) !== "no") continue;
    must(nextIn !== null && at + nextIn <= job.runAt.to, () => `${job.id} is due sooner than in the outlook's ${nextIn} ms`);
  }
}

/** Live work is never taken: a holder that renews its lease keeps it, whatever the clocks do. */
export function checkTaking(world: World, at: number, judgement: Judgement): void {
  const job = world.model.judged(judgement);
  if (job === undefined || judgement.verdict === "cut") return;
  const { holder, renewedAt, lease, expiresAt } = job.lease;
  const unrenewed = world.time - renewedAt;
  const actor = holder === null ? null : world.actorOf(holder);
  if (actor !== null && isGone(actor)) return;
  must(expiresAt <= at, () => `the lease of ${job.id} has not run out`);
  if (world.isClockSane) must(unrenewed >= lease, () => `the lease of ${job.id} was taken ${lease - unrenewed} ms too early`);
  if (actor === null || world.isOperatorForcing) return;
  const knows = actor.holds.get(judgement.job)?.fence === judgement.fence;
  must(!(knows && actor.condition === "working"), () => `${job.id} was taken from ${actor.name}, which lives and renews`);
  if (knows) must(unrenewed >= Math.floor(lease / 3), () => `${job.id} was taken before ${actor.name} had to renew`);
  // A lease that its process never got is also found by that process, which knows that nothing ran.
  if (actor.isLocal && (knows || judgement.verdict !== "interrupted"))
    mustEqual(judgement.verdict, "stalled", `the verdict on ${job.id}, whose holder is alive`);
}

function isGone(actor: Actor): boolean {
  return actor.isLocal && (actor.condition === "dead" || actor.condition === "rebooted");
}

/** After a look around, nothing is left of the dead, nor of what only its lease protected. */
export function checkHealed(world: World, by: Actor): void {
  for (const job of world.model.running()) {
    const { holder, expiresAt, fence } = job.lease;
    const actor = holder === null ? null : world.actorOf(holder);
    must(actor === null || !isGone(actor), () => `${job.id} is still held by ${actor?.name}, which is dead`);
    const isOrphan = actor === by && by.holds.get(job.jobKey as never)?.fence !== fence;
    if (actor === null || isOrphan)
      must(expiresAt > by.clock.now(), () => `${job.id} is still held, though its lease has run out`);
  }
}

function byNumber(a: number, b: number): number {
  return a - b;
}

function sorted(map: ReadonlyMap<number | null, number>): [number | null, number][] {
  return [...map].sort(([a], [b]) => (a ?? -1) - (b ?? -1));
}
