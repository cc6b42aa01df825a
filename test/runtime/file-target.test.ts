import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { hash } from "node:crypto";
import {
  appendFileSync,
  chmodSync,
  existsSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync,
} from "node:fs";
import { basename, dirname } from "node:path";
import { describe, test, type TestContext } from "node:test";
import type { Artifacts } from "../../src/artifacts/artifacts.ts";
import type { Fingerprint } from "../../src/core/pipelines/work.ts";
import { fingerprintFile, statFile } from "../../src/pipelines/sources/fingerprint-file.ts";
import { ClaimedFile, snapshotFile } from "../../src/pipelines/sources/file-target.ts";
import { noise, Shelf } from "../artifacts/shelf.ts";
import { asNobody, SourceTree } from "./source-tree.ts";

const WINDOWS = process.platform === "win32";
/** Read at once, in one piece, and in several. */
const SIZES = [0, 1, 5_000, 100_000, 700_000];
const CHANGED = { name: "HoldfastError", code: "BYTES_CHANGED", hint: /snapshot/ };
/** Long after any file here was written: nothing is doubtful by its time alone. */
const LATER = { now: () => Date.now() + 3_600_000 };

describe("a claimed file", () => {
  for (const size of SIZES) {
    test(`a claimed file of ${size} bytes returns its bytes by every way of reading`, async (t) => {
      const { file: target, tree } = await claim(t, noise(size));
      assert.deepEqual([target.id, target.hash, target.size], ["docs/a.bin", hash("sha256", noise(size)), size]);
      assert.ok(noise(size).equals(await target.bytes()));
      assert.ok(noise(size).equals(await drain(target)));
      const { path } = target;
      assert.equal(basename(path), "a.bin");
      assert.notEqual(path, tree.path("docs/a.bin"));
      assert.ok(noise(size).equals(readFileSync(path)));
      assert.equal(target.path, path, "one copy is enough");
      assert.equal(await target.recheck(), true);
      await target.dispose();
      assert.ok(!existsSync(dirname(path)));
    });
  }

  const WRITES: Record<string, (path: string) => void> = {
    "written to": (path) => appendFileSync(path, "x"),
    "cut short": (path) => writeFileSync(path, "x"),
    "rewritten with as many bytes": (path) => flip(path),
    "rewritten with as many bytes and its old time": (path) => {
      const { atime, mtime } = statSync(path);
      flip(path);
      utimesSync(path, atime, mtime);
    },
    "replaced by another with its size and time": (path) => {
      const { atime, mtime } = statSync(path);
      writeFileSync(`${path}-other`, noise(statSync(path).size, 7));
      utimesSync(`${path}-other`, atime, mtime);
      renameSync(`${path}-other`, path);
    },
    removed: (path) => rmSync(path),
    "replaced by a folder": (path) => {
      rmSync(path);
      execFileSync("mkdir", [path]);
    },
    ...(WINDOWS
      ? {}
      : {
          "replaced by a pipe": (path: string) => {
            rmSync(path);
            execFileSync("mkfifo", [path]);
          },
        }),
  };
  for (const [what, write] of Object.entries(WRITES)) {
    for (const size of [5_000, 700_000]) {
      test(`a claimed file of ${size} bytes that was ${what} before it is read is rejected, with its attempt`, async (t) => {
        const { file, path } = await claim(t, noise(size));
        write(path);
        await assert.rejects(file.bytes(), CHANGED);
        await assert.rejects(drain(file), CHANGED);
        assert.throws(() => file.path, CHANGED);
        assert.equal(await file.recheck(), false);
      });

      test(`a claimed file of ${size} bytes that was ${what} after it was read is noticed before the commit`, async (t) => {
        const { file, path } = await claim(t, noise(size));
        await file.bytes();
        const copy = file.path;
        write(path);
        assert.equal(await file.recheck(), false);
        assert.ok(noise(size).equals(readFileSync(copy)), "the copy is private");
      });
    }
  }

  test("a file that is written while it is streamed fails before the stream ends", async (t) => {
    const { file, path } = await claim(t, noise(2_000_000));
    const seen: Buffer[] = [];
    const read = async () => {
      for await (const piece of file.stream()) {
        seen.push(piece as Buffer);
        if (seen.length === 1) flip(path, -1);
      }
    };
    await assert.rejects(read(), CHANGED);
    assert.ok(Buffer.concat(seen).length < 2_000_000);
    assert.equal(await file.recheck(), false);
  });

  test("a file that grows while it is streamed returns no more than its original bytes", async (t) => {
    const { file, path } = await claim(t, noise(600_000));
    let seen = 0;
    const read = async () => {
      for await (const piece of file.stream()) {
        seen += (piece as Buffer).length;
        appendFileSync(path, noise(600_000));
      }
    };
    await assert.rejects(read(), CHANGED);
    assert.ok(seen < 600_000);
  });

  test("a file that was read with different bytes stays rejected, even if its own bytes return", async (t) => {
    const { file, path } = await claim(t, noise(5_000));
    flip(path);
    await assert.rejects(file.bytes(), CHANGED);
    flip(path);
    assert.ok(noise(5_000).equals(await file.bytes()));
    assert.equal(await file.recheck(), false);
  });

  test("a file of which a part was read with different bytes stays rejected, even if its own bytes return", async (t) => {
    const { file, path } = await claim(t, noise(2_000_000));
    flip(path);
    for await (const piece of file.stream()) {
      assert.ok((piece as Buffer).length > 0);
      break;
    }
    flip(path);
    assert.equal(await file.recheck(), false);
  });

  test("an untouched file that was read in part is accepted", async (t) => {
    const { file } = await claim(t, noise(2_000_000));
    for await (const _ of file.stream()) break;
    assert.equal(await file.recheck(), true);
  });

  test("a file that was only touched, copied back or given other permissions is accepted", async (t) => {
    const { file, path } = await claim(t, noise(5_000));
    utimesSync(path, 1, 1);
    assert.equal(await file.recheck(), true);
    chmodSync(path, 0o600);
    assert.equal(await file.recheck(), true);
    writeFileSync(`${path}-copy`, noise(5_000));
    renameSync(`${path}-copy`, path);
    assert.equal(await file.recheck(), true);
    assert.ok(noise(5_000).equals(await file.bytes()));
  });

  test("a file written just before it was hashed is hashed again, because its time may be the same", async (t) => {
    const { tree, artifacts, path } = await claim(t, noise(5_000));
    const stat = look(path);
    const other = hash("sha256", noise(5_000, 2));
    // As if it had been written again in the same tick: nothing about it tells that it has other bytes.
    const racy: Fingerprint = { ...stat, hash: other, hashedAt: Number(BigInt(stat.mtime) / 1_000_000n) + 1_000 };
    const parts = { id: "a", path, snapshot: false, artifacts };
    assert.equal(await new ClaimedFile({ ...parts, fingerprint: racy }).recheck(), false);
    const old: Fingerprint = { ...racy, hashedAt: racy.hashedAt + 2_000 };
    assert.equal(await new ClaimedFile({ ...parts, fingerprint: old }).recheck(), true, "which is not looked at otherwise");
    assert.ok(tree.base.length > 0);
  });

  test(
    "an unreadable file fails the attempt, which is retried, because its bytes may be unchanged",
    { skip: WINDOWS },
    async (t) => {
      const { file, tree, path } = await claim(t, noise(5_000));
      chmodSync(path, 0);
      await asNobody(tree, async () => {
        await assert.rejects(file.bytes(), { code: "SOURCE_UNREADABLE", message: /a\.bin cannot be read/ });
        await assert.rejects(drain(file), { code: "SOURCE_UNREADABLE" });
        await assert.rejects(file.recheck(), { code: "SOURCE_UNREADABLE" });
      });
      assert.equal(await file.recheck(), true);
    },
  );

  test("a file has no copy after its attempt, and reports what happened to its bytes", async (t) => {
    const { file, path } = await claim(t, noise(10));
    await file.dispose();
    await file.dispose();
    assert.throws(() => file.path, { code: "CLOSED" });
    appendFileSync(path, "x");
    await assert.rejects(file.bytes(), { message: /it had 10 bytes, and has 11 now/ });
    rmSync(path);
    await assert.rejects(file.bytes(), { message: /it is gone/ });
  });

  test("looking at a file does not copy it", async (t) => {
    const { file, shelf } = await claim(t, noise(10));
    assert.deepEqual(JSON.parse(JSON.stringify(file)), { id: "docs/a.bin", hash: file.hash, size: 10 });
    assert.deepEqual(shelf.unfinished(), []);
  });

  test("a failed copy leaves nothing behind", async (t) => {
    const { file, path, shelf } = await claim(t, noise(10));
    flip(path);
    assert.throws(() => file.path, CHANGED);
    assert.deepEqual(shelf.unfinished(), []);
  });
});

describe("a snapshot", () => {
  for (const size of [...SIZES, 1_100_000]) {
    test(`a snapshot of ${size} bytes is returned, whatever happens to the file`, async (t) => {
      const { file: target, path } = await claim(t, noise(size), { snapshot: true });
      rmSync(path);
      assert.equal(target.hash, hash("sha256", noise(size)));
      assert.ok(noise(size).equals(await target.bytes()));
      assert.ok(noise(size).equals(await drain(target)));
      assert.equal(basename(target.path), "a.bin");
      assert.ok(noise(size).equals(readFileSync(target.path)));
      writeFileSync(target.path, "what a handler does with its copy is its own");
      assert.ok(noise(size).equals(await target.bytes()));
      assert.equal(await target.recheck(), true);
      const copy = target.path;
      await target.dispose();
      assert.ok(!existsSync(copy));
    });
  }

  for (const size of [10, 1_100_000]) {
    test(`a snapshot of a file of ${size} bytes that changed after it was listed has the new bytes`, async (t) => {
      const { artifacts, path } = await claim(t, noise(size));
      const stat = look(path);
      appendFileSync(path, "more");
      const print = await snapshotFile(artifacts, path, stat, { now: () => 9 });
      const bytes = readFileSync(path);
      assert.deepEqual(print, { ...look(path), hash: hash("sha256", bytes), hashedAt: 9 });
      assert.ok(bytes.equals(await artifacts.read(print?.hash ?? "")));
    });

    test(`a snapshot of a file of ${size} bytes that changes on each read is rejected`, async (t) => {
      const { artifacts, path } = await claim(t, noise(size));
      const busy = { now: () => (appendFileSync(path, "x"), 1) };
      await assert.rejects(snapshotFile(artifacts, path, look(path), busy), { code: "BYTES_CHANGED" });
    });
  }

  test("a missing file has no snapshot", async (t) => {
    const { artifacts, path } = await claim(t, noise(10));
    const stat = look(path);
    rmSync(path);
    assert.equal(await snapshotFile(artifacts, path, stat, LATER), null);
  });

  test("a damaged snapshot is reported as an error of the store, not of the file", async (t) => {
    const { file, shelf } = await claim(t, noise(5_000), { snapshot: true });
    const stored = shelf.fileOf(file.hash);
    chmodSync(stored, 0o644);
    flip(stored);
    const damaged = { code: "ARTIFACT_DAMAGED" };
    await assert.rejects(file.bytes(), damaged);
    await assert.rejects(drain(file), damaged);
    assert.throws(() => file.path, damaged);
    rmSync(stored);
    assert.throws(() => file.path, { code: "ARTIFACT_MISSING" });
    assert.deepEqual(shelf.unfinished(), []);
  });
});

interface Claimed {
  file: ClaimedFile;
  path: string;
  tree: SourceTree;
  shelf: Shelf;
  artifacts: Artifacts;
}

async function claim(t: TestContext, bytes: Uint8Array, { snapshot = false } = {}): Promise<Claimed> {
  const shelf = new Shelf(t);
  const tree = new SourceTree(t);
  const artifacts = await shelf.open();
  const path = tree.write("docs/a.bin", bytes);
  const stat = look(path);
  const fingerprint = snapshot ? await snapshotFile(artifacts, path, stat, LATER) : await fingerprintFile(path, stat, LATER);
  assert.ok(fingerprint !== null);
  const file = new ClaimedFile({ id: "docs/a.bin", path, fingerprint, snapshot, artifacts });
  return { file, path, tree, shelf, artifacts };
}

async function drain(target: ClaimedFile): Promise<Buffer> {
  const pieces: Buffer[] = [];
  for await (const piece of target.stream()) pieces.push(piece as Buffer);
  return Buffer.concat(pieces);
}

function look(path: string) {
  const stat = statFile(path);
  assert.ok(stat !== null);
  return stat;
}

/** Another byte in the place of one; twice, and all is as it was. */
function flip(path: string, at = 0): void {
  const bytes = readFileSync(path);
  const index = at < 0 ? bytes.length + at : at;
  bytes[index] = (bytes[index] as number) ^ 1;
  writeFileSync(path, bytes);
}
