import assert from "node:assert/strict";
import { test } from "node:test";
import * as fc from "fast-check";
import { type Fence, followUpId, generatedId, type JobKey, parseGeneratedId } from "../../src/core/text/ids.ts";

const time = fc.integer({ min: 0, max: Date.UTC(2500, 0) });
const key = fc.integer({ min: 1, max: 2 ** 40 - 1 });

test("a generated id contains its time and its key", () => {
  fc.assert(
    fc.property(time, key, (createdAt, key) => {
      assert.deepEqual(parseGeneratedId(generatedId(createdAt, key as JobKey)), { createdAt, key });
    }),
  );
});

test("generated ids sort by time, then by key", () => {
  fc.assert(
    fc.property(time, key, time, key, (timeA, keyA, timeB, keyB) => {
      const [a, b] = [generatedId(timeA, keyA as JobKey), generatedId(timeB, keyB as JobKey)];
      const order = Math.sign(timeA - timeB || keyA - keyB);
      assert.equal(a < b ? -1 : a > b ? 1 : 0, order);
    }),
  );
});

test("other texts are not generated ids", () => {
  const good = generatedId(Date.UTC(2026, 0), 1 as JobKey);
  assert.equal(good.length, 17);
  for (const text of ["", "invoice-1", good.slice(1), `${good}0`, good.toUpperCase(), `${good}\n`, good.replace(/.$/, "_")]) {
    assert.equal(parseGeneratedId(text), null, JSON.stringify(text));
  }
});

test("a follow-up's id is not a generated id, and differs by parent, attempt and index", () => {
  const at = Date.UTC(2026, 0);
  const ids = new Set<string>();
  for (const parent of [1, 2]) {
    for (const fence of [1, 31, 32, 33]) {
      for (const index of [0, 1, 11]) ids.add(followUpId(at, parent as JobKey, fence as Fence, index));
    }
  }
  assert.equal(ids.size, 24);
  for (const id of ids) assert.equal(parseGeneratedId(id), null);
});

test("a follow-up's id sorts by its time among generated ids", () => {
  const id = followUpId(1_000, 5 as JobKey, 9 as Fence, 0);
  assert.ok(generatedId(999, 99 as JobKey) < id);
  assert.ok(generatedId(1_001, 1 as JobKey) > id);
});
