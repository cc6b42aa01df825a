import assert from "node:assert/strict";
import { join } from "node:path";
import { test } from "node:test";
import { trunkAt, type Trunk } from "../../examples/merge-queue/trunk.ts";
import { FileTrunk } from "../../examples/merge-queue/file-trunk.ts";
import { open } from "../../src/index.ts";
import { folder, run } from "./run.ts";

test("the merge queue: one merge at a time, the urgent one first; after a kill in the middle the next process continues", async (t) => {
  const path = folder(t);
  const printed = await run("merge-queue", [path]);
  assert.equal(printed.at(-1), "main has: fix, search, login, docs");
  assert.deepEqual(trunkAt(join(path, "checkout")).merged(), ["fix", "search", "login", "docs"]);

  const tested = printed.map((line) => line.match(/^worker (\d+) tests login$/)?.[1]).filter((pid) => pid !== undefined);
  assert.equal(tested.length, 2);
  assert.notEqual(tested[0], tested[1]);
  assert.ok(printed.includes(`worker ${tested[0]} is killed in the middle of it`));

  await using hf = await open(join(path, "queue.db"));
  const jobs = (await hf.jobs.list()).items;
  assert.deepEqual(
    jobs.map(({ key, state, attempt, crashes }) => [key, state, attempt, crashes]),
    [
      ["search", "succeeded", 1, 0],
      ["login", "succeeded", 2, 1],
      ["rewrite", "failed", 1, 0],
      ["docs", "succeeded", 1, 0],
      ["fix", "succeeded", 1, 0],
    ],
  );
  const inOrder = jobs.toSorted((a, b) => (a.startedAt as number) - (b.startedAt as number));
  for (const [i, { key, startedAt }] of inOrder.entries()) {
    const last = inOrder[i - 1];
    if (last) assert.ok((last.finishedAt as number) <= (startedAt as number), `${key} was begun while ${last.key} was merged`);
  }
});

test("its trunk of plain files, for where there is no git, does the same", (t) => {
  const trunks: Trunk[] = [new FileTrunk(join(folder(t), "files")), trunkAt(join(folder(t), "git"))];
  for (const trunk of trunks) {
    trunk.create({ fix: "price", docs: "guide", rewrite: "price" });
    trunk.merge("docs"); // and is killed
    trunk.clean();
    assert.equal(trunk.has("docs"), false);
    for (const branch of ["fix", "docs"]) {
      trunk.merge(branch);
      trunk.commit(branch);
    }
    assert.throws(() => trunk.merge("rewrite"), /conflicts/);
    trunk.clean();
    assert.equal(trunk.has("docs"), true);
    assert.deepEqual(trunk.merged(), ["fix", "docs"]);
  }
});
