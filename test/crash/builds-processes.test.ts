import assert from "node:assert/strict";
import { describe, test as nodeTest, type TestContext } from "node:test";
import type { Build } from "../../src/index.ts";
import { documents, madeBy, PRICE, type Ran, ranSoFar, writeDocument } from "./docs.ts";
import { building, documentsOf, nameOf, stateOf } from "./docs-site.ts";
import { bestOfThree, freeze, passes, type Scene } from "./scene.ts";
import type { Child, Message } from "./spawn.ts";
import { firstOnServer, wherever } from "./wherever.ts";
import { breakOrchestratorLock } from "../../src/store/builds.ts";

wherever((stage, place) => {
  describe("builds of real processes", { concurrency: 2 }, () => {
    // On a server `npm test` runs one of the seven, and not the first, which takes longest.
    let position = 1;
    const test = (name: string, body: (t: TestContext) => Promise<void>): void => {
      void nodeTest(name, firstOnServer(place, 4, position++), body);
    };

    test("ten builds in a row, with one file changed each time, run exactly that file's stages", async (t) => {
      const scene = await stage(t);
      const { root } = await documentsOf(scene, 12);
      const child = scene.start("builder", { root });
      await child.next("ready");
      for (let build = 0; build < 10; build++) {
        const before = ranSoFar(scene.effects).length;
        const changed = `${String(build).padStart(3, "0")}.txt`;
        if (build > 0) writeDocument(root, changed, `another title of ${changed}`);
        child.send({ type: "build" });
        const { state, spent } = (await child.next("built")) as Message & Build;
        assert.equal(state, "SUCCESS");
        const ran = ranSoFar(scene.effects).slice(before).map(nameOf).sort();
        if (build === 0) assert.equal(ran.length, 12 * 5 + 1);
        else assert.deepEqual(ran, stagesOf(changed), "and the book, which is of all of them");
        assert.equal(spent.usd, build === 0 ? 12 * PRICE : PRICE);
      }
    });

    test("a file rewritten during its stage has no output under its old fingerprint", async (t) => {
      const scene = await stage(t);
      const site = await documentsOf(scene, 3);
      const child = scene.start("builder", { root: site.root, holds: { stage: "read", target: "001.txt" } });
      await child.next("ready");
      child.send({ type: "build" });
      await child.next("holding");
      // Of the same size, so that only its bytes tell.
      writeDocument(site.root, "001.txt", "TITLE of 001.txt");
      child.send({ type: "go on" });
      await child.next("holding");
      child.send({ type: "go on" });
      const { id, state } = await child.next("built");
      assert.equal(state, "SUCCESS");
      const results = await scene.witness.query("select parts from {results} where stage = 'read' and path = '001.txt'");
      assert.equal(results.length, 1, "of the old bytes there is nothing");
      const hf = await scene.open({ artifacts: `${site.root}-artifacts` });
      assert.equal(await hf.builds.output(id as string, "read", "001.txt"), "TITLE of 001.txt\nmore about 001.txt");
      assert.deepEqual(counted(ranSoFar(scene.effects), "001.txt"), ["read 2", "summarise 1", "lines 1"]);
    });

    test("of two processes that start at once one is the orchestrator, and the other's error names it", async (t) => {
      const scene = await stage(t);
      const { root } = await documentsOf(scene, 3);
      const holds = { stage: "book", target: "book" };
      const children = [scene.start("builder", { root, holds }), scene.start("builder", { root, holds })];
      for (const child of children) await child.next("ready");
      for (const child of children) child.send({ type: "build" });
      const { child, told } = await Promise.race(children.map(refused));
      const leader = children.find((one) => one !== child) as Child;
      const { code, message } = told as unknown as { code: string; message: string };
      assert.equal(code, "LOCK_CONFLICT");
      assert.match(message, new RegExp(`process ${leader.pid} on `));
      const { id } = await leader.next("leading");
      assert.ok(message.includes(id as string));
      await leader.next("holding");
      leader.send({ type: "go on" });
      assert.equal((await leader.next("built"))["state"], "SUCCESS");
    });

    test("a build whose orchestrator is killed is CRASHED within a second if another process works", async (t) => {
      const scene = await stage(t);
      const { root } = await documentsOf(scene, 3);
      const worker = scene.start("builder", { root, works: true });
      await worker.next("ready");
      let build = "";
      const took = await bestOfThree(1_000, async () => {
        const leader = scene.start("builder", { root, holds: { stage: "book", target: "book" }, concurrency: 1 });
        await leader.next("ready");
        leader.send({ type: "build" });
        build = (await leader.next("leading"))["id"] as string;
        leader.kill();
        await leader.end();
        const since = performance.now();
        while ((await stateOf(scene, build))?.["state"] === "ACTIVE") await passes(5);
        return performance.now() - since;
      });
      assert.ok(took < 1_000, `it took ${took} ms`);
      assert.deepEqual(await stateOf(scene, build), { state: "CRASHED", reason: "orchestrator_lost" });
    });

    test("a build whose orchestrator was killed alone is CRASHED at the next open, and can be resumed", async (t) => {
      const scene = await stage(t);
      const site = await documentsOf(scene, 3);
      const leader = await building(scene, site, { holds: { stage: "book", target: "book" } });
      await leader.next("holding");
      leader.kill();
      await leader.end();
      assert.equal((await stateOf(scene, leader.build))?.["state"], "ACTIVE");
      const hf = await scene.open({ artifacts: `${site.root}-artifacts` });
      assert.deepEqual(await stateOf(scene, leader.build), { state: "CRASHED", reason: "orphaned_at_startup" });
      const before = ranSoFar(scene.effects).length;
      const docs = documents(site.root, scene.effects);
      assert.equal((await (await hf.builds.resume(docs, leader.build)).done()).state, "SUCCESS");
      assert.deepEqual(ranSoFar(scene.effects).slice(before).map(nameOf), ["book book"]);
    });

    test("a worker in another process does a build's work, also if the orchestrator's process has no worker", async (t) => {
      const scene = await stage(t);
      const { root } = await documentsOf(scene, 20);
      const worker = scene.start("builder", { root, works: true, concurrency: 2 });
      await worker.next("ready");
      const leader = scene.start("builder", { root, concurrency: 1 });
      await leader.next("ready");
      leader.send({ type: "build" });
      assert.equal((await leader.next("built"))["state"], "SUCCESS");
      const pids = new Set(ranSoFar(scene.effects).map(({ pid }) => pid));
      assert.deepEqual(pids, new Set([leader.pid, worker.pid]));
      assert.deepEqual(twice(ranSoFar(scene.effects)), []);
    });

    test("an orchestrator that was stopped, and whose lock was broken, writes nothing when it continues", async (t) => {
      const scene = await stage(t);
      const site = await documentsOf(scene, 4);
      const zombie = await building(scene, site, { holds: { stage: "read", target: "002.txt" } });
      await zombie.next("holding");
      await freeze(scene, zombie);
      const hf = await scene.open({ artifacts: `${site.root}-artifacts` });
      assert.equal(await breakOrchestratorLock(hf.engine.store.builds, "docs", { by: "operator" }), true);
      assert.deepEqual(await stateOf(scene, zombie.build), { state: "CRASHED", reason: "orchestrator_lost" });
      const docs = documents(site.root, scene.effects);
      const built = await (await hf.builds.start(docs)).done();
      assert.equal(built.state, "SUCCESS");
      const before = await everything(scene);
      zombie.send({ type: "go on" });
      zombie.kill("SIGCONT");
      const { state } = await zombie.next("built");
      assert.equal(state, "ABANDONED");
      assert.deepEqual(await everything(scene), before, "nothing of it was written");
      assert.equal(await madeBy(hf, built.id), await site.expected());
    });
  });
});

async function refused(child: Child): Promise<{ child: Child; told: Message }> {
  return { child, told: await child.next("refused") };
}

/** All that builds are made of. */
async function everything(scene: Scene): Promise<object> {
  const { query } = { query: (sql: string) => scene.witness.query(sql) };
  return {
    builds: await query("select * from {builds} order by key"),
    results: await query("select * from {results} order by key"),
    targets: await query("select * from {targets} order by segment, path"),
    work: await query("select * from {work} order by job"),
    audit: await query("select * from {audit} order by seq"),
  };
}

function stagesOf(file: string): string[] {
  return ["book book", `index ${file}/line 0`, `index ${file}/line 1`, `lines ${file}`, `read ${file}`, `summarise ${file}`];
}

/** How often each stage ran for a target, in their order. */
function counted(ran: readonly Ran[], target: string): string[] {
  const counts = new Map<string, number>();
  for (const one of ran) if (one.target === target) counts.set(one.stage, (counts.get(one.stage) ?? 0) + 1);
  return [...counts].map(([stage, n]) => `${stage} ${n}`);
}

function twice(ran: readonly Ran[]): string[] {
  const names = ran.map(nameOf);
  return names.filter((name, at) => names.indexOf(name) !== at);
}
