import { resultOf } from "../../src/store/work.ts";
import assert from "node:assert/strict";
import { rmSync } from "node:fs";
import { files, items, pipeline } from "../../src/index.ts";
import { type Built, counts, ONCE, refusal, test, type Yard, yard } from "./parts.ts";

/** Files of lines "id=text"; each line is a target, and is said aloud. */
function lines({ root, ran }: Yard, options: { split?: object; say?: object } = {}) {
  return pipeline("lines")
    .source(files("**/*", { root }))
    .stage("read", {}, async ({ target }) => {
      ran.push(`read ${target.id}`);
      return new TextDecoder().decode(await target.bytes());
    })
    .expand("split", options.split ?? {}, function* ({ input, target }) {
      ran.push(`split ${target.id}`);
      for (const line of input.split("\n").filter((one) => one !== "")) {
        const [id = "", value = ""] = line.split("=");
        yield { id, value };
      }
    })
    .stage("say", options.say ?? {}, ({ input, target }) => {
      ran.push(`say ${target.parent.id}/${target.id}`);
      return input.toUpperCase();
    });
}

/** More than is kept in a row, with a character that some take for the end of a line. */
const LONG = Array.from({ length: 550 }, (_, i) => `c${i}=${"\u2028long ".repeat(10)}${i}`).join("\n");

test("each child advances alone, and knows its parent", async (t) => {
  const here = await yard(t);
  here.write({ a: "x=one\ny=two", b: "x=three" });
  const built = await here.succeed(lines(here));
  assert.deepEqual(await byParent(built, "say"), [
    ["x", "ONE"],
    ["y", "TWO"],
    ["x", "THREE"],
  ]);
  assert.deepEqual(await byParent(built, "split"), [
    ["x", "one"],
    ["y", "two"],
    ["x", "three"],
  ]);
  assert.equal(await built.handle.output("say", "a/y"), "TWO");
  assert.equal(await built.handle.output("say", "y"), "TWO");
  await assert.rejects(built.handle.output("say", "x"), refusal("TARGET_AMBIGUOUS"));
  assert.deepEqual(counts(built, "split"), [2, 0, 0, 0]);
  assert.deepEqual(counts(built, "say"), [3, 0, 0, 0]);
});

test("children of an unchanged parent are reused, and a changed parent is expanded again", async (t) => {
  const here = await yard(t);
  here.write({ a: "x=one\ny=two", b: "x=three" });
  await here.succeed(lines(here));
  here.taken();
  const again = await here.succeed(lines(here));
  assert.deepEqual(here.taken(), []);
  assert.deepEqual(
    [counts(again, "split"), counts(again, "say")],
    [
      [0, 2, 0, 0],
      [0, 3, 0, 0],
    ],
  );
  here.write({ a: "x=one\ny=2\nz=new" });
  const third = await here.succeed(lines(here));
  assert.deepEqual(here.taken(), ["read a", "say a/y", "say a/z", "split a"], "what has the same id and value is reused");
  assert.deepEqual(await byParent(third, "say"), [
    ["x", "ONE"],
    ["y", "2"],
    ["z", "NEW"],
    ["x", "THREE"],
  ]);
});

test("missing children are removed, with their parent or alone", async (t) => {
  const here = await yard(t);
  const removed: string[] = [];
  const say = { remove: ({ target }: { target: { id: string } }) => void removed.push(target.id) };
  here.write({ a: "x=one\ny=two", b: "z=three" });
  await here.succeed(lines(here, { say }));
  here.write({ a: "x=one" });
  assert.deepEqual(await byParent(await here.succeed(lines(here, { say })), "say"), [
    ["x", "ONE"],
    ["z", "THREE"],
  ]);
  assert.deepEqual(removed, ["y"]);
  here.remove("b");
  const built = await here.succeed(lines(here, { say }));
  assert.deepEqual(removed, ["y", "z"]);
  assert.deepEqual(await byParent(built, "say"), [["x", "ONE"]]);
  assert.deepEqual(await byParent(built, "split"), [["x", "one"]]);
});

test("a parent that returns to earlier content has its earlier children, and nothing runs for that", async (t) => {
  const here = await yard(t);
  here.write({ a: "x=one\ny=two" });
  await here.succeed(lines(here));
  here.write({ a: "y=other\nz=three" });
  await here.succeed(lines(here));
  here.write({ a: "x=one\ny=two" });
  here.taken();
  const { stages } = await here.hf.builds.plan(lines(here));
  assert.deepEqual(
    Object.values(stages).map(({ run, cached, unknown }) => [run, cached, unknown]),
    [
      [0, 1, 0],
      [0, 1, 0],
      [0, 2, 0],
    ],
  );
  const built = await here.succeed(lines(here));
  assert.deepEqual(here.taken(), []);
  assert.deepEqual(
    [counts(built, "split"), counts(built, "say")],
    [
      [0, 1, 0, 0],
      [0, 2, 0, 0],
    ],
  );
  assert.equal((await here.hf.builds.why(built.id, "split", "a")).ran, false);
  assert.deepEqual(await byParent(built, "say"), [
    ["x", "ONE"],
    ["y", "TWO"],
  ]);
  assert.deepEqual(await byParent(built, "split"), [
    ["x", "one"],
    ["y", "two"],
  ]);
});

test("with `remove`, an expand of a parent that returns to earlier content runs again", async (t) => {
  const here = await yard(t);
  const docs = () => lines(here, { split: { remove: () => {} } });
  for (const text of ["x=one", "y=two", "x=one"]) {
    here.write({ a: text });
    await here.succeed(docs());
  }
  assert.equal(here.ran.filter((one) => one === "split a").length, 3);
});

test("children are invisible before their expand has ended, and a failed expand has none", async (t) => {
  const here = await yard(t);
  const state = { fails: true };
  const seen: number[] = [];
  const rows = () => here.hf.engine.store.work.countTargets("many", 1);
  const docs = () =>
    pipeline("many")
      .source(items(() => ["a"], { id: (id) => id }))
      .expand("split", ONCE, async function* () {
        for (let i = 0; i < 600; i++) yield { id: `c${i}`, value: i };
        await new Promise((resolve) => setTimeout(resolve, 20));
        seen.push(await rows());
        if (state.fails) throw new Error("half way");
      })
      .stage("say", {}, ({ input }) => (here.ran.push("say"), input));
  const failed = await here.build(docs());
  assert.deepEqual([failed.state, failed.errors[0]?.message], ["FAILED", "half way"]);
  assert.deepEqual([seen, await rows(), here.ran], [[0], 0, []]);
  state.fails = false;
  assert.deepEqual(counts(await here.succeed(docs()), "say"), [600, 0, 0, 0]);
  assert.deepEqual(seen, [0, 0]);
});

test("an expand that fails for a changed parent leaves the earlier children unchanged", async (t) => {
  const here = await yard(t);
  here.write({ a: "x=one\ny=two" });
  await here.succeed(lines(here));
  here.write({ a: "x=other\nz=new\nx=twice" });
  here.taken();
  assert.equal((await here.build(lines(here, { split: ONCE }))).state, "FAILED");
  assert.deepEqual(here.taken(), ["read a", "split a"]);
  const children = await here.hf.engine.store.work.targets({ pipeline: "lines", segment: 1, limit: 10 });
  assert.deepEqual(
    children.map(({ id, value }) => [id, value.text]),
    [
      ["x", '"one"'],
      ["y", '"two"'],
    ],
  );
});

test("a long list of children is an artifact, and the expand runs again if it is lost", async (t) => {
  const here = await yard(t);
  here.write({ a: LONG });
  const built = await here.succeed(lines(here));
  assert.deepEqual(counts(built, "say"), [550, 0, 0, 0]);
  const result = await resultOf(here.hf.engine.store.work, built.id, "split", "a");
  const list = result?.output.artifact as string;
  assert.deepEqual(await here.hf.engine.store.work.referenced([list]), new Set([list]), "no sweep takes it");
  here.write({ a: "x=one" });
  await here.succeed(lines(here));
  here.write({ a: LONG });
  here.taken();
  assert.deepEqual(counts(await here.succeed(lines(here)), "say"), [0, 550, 0, 0]);
  assert.deepEqual(here.taken(), []);
  here.write({ a: "x=one" });
  await here.succeed(lines(here));
  here.write({ a: LONG });
  rmSync(await (await here.hf.engine.artifacts()).path(list));
  assert.deepEqual(counts(await here.succeed(lines(here)), "say"), [0, 550, 0, 0]);
  assert.deepEqual(here.taken(), ["split a"]);
});

test("by bytes, a copy of a parent has its own children, and the expand runs once", async (t) => {
  const here = await yard(t);
  const docs = () => lines(here, { split: { reuse: "bytes" } });
  here.write({ a: "x=one", b: "x=one" });
  assert.deepEqual(await byParent(await here.succeed(docs()), "say"), [
    ["x", "ONE"],
    ["x", "ONE"],
  ]);
  assert.equal(here.ran.filter((one) => one.startsWith("split")).length, 1);
  here.write({ c: "x=one" });
  assert.deepEqual(await byParent(await here.succeed(docs()), "say"), [
    ["x", "ONE"],
    ["x", "ONE"],
    ["x", "ONE"],
  ]);
});

test("a changed stage of the children runs for those of an unchanged parent", async (t) => {
  const here = await yard(t);
  here.write({ a: "x=one\ny=two" });
  await here.succeed(lines(here));
  here.taken();
  await here.succeed(lines(here, { say: { version: 2 } }));
  assert.deepEqual(here.taken(), ["say a/x", "say a/y"]);
});

test("`remove` of an expand is called when its parent is gone", async (t) => {
  const here = await yard(t);
  const removed: string[] = [];
  const split = { remove: ({ target }: { target: { id: string } }) => void removed.push(target.id) };
  here.write({ a: "x=one", b: "x=one" });
  await here.succeed(lines(here, { split }));
  here.remove("a");
  await here.succeed(lines(here, { split }));
  assert.deepEqual(removed, ["a"]);
});

test("a missing child that could not be removed is no longer a child, and the next build removes it", async (t) => {
  const here = await yard(t);
  const removed: string[] = [];
  const state = { broken: true };
  const say = {
    ...ONCE,
    remove: ({ target }: { target: { id: string } }) => {
      if (state.broken) throw new Error("the index is away");
      removed.push(target.id);
    },
  };
  here.write({ a: "x=one\ny=two" });
  await here.succeed(lines(here, { say }));
  here.write({ a: "x=one" });
  assert.equal((await here.build(lines(here, { say }))).state, "FAILED");
  state.broken = false;
  const built = await here.succeed(lines(here, { say }));
  assert.deepEqual(removed, ["y"]);
  assert.deepEqual(await byParent(built, "say"), [["x", "ONE"]]);
  assert.deepEqual(await byParent(built, "split"), [["x", "one"]]);
  await here.succeed(lines(here, { say }));
  assert.deepEqual(removed, ["y"]);
});

test("a file rewritten while it is expanded has the children of its new bytes, and none of the old", async (t) => {
  const here = await yard(t);
  here.write({ a: "x y" });
  const built = await here.succeed(
    pipeline("words")
      .source(files("*", { root: here.root }))
      .expand("split", {}, async function* ({ target }) {
        const words = new TextDecoder().decode(await target.bytes()).split(" ");
        for (const word of words) yield { id: word, value: word };
        if (words.length > 1) here.write({ a: "x" });
      })
      .stage("say", {}, ({ input }) => input.toUpperCase())
      .gather("all", {}, async ({ inputs }) => {
        const all: string[] = [];
        for await (const { output } of inputs) all.push(output);
        return all;
      }),
  );
  assert.deepEqual(await byParent(built, "split"), [["x", "x"]]);
  assert.deepEqual(await byParent(built, "say"), [["x", "X"]]);
  assert.deepEqual(await built.handle.output("all"), ["X"]);
});

test("two children with one id fail their parent by name, and other targets continue", async (t) => {
  const here = await yard(t);
  here.write({ a: "x=one\nx=two", b: "x=three" });
  const built = await here.build(lines(here, { split: ONCE }));
  assert.equal(built.state, "FAILED");
  assert.equal(built.errors.length, 1);
  assert.deepEqual([built.errors[0]?.stage, built.errors[0]?.target], ["split", "a"]);
  assert.match(built.errors[0]?.message ?? "", /Two targets.*"x"/);
  assert.ok(here.ran.includes("say b/x"));
});

test("children with one id under different parents are distinguished in a build's errors", async (t) => {
  const here = await yard(t);
  const docs = pipeline("pages")
    .source(items(() => ["a", "b"], { id: (id) => id }))
    .expand("lines", {}, () => [{ id: "1", value: 1 }])
    .stage("say", ONCE, ({ target }) => {
      throw new Error(`no ${target.parent.id}`);
    });
  const { errors, id } = await here.build(docs);
  assert.deepEqual(errors.map(({ target, message }) => `${target}: ${message}`).sort(), ["a/1: no a", "b/1: no b"]);
  assert.equal((await here.hf.builds.why(id, "say", "b/1")).ran, true, "and can be asked about so");
});

test("a child that is not a target, or a result that cannot be iterated, is named", async (t) => {
  const here = await yard(t);
  for (const [answer, says] of [
    [[{ value: 1 }], /no id or no value/],
    [[{ id: "", value: 1 }], /id of a target/],
    [7, /iterable/],
    [[{ id: "x", value: new Map() }], /value of target "x"/],
  ] as const) {
    const built = await here.build(
      pipeline("odd")
        .source(items(() => ["a"], { id: (id) => id }))
        .expand("split", ONCE, () => answer as never),
    );
    assert.equal(built.state, "FAILED");
    assert.match(built.errors[0]?.message ?? "", says);
  }
});

test("a child may use outputs of its parent, and their change counts", async (t) => {
  const here = await yard(t);
  const seen: unknown[] = [];
  const state = { title: "T" };
  const docs = () =>
    pipeline("books")
      .source(items(() => ["book"], { id: (id) => id }))
      .stage("title", { key: state.title }, () => state.title)
      .stage("text", {}, () => "one two")
      .expand("words", {}, ({ input }) => input.split(" ").map((value) => ({ id: value, value })))
      .stage("say", { uses: ["title"] }, ({ outputs, input }) => (seen.push([outputs.title, input]), input));
  await here.succeed(docs());
  assert.deepEqual(seen.splice(0).sort(), [
    ["T", "one"],
    ["T", "two"],
  ]);
  await here.succeed(docs());
  assert.deepEqual(seen, []);
  state.title = "U";
  await here.succeed(docs());
  assert.deepEqual(seen.sort(), [
    ["U", "one"],
    ["U", "two"],
  ]);
});

test("an expand may come first, follow another, and yield asynchronously or nothing", async (t) => {
  const here = await yard(t);
  const docs = pipeline("tree")
    .source(items(() => [1, 2], { id: (n) => `n${n}` }))
    .expand("outer", {}, async function* ({ input }) {
      for (let i = 0; i < input; i++) yield { id: `o${i}`, value: input * 10 + i };
    })
    .expand("inner", {}, ({ input }) => (input === 20 ? [] : [{ id: "i", value: input }]))
    .stage("add", {}, ({ input, target }) => [input + 1, target.parent.parent.id]);
  const built = await here.succeed(docs);
  assert.deepEqual(await byParent(built, "add"), [
    ["i", [11, "n1"]],
    ["i", [22, "n2"]],
  ]);
  const again = await here.succeed(docs);
  assert.deepEqual(
    [counts(again, "outer"), counts(again, "inner"), counts(again, "add")],
    [
      [0, 2, 0, 0],
      [0, 3, 0, 0],
      [0, 2, 0, 0],
    ],
  );
});

test("thousands of children are written in batches", async (t) => {
  const here = await yard(t);
  const docs = pipeline("many")
    .source(items(() => ["a"], { id: (id) => id }))
    .expand("split", {}, function* () {
      for (let i = 0; i < 1_234; i++) yield { id: `c${i}`, value: i };
    })
    .stage("double", {}, ({ input }) => input * 2);
  const built = await here.succeed(docs);
  assert.deepEqual(counts(built, "double"), [1_234, 0, 0, 0]);
  assert.equal(await built.handle.output("double", "c1233"), 2_466);
  assert.deepEqual(counts(await here.succeed(docs), "double"), [0, 1_234, 0, 0]);
});

/** What a stage has made of each target, in the order of their parents and theirs. */
async function byParent({ handle }: Built, stage: string): Promise<[string, unknown][]> {
  const all: [string, unknown][] = [];
  for await (const { target, output } of handle.outputs(stage)) all.push([target, output]);
  return all;
}
