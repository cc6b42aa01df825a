import assert from "node:assert/strict";
import { items, job, pipeline, type Pipeline } from "../../src/index.ts";
import { ONCE, outputsOf, refusal, test, yard } from "./parts.ts";

class Point {
  x = 1;
}
const cycle: Record<string, unknown> = {};
cycle["back"] = [cycle];

/** What JSON has no word for, and where in `{ deep: [value] }` the error finds it. */
const BENT: Record<string, [value: unknown, path: string, is: string]> = {
  "a Date": [new Date(0), "deep[0]", "is a Date"],
  "a Map": [new Map([["a", 1]]), "deep[0]", "is a Map"],
  "a bigint": [1n, "deep[0]", "is a bigint"],
  NaN: [Number.NaN, "deep[0]", "is NaN"],
  Infinity: [Number.POSITIVE_INFINITY, "deep[0]", "is Infinity"],
  // oxlint-disable-next-line no-sparse-arrays
  "a sparse array": [[1, , 2], "deep[0][1]", "is undefined"],
  "a cycle": [cycle, "deep[0].back[0]", "is a cycle"],
  "a class instance": [new Point(), "deep[0]", "is a Point"],
  "bytes inside of something": [new Uint8Array(1), "deep[0]", "is a Uint8Array"],
  "a match": ["abc".match(/b/), "deep[0]", "is an array with properties of its own"],
  "a symbol for a name": [{ [Symbol("s")]: 1 }, "deep[0]", "is an object with a symbol for a name"],
};

const GIVEN = Object.fromEntries(Object.entries(BENT).map(([what, [value]]) => [what, { deep: [value] }]));
const each = items(() => Object.keys(BENT), { id: (what) => what });
const BY: Record<string, Pick<Pipeline, "stage">> = {
  "as an output": pipeline("output")
    .source(each)
    .stage("make", ONCE, ({ input }) => GIVEN[input]),
  "as what an expand yields": pipeline("yielded")
    .source(each)
    .expand("split", ONCE, ({ input }) => [{ id: "b", value: GIVEN[input] }]),
  "as a key": pipeline("key")
    .source(each)
    .stage("keyed", { key: ({ input }) => GIVEN[input] as object }, () => 1),
};
for (const [as, bent] of Object.entries(BY)) {
  test(`a value that JSON would change is rejected ${as}, with its place`, async (t) => {
    const here = await yard(t);
    const { state, errors } = await here.build(bent.stage("never", {}, () => here.ran.push("never")));
    assert.equal(state, "FAILED");
    assert.deepEqual(errors.map(({ target }) => target).toSorted(), Object.keys(BENT).toSorted());
    for (const { target, message } of errors) {
      const [, path, is] = BENT[target] as (typeof BENT)[string];
      assert.ok(message.includes(path) && message.includes(` ${is}`), message);
    }
    assert.deepEqual(here.ran, []);
  });
}

test("a value that JSON would change is rejected as an item, with its place", async (t) => {
  const here = await yard(t);
  for (const what of ["a Map", "a class instance"]) {
    const built = await here.build(pipeline("item").source(items(() => [GIVEN[what]], { id: () => "a" })));
    assert.equal(built.reason, "source_failed");
    const [, path, is] = BENT[what] as (typeof BENT)[string];
    assert.equal(built.errors[0]?.message, `\`${path}\` in the item "a" ${is}, which JSON cannot represent exactly.`);
  }
});

test("a value that JSON would change is rejected as a key where it is given", async () => {
  for (const given of Object.values(GIVEN)) {
    assert.throws(
      () =>
        pipeline("key")
          .source(each)
          .stage("keyed", { key: given }, () => 1),
      refusal("KEY_INVALID"),
    );
  }
});

/** What is rare in JSON, and comes back exactly. */
const RARE: Record<string, unknown> = {
  zero: -0,
  zeros: { list: [0, -0, { deep: -0 }] },
  names: JSON.parse('{"__proto__": 1, "": 2, "a b": {"constructor": 3}}') as unknown,
  text: "\u0000 \ud800 \u2028 \u{1f600}",
  numbers: [1e21, 5e-324, Number.MAX_SAFE_INTEGER, -1.5],
  nothing: null,
  empty: [{}, [], ""],
};

test("rare JSON values come back exactly, from items, expands, outputs, checkpoints and follow-ups", async (t) => {
  const here = await yard(t);
  const sent: Record<string, unknown> = {};
  const follow = job<{ id: string; value: unknown }>({ name: "follow", run: ({ input }) => void (sent[input.id] = input.value) });
  const seen: Record<string, unknown[]> = {};
  const note = (id: string, value: unknown) => void (seen[id] ??= []).push(value);
  const docs = pipeline("rare")
    .source(items(() => Object.keys(RARE).map((id) => ({ id, value: RARE[id] })), { id: ({ id }) => id }))
    .expand("split", {}, ({ input, target }) => {
      note(target.id, input.value);
      return [{ id: target.id, value: input.value }];
    })
    .stage("same", {}, async ({ input, target: { parent }, checkpoint, enqueue }) => {
      note(parent.id, input);
      await checkpoint.save(input);
      note(parent.id, await checkpoint.load());
      enqueue(follow, { id: parent.id, value: input });
      return input;
    })
    .stage("last", { match: ({ parent }, input) => (note(parent.id, input), true) }, ({ input, target: { parent } }) => {
      note(parent.id, input);
      return { input };
    });
  const worker = here.hf.work([follow]);
  const built = await here.succeed(docs);
  const outputs = await outputsOf(built, "same");
  for (const [id, value] of Object.entries(RARE)) {
    assert.deepEqual(seen[id], [value, value, value, value, value], id);
    assert.deepEqual(outputs[id], value, id);
  }
  for (const { id } of (await here.hf.jobs.list({ name: "follow" })).items) await here.hf.jobs.wait(id);
  await worker.stop();
  assert.deepEqual(sent, RARE);
  assert.deepEqual(await outputsOf(await here.succeed(docs), "same"), outputs);
});

test("an undefined property is absent for every reader, and undefined itself stays undefined", async (t) => {
  const here = await yard(t);
  const names: string[] = [];
  const docs = pipeline("absent")
    .source(items(() => [{ id: "a", gone: undefined }], { id: ({ id }) => id }))
    .expand("split", {}, () => [{ id: "b", value: undefined }])
    .stage("make", {}, ({ input }) => ({ input, is: input === undefined, gone: undefined }))
    .stage("look", { key: ({ input }) => Object.keys(input) }, ({ input }) => void names.push(...Object.keys(input)));
  const built = await here.succeed(docs);
  assert.deepEqual(Object.values(await outputsOf(built, "make")), [{ is: true }]);
  assert.deepEqual(names, ["is"]);
  const again = await here.succeed(docs);
  assert.deepEqual([again.stages["look"]?.ran, again.stages["look"]?.cached], [0, 1], "the key is what it was");
});

test("zero and minus zero are different items, outputs and keys", async (t) => {
  const here = await yard(t);
  const state = { value: 0, key: 0 };
  const docs = () =>
    pipeline("zeros")
      .source(items(() => [{ id: "a", value: state.value }], { id: ({ id }) => id }))
      .stage("same", {}, ({ input }) => (here.ran.push("same"), input.value))
      .stage("keyed", { key: { k: state.key } }, ({ input }) => (here.ran.push("keyed"), Object.is(input, -0)));
  assert.deepEqual(await outputsOf(await here.succeed(docs()), "keyed"), { a: false });
  here.taken();
  state.value = -0;
  assert.deepEqual(await outputsOf(await here.succeed(docs()), "keyed"), { a: true });
  assert.deepEqual(here.taken(), ["keyed", "same"]);
  state.key = -0;
  const { id } = await here.succeed(docs());
  assert.deepEqual(here.taken(), ["keyed"]);
  assert.deepEqual((await here.hf.builds.why(id, "keyed", "a")).parts, [{ part: "key.k", before: 0, after: -0 }]);
});
