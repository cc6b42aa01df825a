import assert from "node:assert/strict";
import { test } from "node:test";
import * as fc from "fast-check";
import { ExportNames, safePath } from "../../src/artifacts/export-names.ts";
import { ExportPlaces, type ToPlace } from "../../src/pipelines/export.ts";

/** Pieces that meet each other: separators, dots, case, accents, escapes, endings. */
const piece = fc.constantFrom(
  "a",
  "A",
  "/",
  "//",
  ".",
  "..",
  "\\",
  ":",
  "%2F",
  "%",
  "~",
  ".json",
  ".bin",
  "é",
  "e\u0301",
  "\u0001",
);
const id = fc
  .oneof(
    fc.array(piece, { minLength: 1, maxLength: 6 }).map((pieces) => pieces.join("")),
    fc.string({ unit: "binary", minLength: 1, maxLength: 20 }),
    fc.nat(2_000).map((length) => "y".repeat(length + 1)),
  )
  .filter((text) => text.isWellFormed() && !text.includes("\0") && !text.includes("\u001f"));
const name = fc.constantFrom("x", "X", "x/y", "b.json", "a:b", "z".repeat(200), "é".repeat(200));
const result: fc.Arbitrary<ToPlace> = fc.record({
  path: id,
  ending: fc.constantFrom(".json", ".bin", null),
  names: fc.uniqueArray(name, { maxLength: 3 }),
});

test("each exported file has its own path inside the folder, whatever ids and names there are", () => {
  const results = fc.uniqueArray(result, { maxLength: 12, selector: ({ path }) => path });
  fc.assert(
    fc.property(results, (all) => {
      const paths = placed(all);
      const names = new ExportNames();
      // Refuses what leads out of the folder, and two files that are one on some disk.
      for (const path of paths) names.take(path);
      assert.deepEqual(placed(all), paths);
    }),
    { numRuns: 2_000 },
  );
});

test("a plain path stays the same, whatever other names there are", () => {
  const plain = fc.stringMatching(/^[a-z0-9_-]{1,8}(\/[a-z0-9_-]{1,8}){0,3}$/).filter((path) => safePath(path) === path);
  const others = fc.uniqueArray(
    id.filter((path) => safePath(path) !== path),
    { maxLength: 8 },
  );
  fc.assert(
    fc.property(plain, others, (path, odd) => {
      const all = [...odd, path].map((one) => ({ path: one, ending: ".json", names: [] }));
      assert.ok(placed(all).includes(`stage/${path}.json`));
    }),
  );
});

function placed(results: readonly ToPlace[]): string[] {
  const placed = new ExportPlaces(["stage"]).stage("stage", results);
  return results.flatMap((one) => {
    const { output, artifacts } = placed.get(one) ?? assert.fail();
    return output === null ? artifacts : [output, ...artifacts];
  });
}
