import assert from "node:assert/strict";
import { existsSync, mkdirSync, readdirSync } from "node:fs";
import { join } from "node:path";
import { describe, test } from "node:test";
import { verifyWhole } from "../../src/engine/maintenance/backups.ts";
import { open } from "../../src/index.ts";
import { STEPS } from "../../src/store/points.ts";
import { workJob } from "./jobs.ts";
import { Scene } from "./scene.ts";
import { becomeLater, oldDatabase } from "../unit/old-database.ts";

const AT = STEPS.filter((step) => step.startsWith("backup:"));

describe("a backup whose process is killed", { concurrency: 2 }, () => {
  for (const point of AT) {
    test(`a backup killed at ${point} is whole or absent, and the next one cleans up`, async (t) => {
      const scene = new Scene(t);
      const hf = await scene.open();
      await hf.enqueueMany(workJob(scene.effects), [{}, {}, {}]);
      const folder = join(scene.folder, "backups");
      mkdirSync(folder);
      const [first, second] = [join(folder, "first.db"), join(folder, "second.db")];
      const child = scene.start("backer", { to: first, point });
      assert.equal((await child.end()).signal, "SIGKILL", child.stderr);

      const named = AT.indexOf(point) >= AT.indexOf("backup:named");
      assert.equal(existsSync(first), named, "it has its name when it is whole, and not before");
      await hf.backup(second);
      const whole = named ? ["first.db", "first.db.json"] : [];
      assert.deepEqual(readdirSync(folder).toSorted(), [...whole, "second.db", "second.db.json"]);
      for (const path of named ? [first, second] : [second]) {
        const { manifest } = await verifyWhole(path, "node:sqlite", () => {});
        assert.deepEqual(manifest?.counts.jobs, { pending: 3 });
      }
      if (!named) await hf.backup(first);
    });
  }
});

describe("before a migration", () => {
  for (const point of ["backup:copied", "backup:named", "backup:kept"]) {
    test(`a migration killed at ${point} makes its backup once, and the next open migrates`, async (t) => {
      const scene = new Scene(t);
      becomeLater(t);
      oldDatabase(scene.path, "insert into orders values ('pen')");
      const child = scene.start("opener", { crashAt: point, later: true });
      await child.next("ready");
      child.send({ type: "open", path: scene.path });
      assert.equal((await child.end()).signal, "SIGKILL", child.stderr);
      const [version] = await scene.witness.query("select max(version) as n from {migrations}");
      assert.equal(version?.["n"], 1);

      const hf = await scene.open();
      await hf.enqueue(workJob(scene.effects), {});
      const folder = `${scene.path}-backups`;
      const made = readdirSync(folder).filter((name) => name.endsWith(".db"));
      assert.deepEqual(readdirSync(folder).toSorted(), [...made, `${made[0]}.json`]);
      assert.equal((await verifyWhole(join(folder, made[0] as string), "node:sqlite", () => {})).facts.schema, 1);
    });
  }
});

describe("while another process commits all the time", () => {
  test("a backup beside a busy writer completes, blocks no process, and holds everything acknowledged before it", async (t) => {
    const scene = new Scene(t);
    const hf = await scene.open();
    // Large enough that it takes a while.
    await hf.enqueueMany(
      workJob(scene.effects),
      Array.from({ length: 40_000 }, (_, n) => ({ n })),
    );
    const producer = scene.start("producer");
    await producer.next("accepted");
    const before = scene.acknowledged();
    const to = join(scene.folder, "copy.db");
    await hf.backup(to);
    const meanwhile = scene.acknowledged().length - before.length;
    assert.ok(meanwhile > 0, "others went on");
    producer.kill();
    await producer.ended;

    const { facts } = await verifyWhole(to, "node:sqlite", () => {});
    assert.ok((facts.counts.jobs.pending ?? 0) >= 40_000 + before.length);
    await using copy = await open(to, { recovery: "manual" });
    for (const id of before) assert.ok((await copy.jobs.get(id)) !== null, id);
  });
});
