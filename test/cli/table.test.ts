import assert from "node:assert/strict";
import { test } from "node:test";
import { buildTable } from "../../src/cli/commands/builds.ts";
import { type Column, oneLine, table, widthOf } from "../../src/cli/render/table.ts";
import { ageText, untilText } from "../../src/core/text/duration.ts";
import type { Build } from "../../src/core/pipelines/build-view.ts";
import { BUILD_STATES, type BuildState } from "../../src/core/pipelines/build.ts";

type Row = [name: string, count: string, note: string];
const COLUMNS: Column<Row>[] = [
  { title: "NAME", value: ([name]) => name, least: 4 },
  { title: "COUNT", value: ([, count]) => count, right: true },
  { title: "NOTE", value: ([, , note]) => note, least: 4 },
];

test("columns line up, numbers to the right, wide letters counted as two", () => {
  const rows: Row[] = [
    ["resize", "12,000", "fine"],
    ["画像", "7", ""],
  ];
  assert.equal(table(COLUMNS, rows), "NAME     COUNT  NOTE\nresize  12,000  fine\n画像         7");
});

test("what is counted letter by letter is as wide as what is looked up in Unicode", () => {
  const graphemes = new Intl.Segmenter(undefined, { granularity: "grapheme" });
  for (let code = 0x20; code < 0x1100; code++) {
    const text = `a${String.fromCharCode(code)}b`;
    assert.equal(widthOf(text), [...graphemes.segment(text)].length, code.toString(16));
  }
});

test("in a narrow terminal the widest text gives way, with an ellipsis", () => {
  const rows: Row[] = [["a rather long name", "1", "an even longer note\nof two lines"]];
  const lines = table(COLUMNS, rows, 32).split("\n");
  assert.deepEqual(lines, ["NAME         COUNT  NOTE", "a rather l…      1  an even lon…"]);
  assert.ok(lines.every((line) => line.length <= 32));
});

test("what jobs carry cannot steer the terminal", () => {
  assert.equal(oneLine("red \u001b[31malert\u001b]0;title\u0007\r\n\tnext\u0000"), "red alert next");
  const directions = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069";
  assert.equal(oneLine(`pay \u202egnp.exe${directions}`), "pay gnp.exe");
});

test("ages have one unit, rounded down; what is ahead goes to the nearest", () => {
  assert.deepEqual([0, 999, 61_000, 7_199_000, 172_800_000].map(ageText), ["0s", "0s", "1m", "1h", "2d"]);
  assert.deepEqual([400, 7_199_000, 599_900].map(untilText), ["0s", "2h", "10m"]);
});

const build = (state: BuildState): Build => ({
  id: "b1k7i1ug7v00000001",
  pipeline: "a-pipeline-with-a-long-name",
  state,
  reason: "budget_refused: much too expensive for this quarter",
  budget: { usd: 1_000, tokens: 1_000_000 },
  spent: { usd: 999.99, tokens: 999_999 },
  createdAt: 0,
  stages: { parse: { ran: 12_345, cached: 12_345, failed: 12_345, left: 12_345 } },
  errors: [],
});

test("the table of builds fits 80 columns, with every state and a long name", () => {
  const items = BUILD_STATES.map(build);
  const lines = buildTable({ items }, 86_400_000 * 400, String, 80).split("\n");
  for (const line of lines) assert.ok(widthOf(line) <= 80, line);
  assert.ok(lines[0]?.includes("STATE") && lines[0].includes("SPENT"));
  assert.match(buildTable({ items }, 0, String, Number.POSITIVE_INFINITY), /REASON\n/);
});
