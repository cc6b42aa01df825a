import assert from "node:assert/strict";
import { files, items, pipeline } from "../../src/index.ts";
import { counts, ONCE, outputsOf, test, type Yard, yard } from "./parts.ts";

/** The lengths of files, and their sum; a file "bad" fails. */
function sums({ root, ran }: Yard, options: { length?: object; sum?: object } = {}) {
  return pipeline("sums")
    .source(files("**/*", { root }))
    .stage("length", { ...ONCE, ...options.length }, async ({ target }) => {
      ran.push(`length ${target.id}`);
      const text = new TextDecoder().decode(await target.bytes());
      if (text === "bad") throw new Error("this is bad");
      return text.length;
    })
    .gather("sum", options.sum ?? {}, async ({ inputs, failed, target }) => {
      ran.push(`sum ${target.id}`);
      const members: string[] = [];
      let total = 0;
      for await (const { target: one, output, outputs } of inputs) {
        assert.equal(outputs.length, output);
        members.push(one.id);
        total += output;
      }
      return { total, members, failed };
    });
}

test("a gather gets all members in the order of their ids when the last is done", async (t) => {
  const here = await yard(t);
  here.write({ c: "333", a: "1", "b/x": "22", é: "4444", Z: "55555" });
  const built = await here.succeed(sums(here));
  assert.deepEqual(await built.handle.output("sum"), { total: 15, members: ["Z", "a", "b/x", "c", "é"], failed: 0 });
  assert.equal(here.ran.at(-1), "sum sum");
});

test("a gather with unchanged members does not run, and a changed, missing or new one runs it", async (t) => {
  const here = await yard(t);
  here.write({ a: "1", b: "22" });
  await here.succeed(sums(here));
  here.taken();
  assert.deepEqual(counts(await here.succeed(sums(here)), "sum"), [0, 1, 0, 0]);
  assert.deepEqual(here.taken(), []);
  for (const [change, total] of [
    [() => here.write({ b: "333" }), 4],
    [() => here.write({ c: "4444" }), 8],
    [() => here.remove("a"), 7],
  ] as const) {
    change();
    const built = await here.succeed(sums(here));
    assert.equal(((await built.handle.output("sum")) as { total: number }).total, total);
    assert.ok(here.taken().includes("sum sum"));
  }
});

test("a gather without members runs once", async (t) => {
  const here = await yard(t);
  const built = await here.succeed(sums(here));
  assert.deepEqual(await built.handle.output("sum"), { total: 0, members: [], failed: 0 });
  await here.succeed(sums(here));
  assert.deepEqual(here.taken(), ["sum sum"]);
});

test("`by` makes a target of each group; changed groups run, and missing ones are removed", async (t) => {
  const here = await yard(t);
  const removed: unknown[] = [];
  const sum = {
    by: (target: { id: string }) => target.id.split("/")[0] as string,
    remove: ({ target, output }: { target: { id: string }; output: unknown }) =>
      void removed.push([target.id, (output as { total: number }).total]),
  };
  here.write({ "a/1": "1", "a/2": "22", "b/1": "333", "c/1": "4" });
  const built = await here.succeed(sums(here, { sum }));
  assert.deepEqual(await outputsOf(built, "sum"), {
    a: { total: 3, members: ["a/1", "a/2"], failed: 0 },
    b: { total: 3, members: ["b/1"], failed: 0 },
    c: { total: 1, members: ["c/1"], failed: 0 },
  });
  here.taken();
  here.write({ "a/2": "4444" });
  here.remove("c");
  const second = await here.succeed(sums(here, { sum }));
  assert.deepEqual(here.taken(), ["length a/2", "sum a"]);
  assert.deepEqual(counts(second, "sum"), [1, 1, 0, 0]);
  assert.deepEqual(removed, [["c", 1]]);
  assert.deepEqual(Object.keys(await outputsOf(second, "sum")), ["a", "b"]);
  await here.succeed(sums(here, { sum }));
  assert.deepEqual(here.taken(), []);
});

test("`by` gets the output; if it throws or returns no group, its target fails", async (t) => {
  const here = await yard(t);
  const docs = pipeline("parity")
    .source(items(() => [1, 2, 3, 4], { id: (n) => `n${n}` }))
    .stage("same", ONCE, ({ input }) => input)
    .gather("group", { by: (_, output) => (output === 4 ? "" : output % 2 === 0 ? "even" : "odd") }, async ({ inputs }) => {
      const all: number[] = [];
      for await (const { output } of inputs) all.push(output);
      return all;
    });
  const built = await here.build(docs);
  assert.equal(built.state, "FAILED");
  assert.deepEqual(
    built.errors.map(({ stage, target }) => [stage, target]),
    [["group", "n4"]],
  );
});

test("a group may have any id of a target, so that `by` the parent works for every parent", async (t) => {
  const here = await yard(t);
  const ids = ["d".repeat(90).concat("/").repeat(4), "two\nlines", "short"];
  const built = await here.succeed(
    pipeline("long")
      .source(items(() => ids, { id: (id) => id }))
      .expand("parts", {}, () => ["1", "2"].map((id) => ({ id, value: id })))
      .gather("whole", { by: ({ parent }) => parent.id }, async ({ inputs }) => {
        let count = 0;
        for await (const { target } of inputs) count += Number(target.id);
        return count;
      }),
  );
  assert.deepEqual(await outputsOf(built, "whole"), Object.fromEntries(ids.map((id) => [id, 3])));
});

test("an invalid group id is explained in the build's errors", async (t) => {
  const here = await yard(t);
  const built = await here.build(
    pipeline("too-long")
      .source(items(() => ["a"], { id: (id) => id }))
      .gather("all", { by: () => "x".repeat(2_001) }, () => 1),
  );
  assert.deepEqual(
    built.errors.map(({ message }) => message),
    ['The result of `by` of stage "all" is a text of 2001 bytes, and an id may have 2000.'],
  );
});

test("a gather does not run if a member failed, and runs alone with that member once it succeeds", async (t) => {
  const here = await yard(t);
  here.write({ a: "1", b: "bad" });
  const built = await here.build(sums(here));
  assert.deepEqual([built.state, built.reason], ["FAILED", "targets_failed"]);
  assert.deepEqual(here.taken(), ["length a", "length b"]);
  here.write({ b: "good" });
  const second = await here.succeed(sums(here));
  assert.deepEqual(here.taken(), ["length b", "sum sum"]);
  assert.deepEqual(await second.handle.output("sum"), { total: 5, members: ["a", "b"], failed: 0 });
});

test("with `partial` a gather runs with the successful targets and the number of failed ones, and the build fails", async (t) => {
  const here = await yard(t);
  here.write({ a: "1", b: "bad", c: "22" });
  const built = await here.build(sums(here, { sum: { partial: true } }));
  assert.deepEqual([built.state, built.reason], ["FAILED", "targets_failed"]);
  assert.deepEqual(await built.handle.output("sum"), { total: 3, members: ["a", "c"], failed: 1 });
  here.taken();
  await here.build(sums(here, { sum: { partial: true } }));
  assert.deepEqual(here.taken(), ["length b"], "the same are there, and as many failed");
  here.write({ b: "good" });
  await here.succeed(sums(here, { sum: { partial: true } }));
  assert.deepEqual(here.taken(), ["length b", "sum sum"]);
});

test("gathers follow one another, with stages and expands between", async (t) => {
  const here = await yard(t);
  const docs = () =>
    pipeline("rounds")
      .source(items(() => state.numbers, { id: (n) => `n${n}` }))
      .stage("square", {}, ({ input }) => (here.ran.push(`square ${input}`), input * input))
      .gather("parity", { by: (_, output) => (output % 2 === 0 ? "even" : "odd") }, async ({ inputs, target }) => {
        here.ran.push(`parity ${target.id}`);
        let sum = 0;
        for await (const { output } of inputs) sum += output;
        return sum;
      })
      .stage("negate", {}, ({ input, target }) => (here.ran.push(`negate ${target.id}`), -input))
      .expand("digits", {}, ({ input }) => [...String(input)].map((value, i) => ({ id: `d${i}`, value })))
      .gather("all", {}, async ({ inputs }) => {
        here.ran.push("all");
        const parts: string[] = [];
        for await (const { target, output } of inputs) parts.push(`${target.parent.id}/${target.id}=${output}`);
        return parts;
      })
      .stage("last", {}, ({ input }) => input.length);
  const state = { numbers: [1, 2, 3, 4] };
  const built = await here.succeed(docs());
  assert.deepEqual(await built.handle.output("all"), ["even/d0=-", "even/d1=2", "even/d2=0", "odd/d0=-", "odd/d1=1", "odd/d2=0"]);
  assert.equal(await built.handle.output("last"), 6);
  here.taken();
  await here.succeed(docs());
  assert.deepEqual(here.taken(), []);
  state.numbers = [1, 2, 3, 4, 5];
  const second = await here.succeed(docs());
  assert.deepEqual(here.taken(), ["all", "negate odd", "parity odd", "square 5"]);
  assert.deepEqual((await built.handle.output("last"), await second.handle.output("last")), 6);
});

test("a skipped stage is in no member's outputs, and members have their last output", async (t) => {
  const here = await yard(t);
  const built = await here.succeed(
    pipeline("mixed")
      .source(items(() => ["a", "b"], { id: (id) => id }))
      .stage("loud", { match: "a" }, ({ input }) => input.toUpperCase())
      .gather("all", {}, async ({ inputs }) => {
        const seen: unknown[] = [];
        for await (const { output, outputs } of inputs) seen.push([output, outputs]);
        return seen;
      }),
  );
  assert.deepEqual(await built.handle.output("all"), [
    ["A", { loud: "A" }],
    ["b", {}],
  ]);
});

test("a failing gather fails the build, and runs alone in the next build", async (t) => {
  const here = await yard(t);
  here.write({ a: "1" });
  const state = { fails: true };
  const docs = () =>
    pipeline("frail")
      .source(files("*", { root: here.root }))
      .stage("length", {}, ({ target }) => (here.ran.push("length"), target.size))
      .gather("sum", ONCE, () => {
        here.ran.push("sum");
        if (state.fails) throw new Error("no");
        return 1;
      });
  assert.equal((await here.build(docs())).reason, "targets_failed");
  state.fails = false;
  here.taken();
  await here.succeed(docs());
  assert.deepEqual(here.taken(), ["sum"]);
});

test("a thousand members are read page by page, with their outputs", async (t) => {
  const here = await yard(t);
  const built = await here.succeed(
    pipeline("many")
      .source(items(() => Array.from({ length: 1_100 }, (_, n) => n), { id: (n) => `n${String(n).padStart(5, "0")}` }))
      .stage("same", {}, ({ input }) => input)
      .gather("all", {}, async ({ inputs }) => {
        let [count, sum] = [0, 0];
        for await (const { output } of inputs) [count, sum] = [count + 1, sum + output];
        return [count, sum];
      }),
  );
  assert.deepEqual(await built.handle.output("all"), [1_100, (1_099 * 1_100) / 2]);
});
