import { buildById } from "../../src/store/builds.ts";
import assert from "node:assert/strict";
import { renameSync, utimesSync } from "node:fs";
import { join } from "node:path";
import { files, items, pipeline, secret } from "../../src/index.ts";
import { counts, ONCE, outputsOf, refusal, test, type Yard, yard } from "./parts.ts";

/** Text, then its length, with versions and keys as asked for. */
function lengths({ root, ran }: Yard, options: { text?: object; length?: object } = {}) {
  return pipeline("docs")
    .source(files("**/*", { root }))
    .stage("text", options.text ?? {}, async ({ target }) => {
      ran.push(`text ${target.id}`);
      return new TextDecoder().decode(await target.bytes());
    })
    .stage("length", options.length ?? {}, ({ target, input }) => {
      ran.push(`length ${target.id}`);
      return input.length;
    });
}

test("a stage gets the output of the one before it, and the first stage of a file gets none", async (t) => {
  const { succeed, root } = await yard(t).then((it) => (it.write({ a: "abc" }), it));
  const seen: unknown[] = [];
  const built = await succeed(
    pipeline("docs")
      .source(files("*", { root }))
      .stage("first", {}, ({ input, target }) => (seen.push(input), target.size))
      .stage("second", {}, ({ input }) => (seen.push(input), { twice: input * 2 }))
      .stage("third", {}, ({ input }) => (seen.push(input), undefined))
      .stage("fourth", {}, ({ input }) => (seen.push(input), [input ?? null])),
  );
  assert.deepEqual(seen, [undefined, 3, { twice: 6 }, undefined]);
  assert.deepEqual(await outputsOf(built, "fourth"), { a: [null] });
  assert.deepEqual(await outputsOf(built, "third"), { a: undefined });
});

test("an unchanged build runs nothing, and one changed file runs its own stages", async (t) => {
  const here = await yard(t);
  here.write({ a: "1", b: "22", "c/d": "333" });
  const docs = lengths(here);
  assert.deepEqual(counts(await here.succeed(docs), "length"), [3, 0, 0, 0]);
  assert.equal(here.taken().length, 6);
  const again = await here.succeed(docs);
  assert.deepEqual(
    [counts(again, "text"), counts(again, "length")],
    [
      [0, 3, 0, 0],
      [0, 3, 0, 0],
    ],
  );
  assert.deepEqual(here.taken(), []);
  here.write({ b: "4444" });
  const third = await here.succeed(docs);
  assert.deepEqual(here.taken(), ["length b", "text b"]);
  assert.deepEqual(await outputsOf(third, "length"), { a: 1, b: 4, "c/d": 3 });
});

test("a file that was only touched is not processed again", async (t) => {
  const here = await yard(t);
  here.write({ a: "1" });
  const docs = lengths(here);
  await here.succeed(docs);
  here.taken();
  utimesSync(join(here.root, "a"), new Date(1_000), new Date(1_000));
  await here.succeed(docs);
  assert.deepEqual(here.taken(), []);
});

test("a stage after an unchanged output does not run", async (t) => {
  const here = await yard(t);
  const docs = () =>
    pipeline("docs")
      .source(items(() => [{ id: "a", words: state.words }], { id: ({ id }) => id }))
      .stage("count", {}, ({ input }) => (here.ran.push("count"), input.words.split(" ").length))
      .stage("double", { reuse: "bytes" }, ({ input }) => (here.ran.push("double"), input * 2));
  const state = { words: "one two" };
  await here.succeed(docs());
  state.words = "three four";
  await here.succeed(docs());
  // The target's content is part of what a stage depends on: it may look at the target.
  assert.deepEqual(here.taken(), ["count", "count", "double", "double"]);
});

test("a file that returns to earlier content is not processed again, and has its earlier output", async (t) => {
  const here = await yard(t);
  const docs = lengths(here);
  here.write({ a: "1" });
  await here.succeed(docs);
  here.write({ a: "22" });
  await here.succeed(docs);
  here.taken();
  here.write({ a: "1" });
  const built = await here.succeed(docs);
  assert.deepEqual(here.taken(), []);
  assert.deepEqual(await outputsOf(built, "length"), { a: 1 });
  assert.equal(await here.hf.builds.output(built.id, "text", "a"), "1");
});

test("`uses` passes exactly the named earlier outputs, and their change counts", async (t) => {
  const here = await yard(t);
  const state = { title: "T", body: "B" };
  const seen: unknown[] = [];
  const docs = () =>
    pipeline("docs")
      .source(items(() => [{ id: "a" }], { id: ({ id }) => id }))
      .stage("title", { key: state.title }, () => state.title)
      .stage("body", { key: state.body }, () => state.body)
      .stage("constant", {}, () => "same")
      .stage("page", { uses: ["title"] }, ({ outputs, input }) => (seen.push(outputs, input), here.ran.push("page"), "page"));
  await here.succeed(docs());
  assert.deepEqual(seen, [{ title: "T" }, "same"]);
  state.title = "T2";
  await here.succeed(docs());
  assert.deepEqual(seen.slice(2), [{ title: "T2" }, "same"]);
  here.taken();
  state.body = "B2";
  await here.succeed(docs());
  assert.deepEqual(here.taken(), [], "what it does not use is not its business");
});

test("a glob in `match` skips other targets, which keep their input", async (t) => {
  const here = await yard(t);
  here.write({ "a.md": "# a", "b.txt": "b" });
  const built = await here.succeed(
    pipeline("docs")
      .source(files("*", { root: here.root }))
      .stage("text", {}, async ({ target }) => new TextDecoder().decode(await target.bytes()))
      .stage("strip", { match: "*.md" }, ({ input }) => input.replace("# ", ""))
      .stage("loud", {}, ({ input }) => input.toUpperCase()),
  );
  assert.deepEqual(await outputsOf(built, "strip"), { "a.md": "a" });
  assert.deepEqual(await outputsOf(built, "loud"), { "a.md": "A", "b.txt": "B" });
  assert.deepEqual(counts(built, "strip"), [1, 0, 0, 0]);
});

test("a predicate in `match` gets the input, and a skipped stage has no output to use", async (t) => {
  const here = await yard(t);
  const seen: unknown[] = [];
  const built = await here.succeed(
    pipeline("numbers")
      .source(items(() => [1, 2, 3], { id: (n) => `n${n}` }))
      .stage("odd", { match: (_, input) => input % 2 === 1 }, ({ input }) => `odd ${input}`)
      .stage("say", { uses: ["odd"] }, ({ input, outputs }) => (seen.push(outputs), String(input))),
  );
  assert.deepEqual(await outputsOf(built, "say"), { n1: "odd 1", n2: "2", n3: "odd 3" });
  assert.deepEqual(seen.map((one) => JSON.stringify(one)).sort(), ['{"odd":"odd 1"}', '{"odd":"odd 3"}', "{}"]);
});

test("the output of a stage that no longer matches a target is removed, once", async (t) => {
  const here = await yard(t);
  const state = { glob: "*" };
  const removed: unknown[] = [];
  const docs = () =>
    pipeline("docs")
      .source(items(() => ["a.md", "b.txt"], { id: (id) => id }))
      .stage(
        "index",
        { match: state.glob, remove: ({ target, output }) => void removed.push([target.id, output]) },
        ({ input }) => `indexed ${input}`,
      )
      .stage("after", {}, ({ input }) => input);
  await here.succeed(docs());
  state.glob = "*.md";
  const built = await here.succeed(docs());
  assert.deepEqual(removed, [["b.txt", "indexed b.txt"]]);
  assert.deepEqual(await outputsOf(built, "after"), { "a.md": "indexed a.md", "b.txt": "b.txt" });
  assert.deepEqual(await outputsOf(built, "index"), { "a.md": "indexed a.md" });
  await here.succeed(docs());
  assert.equal(removed.length, 1);
  state.glob = "*";
  assert.deepEqual(await outputsOf(await here.succeed(docs()), "index"), { "a.md": "indexed a.md", "b.txt": "indexed b.txt" });
});

test("a changed key, static or computed, runs the stage again, and an equal one does not", async (t) => {
  const here = await yard(t);
  here.write({ a: "1", b: "22" });
  await here.succeed(lengths(here, { length: { key: { model: "m", options: { x: 1, y: 2 } } } }));
  here.taken();
  await here.succeed(lengths(here, { length: { key: { options: { y: 2, x: 1 }, model: "m" } } }));
  assert.deepEqual(here.taken(), []);
  await here.succeed(lengths(here, { length: { key: { model: "n", options: { x: 1, y: 2 } } } }));
  assert.deepEqual(here.taken(), ["length a", "length b"]);
  await here.succeed(lengths(here, { length: keyOf((input) => input) }));
  assert.deepEqual(here.taken(), ["length a", "length b"]);
  await here.succeed(lengths(here, { length: keyOf((input) => (input === "1" ? input : "other")) }));
  assert.deepEqual(here.taken(), ["length b"]);
});

test("a secret in a key counts, and is stored nowhere", async (t) => {
  const here = await yard(t);
  here.write({ a: "1" });
  await here.succeed(lengths(here, { length: { key: { token: secret("hunter2") } } }));
  here.taken();
  await here.succeed(lengths(here, { length: { key: { token: secret("hunter2") } } }));
  assert.deepEqual(here.taken(), []);
  const built = await here.succeed(lengths(here, { length: { key: { token: secret("hunter3") } } }));
  assert.deepEqual(here.taken(), ["length a"]);
  const why = await here.hf.builds.why(built.id, "length", "a");
  assert.deepEqual(
    why.parts.map(({ part }) => part),
    ["key.token"],
  );
  const { builds } = here.hf.engine.store;
  assert.doesNotMatch(
    JSON.stringify([why, await buildById(builds, built.id), await here.hf.engine.store.audit.page({ after: 0, limit: 99 })]),
    /hunter/,
  );
});

test("a new version runs the stage again; edited code under the same version does not, and is warned about", async (t) => {
  const here = await yard(t);
  const source = items(() => ["a"], { id: (id) => id });
  const first = pipeline("docs")
    .source(source)
    .stage("say", {}, () => (here.ran.push("first"), 1));
  const edited = pipeline("docs")
    .source(source)
    .stage("say", {}, () => (here.ran.push("edited"), 2));
  const raised = pipeline("docs")
    .source(source)
    .stage("say", { version: 2 }, () => (here.ran.push("raised"), 3));
  await here.succeed(first);
  const plan = await here.hf.builds.plan(edited);
  assert.match(plan.warnings.join(), /"say" was edited/);
  const reused = await here.succeed(edited);
  assert.match((await here.hf.builds.why(reused.id, "say", "a")).reason, /Reused.*was edited/);
  assert.equal(await reused.handle.output("say"), 1);
  const built = await here.succeed(raised);
  assert.deepEqual(here.ran, ["first", "raised"]);
  assert.equal(await built.handle.output("say"), 3);
  assert.deepEqual((await here.hf.builds.plan(raised)).warnings, []);
});

test("by bytes, a renamed or copied file costs nothing, and has its output under its own name", async (t) => {
  const here = await yard(t);
  here.write({ a: "same", b: "other" });
  const docs = lengths(here, { text: { reuse: "bytes" }, length: { reuse: "bytes" } });
  await here.succeed(docs);
  here.taken();
  renameSync(join(here.root, "a"), join(here.root, "renamed"));
  here.write({ copy: "other" });
  const built = await here.succeed(docs);
  assert.deepEqual(here.taken(), []);
  assert.deepEqual(counts(built, "text"), [0, 3, 0, 0]);
  assert.deepEqual(await outputsOf(built, "text"), { b: "other", copy: "other", renamed: "same" });
  assert.equal(await here.hf.builds.output(built.id, "length", "renamed"), 4);
  assert.equal((await here.hf.builds.why(built.id, "text", "renamed")).ran, false);
});

test("by bytes, identical files that arrive together are processed once", async (t) => {
  const here = await yard(t);
  here.write(Object.fromEntries(Array.from({ length: 12 }, (_, i) => [`f${i}`, `content ${i % 3}`])));
  const docs = lengths(here, { text: { reuse: "bytes" }, length: { reuse: "bytes" } });
  const built = await here.succeed(docs, { concurrency: 12 });
  assert.deepEqual(
    [counts(built, "text"), counts(built, "length")],
    [
      [3, 9, 0, 0],
      [3, 9, 0, 0],
    ],
  );
  assert.equal(here.ran.length, 6);
  assert.equal(Object.keys(await outputsOf(built, "length")).length, 12);
});

test("without reuse by bytes, a copy is a target of its own", async (t) => {
  const here = await yard(t);
  here.write({ a: "same", b: "same" });
  await here.succeed(lengths(here));
  assert.equal(here.ran.length, 4);
});

test("`rerun` repeats a stage, and later stages run only if its outputs differ", async (t) => {
  const here = await yard(t);
  here.write({ a: "1", b: "2" });
  const docs = lengths(here);
  await here.succeed(docs);
  here.taken();
  const built = await here.succeed(docs, { rerun: ["text"] });
  assert.deepEqual(here.taken(), ["text a", "text b"]);
  assert.deepEqual(
    [counts(built, "text"), counts(built, "length")],
    [
      [2, 0, 0, 0],
      [0, 2, 0, 0],
    ],
  );
  assert.match((await here.hf.builds.why(built.id, "text", "a")).reason, /rerun/);
  await here.succeed(docs);
  assert.deepEqual(here.taken(), []);
});

test("`only` processes the named targets, and no others", async (t) => {
  const here = await yard(t);
  here.write({ "a.md": "1", "b.md": "2", "c/d.md": "3" });
  const docs = lengths(here);
  await here.succeed(docs, { only: ["a.md", "c/*"] });
  assert.deepEqual(here.taken(), ["length a.md", "length c/d.md", "text a.md", "text c/d.md"]);
  here.remove("a.md");
  await here.succeed(docs, { only: ["b.md"] });
  assert.deepEqual(here.taken(), ["length b.md", "text b.md"]);
  assert.equal((await here.hf.builds.plan(docs)).removed, 1, "what was not looked at is not taken for gone");
});

test("`only` with the name of a stage runs nothing after it", async (t) => {
  const here = await yard(t);
  here.write({ a: "1" });
  const docs = lengths(here);
  const built = await here.succeed(docs, { only: ["text"] });
  assert.deepEqual(here.taken(), ["text a"]);
  assert.deepEqual(counts(built, "length"), [0, 0, 0, 0]);
  await here.succeed(docs);
  assert.deepEqual(here.taken(), ["length a"]);
});

test("unknown names are rejected before anything is written", async (t) => {
  const here = await yard(t);
  const docs = lengths(here);
  await assert.rejects(here.hf.builds.start(docs, { rerun: ["nope"] }), refusal("STAGE_UNKNOWN", /nope/));
  await assert.rejects(here.hf.builds.start(docs, { budget: { usd: -1 } }), refusal("COST_INVALID"));
  await assert.rejects(here.hf.builds.start(docs, { bugdet: {} } as never), refusal("OPTION_INVALID", /bugdet/));
  assert.deepEqual((await here.hf.builds.list()).items, []);
});

test("handlers get the context of any job: attempt, signal, checkpoint, follow-ups, one idempotency key", async (t) => {
  const here = await yard(t);
  const keys: string[] = [];
  const built = await here.build(
    pipeline("docs")
      .source(items(() => ["a"], { id: (id) => id }))
      .stage("say", { retry: { attempts: 2, delay: 1 } }, async ({ attempt, idempotencyKey, checkpoint, signal }) => {
        keys.push(idempotencyKey);
        assert.equal(signal.aborted, false);
        if (attempt === 1) {
          await checkpoint.save({ half: true });
          throw new Error("not yet");
        }
        return checkpoint.load();
      }),
  );
  assert.deepEqual(await outputsOf(built, "say"), { a: { half: true } });
  assert.equal(keys.length, 2);
  assert.equal(keys[0], keys[1]);
});

test("a key that throws or is invalid fails its target alone, with the reason", async (t) => {
  const here = await yard(t);
  const built = await here.build(
    pipeline("docs")
      .source(items(() => ["date", "fine", "throws"], { id: (id) => id }))
      .stage("say", { key: ({ input }) => doubtful(input), ...ONCE }, ({ input }) => (here.ran.push(input), input)),
  );
  assert.equal(built.state, "FAILED");
  assert.equal(built.reason, "targets_failed");
  assert.deepEqual(here.ran, ["fine"]);
  assert.deepEqual(built.errors.map(({ stage, target }) => [stage, target]).sort(), [
    ["say", "date"],
    ["say", "throws"],
  ]);
  assert.match(built.errors.map(({ message }) => message).join("\n"), /no idea/);
});

function keyOf(of: (input: string) => unknown): object {
  return { key: ({ input }: { input: string }) => of(input) };
}

function doubtful(input: string): string {
  if (input === "throws") throw new Error("no idea");
  return (input === "date" ? new Date() : input) as string;
}

test("an item is passed as it was listed, whatever the order of its keys and its version", async (t) => {
  const here = await yard(t);
  const listed = [
    { title: "T", id: "a", body: "x".repeat(20_000) },
    { title: "S", id: "b", body: "" },
  ]; // large, and small
  for (const more of [{}, { version: () => "1" }]) {
    const docs = pipeline(`docs ${Object.keys(more).length}`)
      .source(items(() => listed, { id: ({ id }) => id, ...more }))
      .stage("say", {}, ({ input }) => input);
    assert.deepEqual(Object.values(await outputsOf(await here.succeed(docs), "say")), listed);
  }
});
