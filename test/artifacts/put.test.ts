import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { mkdirSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Readable } from "node:stream";
import { buffer } from "node:stream/consumers";
import { test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { assert as holds, asyncProperty, constantFrom, integer, nat, oneof, record } from "fast-check";
import type { ArtifactData } from "../../src/artifacts/write.ts";
import { noise, Shelf } from "./shelf.ts";

const sizes = oneof(
  { arbitrary: constantFrom(0, 1, 256 * 1024 - 1, 256 * 1024, 256 * 1024 + 1, 3 * 1024 * 1024 + 7), weight: 1 },
  { arbitrary: nat({ max: 4_000 }), weight: 2 },
);
const forms = constantFrom("bytes", "stream", "path");

test("anything stored, in any form and pieces, is read back to the byte, by every way", async (t) => {
  const shelf = new Shelf(t);
  const artifacts = await shelf.open();
  const file = join(shelf.base, "source");
  const put = record({ size: sizes, seed: nat(), form: forms, piece: integer({ min: 1, max: 300_000 }) });
  await holds(
    asyncProperty(put, async ({ size, seed, form, piece }) => {
      const bytes = noise(size, seed);
      const pieces = function* () {
        const length = Math.max(piece, Math.ceil(size / 500));
        for (let at = 0; at < size; at += length) yield bytes.subarray(at, at + length);
      };
      if (form === "path") writeFileSync(file, bytes);
      const data = { bytes, path: { path: file }, stream: Readable.from(pieces(), { objectMode: false }) }[form] as ArtifactData;
      const stored = await artifacts.put(data);
      assert.deepEqual(stored, { hash: sha256(bytes), size });
      assert.ok(bytes.equals(await artifacts.read(stored.hash)));
      assert.ok(bytes.equals(await buffer(artifacts.stream(stored.hash))));
      assert.ok(bytes.equals(readFileSync(await artifacts.path(stored.hash))));
      assert.deepEqual(shelf.unfinished(), []);
    }),
    { numRuns: 40 },
  );
});

test("a text is stored as UTF-8, whole or in pieces", async (t) => {
  const artifacts = await new Shelf(t).open();
  const text = "größer \u0000 𝄞 \r\n";
  const { hash, size } = await artifacts.put(text);
  assert.deepEqual({ hash, size }, { hash: sha256(Buffer.from(text)), size: Buffer.byteLength(text) });
  assert.equal((await artifacts.put(Readable.from(["größer \u0000 ", "𝄞 \r\n"]))).hash, hash);
  assert.equal(Buffer.from(await artifacts.read(hash)).toString(), text);
});

test("a stream of any size needs little memory", async (t) => {
  const shelf = new Shelf(t);
  const artifacts = await shelf.open();
  const piece = 1024 * 1024;
  const before = bytesHeld();
  let [behind, held] = [0, 0];
  const look = () => (held = Math.max(held, bytesHeld() - before));
  const endless = function* () {
    for (let i = 0; i < 100; i++) {
      const [file] = shelf.unfinished();
      behind = Math.max(behind, i * piece - (file === undefined ? 0 : statSync(file).size));
      if (i % 10 === 9) look();
      yield Buffer.alloc(piece, i);
    }
  };
  const { hash, size } = await artifacts.put(Readable.from(endless(), { objectMode: false }));
  assert.equal(size, 100 * piece);
  assert.ok(behind <= 4 * piece, `${behind} bytes were taken and not written`);

  let read = 0;
  for await (const part of artifacts.stream(hash)) {
    if (read % (10 * piece) > (read += (part as Buffer).length) % (10 * piece)) look();
  }
  assert.equal(read, size);
  assert.ok(held <= 8 * piece, `${held} bytes were kept`);
});

test("the same bytes are stored once, also by concurrent writers and two handles", async (t) => {
  const shelf = new Shelf(t);
  const [one, two] = [await shelf.open(), await shelf.open()];
  const bytes = noise(500_000);
  const stored = await Promise.all(
    Array.from({ length: 8 }, (_, i) => (i % 2 ? one : two).put(i < 4 ? bytes : Readable.from([bytes], { objectMode: false }))),
  );
  assert.equal(new Set(stored.map(({ hash }) => hash)).size, 1);
  assert.deepEqual(shelf.stored(), [sha256(bytes)]);
  const before = statSync(shelf.fileOf(sha256(bytes)));
  await one.put(bytes);
  await one.put(Readable.from([bytes]));
  assert.equal(statSync(shelf.fileOf(sha256(bytes))).ino, before.ino, "it is not written again");
  assert.deepEqual(shelf.unfinished(), []);
});

test("a buffer that is changed while it is stored has the hash of what was written", async (t) => {
  const artifacts = await new Shelf(t).open();
  const bytes = noise(6 * 1024 * 1024);
  const put = artifacts.put(bytes);
  const change = setInterval(() => bytes.fill(Math.floor(performance.now())), 0);
  const { hash } = await put;
  clearInterval(change);
  assert.equal(sha256(await artifacts.read(hash)), hash);
});

const broken: Record<string, { data: (base: string) => unknown; code: string | RegExp }> = {
  "a stream that fails in the middle": {
    data: () =>
      Readable.from(
        (function* () {
          yield noise(700_000);
          throw new Error("the line went dead");
        })(),
      ),
    code: /the line went dead/,
  },
  "a stream that fails before it is read": {
    data: () => {
      const stream = new Readable({ read() {} });
      process.nextTick(() => stream.destroy(new Error("the line was dead")));
      return stream;
    },
    code: /the line was dead/,
  },
  "a stream that is destroyed in the middle": {
    data: () => {
      let pieces = 0;
      return new Readable({
        read() {
          if (pieces++ < 3) this.push(noise(100_000));
          else this.destroy();
        },
      });
    },
    code: "ERR_STREAM_PREMATURE_CLOSE",
  },
  "a stream that is over already": { data: () => Readable.from([]).destroy(), code: "ARTIFACT_INVALID" },
  "a stream of objects": { data: () => Readable.from([noise(3), { no: "bytes" }]), code: "ARTIFACT_INVALID" },
  "a text that UTF-8 cannot say": { data: () => "half \ud834", code: "ARTIFACT_INVALID" },
  "a number": { data: () => 7, code: "ARTIFACT_INVALID" },
  nothing: { data: () => null, code: "ARTIFACT_INVALID" },
  "a file that is not there": { data: (base) => ({ path: join(base, "nowhere") }), code: "ARTIFACT_SOURCE_UNREADABLE" },
  "a folder": { data: (base) => ({ path: base }), code: "ARTIFACT_SOURCE_UNREADABLE" },
};
for (const [what, { data, code }] of Object.entries(broken)) {
  test(`${what} is rejected, and leaves nothing`, async (t) => {
    const shelf = new Shelf(t);
    const artifacts = await shelf.open();
    await assert.rejects(artifacts.put(data(shelf.base) as ArtifactData), typeof code === "string" ? { code } : code);
    assert.deepEqual([...shelf.unfinished(), ...shelf.stored()], []);
  });
}

test("a text that is not a hash is rejected, so that it leads to no path", async (t) => {
  const artifacts = await new Shelf(t).open();
  for (const hash of ["", "../../etc/passwd", "A".repeat(64), `${"a".repeat(64)}\n`, `../${"a".repeat(61)}`, null as never]) {
    for (const ask of [() => artifacts.read(hash), () => artifacts.path(hash), async () => artifacts.stream(hash)]) {
      await assert.rejects(ask, { code: "ARTIFACT_HASH_INVALID" });
    }
    assert.throws(() => artifacts.missing([hash]), { code: "ARTIFACT_HASH_INVALID" });
  }
});

test("an impossible folder is rejected with a hint, and a closed one stores nothing", async (t) => {
  const shelf = new Shelf(t);
  writeFileSync(shelf.folder, "a file");
  await assert.rejects(shelf.open(), { code: "CANNOT_OPEN", hint: /folder/ });
  const other = new Shelf(t);
  mkdirSync(other.folder);
  const artifacts = await other.open();
  artifacts.close();
  await assert.rejects(artifacts.put("late"), { code: "CLOSED" });
});

function sha256(bytes: Uint8Array): string {
  return createHash("sha256").update(bytes).digest("hex");
}

setFlagsFromString("--expose-gc");
const collect = runInNewContext("gc") as () => void;

/** Bytes in buffers that are referenced, not in those not collected yet: a second collection ends what the first began. */
function bytesHeld(): number {
  collect();
  collect();
  return process.memoryUsage().arrayBuffers;
}
