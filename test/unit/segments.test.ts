import assert from "node:assert/strict";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { type Change, SegmentWriter, segmentsIn, trimSegments } from "../../src/store/sqlite/changes/segments.ts";

const FULL = 1_500;
const put = (seq: number): Change => ({ seq, kind: "put", name: "t", key: null, row: `'${"x".repeat(800)}'`, at: null });
const head = (epoch: number) => ({ databaseId: "a", epoch });

test("of the journal's files those go that no backup needs, of before a restore too, and never one that is", (t) => {
  const folder = mkdtempSync(join(tmpdir(), "holdfast-segments-"));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  for (const epoch of [0, 1]) {
    const writer = new SegmentWriter(folder, head(epoch), FULL);
    for (let seq = 1; seq <= 6; seq++) writer.append([put(seq)], seq - 1);
  }
  const after = (epoch: number) => segmentsIn(folder, "a", epoch).map((one) => one.head.after);
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
  assert.equal(new SegmentWriter(folder, head(1)).last, 6, "it goes on where it was");
});
