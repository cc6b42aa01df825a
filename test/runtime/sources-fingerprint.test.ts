import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { hash } from "node:crypto";
import { appendFileSync, chmodSync, mkdirSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { describe, test } from "node:test";
import { needsHash } from "../../src/core/pipelines/work.ts";
import { fingerprintFile, statFile } from "../../src/pipelines/sources/fingerprint-file.ts";
import { noise } from "../artifacts/shelf.ts";
import { asNobody, SourceTree } from "./source-tree.ts";

const WINDOWS = process.platform === "win32";

describe("the fingerprint of a file", () => {
  for (const size of [0, 1, 1_024, 65_536, 65_537, 1_000_000]) {
    test(`the fingerprint of a file of ${size} bytes covers its bytes and the time they were read`, async (t) => {
      const path = new SourceTree(t).write("a", noise(size));
      const stat = look(path);
      const print = await fingerprintFile(path, stat, { now: () => 1_234 });
      assert.deepEqual(print, { ...stat, hash: hash("sha256", noise(size)), hashedAt: 1_234 });
      assert.equal(needsHash(print, stat), true, "it was written after that");
    });

    test(`the fingerprint of a file of ${size} bytes that changes after it was listed is that of the new bytes`, async (t) => {
      const path = new SourceTree(t).write("a", noise(size));
      const stat = look(path);
      appendFileSync(path, "more");
      const now = look(path);
      assert.deepEqual(await fingerprintFile(path, stat, { now: () => 5 }), {
        ...now,
        hash: hash("sha256", Buffer.concat([noise(size), Buffer.from("more")])),
        hashedAt: 5,
      });
    });
  }

  for (const size of [10, 1_000_000]) {
    test(`a file of ${size} bytes that changes on each read is rejected`, async (t) => {
      const path = new SourceTree(t).write("a", noise(size));
      // Called before each reading, behind the look at the file.
      const busy = { now: () => (appendFileSync(path, "x"), 1) };
      await assert.rejects(fingerprintFile(path, look(path), busy), { code: "BYTES_CHANGED", message: /written to/, hint: /\w/ });
    });

    test(`the fingerprint of a file of ${size} bytes that was replaced by one of the same size is that of the new file`, async (t) => {
      const tree = new SourceTree(t);
      const path = tree.write("a", noise(size, 1));
      const stat = look(path);
      renameSync(tree.write("b", noise(size, 2)), path);
      const print = await fingerprintFile(path, stat, Date);
      assert.equal(print?.hash, hash("sha256", noise(size, 2)));
      assert.equal(print?.inode, look(path).inode);
    });

    test(`a missing file of ${size} bytes has no fingerprint`, async (t) => {
      const path = new SourceTree(t).write("a", noise(size));
      const stat = look(path);
      rmSync(path);
      assert.equal(await fingerprintFile(path, stat, Date), null);
      mkdirSync(path);
      assert.equal(await fingerprintFile(path, stat, Date), null);
    });

    test(`a pipe in place of a file of ${size} bytes has no fingerprint, and blocks no caller`, { skip: WINDOWS }, async (t) => {
      const path = new SourceTree(t).write("a", noise(size));
      const stat = look(path);
      rmSync(path);
      execFileSync("mkfifo", [path]);
      assert.equal(await fingerprintFile(path, stat, Date), null);
    });
  }

  test("an unreadable file is an error that names it", { skip: WINDOWS }, async (t) => {
    const tree = new SourceTree(t);
    const path = tree.write("a");
    chmodSync(path, 0);
    await asNobody(tree, () =>
      assert.rejects(fingerprintFile(path, look(path), Date), { code: "SOURCE_UNREADABLE", message: /a cannot be read/ }),
    );
  });

  test("many fingerprints at once are each correct, and other work gets its turn", async (t) => {
    const tree = new SourceTree(t);
    const paths = Array.from({ length: 5_000 }, (_, i) => tree.write(`${i}`));
    let turns = 0;
    const timer = setInterval(() => turns++, 1);
    t.after(() => clearInterval(timer));
    const prints = await Promise.all(paths.map((path) => fingerprintFile(path, look(path), Date)));
    assert.ok(prints.every((print, i) => print?.hash === hash("sha256", `${i}`)));
    assert.ok(turns > 0);
  });

  test("a file that only got a new time has the same hash", async (t) => {
    const path = new SourceTree(t).write("a");
    const before = await fingerprintFile(path, look(path), Date);
    writeFileSync(path, "a");
    assert.equal((await fingerprintFile(path, look(path), Date))?.hash, before?.hash);
  });
});

function look(path: string) {
  const stat = statFile(path);
  assert.ok(stat !== null);
  return stat;
}
