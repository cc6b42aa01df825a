import assert from "node:assert/strict";
import { syncBuiltinESMExports } from "node:module";
import os from "node:os";
import type { TestContext } from "node:test";
import { files, pipeline } from "../../src/index.ts";
import { refusal, test, yard } from "./parts.ts";

/** From here on this process believes to be on another host. */
function moveAway(t: TestContext): void {
  const { mock } = t.mock.method(os, "hostname", () => "another-host");
  syncBuiltinESMExports();
  t.after(() => {
    mock.restore();
    syncBuiltinESMExports();
  });
}

for (const snapshot of [false, true]) {
  const said = snapshot ? "kept in artifacts are worked on" : "without a snapshot are refused";
  test(`the files of a stopped build ${said} on another host`, async (t) => {
    const here = await yard(t);
    here.write({ "a.txt": "one", "b.txt": "two" });
    const begun = Promise.withResolvers<void>();
    const held = Promise.withResolvers<void>();
    // As another process would define it.
    const docs = () =>
      pipeline("docs")
        .source(files("*.txt", { root: here.root, snapshot }))
        .stage("read", {}, async ({ target }) => {
          here.ran.push(target.id);
          begun.resolve();
          await held.promise;
          return String(await target.bytes());
        });
    const started = await here.hf.builds.start(docs(), { concurrency: 1 });
    await begun.promise;
    const stopped = started.stop();
    held.resolve();
    await stopped;
    assert.equal(here.taken().length, 1);

    moveAway(t);
    if (!snapshot) {
      await assert.rejects(here.hf.builds.resume(docs(), started.id), refusal("TARGET_ELSEWHERE"));
      assert.deepEqual([here.taken(), (await here.hf.builds.get(started.id))?.state], [[], "CRASHED"]);
      return;
    }
    const resumed = await here.hf.builds.resume(docs(), started.id);
    assert.equal((await resumed.done()).state, "SUCCESS");
    assert.equal(here.taken().length, 1);
  });
}
