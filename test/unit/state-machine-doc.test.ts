import assert from "node:assert/strict";
import { test } from "node:test";
import { FINISHED_STATES, JOB_MOVES, JOB_STATES, type JobMove } from "../../src/core/jobs/job.ts";
import { page, snippets } from "../docs/pages.ts";

const PAGE = page("docs/state-machine.md");
const picture = snippets(PAGE).find(({ code }) => code.startsWith("stateDiagram"))?.code ?? "";

test("the picture has exactly the transitions of the table", () => {
  const drawn = [...picture.matchAll(/^\s*(\w+) --> (\w+): ([\w-]+)$/gm)].map(([, from, to, move]) => `${move}: ${from} → ${to}`);
  const moves = Object.entries(JOB_MOVES).flatMap(([move, { from, to }]) => from.map((state) => `${move}: ${state} → ${to}`));
  assert.deepEqual(drawn.toSorted(), moves.toSorted());
});

test("the picture has every state, and marks every final state", () => {
  const drawn = new Set([...picture.matchAll(/\b[a-z]+\b/g)].map(([word]) => word));
  for (const state of JOB_STATES) assert.ok(drawn.has(state), `${state} is not in the picture`);
  const ends = [...picture.matchAll(/^\s*(\w+) --> \[\*\]$/gm)].map(([, state]) => state as string);
  assert.deepEqual(ends.toSorted(), FINISHED_STATES.toSorted());
});

test("the page lists who makes every move and what it charges", () => {
  const rows = new Set([...PAGE.text.matchAll(/^\| `([\w-]+)` \|/gm)].map(([, move]) => move as JobMove));
  assert.deepEqual([...rows].toSorted(), (Object.keys(JOB_MOVES) as JobMove[]).toSorted());
});
