import assert from "node:assert/strict";
import { test } from "node:test";
import { checkInvariants } from "./invariants.ts";
import { randomFrom, SEEDS } from "../seeds.ts";
import { LONG } from "../selection.ts";
import type { Child } from "./spawn.ts";
import { wherever } from "./wherever.ts";

const LASTS = LONG ? 60_000 : 1_500;
const OPERATIONS = { producer: ["enqueue"], worker: ["claim", "settle", "reclaim", "unregister"] } as const;

wherever((stage) => {
  for (const seed of SEEDS)
    test(`producers and workers killed at random lose nothing, repeat nothing and leave nothing stuck (HOLDFAST_SEED=${seed})`, async (t) => {
      const scene = await stage(t);
      const end = performance.now() + LASTS;
      let killed = 0;

      /** One slot in the fleet: the process in it is killed after a while, and replaced. */
      const keepKilling = async (script: "producer" | "worker", place: number) => {
        const random = randomFrom(seed + place);
        while (performance.now() < end) {
          const child = scene.start(script, { concurrency: 1 + Math.floor(random() * 8) });
          await child.next("ready");
          await dies(child, script, random);
          killed++;
        }
      };
      await Promise.all([
        keepKilling("producer", 1),
        keepKilling("producer", 2),
        keepKilling("worker", 3),
        keepKilling("worker", 4),
        keepKilling("worker", 5),
      ]);
      const hf = await scene.open();
      const jobs = await checkInvariants(scene, hf);
      assert.deepEqual(new Set(jobs.map(({ state }) => state)), new Set(["succeeded"]), "each one was worked off in the end");
      const crashes = jobs.reduce((sum, job) => sum + job.crashes, 0);
      t.diagnostic(`${killed} processes killed, ${scene.acknowledged().length} jobs acknowledged, ${crashes} crashes charged`);
    });
});

/** Killed from outside some time after some message, or by itself at a named point. */
async function dies(child: Child, script: "producer" | "worker", random: () => number): Promise<void> {
  const messages = Math.floor(random() ** 2 * 100);
  const pause = random() * 90;
  const inside = random() < 0.4;
  const operations = OPERATIONS[script];
  const operation = operations[Math.floor(random() * operations.length)] as string;
  const moment = ["begun", "written", "committed"][Math.floor(random() * 3)] as string;
  const overdue = new Promise((resolve) => setTimeout(resolve, pause));
  // A worker may have nothing to do, so it is not waited for longer than the others' kills take.
  for (let i = 0; i < messages; i++) {
    const heard = child.next(script === "producer" ? "accepted" : "started").then(() => true);
    heard.catch(() => {});
    if (script === "producer") await heard;
    else if (!(await Promise.race([heard, overdue.then(() => false)]))) break;
  }
  if (inside) child.send({ type: "arm", point: `${operation}:${moment}` });
  // The point may never come, e.g. when there is nothing to reclaim.
  await Promise.race([child.ended, new Promise((resolve) => setTimeout(resolve, inside ? 90 : random() * 30))]);
  child.kill();
  assert.equal((await child.end()).signal, "SIGKILL", child.stderr);
}
