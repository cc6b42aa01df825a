import assert from "node:assert/strict";
import { join } from "node:path";
import { describe, test } from "node:test";
import { open } from "../../src/index.ts";
import { verifyAudit } from "../../src/engine/maintenance/check.ts";
import { Scene } from "./scene.ts";
import { schemaVersion } from "../../src/store/sqlite/migrate.ts";
import { becomeLater, oldDatabase } from "../unit/old-database.ts";
import { FileWitness } from "./witness.ts";
import { LONG } from "../selection.ts";

const CROWD = LONG ? 200 : 20;
const ROUNDS = LONG ? 300 : 40;

describe("a new file", () => {
  test("two processes that create a file at once both succeed, with one schema", async (t) => {
    const scene = new Scene(t);
    const openers = [scene.start("opener"), scene.start("opener")];
    for (const opener of openers) await opener.next("ready");
    for (let round = 0; round < ROUNDS; round++) {
      const path = join(scene.folder, `${round}.db`);
      for (const opener of openers) opener.send({ type: "open", path });
      const answers = await Promise.all(openers.map((opener) => opener.next("opened")));
      assert.deepEqual(
        answers.map(({ error }) => error),
        [undefined, undefined],
      );
      const [first, second] = answers.map(({ databaseId }) => databaseId);
      assert.equal(first, second, "they have opened the same database");
      const witness = new FileWitness(path);
      assert.equal((await witness.query("select version from {migrations}")).length, schemaVersion());
      assert.equal((await witness.query("select key from {jobs}")).length, 2, "both could enqueue at once");
    }
  });

  test(`${CROWD} processes that create a file at once all succeed`, async (t) => {
    const scene = new Scene(t);
    const path = join(scene.folder, "crowd.db");
    const openers = [];
    for (let i = 0; i < CROWD; i++) {
      const opener = scene.start("opener");
      await opener.next("ready");
      openers.push(opener);
    }
    for (const opener of openers) opener.send({ type: "open", path, enqueues: false });
    const answers = await Promise.all(openers.map((opener) => opener.next("opened")));
    assert.deepEqual(
      answers.flatMap(({ error }) => error ?? []),
      [],
    );
    assert.equal(new Set(answers.map(({ databaseId }) => databaseId)).size, 1);
  });

  test("a file whose creator is killed while another process opens it is completed by that process", async (t) => {
    const scene = new Scene(t);
    const opener = scene.start("opener");
    await opener.next("ready");
    for (const moment of ["begun", "written", "committed"]) {
      const path = join(scene.folder, `${moment}.db`);
      const killed = scene.start("opener", { crashAt: `migrate:${moment}` });
      await killed.next("ready");
      killed.send({ type: "open", path });
      opener.send({ type: "open", path });
      const { error } = await opener.next("opened");
      assert.equal(error, undefined);
      // It dies there only if it was first; either way the schema is whole.
      await Promise.race([killed.ended, killed.next("opened").catch(() => {})]);
      assert.equal((await new FileWitness(path).query("select version from {migrations}")).length, schemaVersion());
      const hf = await open(path);
      assert.ok((await hf.jobs.list()).items.length >= 1);
      await hf.close();
    }
  });
});

describe("a file of the schema before", () => {
  for (const moment of ["begun", "written", "committed"]) {
    test(`a migration killed at migrate:${moment} is completed by the next open, and the audit is one chain`, async (t) => {
      const scene = new Scene(t);
      becomeLater(t);
      oldDatabase(scene.path);
      const child = scene.start("opener", { crashAt: `migrate:${moment}`, later: true });
      await child.next("ready");
      child.send({ type: "open", path: scene.path });
      assert.equal((await child.end()).signal, "SIGKILL", child.stderr);
      const hf = await scene.open();
      assert.equal((await scene.witness.query("select version from {migrations}")).length, schemaVersion());
      const { fault, entries } = await verifyAudit(hf.engine.store);
      assert.deepEqual([fault, entries], [null, 1], "the step once");
    });
  }
});
