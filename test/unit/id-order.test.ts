import assert from "node:assert/strict";
import { test } from "node:test";
import * as fc from "fast-check";
import { compareIds } from "../../src/core/text/ids.ts";

test("ids are in the order of their UTF-8 bytes", () => {
  const text = fc.oneof(
    fc.string({ unit: "binary" }),
    fc.string({ unit: fc.constantFrom("a", "/", "-", "\u{d7ff}", "\u{e000}", "\u{ffff}", "\u{10000}", "\u{10ffff}") }),
  );
  fc.assert(
    fc.property(text, text, (a, b) => {
      assert.equal(Math.sign(compareIds(a, b)), Buffer.compare(Buffer.from(a), Buffer.from(b)));
    }),
    { numRuns: 2_000 },
  );
});
