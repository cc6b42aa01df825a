import assert from "node:assert/strict";
import { readdirSync } from "node:fs";
import { join } from "node:path";
import { test } from "node:test";
import { open } from "../../src/index.ts";
import { folder, run } from "./run.ts";

test("the file index: only what has changed is read, a renamed file is free, and pages of what is gone are removed", async (t) => {
  const path = folder(t);
  const printed = await run("file-index", [path]);
  assert.deepEqual(
    printed.filter((line) => !line.startsWith("  ")),
    [
      "four notes: read ran 4, reused 0; page ran 4, reused 0; words ran 1, reused 0",
      "nothing has changed: read ran 0, reused 4; page ran 0, reused 4; words ran 0, reused 1",
      'planned: {"run":2,"cached":2,"unknown":0,"estimate":{"usd":0,"tokens":0}}',
      "one changed, one gone, one renamed, one new: read ran 2, reused 2; page ran 3, reused 1; words ran 1, reused 0",
    ],
  );
  const notes = ["clove-hitch", "figure-eight", "king-of-knots", "sheet-bend"];
  assert.deepEqual(
    readdirSync(join(path, "pages")).sort(),
    notes.map((name) => `${name}.txt.html`),
  );

  await using hf = await open(join(path, "index.db"));
  const builds = (await hf.builds.list()).items;
  assert.deepEqual(
    builds.map(({ state }) => state),
    ["SUCCESS", "SUCCESS", "SUCCESS"],
  );
  const words = (await hf.builds.output(builds[2]?.id as string, "words")) as Record<string, string[]>;
  assert.deepEqual(words["loop"], ["king-of-knots.txt"]);
  assert.equal(words["reef"], undefined);
});
