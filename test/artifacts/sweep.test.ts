import assert from "node:assert/strict";
import { existsSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { buffer } from "node:stream/consumers";
import { describe, test, type TestContext } from "node:test";
import type { Artifacts } from "../../src/artifacts/artifacts.ts";
import { allReferenced, HOUR, noneReferenced, noise, Shelf } from "./shelf.ts";

test("a sweep removes old unreferenced artifacts, and keeps referenced or young ones", async (t) => {
  const shelf = new Shelf(t);
  const artifacts = await shelf.open();
  const old = await Promise.all(Array.from({ length: 300 }, (_, i) => artifacts.put(`old ${i}`)));
  const kept = new Set(old.filter((_, i) => i % 3 === 0).map(({ hash }) => hash));
  shelf.ahead = 2 * HOUR;
  const young = await artifacts.put("young");
  const again = await artifacts.put("old 1");
  const asked: number[] = [];
  const swept = await artifacts.sweep(
    async (hashes) => {
      asked.push(hashes.length);
      return kept;
    },
    { olderThan: "1h" },
  );
  assert.deepEqual(new Set(shelf.stored()), new Set([...kept, young.hash, again.hash]));
  assert.equal(swept.seen, 301);
  assert.equal(swept.removed, 199);
  assert.equal(
    swept.bytes,
    old.filter(({ hash }) => !kept.has(hash) && hash !== again.hash).reduce((sum, { size }) => sum + size, 0),
  );
  assert.equal(Math.max(...asked), 250, "in batches");
  assert.deepEqual(shelf.unfinished(), []);
});

test("a sweep touches nothing but artifacts", async (t) => {
  const shelf = new Shelf(t);
  const artifacts = await shelf.open();
  const { hash } = await artifacts.put("a");
  const strangers = [join(shelf.folder, "notes.txt"), `${shelf.fileOf(hash)}.bak`, join(shelf.folder, "trash", "notes.txt")];
  for (const path of strangers) writeFileSync(path, "mine");
  shelf.ahead = HOUR;
  assert.equal((await artifacts.sweep(noneReferenced, { olderThan: 0 })).removed, 1);
  for (const path of strangers) assert.ok(existsSync(path), path);
});

test("an invalid duration is rejected, and nothing is removed", async (t) => {
  const shelf = new Shelf(t);
  const artifacts = await shelf.open();
  await artifacts.put("a");
  shelf.ahead = HOUR;
  await assert.rejects(artifacts.sweep(noneReferenced, { olderThan: -1 }), { code: "DURATION_INVALID" });
  assert.equal(shelf.stored().length, 1);
});

describe("while a sweep is at work", () => {
  test("an artifact stored again after the sweep listed it is not removed", async (t) => {
    await duringSweep(t, async ({ artifacts }, bytes, look) => {
      if (look === 1) await artifacts.put(bytes);
    });
  });

  test("an artifact stored again after it was moved to the trash is not removed", async (t) => {
    await duringSweep(t, async ({ artifacts }, bytes, look) => {
      if (look === 2) await artifacts.put(bytes);
    });
  });

  test("an artifact stored again by another process is not removed", async (t) => {
    await duringSweep(t, async ({ shelf }, bytes) => {
      await (await shelf.open()).put(bytes);
    });
  });

  test("an artifact referenced between the two checks of a sweep is restored", async (t) => {
    await duringSweep(t, async (_, __, look) => look === 2);
  });

  test("a restored artifact does not replace one that was stored meanwhile", async (t) => {
    await duringSweep(t, async ({ artifacts, hash, shelf }, bytes, look) => {
      if (look === 2) await artifacts.put(bytes);
      else {
        rmSync(shelf.fileOf(hash));
        writeFileSync(shelf.fileOf(hash), "other bytes");
      }
      return look === 2;
    });
  });

  test("a transaction that requests an artifact in the trash restores it, and no sweep removes it", async (t) => {
    await duringSweep(t, async ({ artifacts, hash, shelf }, _, look) => {
      if (look !== 2) return;
      assert.ok(!existsSync(shelf.fileOf(hash)), "it is aside");
      assert.deepEqual(artifacts.missing([hash, hash]), []);
    });
  });

  for (const way of ["read", "stream", "path"] as const) {
    test(`an artifact in the trash can be read by ${way}, and stays`, async (t) => {
      await duringSweep(t, async ({ artifacts, hash }, bytes, look) => {
        if (look !== 2) return;
        if (way === "path") await artifacts.path(hash);
        else assert.ok(bytes.equals(way === "read" ? await artifacts.read(hash) : await buffer(artifacts.stream(hash))));
      });
    });
  }

  test("another sweep leaves this sweep's trash alone", async (t) => {
    const shelf = new Shelf(t);
    const [one, two] = [await shelf.open(), await shelf.open()];
    const { hash } = await one.put("a");
    shelf.ahead = HOUR;
    const [aside, removed] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    let second: Promise<unknown> = Promise.resolve();
    let looks = 0;
    const ask = async () => {
      if (++looks === 2) {
        // Stored anew, and old at once: the other one puts that aside, too.
        await one.put("a");
        shelf.ahead += HOUR;
        let others = 0;
        const askOther = async (hashes: string[]) => {
          if (++others === 1) return new Set<string>();
          aside.resolve();
          await removed.promise;
          return new Set(hashes);
        };
        second = two.sweep(askOther, { olderThan: 0 });
        await aside.promise;
      }
      return new Set<string>();
    };
    assert.equal((await one.sweep(ask, { olderThan: 0 })).removed, 1);
    removed.resolve();
    await second;
    assert.equal(Buffer.from(await one.read(hash)).toString(), "a");
    assert.deepEqual(shelf.unfinished(), []);
  });

  test("a sweep without an answer leaves everything in place", async (t) => {
    for (const failing of [1, 2]) {
      const shelf = new Shelf(t);
      const artifacts = await shelf.open();
      await artifacts.put("a");
      shelf.ahead = HOUR;
      let looks = 0;
      const ask = async () => {
        if (++looks === failing) throw new Error("the database is gone");
        return new Set<string>();
      };
      await assert.rejects(artifacts.sweep(ask, { olderThan: 0 }), /the database is gone/);
      assert.equal(shelf.stored().length, 1);
      assert.deepEqual(shelf.unfinished(), []);
    }
  });
});

test("missing artifacts are reported once each", async (t) => {
  const shelf = new Shelf(t);
  const artifacts = await shelf.open();
  const [a, b] = [await artifacts.put("a"), await artifacts.put("b")];
  shelf.ahead = HOUR;
  await artifacts.sweep(async () => new Set([b.hash]), { olderThan: 0 });
  assert.deepEqual(artifacts.missing([a.hash, b.hash, a.hash]), [a.hash]);
  await artifacts.sweep(allReferenced, { olderThan: 0 });
  await assert.rejects(artifacts.read(a.hash), { code: "ARTIFACT_MISSING" });
});

interface Scene {
  shelf: Shelf;
  artifacts: Artifacts;
  hash: string;
}

/** One old artifact without a reference; something happens when the sweep asks; after it the artifact is there, whole. */
async function duringSweep(
  t: TestContext,
  happens: (scene: Scene, bytes: Buffer, look: number) => Promise<boolean | void>,
): Promise<void> {
  const shelf = new Shelf(t);
  const artifacts = await shelf.open();
  const bytes = noise(300_000);
  const { hash } = await artifacts.put(bytes);
  shelf.ahead = HOUR;
  let looks = 0;
  const ask = async (hashes: string[]) =>
    new Set((await happens({ shelf, artifacts, hash }, bytes, ++looks)) === true ? hashes : []);
  assert.equal((await artifacts.sweep(ask, { olderThan: 0 })).removed <= 1, true);
  assert.deepEqual(shelf.stored(), [hash]);
  assert.ok(bytes.equals(await artifacts.read(hash)));
  assert.deepEqual(shelf.unfinished(), []);
}
