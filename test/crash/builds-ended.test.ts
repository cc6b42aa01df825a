import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { ranSoFar } from "./docs.ts";
import { building, documentsOf, stateOf } from "./docs-site.ts";
import type { Scene } from "./scene.ts";
import { atPoint, wherever } from "./wherever.ts";

/** The end of the build itself, and the clearing away of what it has left. */
const POINTS = ["build:committed", "cancel:begun", "cancel:written", "cancel:committed"];

wherever(
  (stage, place) => {
    describe("what an abandoned build leaves undone", { concurrency: 2 }, () => {
      for (const point of POINTS) {
        test(
          `leftover work of an abandoned build is cleared by the next process after a kill at ${point}`,
          atPoint(place, point),
          async (t) => {
            const scene = await stage(t);
            const site = await documentsOf(scene, 6);
            const leader = await building(scene, site, { holds: { stage: "summarise", target: "002.txt" }, concurrency: 1 });
            await leader.next("holding");
            leader.kill();
            await leader.end();
            const operator = scene.start("builder", { root: site.root, abandonsAt: point });
            await operator.next("ready");
            operator.send({ type: "abandon", id: leader.build });
            assert.equal((await operator.end()).signal, "SIGKILL", operator.stderr);
            assert.equal((await stateOf(scene, leader.build))?.["state"], "ABANDONED");
            const left = await openWork(scene);
            assert.equal(left > 0, point !== "cancel:committed", `${left} are left`);
            const hf = await scene.open({ artifacts: `${site.root}-artifacts` });
            assert.equal(await openWork(scene), 0);
            const queue = (await hf.queues.list()).find(({ name }) => name.startsWith("pipeline/"));
            assert.deepEqual([queue?.counts.pending, queue?.counts.running, queue?.oldestAt], [0, 0, undefined]);
            await hf.close();
            await site.goesOn();
          },
        );
      }

      for (const point of ["cancel:begun", "cancel:written", "cancel:committed"]) {
        test(
          `leftover work of an abandoned build is claimed by no worker after a kill at ${point} of the next start`,
          atPoint(place, point),
          async (t) => {
            const scene = await stage(t);
            const site = await documentsOf(scene, 6);
            const leader = await building(scene, site, { holds: { stage: "summarise", target: "002.txt" }, concurrency: 1 });
            await leader.next("holding");
            leader.kill();
            await leader.end();
            const before = ranSoFar(scene.effects).length;
            const next = scene.start("builder", { root: site.root, point });
            await next.next("ready");
            next.send({ type: "build" });
            assert.equal((await next.end()).signal, "SIGKILL", next.stderr);
            assert.equal((await stateOf(scene, leader.build))?.["state"], "ABANDONED");
            assert.equal(ranSoFar(scene.effects).length, before, "neither of that build nor of its own");
            await site.goesOn();
            assert.equal(await openWork(scene), 0);
          },
        );
      }
    });
  },
  { testAll: true },
);

async function openWork(scene: Scene): Promise<number> {
  return (await scene.witness.query("select job from {work}")).length;
}
