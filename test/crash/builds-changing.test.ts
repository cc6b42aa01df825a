import assert from "node:assert/strict";
import { rmSync } from "node:fs";
import { join } from "node:path";
import { describe, test } from "node:test";
import { Random } from "../simulation/random.ts";
import { documents, goOn, madeBy, ranSoFar, writeDocument } from "./docs.ts";
import { documentsOf, type Site } from "./docs-site.ts";
import { SEEDS } from "../seeds.ts";
import { LONG } from "../selection.ts";
import { passes, type Scene } from "./scene.ts";
import { firstOf } from "../selection.ts";
import { inFile, wherever } from "./wherever.ts";

const KILLS = LONG ? 25 : 3;
/** More than are written down in one commit. */
const MANY = 510;

wherever((stage, place) => {
  describe("a build that is killed while its files change", { concurrency: 2 }, () => {
    for (const seed of SEEDS)
      test(
        `a build killed ${KILLS} times while its files change ends like one from nothing, and repeats nothing (HOLDFAST_SEED=${seed})`,
        inFile(place),
        async (t) => {
          const scene = await stage(t);
          const site = await documentsOf(scene, 20);
          const random = new Random(seed);
          for (let kill = 0; kill < KILLS; kill++) {
            const child = scene.start("builder", { root: site.root, concurrency: random.int(1, 6) });
            await child.next("ready");
            const id = await crashed(scene);
            child.send({ type: "build", ...(id !== null && random.chance(0.6) ? { resume: id } : {}) });
            const before = ranSoFar(scene.effects).length;
            const far = random.int(0, 25);
            while (!child.isOver && child.taken("built").length === 0 && ranSoFar(scene.effects).length < before + far) {
              if (random.chance(0.2)) change(site, random);
              await passes(1);
            }
            child.kill();
            await child.end();
            for (let changes = random.int(0, 3); changes > 0; changes--) change(site, random);
          }
          await isAsFromNothing(scene, site);
        },
      );

    for (const [turn, kills] of [1, 2, 3, 4].entries())
      test(
        `a file that comes back after ${kills} kills of the listing that removes its target has its children again`,
        { ...firstOf(2, turn), ...inFile(place) },
        async (t) => {
          const scene = await stage(t);
          const site = await documentsOf(scene, 5);
          const first = scene.start("builder", { root: site.root });
          await first.next("ready");
          first.send({ type: "build" });
          await first.next("built");
          first.kill();
          await first.end();
          rmSync(join(site.root, "003.txt"));
          for (let kill = 0; kill < kills; kill++) {
            const id = await crashed(scene);
            const child = scene.start("builder", { root: site.root, point: "listed:committed" });
            await child.next("ready");
            child.send({ type: "build", ...(id === null ? {} : { resume: id }) });
            assert.equal((await child.end()).signal, "SIGKILL", child.stderr);
          }
          writeDocument(site.root, "003.txt", "title of 003.txt");
          await isAsFromNothing(scene, site);
        },
      );

    test(
      "a killed listing resumes after its cursor, also if that file was removed, and finds earlier changes",
      inFile(place),
      async (t) => {
        const scene = await stage(t);
        const site = await documentsOf(scene, MANY);
        const child = scene.start("builder", { root: site.root, point: "listed:committed", concurrency: 8 });
        await child.next("ready");
        child.send({ type: "build" });
        assert.equal((await child.end()).signal, "SIGKILL", child.stderr);
        const [row] = await scene.witness.query("select count(*) as listed, max(path) as last from {targets}");
        const last = row?.["last"] as string;
        assert.equal(Number(row?.["listed"]), 500, "one batch was written down");
        rmSync(join(site.root, last));
        rmSync(join(site.root, "100.txt"));
        writeDocument(site.root, "200.txt", "another title");
        writeDocument(site.root, "150-new.txt", "a new one");
        await isAsFromNothing(scene, site, "by the build that resumes");
      },
    );
  });
});

function change({ root }: Site, random: Random): void {
  const name = `${String(random.int(0, 24)).padStart(3, "0")}.txt`;
  if (random.chance(0.25)) rmSync(join(root, name), { force: true });
  else writeDocument(root, name, `title ${random.int(0, 3)}`);
}

async function crashed(scene: Scene): Promise<string | null> {
  const [row] = await scene.witness.query("select id, state from {builds} order by key desc limit 1");
  return row !== undefined && ["ACTIVE", "CRASHED"].includes(row["state"] as string) ? (row["id"] as string) : null;
}

/** What is under way comes to its end, and what has changed since is built, by the next at last; then nothing is left to do. */
async function isAsFromNothing(scene: Scene, site: Site, when?: "by the build that resumes"): Promise<void> {
  const hf = await scene.open({ artifacts: `${site.root}-artifacts` });
  const docs = documents(site.root, scene.effects);
  const expected = await site.expected();
  const resumed = await goOn(hf, docs);
  if (when !== undefined) assert.equal(await madeBy(hf, resumed.id), expected, when);
  const { id, state, errors } = await (await hf.builds.start(docs)).done();
  assert.equal(state, "SUCCESS", JSON.stringify(errors));
  assert.equal(await madeBy(hf, id), expected);
  const before = ranSoFar(scene.effects).length;
  const again = await (await hf.builds.start(docs)).done();
  assert.equal(again.state, "SUCCESS");
  assert.equal(ranSoFar(scene.effects).length, before, "nothing runs again");
  assert.deepEqual(again.spent, { usd: 0, tokens: 0 });
}
