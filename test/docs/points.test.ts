import assert from "node:assert/strict";
import { test } from "node:test";
import { OPERATIONS, STEPS } from "../../src/store/points.ts";
import { page } from "./pages.ts";

test("the page on testing has every operation that a process may crash in, and no other", () => {
  const [, table = ""] = page("docs/testing.md").text.split("| operation | the transaction that |\n|---|---|\n");
  const rows = (table.split("\n\n")[0] ?? "").split("\n").map((row) => /^\| `(\w+)` \| \S/.exec(row)?.[1]);
  assert.deepEqual(rows, OPERATIONS);
});

test("and every step of what takes more than a transaction", () => {
  const [, table = ""] = page("docs/testing.md").text.split("| step | what is done |\n|---|---|\n");
  const rows = (table.split("\n\n")[0] ?? "").split("\n").map((row) => /^\| `([\w:]+)` \| \S/.exec(row)?.[1]);
  assert.deepEqual(rows, STEPS);
});
