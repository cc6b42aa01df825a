import assert from "node:assert/strict";
import { globSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { ROOT } from "../docs/pages.ts";
import { firstOf, LONG, selectFrom, selectVariant } from "../selection.ts";

/** Files of tests that may draw a random number themselves, and what for. None of them chooses what is tested. */
const ALLOWED: Record<string, string> = {
  "test/seeds.ts": "the fresh seed, which is printed",
  "test/crash/children/visitor.ts": "how long a process waits between two visits",
  "test/postgres/children/server-process.ts": "a free port",
  "test/postgres/faults.test.ts": "text that does not compress",
  "test/postgres/races.test.ts": "the name of a schema",
};

test("no test draws its own random numbers: two runs of one commit run the same tests", () => {
  const drawing = globSync("test/**/*.ts", { cwd: ROOT, exclude: ["test/nodes/**", "test/unit/selection.test.ts"] })
    .filter((path) => /Math\.random\(|randomInt\(/.test(readFileSync(join(ROOT, path), "utf8")))
    .toSorted();
  assert.deepEqual(drawing, Object.keys(ALLOWED).toSorted());
});

test("a selection depends on the position alone", { skip: LONG && "npm run test:all runs every case" }, () => {
  const all = ["a", "b", "c", "d", "e"];
  assert.deepEqual(selectFrom(all, 2), ["a", "c", "e"]);
  assert.deepEqual(
    all.map((_, position) => selectVariant(["x", "y"], position)),
    [["x"], ["y"], ["x"], ["y"], ["x"]],
  );
  assert.deepEqual(
    all.map((_, position) => firstOf(3, position).skip === undefined),
    [true, false, false, true, false],
  );
});
