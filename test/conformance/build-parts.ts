import assert from "node:assert/strict";
import { type Budget, mintToken, TOKEN_BYTES } from "../../src/core/pipelines/budget.ts";
import { HoldfastError } from "../../src/core/text/errors.ts";
import type { ProcessId } from "../../src/core/text/ids.ts";
import { describePipeline, pipeline, pipelineHash, pipelineOf } from "../../src/core/pipelines/pipeline.ts";
import { files } from "../../src/core/pipelines/source.ts";
import { listingJobName, pipelineQueue } from "../../src/core/pipelines/work.ts";
import {
  type Approval,
  buildById,
  type BuildRow,
  type OrchestratedBuild,
  type LockToken,
  type NewBuild,
  type NewOrchestratorLock,
  type ResumeBuild,
} from "../../src/store/builds.ts";
import type { NewJob, Store } from "../../src/store/store.ts";
import { claimIds, LEASE, newJob, register } from "./parts.ts";

/** Values that the cases of builds share: a pipeline, a build of it, and the orchestrator that holds its lock. */
export const BUDGET: Budget = { micros: 5_000_000, tokens: null };
export const STOPPED = { move: "crash", reason: "stopped" } as const;
export const PAUSED = { move: "pause", reason: "budget_precheck_block" } as const;
export const LOST = "orchestrator_lost";

/** What is stored of a pipeline of two stages, the first of them of this version. */
export function described(name: string, version = 1): { hash: string; description: string } {
  const made = pipeline(name)
    .source(files("docs/**/*.md"))
    .stage("parse", { version }, () => null)
    .stage("index", {}, () => null);
  const description = describePipeline(pipelineOf(made));
  return { hash: pipelineHash(description), description: JSON.stringify(description) };
}

export function newLead(holder: ProcessId, token = "token-1"): NewOrchestratorLock {
  return { token, holder, pid: 4_321, host: "here", program: "holdfast run docs.ts", programHash: "f00d" };
}

export function listing(name: string, segment = 0): NewJob {
  const work = { build: null, kind: "listing", stage: "", segment, path: "" } as const;
  return newJob({ name: listingJobName(name), queue: pipelineQueue(name, null), work });
}

export function newBuild(lead: NewOrchestratorLock, given: Partial<NewBuild> = {}): NewBuild {
  const name = given.pipeline ?? "docs";
  return {
    pipeline: name,
    queue: pipelineQueue(name, null),
    ...described(name),
    options: '{"rerun":[]}',
    budget: BUDGET,
    maxFailures: null,
    stages: ["parse", "index"],
    lead,
    listing: listing(name),
    ...given,
  };
}

/** A build that runs, and who leads it. */
export interface Led {
  build: BuildRow;
  lead: NewOrchestratorLock;
  lock: LockToken;
}

export async function started(
  store: Store,
  given: Partial<NewBuild> & { token?: string } = {},
): Promise<Led & { build: OrchestratedBuild }> {
  const { token, ...rest } = given;
  const lead = given.lead ?? newLead(await register(store), token);
  const build = made(await store.builds.start(newBuild(lead, rest))) as OrchestratedBuild;
  return { build, lead, lock: { pipeline: build.pipeline, token: lead.token } };
}

/** Clears the work that earlier builds left behind; the queue of the build continues. */
export async function clearedFor(store: Store, { build, lock }: Pick<Led, "build" | "lock">): Promise<void> {
  while ((await store.work.clearWork({ pipeline: build.pipeline, which: "all", limit: 100 })) > 0);
  assert.equal(await store.builds.advance(build.id, lock, "run"), true);
}

/** Bytes that are as good as random. */
export function bytes(n: number): Uint8Array {
  return new Uint8Array(TOKEN_BYTES).fill(n);
}

/** The token that these bytes are made into. */
export function tokenOf(n: number): string {
  return mintToken(bytes(n), { id: "any", state: "BUDGET_PAUSE", seq: 0 }, 0).token;
}

/** A build that has paused, and may go on with `tokenOf(1)`. */
export async function paused(store: Store, given: Partial<NewBuild> & { token?: string } = {}): Promise<Led> {
  const led = await started(store, given);
  const build = await store.builds.move(led.build.id, PAUSED, led.lock, { bytes: bytes(1) });
  return { ...led, build: made(build) };
}

export async function stopped(store: Store): Promise<Led> {
  const led = await started(store);
  return { ...led, build: made(await store.builds.move(led.build.id, STOPPED, led.lock)) };
}

export function resuming(
  { build, lead }: Led,
  given: { approval?: Approval; token?: string; version?: number } = {},
): ResumeBuild {
  const { token = "token-2", version, approval } = given;
  const next = { ...lead, token };
  return { build: build.id, ...described(build.pipeline, version), lead: next, ...(approval && { approval }) };
}

/** The build itself, and no conflict. */
export function made(answer: object | null): BuildRow {
  assert.ok(answer !== null && "seq" in answer, `a build, and not ${JSON.stringify(answer)}`);
  return answer as BuildRow;
}

export async function seeBuild(store: Store, { id }: { id: string }): Promise<BuildRow> {
  return made(await buildById(store.builds, id));
}

/** Everything that there is to see of builds. */
export async function everything(store: Store): Promise<object> {
  return {
    builds: await store.builds.list({ limit: 100 }),
    leads: await store.builds.orchestratorLocks(),
    audit: await store.audit.page({ after: 0, limit: 1_000 }),
    events: await store.events.page({ after: 0, limit: 1_000 }),
    queues: (await store.queries.overview()).queues,
  };
}

/** It is refused for this reason, and nothing is other than it was. */
export async function refused(store: Store, code: string, act: () => Promise<unknown>): Promise<HoldfastError> {
  const before = await everything(store);
  const error: unknown = await act().then(
    (answer) => assert.fail(`refused with ${code}, and not answered with ${JSON.stringify(answer)}`),
    (reason: unknown) => reason,
  );
  assert.ok(error instanceof HoldfastError, `an error that helps, and not ${String(error)}`);
  assert.equal(error.code, code, error.message);
  assert.deepEqual(await everything(store), before, "nothing has changed");
  return error;
}

/** It is answered like this, and nothing is other than it was. */
export async function changesNothing(store: Store, answer: unknown, act: () => Promise<unknown>): Promise<void> {
  const before = await everything(store);
  assert.deepEqual(await act(), answer);
  assert.deepEqual(await everything(store), before, "nothing has changed");
}

/** Whether the queue of this build is paused. */
export async function isQueuePaused(store: Store, { queue }: { queue: string }): Promise<boolean> {
  return (await store.queries.overview()).queues.some(({ name, paused }) => name === queue && paused);
}

/** Number of its jobs that a worker could claim now. */
export async function claimable(store: Store, { queue }: { queue: string }): Promise<number> {
  return (await claimIds(store, { from: [{ queue, lease: LEASE }] })).length;
}

/** Events of a build, without the fields that are the same in all of them. */
export async function toldOf(store: Store, { id }: { id: string }): Promise<{ type: string; data: Record<string, unknown> }[]> {
  const events = await store.events.page({ after: 0, limit: 1_000, build: id });
  return events.map(({ type, data }) => ({ type, data: data as Record<string, unknown> }));
}
