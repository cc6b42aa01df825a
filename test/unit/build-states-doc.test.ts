import assert from "node:assert/strict";
import { test } from "node:test";
import { BUILD_MOVES, BUILD_STATES, type BuildState, ENDED_STATES } from "../../src/core/pipelines/build.ts";
import { page, snippets } from "../docs/pages.ts";

const PAGE = page("docs/build-states.md");
const picture = snippets(PAGE).find(({ code }) => code.startsWith("stateDiagram"))?.code ?? "";
const ways = Object.entries(BUILD_MOVES).flatMap(([move, { from, to }]) =>
  (Object.keys(from) as BuildState[]).map((state) => ({ move, state, to, reasons: Object.entries(from[state] ?? {}) })),
);

test("the picture has exactly the transitions of the table", () => {
  const drawn = [...picture.matchAll(/^\s*(\w+) --> (\w+): ([\w-]+)$/gm)].map(([, from, to, move]) => `${move}: ${from} → ${to}`);
  assert.deepEqual(drawn.toSorted(), ways.map(({ move, state, to }) => `${move}: ${state} → ${to}`).toSorted());
});

test("the picture has every state, and marks every final state", () => {
  const drawn = new Set([...picture.matchAll(/\b[A-Z_]+\b/g)].map(([word]) => word));
  for (const state of BUILD_STATES) assert.ok(drawn.has(state), `${state} is not in the picture`);
  const ends = [...picture.matchAll(/^\s*(\w+) --> \[\*\]$/gm)].map(([, state]) => state as string);
  assert.deepEqual(ends.toSorted(), ENDED_STATES.toSorted());
});

test("the page lists the reasons and requirements of every transition", () => {
  const rows = [...PAGE.text.matchAll(/^\| `(\w+)` \| (\w+) \| (\w+) \| ([\w, -]+) \|$/gm)].map((row) => row.slice(1, 5));
  const table = ways.flatMap(({ move, state, reasons }) => reasons.map(([why, needs]) => [move, state, why, needs.join(", ")]));
  assert.deepEqual(rows.toSorted(), table.toSorted());
});
