import { buildById, newestBuild } from "../../src/store/builds.ts";
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import type { Build } from "../../src/index.ts";
import { documents, madeBy, PRICE, ranSoFar } from "./docs.ts";
import { documentsOf, nameOf, stateOf } from "./docs-site.ts";
import { LONG } from "../selection.ts";
import { passes, type Scene } from "./scene.ts";
import { atPoint, wherever } from "./wherever.ts";

const MANY = 12;
const BAD = ["001.txt", "004.txt", "009.txt"];

/** Where it is killed: as a target that is bad is run, and as the build ends with it. */
const POINTS = ["settle:begun", "settle:written", "settle:committed", "build:begun", "build:written", "build:committed"];

/** Where a resume of it is killed: as the failures are taken out of the counts, and as their targets are listed again. */
const RESUMING = ["build:begun", "build:written", "build:committed", "listed:begun", "listed:written", "listed:committed"];

wherever(
  (stage, place) => {
    describe("a build with targets that fail, and that is killed", { concurrency: 2 }, () => {
      for (const point of POINTS) {
        test(
          `a build with failing targets killed at ${point} ends like one that was not killed`,
          atPoint(place, point),
          async (t) => {
            const scene = await stage(t);
            const site = await documentsOf(scene, MANY);
            // The last point comes after all that could be done.
            const after = point.startsWith("settle")
              ? { stage: "summarise", run: 2 }
              : { stage: "index", run: 2 * (MANY - BAD.length) };
            const child = scene.start("builder", { root: site.root, bad: BAD, point, after });
            await child.next("ready");
            child.send({ type: "build" });
            assert.equal((await child.end()).signal, "SIGKILL", child.stderr);
            await endsFailed(scene, site.root, 1);
            await isMended(scene, site);
          },
        );
      }

      for (const point of RESUMING) {
        test(
          `a build with failing targets killed again at ${point} of its resume runs each failed target again`,
          atPoint(place, point),
          async (t) => {
            const scene = await stage(t);
            const site = await documentsOf(scene, MANY);
            const holds = { stage: "index", target: "000.txt/line 0" };
            const first = scene.start("builder", { root: site.root, bad: BAD, holds });
            await first.next("ready");
            first.send({ type: "build" });
            const { id } = await first.next("leading");
            await first.next("holding");
            const failed = async () => Number((await scene.witness.query("select failed from {builds}"))[0]?.["failed"]);
            while ((await failed()) < BAD.length) await passes(1);
            first.kill();
            await first.end();
            const second = scene.start("builder", { root: site.root, point });
            await second.next("ready");
            second.send({ type: "build", resume: id });
            assert.equal((await second.end()).signal, "SIGKILL", second.stderr);
            const hf = await scene.open({ artifacts: `${site.root}-artifacts` });
            const handle = await hf.builds.resume(documents(site.root, scene.effects), id as string);
            const { state, reason, stages, errors } = await handle.done();
            assert.deepEqual([state, errors], ["SUCCESS", []], reason);
            for (const [name, { failed, left }] of Object.entries(stages)) assert.deepEqual([failed, left], [0, 0], name);
            assert.deepEqual([stages["summarise"]?.ran, stages["index"]?.ran], [MANY, 2 * MANY]);
            assert.equal(await madeBy(hf, handle.id), await site.expected());
            await hf.close();
          },
        );
      }

      test("a build with failing targets killed again and again fails those alone, and the next build runs only them", async (t) => {
        const scene = await stage(t);
        const site = await documentsOf(scene, MANY);
        let id: string | undefined;
        let kills = 0;
        for (; kills < (LONG ? 12 : 2); kills++) {
          const child = scene.start("builder", { root: site.root, bad: BAD });
          await child.next("ready");
          const before = ranSoFar(scene.effects).length;
          child.send({ type: "build", resume: id });
          const led = await Promise.race([child.next("leading"), child.next("refused")]);
          // It has come to its end with the last one.
          if (led["code"] !== undefined) break;
          id = led["id"] as string;
          while (!child.isOver && ranSoFar(scene.effects).length < before + 4) {
            if ((await stateOf(scene, id))?.["state"] === "FAILED") break;
            await passes(1);
          }
          child.kill();
          await child.end();
        }
        await endsFailed(scene, site.root, kills);
        await isMended(scene, site);
      });
    });
  },
  { testAll: true },
);

/** Whatever is left of it is done: the bad ones have failed, each was paid for, and the others are where they can come to. */
async function endsFailed(scene: Scene, root: string, kills: number): Promise<void> {
  const hf = await scene.open({ artifacts: `${root}-artifacts` });
  const newest = await newestBuild(hf.engine.store.builds, "docs");
  const id = newest?.id as string;
  if (newest?.state !== "FAILED") await (await hf.builds.resume(documents(root, scene.effects, { bad: BAD }), id)).done();
  const { state, reason, errors, stages, spent } = (await hf.builds.get(id)) as Build;
  assert.deepEqual([state, reason], ["FAILED", "targets_failed"]);
  assert.deepEqual(
    errors.map(({ stage, target, message }) => `${stage} ${target}: ${message}`).sort(),
    BAD.map((name) => `summarise ${name}: ${name} is bad`),
  );
  const good = MANY - BAD.length;
  assert.deepEqual([stages["summarise"]?.ran, stages["lines"]?.ran, stages["index"]?.ran], [good, good, 2 * good]);
  assert.deepEqual([stages["summarise"]?.failed, stages["book"]?.ran], [BAD.length, 0]);
  const row = await buildById(hf.engine.store.builds, id);
  assert.deepEqual([row?.open, row?.reserved], [0, { micros: 0, tokens: 0 }]);
  // Each that was summarised, well or badly, has cost its price, and so has each attempt that a kill has cut off: four at most,
  // of which some may not have come to their handlers.
  const attempts = ranSoFar(scene.effects).filter(({ stage }) => stage === "summarise").length + 4 * kills;
  assert.ok(spent.usd >= MANY * PRICE - 1e-9 && spent.usd <= attempts * PRICE + 1e-9, `${spent.usd} for ${attempts} attempts`);
  await hf.close();
}

/** Once nothing is bad any more. */
async function isMended(scene: Scene, site: { root: string; expected(): Promise<string> }): Promise<void> {
  const before = ranSoFar(scene.effects).length;
  const hf = await scene.open({ artifacts: `${site.root}-artifacts` });
  const handle = await hf.builds.start(documents(site.root, scene.effects));
  assert.equal((await handle.done()).state, "SUCCESS");
  const ran = ranSoFar(scene.effects).slice(before).map(nameOf);
  assert.deepEqual(
    ran.filter((name) => name.startsWith("summarise")).sort(),
    BAD.map((name) => `summarise ${name}`),
  );
  assert.equal(ran.length, BAD.length * 4 + 1, "and what comes behind them");
  assert.equal(await madeBy(hf, handle.id), await site.expected());
  await hf.close();
}
