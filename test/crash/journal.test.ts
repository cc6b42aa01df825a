import assert from "node:assert/strict";
import { join } from "node:path";
import { describe, test } from "node:test";
import { open } from "../../src/index.ts";
import { restoreWhole } from "../../src/operator/restore.ts";
import { workJob } from "./jobs.ts";
import { Scene } from "./scene.ts";

describe("a journal whose writer is killed", () => {
  for (const point of ["drain:written", "drain:removed"]) {
    test(`a journal killed at ${point} has every change once, and leads to everything that was acknowledged`, async (t) => {
      const scene = new Scene(t);
      const backup = join(scene.folder, "backup.db");
      {
        await using hf = await open(scene.path, { journal: true });
        await hf.enqueue(workJob(scene.effects), {});
        await hf.backup(backup);
      }
      for (let killed = 0; killed < 2; killed++) {
        // Its keeper brings to the files what it enqueues, and dies of it.
        const producer = scene.start("producer", { point, pause: 5 });
        await producer.next("ready");
        assert.equal((await producer.end()).signal, "SIGKILL", producer.stderr);
      }
      const acknowledged = scene.acknowledged();
      const at = Date.now();
      const restored = await restoreWhole({
        path: scene.path,
        backup,
        driver: "node:sqlite",
        by: "a test",
        now: at,
        force: false,
        at,
      });
      assert.ok((restored.replayed?.changes ?? 0) > 0);
      await using hf = await open(scene.path);
      for (const id of acknowledged) assert.ok((await hf.jobs.get(id)) !== null, id);
      assert.deepEqual((await hf.check()).findings, []);
    });
  }
});
