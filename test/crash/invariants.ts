import assert from "node:assert/strict";
import { FINISHED_STATES, type Job, JOB_MOVES, JOB_STATES, type JobState } from "../../src/core/jobs/job.ts";
import type { Holdfast } from "../../src/index.ts";
import { verifyAudit } from "../../src/engine/maintenance/check.ts";
import { after, workJob } from "./jobs.ts";
import type { Scene } from "./scene.ts";
import type { Witness } from "./witness.ts";

/**
 * What must be true of a database whatever was killed on it: every acknowledged job is there, each in a legal state that
 * it reached by legal moves, committed at most once, none stuck, and the counts are those of the list. Works off what
 * is left, and returns every job as it ended.
 */
export async function checkInvariants(scene: Scene, hf: Holdfast): Promise<Job[]> {
  await scene.witness.checkRows();
  await checkCounts(hf);
  assert.equal((await verifyAudit(hf.engine.store)).fault, null, "the audit is whole");
  checkPresent(scene, await everyJob(hf));

  await workOff(scene, hf);
  await scene.witness.checkRows();
  await checkCounts(hf);
  const jobs = await everyJob(hf);
  checkPresent(scene, jobs);
  const stuck = jobs.filter(({ state }) => !(FINISHED_STATES as readonly JobState[]).includes(state));
  assert.deepEqual(stuck, [], "no job is stuck");
  await checkMoves(scene.witness);
  checkCommittedOnce(scene, jobs);
  await checkBuried(hf);
  return jobs;
}

export async function everyJob(hf: Holdfast): Promise<Job[]> {
  const jobs: Job[] = [];
  let after: string | undefined;
  do {
    const page = await hf.jobs.list({ limit: 1_000, after });
    jobs.push(...page.items);
    after = page.next;
  } while (after !== undefined);
  return jobs;
}

/** Runs a worker on this handle until nothing is left to do, without help from other processes. */
export async function workOff(scene: Scene, hf: Holdfast): Promise<void> {
  const worker = hf.work([workJob(scene.effects), after]);
  await untilDone(hf);
  await worker.stop();
}

/** Waits until every job has ended, whichever process runs them. */
export async function untilDone(hf: Holdfast): Promise<void> {
  for (const state of ["waiting", "pending", "running"] as const) {
    for (;;) {
      const { items } = await hf.jobs.list({ state, limit: 1_000 });
      const last = items.at(-1);
      if (last === undefined) break;
      await hf.jobs.wait(last.id, { timeout: "60s" });
    }
  }
  // A running job's follow-ups, or one that went back while the others were waited for.
  const { waiting, pending, running } = await hf.jobs.counts();
  if (waiting + pending + running > 0) await untilDone(hf);
}

function checkPresent(scene: Scene, jobs: Job[]): void {
  const ids = new Set(jobs.map(({ id }) => id));
  assert.equal(ids.size, jobs.length, "ids are unique");
  const lost = scene.acknowledged().filter((id) => !ids.has(id));
  assert.deepEqual(lost, [], "every acknowledged job is there");
}

async function checkCounts(hf: Holdfast): Promise<void> {
  const listed = Object.fromEntries(JOB_STATES.map((state) => [state, 0])) as Record<JobState, number>;
  for (const { state } of await everyJob(hf)) listed[state]++;
  assert.deepEqual(await hf.jobs.counts(), listed, "the counts are those of the list");
}

async function checkMoves(witness: Witness): Promise<void> {
  const legal = new Set<string>();
  for (const { from, to } of Object.values(JOB_MOVES)) for (const state of from) legal.add(`${state} → ${to}`);
  const succeeded = new Set<number>();
  const last = new Map<number, { to: JobState; fence: number }>();
  for (const { key, fence, from, to } of await witness.moves()) {
    assert.ok(legal.has(`${from} → ${to}`), `job ${key} moved ${from} → ${to}`);
    const before = last.get(key);
    assert.ok(before === undefined || before.to === from, `job ${key} was ${before?.to} and moved from ${from}`);
    if (to === "running") assert.ok(fence > (before?.fence ?? 0), `job ${key}: the fence rises with each claim`);
    if (to === "succeeded") assert.ok(!succeeded.has(key), `job ${key} was committed twice`);
    if (to === "succeeded") succeeded.add(key);
    last.set(key, { to, fence });
  }
}

/** Follow-ups commit with their attempt, so there is one for each success and none for anything else. */
function checkCommittedOnce(scene: Scene, jobs: Job[]): void {
  const followUps = new Map<string, number>();
  for (const { name, input } of jobs) {
    if (name !== "after") continue;
    const { parent } = input as { parent: string };
    followUps.set(parent, (followUps.get(parent) ?? 0) + 1);
  }
  const runs = new Map<string, number>();
  for (const { id } of scene.ran()) runs.set(id, (runs.get(id) ?? 0) + 1);
  for (const { id, name, state, attempt } of jobs) {
    if (name !== "work") continue;
    const ran = runs.get(id) ?? 0;
    assert.equal(followUps.get(id) ?? 0, state === "succeeded" ? 1 : 0, `job ${id} (${state}) has its follow-up exactly once`);
    if (state === "succeeded") assert.ok(ran >= 1, `job ${id} succeeded, so it ran`);
    assert.ok(ran <= attempt, `job ${id} ran ${ran} times in ${attempt} attempts`);
  }
}

/** Dead processes are struck off, so that no process watches them for ever. */
async function checkBuried(hf: Holdfast): Promise<void> {
  await hf.recovery.recoverStale();
  const { others: lives } = await hf.engine.store.processes.probe();
  assert.deepEqual(
    lives.filter(({ life }) => life !== "alive"),
    [],
    "no dead process is left on record",
  );
}
