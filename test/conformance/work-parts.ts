import assert from "node:assert/strict";
import type { Amount } from "../../src/core/pipelines/budget.ts";
import type { LeaseRef } from "../../src/core/jobs/lease.ts";
import type { Outcome, Policy } from "../../src/core/jobs/retry.ts";
import { inlineValue, pipelineQueue, stageJobName } from "../../src/core/pipelines/work.ts";
import { abandonment, type BuildRow, type NewBuild } from "../../src/store/builds.ts";
import type { Claimed, NewJob, Store } from "../../src/store/store.ts";
import type { Flow, ListedBatch, ListedTarget, NewResult, NewWork, TargetRow, WorkEnd } from "../../src/store/work.ts";
import { type Led, seeBuild, started } from "./build-parts.ts";
import { claim, claimOne, LEASE, newJob, SUCCEEDED } from "./parts.ts";

/** Words that the cases of work items share: a build whose listing runs, targets, and where they go. */
export const FREE: Amount = { micros: 0, tokens: 0 };

export function dollars(cents: number): Amount {
  return { micros: cents * 10_000, tokens: 0 };
}

/** A build of the stages "parse" and "index", and its listing, which runs. */
export interface Site extends Led {
  lister: Claimed;
}

export async function site(store: Store, given: Partial<NewBuild> & { token?: string } = {}): Promise<Site> {
  const led = await started(store, given);
  return { ...led, lister: await claimOne(store, { from: [{ queue: led.build.queue, lease: LEASE }] }) };
}

export type ItemLike = { build: BuildRow } & Partial<Omit<NewWork, "build">> & { policy?: Partial<Policy> };

/** The job of a work item: of the stage "parse" of the target "a", unless said otherwise. */
export function item({ build, policy, ...given }: ItemLike): NewJob {
  const work: NewWork = { build: build.key, kind: "stage", stage: "parse", segment: 0, path: "a", ...given };
  const name = stageJobName(build.pipeline, work.stage);
  return newJob({ name, queue: pipelineQueue(build.pipeline, null), work, ...(policy && { policy }) });
}

export function toWork(build: BuildRow, stage: string, path: string, given: Partial<Flow> & Partial<ItemLike> = {}): Flow {
  return { to: "work", completed: given.completed ?? [], job: item({ build, stage, path, ...given }) };
}

export function toEnd(path: string, given: Partial<Extract<Flow, { to: "end" }>> = {}): Flow {
  return { to: "end", completed: [], done: "definition-1", group: null, member: `member of ${path}`, ...given };
}

/** A target that is new, and on its way to nowhere. */
export function target(path: string, flow: Flow | null, given: Partial<ListedTarget> = {}): ListedTarget {
  const id = path.split("/").at(-1) as string;
  const value = inlineValue(JSON.stringify({ path }));
  return { path, id, parent: null, hash: `hash of ${path}`, fingerprint: null, value, rev: 0, passed: [], flow, ...given };
}

/** The same as it was read. */
export function again(row: TargetRow, flow: Flow | null, given: Partial<ListedTarget> = {}): ListedTarget {
  const { path, id, parent, hash, fingerprint, value, rev } = row;
  return { path, id, parent, hash, fingerprint, value, rev, passed: [], flow, ...given };
}

export async function list(store: Store, { build, lister }: Site, batch: Partial<ListedBatch>): Promise<void> {
  const whole = { build: build.key, pipeline: build.pipeline, segment: 0, targets: [], ...batch };
  assert.equal(await store.work.listed(lister, whole), "held");
}

/** Targets that wait for the stage "parse", and their leases. */
export async function parsing(store: Store, at: Site, paths: string[], policy?: Partial<Policy>): Promise<Claimed[]> {
  await list(store, at, { targets: paths.map((path) => target(path, toWork(at.build, "parse", path, policy && { policy }))) });
  const claimed = await claim(store, { from: [{ queue: at.build.queue, lease: LEASE }], max: paths.length });
  assert.equal(claimed.length, paths.length, "each has a job");
  return claimed;
}

export async function parsingOne(store: Store, at: Site, path = "a", policy?: Partial<Policy>): Promise<Claimed> {
  return (await parsing(store, at, [path], policy))[0] as Claimed;
}

export function result(given: Partial<NewResult> = {}): NewResult {
  return { hash: "context-1", parts: '{"stage":"parse"}', output: inlineValue('"text"'), artifacts: [], ...given };
}

/** The end of a work item that made something, and whose target stays where it is. */
export function ended(given: Partial<WorkEnd> = {}): WorkEnd {
  return { cost: FREE, result: result(), target: null, ...given };
}

export async function settleItem(
  store: Store,
  lease: LeaseRef,
  work: WorkEnd | undefined,
  outcome: Outcome = SUCCEEDED,
): Promise<void> {
  const { job, fence } = lease;
  assert.deepEqual(await store.settle([{ job, fence, outcome, ...(work && { work }) }]), ["held"]);
}

/** Moves the target on to the stage "index" with the result of "parse". */
export async function parsed(store: Store, at: Site, lease: LeaseRef, path: string, given: Partial<WorkEnd> = {}): Promise<void> {
  const row = await seeTarget(store, path);
  const made = given.result === undefined ? result() : given.result;
  const step = { stage: "parse", result: null, output: (made ?? result()).output.hash };
  const flow = toWork(at.build, "index", path, { completed: [step] });
  await settleItem(store, lease, ended({ target: again(row, flow), ...given }));
}

export async function seeTarget(store: Store, path: string, segment = 0): Promise<TargetRow> {
  const [row] = await store.work.targets({ pipeline: "docs", segment, paths: [path] });
  assert.ok(row, `target ${path} is there`);
  return row;
}

/** What is counted: open and failed in all, and of each stage [ran, cached, failed, passed, open]. */
export async function counts(store: Store, build: BuildRow): Promise<[number, number, Record<string, number[]>]> {
  const { open, failed, stages } = await seeBuild(store, build);
  const each = stages.map(({ stage, ...n }) => [stage, [n.ran, n.cached, n.failed, n.passed, n.open]]);
  return [open, failed, Object.fromEntries(each)];
}

export async function money(store: Store, build: BuildRow): Promise<{ spent: number; reserved: number }> {
  const { spent, reserved } = await seeBuild(store, build);
  return { spent: spent.micros, reserved: reserved.micros };
}

/** Everything that there is to see of a build's work. */
export async function everyWork(store: Store, build: BuildRow): Promise<object> {
  const page = { pipeline: build.pipeline, limit: 100 };
  const of = async (stage: string) => store.work.results({ build: build.id, stage, limit: 100 });
  return {
    build: await seeBuild(store, build),
    targets: await Promise.all([0, 1].map((segment) => store.work.targets({ ...page, segment }))),
    results: [await of("parse"), await of("index"), await store.work.results({ build: build.id, failed: true, limit: 100 })],
    artifacts: await store.work.artifacts({ build: build.id }),
    costs: await store.work.costs(build.pipeline),
    jobs: await store.queries.list({ limit: 100 }),
  };
}

/** Another build of the same pipeline, whose listing runs. */
export async function next(store: Store, { build }: Site): Promise<Site> {
  await store.builds.move(build.id, abandonment("another follows"), { by: "operator" });
  await store.work.clearWork({ pipeline: build.pipeline, which: "all", limit: 1_000 });
  return site(store, { token: `after ${build.id}` });
}

/** Claims what can be claimed of a build. */
export function claimOf(store: Store, build: BuildRow, max = 100): Promise<Claimed[]> {
  return claim(store, { from: [{ queue: build.queue, lease: LEASE }], max });
}
