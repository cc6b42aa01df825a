import assert from "node:assert/strict";
import { test } from "node:test";
import { OPERATIONS, STEPS } from "../../src/store/points.ts";
import { page } from "./pages.ts";

const { text } = page("docs/testing.md");

test("the page on testing has every operation that a process may crash in, and no other", () => {
  const named = rowsOf("| operations | the transactions |").flatMap(([names = ""]) => namesIn(names));
  assert.deepEqual(named.toSorted(), OPERATIONS.toSorted());
});

test("and every step of what takes more than a transaction", () => {
  const named = rowsOf("| operation | steps |").flatMap(([operation = "", steps = ""]) =>
    namesIn(steps).map((step) => `${namesIn(operation)[0]}:${step}`),
  );
  assert.deepEqual(named, STEPS);
});

/** The cells of the table below this heading. */
function rowsOf(heading: string): string[][] {
  const [, table = ""] = text.split(`${heading}\n|---|---|\n`);
  const [rows = ""] = table.split("\n\n");
  return rows.split("\n").map((row) => row.split("|").slice(1));
}

function namesIn(cell: string): string[] {
  return [...cell.matchAll(/`(\w+)`/g)].map(([, name]) => name as string);
}
