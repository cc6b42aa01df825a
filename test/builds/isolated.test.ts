import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { type Build, open } from "../../src/index.ts";

const folder = mkdtempSync(join(tmpdir(), "holdfast-isolated-"));
// Read by the module, here and in the processes that it is loaded in.
process.env["ISOLATED_FILES"] = folder;
const { bent, isolated, kept, large } = await import("./isolated-pipeline.ts");

describe("a stage in a process of its own", () => {
  let build: Build;
  let text: string;
  const pids = new Set<number>();

  before(async () => {
    writeFileSync(join(folder, "a.txt"), "one\ndies once");
    writeFileSync(join(folder, "b.txt"), "dies\nthrows");
    await using hf = await open(join(folder, "work.db"), { durability: "process" });
    const handle = await hf.builds.start(isolated, { concurrency: 4 });
    build = await handle.done();
    text = new TextDecoder().decode(await handle.output("all"));
    for await (const { output } of handle.outputs("upper")) pids.add(output.pid);
  });

  after(() => rmSync(folder, { recursive: true, force: true }));

  test("an isolated stage gets the claimed bytes, and its outputs continue as bytes or JSON", () => {
    assert.equal(text, "a.txt#0 ONE 13\na.txt#1 DIES ONCE 13\n2 failed");
  });

  test("an isolated stage runs in a new process each time", () => {
    assert.equal(pids.size, 2);
    assert.ok(!pids.has(process.pid));
  });

  test("a crash of an isolated stage affects no other process, and repeated crashes fail it", () => {
    assert.deepEqual(build.errors.map(({ target, message }) => [target, message]).toSorted(), [
      ["b.txt/b.txt#0", "The worker crashed or its lease expired (crash 2 of 2)."],
      ["b.txt/b.txt#1", "it threw"],
    ]);
    assert.deepEqual([build.state, build.reason], ["FAILED", "targets_failed"]);
  });

  test("an isolated stage is charged the cost it reported", () => {
    assert.equal(build.spent.usd, 1);
  });

  test("an isolated stage whose output is not JSON fails at once with the place, and is charged", async () => {
    await using hf = await open(":memory:");
    const { spent, errors } = await (await hf.builds.start(bent)).done();
    const message = '`pages[0]` in the output of stage "make" for target "a" is a Date, which JSON cannot represent exactly.';
    assert.deepEqual(errors, [{ stage: "make", target: "a", message }]);
    assert.equal(spent.usd, 1);
  });

  test("an isolated stage saves values exactly, or not at all: what a structured clone would change is rejected", async () => {
    await using hf = await open(":memory:");
    const handle = await hf.builds.start(kept);
    assert.equal((await handle.done()).state, "SUCCESS");
    assert.deepEqual(await handle.output("save"), {
      loaded: { zero: -0 },
      refused: "`checkpoint.points[0]` is a Point, which JSON cannot represent exactly.",
    });
  });

  test("an isolated stage may return more than fits into a pipe", async () => {
    await using hf = await open(":memory:");
    const handle = await hf.builds.start(large);
    const { state, errors } = await handle.done();
    assert.deepEqual([state, errors], ["SUCCESS", []]);
    assert.equal((await handle.output("bytes", "5000000")).length, 5e6);
  });
});
