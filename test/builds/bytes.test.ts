import assert from "node:assert/strict";
import { readFileSync, rmSync, statSync, utimesSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { text } from "node:stream/consumers";
import { type FileTarget, files, pipeline } from "../../src/index.ts";
import { counts, outputsOf, test, type Yard, yard } from "./parts.ts";

/** A stage that reads a file in some way, after something was done to it the first time. */
function reading({ root, ran }: Yard, read: (target: FileTarget) => Promise<string>, done: () => void, snapshot = false) {
  return pipeline("docs")
    .source(files("*", { root, snapshot }))
    .stage("read", {}, async ({ target }) => {
      ran.push(`read ${target.id}`);
      if (target.id === "a" && ran.filter((one) => one === "read a").length === 1) done();
      return read(target);
    })
    .stage("loud", {}, ({ input, target }) => (ran.push(`loud ${target.id}`), input.toUpperCase()));
}

const WAYS: Record<string, (target: FileTarget) => Promise<string>> = {
  bytes: async (target) => new TextDecoder().decode(await target.bytes()),
  stream: (target) => text(target.stream()),
  path: async (target) => readFileSync(target.path, "utf8"),
};

for (const [way, read] of Object.entries(WAYS)) {
  test(`a file rewritten before its ${way} is read is processed with its new bytes, without a failure`, async (t) => {
    const here = await yard(t);
    here.write({ a: "old", b: "b" });
    const docs = reading(here, read, () => here.write({ a: "new and longer" }));
    const built = await here.succeed(docs);
    assert.deepEqual(await outputsOf(built, "loud"), { a: "NEW AND LONGER", b: "B" });
    assert.deepEqual(here.taken(), ["loud a", "loud b", "read a", "read a", "read b"]);
    assert.deepEqual(counts(built, "read"), [2, 0, 0, 0]);
    assert.equal(built.errors.length, 0);
    await here.succeed(docs);
    assert.deepEqual(here.taken(), []);
  });
}

test("a file rewritten after it was read has no output of its old bytes, even with the same size and time", async (t) => {
  const here = await yard(t);
  here.write({ a: "old" });
  const path = join(here.root, "a");
  const { atime, mtime } = statSync(path);
  const docs = pipeline("docs")
    .source(files("*", { root: here.root }))
    .stage("read", {}, async ({ target }) => {
      const read = new TextDecoder().decode(await target.bytes());
      here.ran.push(read);
      if (read === "old") {
        writeFileSync(path, "new");
        utimesSync(path, atime, mtime);
      }
      return read;
    });
  const built = await here.succeed(docs);
  assert.deepEqual(here.ran, ["old", "new"]);
  assert.deepEqual(await outputsOf(built, "read"), { a: "new" });
  const { results } = { results: await here.hf.engine.store.work.results({ build: built.id, stage: "read", limit: 9 }) };
  assert.equal(results.length, 1);
});

test("a file deleted during its stage is removed, without a failure", async (t) => {
  const here = await yard(t);
  here.write({ a: "old", b: "b" });
  const read = WAYS["bytes"] as (target: FileTarget) => Promise<string>;
  const built = await here.succeed(reading(here, read, () => rmSync(join(here.root, "a"))));
  assert.deepEqual(await outputsOf(built, "loud"), { b: "B" });
  const next = await here.succeed(reading(here, read, () => {}));
  assert.deepEqual(await outputsOf(next, "loud"), { b: "B" });
  assert.equal((await here.hf.builds.plan(reading(here, read, () => {}))).removed, 0);
});

test("a gather does not read a file that was deleted during its stage", async (t) => {
  const here = await yard(t);
  here.write({ a: "old", b: "b" });
  const read = WAYS["bytes"] as (target: FileTarget) => Promise<string>;
  const docs = reading(here, read, () => rmSync(join(here.root, "a"))).gather("all", {}, async ({ inputs }) => {
    const seen: string[] = [];
    for await (const { target } of inputs) seen.push(target.id);
    return seen;
  });
  const built = await here.succeed(docs);
  assert.deepEqual(await built.handle.output("all"), ["b"]);
});

test("with a snapshot the listed bytes are read, whatever happens to the file", async (t) => {
  for (const [way, read] of Object.entries(WAYS)) {
    const here = await yard(t);
    here.write({ a: "old", b: "b" });
    const docs = reading(here, read, () => here.write({ a: "new and longer" }), true);
    const built = await here.succeed(docs);
    assert.deepEqual(await outputsOf(built, "loud"), { a: "OLD", b: "B" }, way);
    here.taken();
    assert.deepEqual(await outputsOf(await here.succeed(docs), "loud"), { a: "NEW AND LONGER", b: "B" }, way);
    assert.deepEqual(here.taken(), ["loud a", "read a"]);
  }
});

test("an attempt that was restarted for new bytes is still charged", async (t) => {
  const here = await yard(t);
  here.write({ a: "old" });
  const built = await here.succeed(
    pipeline("docs")
      .source(files("*", { root: here.root }))
      .stage("pay", {}, async ({ target, cost }) => {
        cost({ usd: 1 });
        if (here.ran.push(target.id) === 1) here.write({ a: "new" });
        return (await target.bytes()).length;
      }),
  );
  assert.equal(built.spent.usd, 2);
});
