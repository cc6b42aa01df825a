import { buildById } from "../../src/store/builds.ts";
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import type { Build, Holdfast } from "../../src/index.ts";
import { documents, madeBy, PRICE, ranSoFar } from "./docs.ts";
import { documentsOf, nameOf, type Site } from "./docs-site.ts";
import { LONG } from "../selection.ts";
import { passes, type Scene } from "./scene.ts";
import { atPoint, wherever } from "./wherever.ts";

const MANY = 10;
const KILLS = LONG ? 12 : 2;
const ENOUGH = { usd: 1 };

/** Around a pause: what is refused for its budget, the pause itself, and the end of what was in flight. */
const POINTS = ["begin", "build", "settle"].flatMap((operation) =>
  ["begun", "written", "committed"].map((moment) => `${operation}:${moment}`),
);

wherever(
  (stage, place) => {
    describe("a build with a budget, that is killed", { concurrency: 2 }, () => {
      for (const point of POINTS) {
        test(
          `a build killed at ${point} while it pauses resumes with a token, and its spend is exact`,
          atPoint(place, point),
          async (t) => {
            const scene = await stage(t);
            const site = await documentsOf(scene, MANY);
            const budget = { usd: 4 * PRICE };
            // The fourth is the last for which there is money.
            const after = { stage: "summarise", run: 4 };
            const child = scene.start("builder", { root: site.root, budget, point, after, lasts: 100 });
            await child.next("ready");
            child.send({ type: "build" });
            assert.equal((await child.end()).signal, "SIGKILL", child.stderr);
            const hf = await scene.open({ artifacts: `${site.root}-artifacts` });
            const docs = documents(site.root, scene.effects);
            const { id, state } = (await hf.builds.list()).items[0] as Build;
            assert.equal(state, point === "build:committed" ? "BUDGET_PAUSE" : "CRASHED");
            // Without a token it comes to the same pause; the token that died with the process is of no use.
            let token = "";
            if (state === "BUDGET_PAUSE") token = await hf.builds.mintToken(id);
            else {
              const paused = await (await hf.builds.resume(docs, id)).done();
              assert.equal(paused.state, "BUDGET_PAUSE");
              token = paused.token as string;
            }
            const { spent } = (await hf.builds.get(id)) as Build;
            assert.ok(spent.usd <= budget.usd + 1e-9, `${spent.usd} of ${budget.usd}`);
            assert.equal(summarised(scene), 4, "nothing was begun without money");
            const done = await (await hf.builds.resume(docs, id, { token, budget: ENOUGH })).done();
            assert.equal(done.state, "SUCCESS", done.reason);
            await isRight(hf, scene, site, done, 1);
          },
        );
      }

      test("a build killed again and again, and approved at each pause, overspends at most what was in flight", async (t) => {
        const scene = await stage(t);
        const site = await documentsOf(scene, MANY);
        let usd = 4 * PRICE;
        let told: { id?: string; token?: string } = {};
        let kills = 0;
        for (let life = 1; ; life++) {
          assert.ok(life < 60, "it ends");
          const child = scene.start("builder", { root: site.root, budget: { usd }, concurrency: 2 });
          await child.next("ready");
          const { id: resume, token } = told;
          if (token !== undefined) usd += 4 * PRICE;
          child.send({ type: "build", resume, ...(token === undefined ? {} : { approval: { token, budget: { usd } } }) });
          const { id } = (await child.next("leading")) as unknown as { id: string };
          const before = ranSoFar(scene.effects).length;
          const built = child.next("built").catch(() => null) as Promise<Build | null>;
          const isFar = () => kills < KILLS && ranSoFar(scene.effects).length >= before + 3;
          let end: Build | null | undefined;
          while (end === undefined && !isFar()) end = await Promise.race([built, passes(1).then(() => undefined)]);
          told = { id };
          if (end?.state === "BUDGET_PAUSE") told.token = end.token as string;
          else kills++;
          child.kill();
          await child.end();
          if (end?.state === "SUCCESS") break;
          // It may have paused as it was killed: then its token went with it.
          if (told.token === undefined) {
            const hf = await scene.open({ artifacts: `${site.root}-artifacts` });
            if ((await hf.builds.get(id))?.state === "BUDGET_PAUSE") told.token = await hf.builds.mintToken(id);
            const { spent } = (await hf.builds.get(id)) as Build;
            assert.ok(spent.usd <= usd + 1e-9, `${spent.usd} of ${usd}`);
            await hf.close();
          }
        }
        const hf = await scene.open({ artifacts: `${site.root}-artifacts` });
        await isRight(hf, scene, site, (await hf.builds.get(told.id as string)) as Build, kills);
      });
    });
  },
  { testAll: true },
);

/**
 * Each was paid for, and each attempt that was cut off: four in a kill at most, of which some may not have come to their
 * handlers. Nothing is reserved any more, and every byte is as it should be.
 */
async function isRight(hf: Holdfast, scene: Scene, site: Site, { id, spent }: Build, kills: number): Promise<void> {
  const attempts = summarised(scene) + 4 * kills;
  assert.ok(spent.usd >= MANY * PRICE - 1e-9 && spent.usd <= attempts * PRICE + 1e-9, `${spent.usd} for ${attempts}`);
  const row = await buildById(hf.engine.store.builds, id);
  assert.deepEqual([row?.reserved, row?.open], [{ micros: 0, tokens: 0 }, 0]);
  assert.equal(await madeBy(hf, id), await site.expected());
}

function summarised(scene: Scene): number {
  return ranSoFar(scene.effects)
    .map(nameOf)
    .filter((name) => name.startsWith("summarise")).length;
}
