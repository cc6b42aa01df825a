import assert from "node:assert/strict";
import { existsSync, readdirSync, rmSync, statSync, utimesSync } from "node:fs";
import { basename, join } from "node:path";
import { describe, test } from "node:test";
import { setImmediate } from "node:timers/promises";
import { ARTIFACT_POINTS } from "../../src/artifacts/folder.ts";
import { contents, allReferenced, noise, Shelf } from "./shelf.ts";

const of = (operation: string) => ARTIFACT_POINTS.filter((point) => point.startsWith(`${operation}:`));
const bytes = noise(600_000);

describe("a process that is killed", { concurrency: 2 }, () => {
  for (const point of of("put")) {
    test(`a put killed at ${point} leaves the artifact whole or absent, and nothing else after the next open`, async (t) => {
      const shelf = new Shelf(t);
      const child = shelf.start("doer", { operation: "put", point });
      assert.equal((await child.end()).signal, "SIGKILL", child.stderr);
      const isThere = point === "put:renamed" || point === "put:kept";
      assert.equal(shelf.stored().length, isThere ? 1 : 0);
      assert.equal(shelf.unfinished().length, isThere ? 0 : 1);

      const artifacts = await shelf.open();
      assert.deepEqual(shelf.unfinished(), []);
      for (const hash of shelf.stored()) assert.ok(bytes.equals(await artifacts.read(hash)));
      const { hash } = await artifacts.put(bytes);
      assert.ok(bytes.equals(await artifacts.read(hash)));
    });
  }

  for (const point of of("sweep")) {
    test(`a sweep killed at ${point} leaves every artifact whole or absent, and nothing in the trash after the next open`, async (t) => {
      const shelf = new Shelf(t);
      const before = await shelf.open();
      const { hash } = await before.put(bytes);
      const child = shelf.start("doer", { operation: "sweep", point });
      assert.equal((await child.end()).signal, "SIGKILL", child.stderr);
      const isGone = point === "sweep:removed";
      // A transaction that comes now, before any process has cleaned up, still finds it.
      if (point === "sweep:checked") assert.deepEqual(before.missing([hash]), []);

      const artifacts = await shelf.open();
      assert.deepEqual(shelf.unfinished(), []);
      assert.deepEqual(shelf.stored(), isGone ? [] : [hash]);
      if (!isGone) assert.ok(bytes.equals(await artifacts.read(hash)));
    });
  }

  for (const point of of("export")) {
    test(`an export killed at ${point} is whole or absent, and the next one cleans up`, async (t) => {
      const shelf = new Shelf(t);
      const artifacts = await shelf.open();
      const out = join(shelf.base, "out");
      await artifacts.exportTo(join(out, "one"), [], {});
      const child = shelf.start("doer", { operation: "export", point });
      assert.equal((await child.end()).signal, "SIGKILL", child.stderr);

      const isThere = point === "export:renamed";
      assert.equal(existsSync(join(out, "two")), isThere);
      if (isThere) {
        const { "checksums.txt": checksums, ...files } = contents(join(out, "two"));
        assert.equal(checksums?.split("\n").length, 4);
        assert.deepEqual(files, { a: "a", "folder/b": bytes.toString("latin1"), "manifest.json": '{\n  "two": true\n}\n' });
      }

      await artifacts.exportTo(join(out, "three"), [], {});
      assert.deepEqual(readdirSync(out).sort(), ["one", "three", ...(isThere ? ["two"] : [])]);
      assert.deepEqual(shelf.unfinished(), []);
    });
  }

  test("a slow writer keeps its file although no byte arrived for a month", async (t) => {
    const shelf = new Shelf(t);
    const child = shelf.start("doer", { operation: "hang" });
    await child.next("writing");
    const [file = "", ...more] = shelf.unfinished();
    assert.deepEqual(more, []);
    const lock = join(shelf.folder, "alive", `${basename(file).split("-")[0]}.lock`);
    assert.ok(existsSync(lock));
    // Two full pieces; the rest is kept until more comes, and none does.
    while (statSync(file).size < 2 * 256 * 1024) await setImmediate();
    const month = Date.now() / 1_000 - 30 * 86_400;
    utimesSync(file, month, month);
    await (await shelf.open()).sweep(allReferenced, { olderThan: 0 });
    assert.deepEqual(shelf.unfinished(), [file]);

    child.kill();
    await child.end();
    await shelf.open();
    assert.deepEqual(shelf.unfinished(), []);
    assert.ok(!existsSync(lock), "nor is its lock left");
  });

  test("a killed process's private folder is removed by the next open", async (t) => {
    const shelf = new Shelf(t);
    const child = shelf.start("doer", { operation: "folder" });
    await child.next("copied");
    const [folder = "", ...more] = shelf.unfinished();
    assert.deepEqual([readdirSync(folder), more], [["copy"], []]);
    await shelf.open();
    assert.deepEqual(shelf.unfinished(), [folder], "while it lives, it stays");

    child.kill();
    await child.end();
    await shelf.open();
    assert.deepEqual(shelf.unfinished(), []);
  });

  test("a file of a process on an unknown host is kept for a week without a new byte", async (t) => {
    const shelf = new Shelf(t);
    const child = shelf.start("doer", { operation: "put", point: "put:synced" });
    await child.end();
    const [file = ""] = shelf.unfinished();
    // As if its lock were elsewhere.
    rmSync(join(shelf.folder, "alive"), { recursive: true });
    await shelf.open();
    assert.deepEqual(shelf.unfinished(), [file]);
    const week = Date.now() / 1_000 - 8 * 86_400;
    utimesSync(file, week, week);
    await shelf.open();
    assert.deepEqual(shelf.unfinished(), []);
  });
});
