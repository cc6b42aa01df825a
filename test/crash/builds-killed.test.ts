import assert from "node:assert/strict";
import { describe, test } from "node:test";
import type { Build } from "../../src/index.ts";
import { PRICE, ranSoFar } from "./docs.ts";
import { building, documentsOf } from "./docs-site.ts";
import { LONG, selectVariant } from "../selection.ts";
import { passes } from "./scene.ts";
import { firstOnServer, inFile, MOMENTS, wherever } from "./wherever.ts";

/** Where it is killed, and when: at the first such write, or the first after the run of a stage has begun. */
const KILLS: [string, { operation: string; after?: { stage: string; run: number }; how?: object }][] = [
  ["as it starts", { operation: "build" }],
  ["before the next round", { operation: "build", after: { stage: "index", run: 12 } }],
  ["before its end", { operation: "build", after: { stage: "book", run: 1 } }],
  ["in its listing", { operation: "listed" }],
  ["as children are written down", { operation: "listed", after: { stage: "lines", run: 3 } }],
  ["in the listing of a round", { operation: "listed", after: { stage: "index", run: 12 } }],
  ["as it claims", { operation: "claim", after: { stage: "read", run: 2 } }],
  ["before money is reserved", { operation: "begin" }],
  ["before more money is reserved", { operation: "begin", after: { stage: "summarise", run: 3 } }],
  ["as it writes down what was paid", { operation: "costs", how: { lasts: 500 } }],
  ["as the first is done", { operation: "settle" }],
  ["as a paid one is done", { operation: "settle", after: { stage: "summarise", run: 2 } }],
  ["as one is expanded", { operation: "settle", after: { stage: "lines", run: 2 } }],
  ["as the last is done", { operation: "settle", after: { stage: "book", run: 1 } }],
];
// It takes five seconds to come.
if (LONG) KILLS.push(["as it says that it lives", { operation: "beat", how: { holds: { stage: "book", target: "book" } } }]);

wherever((stage, place) => {
  describe("a build that is killed", { concurrency: 3 }, () => {
    for (const [at, [name, { operation, after, how }]] of KILLS.entries()) {
      for (const moment of selectVariant(MOMENTS, at)) {
        test(`a build killed at ${operation}:${moment}, ${name}, resumes`, firstOnServer(place, 7, at), async (t) => {
          const scene = await stage(t);
          const site = await documentsOf(scene, 6);
          const child = scene.start("builder", { root: site.root, point: `${operation}:${moment}`, after, ...how });
          await child.next("ready");
          child.send({ type: "build" });
          assert.equal((await child.end()).signal, "SIGKILL", child.stderr);
          await site.goesOn();
        });
      }
    }

    test("a build killed half way spends as much as one that was not killed, with the same results", inFile(place), async (t) => {
      const scene = await stage(t);
      const many = LONG ? 200 : 40;
      const site = await documentsOf(scene, many);
      const child = await building(scene, site);
      const half = () => ranSoFar(scene.effects).filter(({ stage: one }) => one === "summarise").length >= many / 2;
      while (!half()) await passes(2);
      child.kill();
      await child.end();
      const spent = await site.goesOn();
      // Each attempt in flight is charged its estimate, at most: four that run, and four whose end was being written.
      assert.ok(spent >= many * PRICE - 1e-9, `${spent} was spent`);
      assert.ok(spent <= (many + 8) * PRICE + 1e-9, `${spent} was spent`);
    });

    test("a build killed repeatedly by one of its own targets continues without that target", inFile(place), async (t) => {
      const scene = await stage(t);
      const { root } = await documentsOf(scene, 5);
      let id: string | undefined;
      for (let life = 1; ; life++) {
        assert.ok(life <= 5, "it ends");
        const child = scene.start("builder", { root, poison: "002.txt" });
        await child.next("ready");
        child.send({ type: "build", resume: id });
        id = (await child.next("leading"))["id"] as string;
        const built = await Promise.race([child.next("built"), child.ended.then(() => null)]).catch(() => null);
        if (built === null) continue;
        assert.deepEqual([built["state"], built["reason"]], ["FAILED", "targets_failed"]);
        break;
      }
      const hf = await scene.open({ artifacts: `${root}-artifacts` });
      const { errors, stages } = (await hf.builds.get(id as string)) as Build;
      assert.deepEqual(
        errors.map(({ stage: at, target }) => [at, target]),
        [["summarise", "002.txt"]],
      );
      assert.deepEqual([stages["summarise"]?.ran, stages["index"]?.ran], [4, 8], "the others are done");
      const died = ranSoFar(scene.effects).filter(({ stage: at, target }) => at === "summarise" && target === "002.txt");
      assert.equal(died.length, 2, "it was tried as often as it may crash");
    });

    test("a build killed again and again ends, and overspends at most what was in flight", inFile(place), async (t) => {
      const scene = await stage(t);
      const site = await documentsOf(scene, 30);
      let id: string | undefined;
      const kills = LONG ? 20 : 3;
      for (let kill = 0; kill < kills; kill++) {
        const child = scene.start("builder", { root: site.root });
        await child.next("ready");
        child.send({ type: "build", resume: id });
        const { id: led } = await child.next("leading");
        id = led as string;
        const before = ranSoFar(scene.effects).length;
        // Each time a little further.
        while (!child.isOver && ranSoFar(scene.effects).length < before + 5) await passes(1);
        child.kill();
        await child.end();
      }
      const spent = await site.goesOn();
      assert.ok(spent <= (30 + 8 * kills) * PRICE + 1e-9, `${spent} was spent`);
    });
  });
});
