import assert from "node:assert/strict";
import { appendFileSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import {
  type Change,
  readSegment,
  SegmentWriter,
  segmentsIn,
  trimSegments,
} from "../../src/store/sqlite/maintenance/changes/segments.ts";

const FULL = 1_500;
const put = (seq: number): Change => ({ seq, kind: "put", name: "t", key: null, row: `'${"x".repeat(800)}'`, at: null });
const head = (epoch: number) => ({ databaseId: "a", epoch });

test("journal files that no backup needs are deleted, also those from before a restore, and never the current one", (t) => {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-segments-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  for (const epoch of [0, 1]) {
    const writer = new SegmentWriter(folder, head(epoch), null, FULL);
    for (let seq = 1; seq <= 6; seq++) writer.append([put(seq)], seq - 1);
  }
  const after = (epoch: number) => segmentsIn(folder, "a", epoch).map((one) => one.after);
  assert.deepEqual(
    [after(0), after(1)],
    [
      [0, 2, 4],
      [0, 2, 4],
    ],
    "a file that is full is followed by another",
  );

  trimSegments(folder, head(1), []);
  assert.deepEqual([after(0), after(1)], [[], [0, 2, 4]], "of a time that no backup leads to, nothing is kept");
  trimSegments(folder, head(1), [
    { epoch: 1, changes: 3 },
    { epoch: 1, changes: 5 },
    { epoch: 1, changes: null },
  ]);
  assert.deepEqual(after(1), [2, 4]);
  trimSegments(folder, head(1), [{ epoch: 1, changes: 9 }]);
  assert.deepEqual(after(1), [4], "the newest stays: it is written to");
  assert.equal(readdirSync(folder).length, 1);
  assert.equal(new SegmentWriter(folder, head(1), null).last, 6, "it continues where it was");
});

/** One file with so many changes, in as many appends. */
function written(t: TestContext, n: number): { folder: string; file: string } {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-segments-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const writer = new SegmentWriter(folder, head(0), null);
  for (let seq = 1; seq <= n; seq++) writer.append([put(seq)], seq - 1);
  return { folder, file: segmentsIn(folder, "a", 0)[0]?.path as string };
}

const numbers = (file: string) => readSegment(file).changes.map(({ seq }) => seq);

/** One bit of a line. */
function flip(file: string, line: number): void {
  const bytes = readFileSync(file);
  let at = 0;
  for (let i = 0; i < line; i++) at = bytes.indexOf(10, at) + 1;
  bytes[at + 40] = (bytes[at + 40] as number) ^ 1;
  writeFileSync(file, bytes);
}

test("a damaged line loses only that line", (t) => {
  const { folder, file } = written(t, 6);
  flip(file, 2);
  assert.deepEqual(numbers(file), [1, 2, 4, 5, 6]);
  const writer = new SegmentWriter(folder, head(0), null);
  assert.equal(writer.last, 6);
  writer.append([put(7)], 6);
  assert.deepEqual(numbers(file), [1, 2, 4, 5, 6, 7]);
});

test("a journal file is identified by its name", (t) => {
  const { folder, file } = written(t, 3);
  flip(file, 0);
  assert.deepEqual(segmentsIn(folder, "a", 0), [{ path: file, epoch: 0, after: 0 }]);
  assert.deepEqual(numbers(file), [2, 3]);
  assert.deepEqual(segmentsIn(folder, "b", 0), []);
});

test("entries still in the database are written again, because a power cut may have kept only their end", (t) => {
  const { folder, file } = written(t, 6);
  flip(file, 3);
  const writer = new SegmentWriter(folder, head(0), 3);
  assert.equal(writer.last, 2);
  for (let seq = 3; seq <= 6; seq++) writer.append([put(seq)], seq - 1);
  assert.deepEqual(numbers(file), [1, 2, 3, 4, 5, 6]);
  assert.equal(readSegment(file).damaged, false);
});

test("a partial line is ignored, also in a file without a whole one", (t) => {
  const { folder, file } = written(t, 2);
  const bytes = readFileSync(file);
  appendFileSync(file, '00000000 {"se');
  const same = new SegmentWriter(folder, head(0), 3);
  assert.deepEqual([readFileSync(file), same.last], [bytes, 2]);
  writeFileSync(join(folder, "00000-0000000000000002-a.changes"), "0000");
  const writer = new SegmentWriter(folder, head(0), 3);
  writer.append([put(3)], 2);
  assert.deepEqual(
    segmentsIn(folder, "a", 0).map((one) => numbers(one.path)),
    [[1, 2], [3]],
  );
});
