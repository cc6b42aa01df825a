import assert from "node:assert/strict";
import { test } from "node:test";
import { checkInvariants, untilDone } from "./invariants.ts";
import { LONG } from "../selection.ts";
import { Scene } from "./scene.ts";

const PROCESSES = 4;
const JOBS = LONG ? 5_000 : 2_000;

test(`four processes that add ${JOBS} jobs each and work on one file lose nothing, repeat nothing and see no BUSY`, async (t) => {
  const scene = new Scene(t);
  await scene.prepare();
  const children = Array.from({ length: PROCESSES }, () => scene.start("producer-worker", { produces: JOBS }));
  for (const child of children) await child.next("ready");
  for (const child of children) child.send({ type: "go" });
  for (const child of children) await child.next("produced");
  const hf = await scene.open();
  await untilDone(hf);
  for (const child of children) child.send({ type: "stop" });
  for (const child of children) {
    const { troubles } = await child.next("over");
    assert.deepEqual(troubles, [], "no caller saw an error, and nothing had to be tried again");
  }

  assert.equal(scene.acknowledged().length, PROCESSES * JOBS);
  const jobs = await checkInvariants(scene, hf);
  assert.equal(jobs.length, 2 * PROCESSES * JOBS, "each job and its follow-up");
  assert.ok(
    jobs.every(({ state, attempt, crashes }) => state === "succeeded" && attempt === 1 && crashes === 0),
    "no process died, so nothing ran twice",
  );
  const runs = scene.ran();
  assert.equal(runs.length, PROCESSES * JOBS);
  assert.equal(new Set(runs.map(({ pid }) => pid)).size, PROCESSES, "all of them worked");
});
