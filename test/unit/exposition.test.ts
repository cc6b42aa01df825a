import assert from "node:assert/strict";
import { test } from "node:test";
import * as fc from "fast-check";
import { exposition, type Family } from "../../src/core/recovery/metrics.ts";
import { parseExposition } from "./exposition-parser.ts";

test("families are written one after the other, each with its help and type", () => {
  const families: Family[] = [
    { name: "a_total", type: "counter", help: "How many.", samples: [{ labels: {}, value: 3 }] },
    { name: "none", type: "gauge", help: "Nothing is known.", samples: [] },
    {
      name: "b",
      type: "gauge",
      help: "Of\neach \\ kind.",
      samples: [
        { labels: { kind: 'a "b" \\ c\nd', of: "x" }, value: 0.25 },
        { labels: { kind: "", of: "ä🙂" }, value: 1e21 },
      ],
    },
  ];
  assert.equal(
    exposition(families),
    [
      "# HELP a_total How many.",
      "# TYPE a_total counter",
      "a_total 3",
      "# HELP b Of\\neach \\\\ kind.",
      "# TYPE b gauge",
      'b{kind="a \\"b\\" \\\\ c\\nd",of="x"} 0.25',
      'b{kind="",of="ä🙂"} 1e+21',
      "",
    ].join("\n"),
  );
  assert.equal(exposition([]), "");
});

test("every label name and value is read back unchanged", () => {
  const label = fc.string({ unit: fc.constantFrom("\\", '"', "\n", "n", "{", "}", ",", "=", " ", "#", "ß", "\r", "\u{2028}") });
  const value = fc.oneof(fc.double({ noDefaultInfinity: false }), fc.integer(), fc.constant(Number.MAX_SAFE_INTEGER));
  const samples = fc.uniqueArray(fc.record({ name: label, value }), { selector: ({ name }) => name, minLength: 1 });
  fc.assert(
    fc.property(samples, label, (given, help) => {
      const family: Family = {
        name: "one",
        type: "gauge",
        help,
        samples: given.map(({ name, value }) => ({ labels: { name }, value })),
      };
      const parsed = parseExposition(exposition([family]));
      // Zero has one sign there.
      const unsigned = family.samples.map(({ labels, value }) => ({ labels, value: value === 0 ? 0 : value, suffix: "" }));
      assert.deepEqual(parsed.get("one"), { help, type: "gauge", samples: unsigned });
    }),
  );
});

test("a lone surrogate in a name does not prevent the output", () => {
  const family: Family = { name: "one", type: "gauge", help: "", samples: [{ labels: { name: "\ud83d" }, value: 1 }] };
  assert.equal(parseExposition(exposition([family])).get("one")?.samples[0]?.labels["name"], "\ufffd");
});
