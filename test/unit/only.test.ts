import assert from "node:assert/strict";
import { test } from "node:test";
import * as fc from "fast-check";
import { HoldfastError } from "../../src/core/text/errors.ts";
import { Nearest } from "../../src/core/text/options.ts";
import { OnlyTargets } from "../../src/core/pipelines/source.ts";

test("the nearest names are those with the fewest edits, ignoring case and folders", () => {
  const cases: [string, string[], string[]][] = [
    ["notes/bowlin.md", ["notes/bowline.md", "notes/reef-knot.md", "src/x.ts"], ["notes/bowline.md"]],
    ["README", ["x/readme", "readme", "redme", "nothing"], ["readme", "x/readme", "redme"]],
    ["docs/a.md", ["a.md", "b.md", "docs/b.md"], ["a.md", "docs/b.md"]],
    ["abc", ["abd", "abe", "abf", "abg", "ab"], ["abd", "abe", "abf"]],
    ["m1", ["zzzzzzzz", ""], [""]],
  ];
  for (const [text, seen, found] of cases) assert.deepEqual(nearestOf(text, seen), found, text);
});

test("one edit is always found", () => {
  const text = fc.string({ minLength: 3, maxLength: 30 });
  fc.assert(
    fc.property(text, fc.nat(), fc.constantFrom("", "x", "xy"), (given, at, put) => {
      const place = at % given.length;
      const slipped = given.slice(0, place) + put + given.slice(place + 1);
      assert.deepEqual(nearestOf(slipped, [given]), [given]);
    }),
  );
});

test("an asked name matches an id or a glob, and the rest is named", () => {
  const only = new OnlyTargets(["a", "docs/*", "b[1]", "c"], ["parse"]);
  assert.equal(only.isMet, false);
  assert.deepEqual(
    ["a", "a/b", "docs/x", "b[1]", "b1", "other"].map((id) => only.includes(id)),
    [true, true, true, true, true, false],
  );
  assert.throws(
    () => only.rejectMissing(),
    (error) =>
      error instanceof HoldfastError && error.code === "TARGET_UNKNOWN" && error.message.startsWith('"c" in `only` is no target'),
  );
  assert.equal(only.includes("c"), true);
  assert.equal(only.isMet, true);
  only.rejectMissing();
});

test("no names select everything", () => {
  const all = new OnlyTargets([]);
  assert.deepEqual([all.isAll, all.isMet, all.includes("x")], [true, true, true]);
  all.rejectMissing();
});

function nearestOf(text: string, seen: readonly string[]): string[] {
  const nearest = new Nearest(text);
  for (const one of seen) nearest.offer(one);
  return nearest.found;
}
