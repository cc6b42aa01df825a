import assert from "node:assert/strict";
import { existsSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { describe, test } from "node:test";
import { type Holdfast, open } from "../../src/index.ts";
import { STEPS } from "../../src/store/points.ts";
import { offsetOf, PAGE, rootOf, scribble, silent } from "../damage/place.ts";
import { workJob } from "./jobs.ts";
import { Scene } from "./scene.ts";

const AT = STEPS.filter((step) => step.startsWith("salvage:"));

/** A damaged database, and a backup of it that has all its jobs but one. */
async function prepared(scene: Scene): Promise<{ backup: string; ids: string[] }> {
  const backup = join(scene.folder, "backup.db");
  const hf = await open(scene.path);
  const first = await hf.enqueue(workJob(scene.effects), {});
  await hf.backup(backup);
  await hf.enqueue(workJob(scene.effects), {});
  await hf.close();
  scribble(scene.path, offsetOf(rootOf(scene.path, "holdfast_jobs")), Buffer.alloc(PAGE));
  return { backup, ids: [first.id] };
}

async function ids(hf: Holdfast): Promise<string[]> {
  return (await hf.jobs.list({ limit: 1_000 })).items.map(({ id }) => id);
}

describe("a salvage whose process is killed", { concurrency: 2 }, () => {
  for (const point of AT) {
    test(`a salvage killed at ${point} leaves the damaged database unchanged, or is completed by the next open`, async (t) => {
      const scene = new Scene(t);
      const { backup, ids: expected } = await prepared(scene);
      const child = scene.start("salvager", { backup, point });
      assert.equal((await child.end()).signal, "SIGKILL", child.stderr);
      const decided = AT.indexOf(point) >= AT.indexOf("salvage:decided");
      const kept = () => readdirSync(scene.folder).filter((name) => /\.damaged-[^.]*\.\d+Z$/.test(name));
      const hf = await open(scene.path, { log: silent, recovery: "manual" }).catch((error: { code: string }) => error.code);
      if (decided) assert.deepEqual(await ids(hf as Holdfast), expected);
      else if (typeof hf === "string") assert.equal(hf, "DAMAGED");
      else await assert.rejects(() => ids(hf));
      if (typeof hf !== "string") await hf.close();
      assert.equal(kept().length, decided ? 1 : 0);
      assert.ok(!existsSync(`${scene.path}-restore`), "nothing of it is left");
      if (decided) return;
      await scene.start("salvager", { backup }).next("salvaged");
      assert.equal(kept().length, 1);
      assert.deepEqual(await ids(await scene.open()), expected);
    });
  }
});

test("a database is not salvaged while a process has it open", async (t) => {
  const scene = new Scene(t);
  const hf = await open(scene.path);
  const refused = await scene.start("salvager", { backup: null }).next("refused");
  assert.equal(refused["code"], "IN_USE");
  await hf.close();
});
