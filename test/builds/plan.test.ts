import assert from "node:assert/strict";
import { valueHash } from "../../src/core/pipelines/work.ts";
import { type BuildOptions, files, items, open, type Pipeline, pipeline, type Plan } from "../../src/index.ts";
import { ONCE, refusal, test, type Yard, yard } from "./parts.ts";
import { countJobs } from "../../src/store/queries.ts";

/** Lengths of files, of which some are split into characters, and their sum. */
function docs({ root, ran }: Yard, given: { version?: number; key?: string; match?: string } = {}) {
  const { version = 1, key = "k", match = "*" } = given;
  return pipeline("docs")
    .source(files("*", { root }))
    .stage("read", { version, estimate: () => ({ usd: 1 }) }, async ({ target, cost }) => {
      ran.push(`read ${target.id}`);
      cost({ usd: 1 });
      return new TextDecoder().decode(await target.bytes());
    })
    .stage("loud", { key, match }, ({ input, target }) => (ran.push(`loud ${target.id}`), input.toUpperCase()))
    .expand("letters", {}, ({ input }) => [...input].map((value, at) => ({ id: `l${at}`, value })))
    .stage("code", {}, ({ input }) => input.codePointAt(0) ?? 0)
    .gather("sum", {}, async ({ inputs }) => {
      let sum = 0;
      for await (const { output } of inputs) sum += output;
      return sum;
    });
}

/** What a build then ran and reused, beside what was planned. */
async function compare(here: Yard, of: Pipeline, options: BuildOptions = {}): Promise<Plan> {
  const before = await everything(here);
  const plan = await here.hf.builds.plan(of, options);
  assert.deepEqual(await everything(here), before, "a plan changes nothing");
  const built = await here.succeed(of, options);
  for (const [stage, { run, cached, unknown }] of Object.entries(plan.stages)) {
    const { ran, cached: reused } = built.stages[stage] as { ran: number; cached: number };
    const says = `${stage}: planned ${run} to run, ${cached} cached, ${unknown} unknown; ${ran} ran, ${reused} were reused`;
    assert.ok(ran >= run && reused >= cached, says);
    if (unknown === 0) assert.deepEqual([ran, reused], [run, cached], says);
  }
  return plan;
}

async function everything({ hf }: Yard): Promise<string> {
  const { store } = hf.engine;
  const targets = await Promise.all([0, 1, 2].map((segment) => store.work.targets({ pipeline: "docs", segment, limit: 1_000 })));
  const { items: builds } = await store.builds.list({ limit: 100 });
  return JSON.stringify([targets, builds, await countJobs(store.queries), await store.audit.page({ after: 0, limit: 1_000 })]);
}

test("a plan names what then runs, whatever has changed", async (t) => {
  const here = await yard(t);
  here.write({ a: "ab", b: "c" });
  const first = await compare(here, docs(here));
  assert.deepEqual(first.stages["read"], {
    run: 2,
    cached: 0,
    unknown: 0,
    estimate: { usd: 2, tokens: 0 },
    upperBound: true,
  });
  assert.equal(first.stages["loud"]?.unknown, 2);
  assert.equal(first.estimate.usd, 2);

  const same = await compare(here, docs(here));
  assert.deepEqual(
    Object.values(same.stages).map(({ run, cached, unknown }) => [run, cached, unknown]),
    [
      [0, 2, 0],
      [0, 2, 0],
      [0, 2, 0],
      [0, 3, 0],
      [0, 1, 0],
    ],
  );
  assert.deepEqual(same.estimate, { usd: 0, tokens: 0 });

  here.write({ b: "cd", c: "e" });
  const changed = await compare(here, docs(here));
  assert.deepEqual([changed.stages["read"]?.run, changed.stages["read"]?.cached], [2, 1]);
  assert.deepEqual([changed.stages["loud"]?.cached, changed.stages["loud"]?.unknown], [1, 2]);

  here.remove("a");
  assert.equal((await compare(here, docs(here))).removed, 1);
  const keyed = await compare(here, docs(here, { key: "another" }));
  assert.deepEqual(keyed.stages["loud"], { run: 2, cached: 0, unknown: 0, estimate: { usd: 0, tokens: 0 } });
  const matched = await compare(here, docs(here, { key: "another", match: "b" }));
  assert.equal(matched.stages["loud"]?.cached, 1);
});

test("`rerun` and `only` are planned as they run", async (t) => {
  const here = await yard(t);
  here.write({ a: "ab", b: "c" });
  const only = await compare(here, docs(here), { only: ["a"] });
  assert.equal(only.stages["read"]?.run, 1);
  await compare(here, docs(here), { only: ["loud"] });
  await compare(here, docs(here));
  const rerun = await compare(here, docs(here), { rerun: ["read"] });
  assert.equal(rerun.stages["read"]?.run, 2);
});

test("a plan reports what cannot be planned: a missing root, an invalid estimate", async (t) => {
  const here = await yard(t);
  here.remove(".");
  await assert.rejects(here.hf.builds.plan(docs(here)), refusal("SOURCE_MISSING"));
  const negative = pipeline("negative")
    .source(items(() => [1], { id: String }))
    .stage("pay", { estimate: () => ({ usd: -1 }) }, () => 1);
  await assert.rejects(here.hf.builds.plan(negative), refusal("COST_INVALID"));
  assert.deepEqual((await here.hf.builds.list()).items, []);
});

test("why explains a stage's run part by part, with both values", async (t) => {
  const here = await yard(t);
  const state = { model: "small", words: "one" };
  const talk = (version = 1) =>
    pipeline("talk")
      .source(items(() => [{ id: "a", words: state.words }], { id: ({ id }) => id }))
      .stage("read", {}, ({ input }) => input.words)
      .stage("say", { version, key: { model: state.model, options: { hot: 1 } } }, ({ input }) => input);
  const why = async (build: { id: string }, stage = "say") => here.hf.builds.why(build.id, stage, "a");
  const first = await why(await here.succeed(talk()));
  assert.deepEqual([first.ran, first.parts], [true, []]);
  assert.match(first.reason, /had no result before/);
  const same = await why(await here.succeed(talk()));
  assert.deepEqual([same.ran, same.parts], [false, []]);
  state.model = "large";
  const keyed = await why(await here.succeed(talk()));
  assert.deepEqual([keyed.ran, keyed.parts], [true, [{ part: "key.model", before: "small", after: "large" }]]);
  const raised = await why(await here.succeed(talk(2)));
  assert.deepEqual(raised.parts, [{ part: "version", before: 1, after: 2 }]);
  state.words = "two";
  const built = await here.succeed(talk(2));
  assert.deepEqual(
    (await why(built)).parts.map(({ part }) => part),
    ["input", "target.hash"],
  );
  assert.equal((await why(built, "read")).ran, true);
  state.words = "one";
  const back = await here.succeed(talk(2));
  assert.equal((await why(back)).ran, false);
  await assert.rejects(here.hf.builds.why(built.id, "say", "b"), refusal("NO_SUCH_OUTPUT"));
});

test("why finds a child by its id, or by its parent's and its own", async (t) => {
  const here = await yard(t);
  here.write({ a: "ab", b: "c" });
  const built = await here.succeed(docs(here));
  assert.equal((await here.hf.builds.why(built.id, "code", "a/l1")).ran, true);
  assert.equal((await here.hf.builds.why(built.id, "code", "l1")).ran, true);
  await assert.rejects(here.hf.builds.why(built.id, "code", "l0"), refusal("TARGET_AMBIGUOUS"));
  const again = await here.succeed(docs(here));
  assert.equal((await here.hf.builds.why(again.id, "code", "a/l1")).ran, false);
});

test("a plan sums up the estimates of all targets, in any batch size", async () => {
  const numbers = Array.from({ length: 40 }, (_, i) => i + 1);
  const sums = pipeline("sums")
    .source(items(() => numbers, { id: String }))
    .stage("cheap", { estimate: ({ input }) => ({ usd: input, tokens: 1 }) }, ({ input, cost }) => {
      cost({ usd: 1 });
      return input;
    })
    .stage("dear", {}, ({ input, cost }) => {
      cost({ usd: 2 });
      return input;
    });
  await using hf = await open(":memory:");
  const before = await hf.builds.plan(sums);
  assert.deepEqual(before.stages, {
    cheap: { run: 40, cached: 0, unknown: 0, estimate: { usd: 820, tokens: 40 } },
    dear: { run: 0, cached: 0, unknown: 40, estimate: {}, incomplete: true },
  });

  assert.equal((await (await hf.builds.start(sums)).done()).state, "SUCCESS");
  const rerun = await hf.builds.plan(sums, { rerun: ["cheap"] });
  assert.deepEqual(rerun.stages["dear"], { run: 0, cached: 0, unknown: 40, estimate: { usd: 80, tokens: 0 } });
  assert.deepEqual(rerun.estimate, { usd: 900, tokens: 40 });
});

test("why explains a gather's run member by member: added, removed and changed, with both values", async (t) => {
  const here = await yard(t);
  const state: Record<string, { text: string; kind: string }> = {
    a: { text: "one", kind: "x" },
    b: { text: "two", kind: "x" },
    "c/d": { text: "three", kind: "x" },
    e: { text: "four", kind: "y" },
  };
  const docs = (partial = false) =>
    pipeline("docs")
      .source(items(() => Object.entries(state), { id: ([id]) => id }))
      .stage("read", ONCE, ({ input: [id, { text, kind }] }) => {
        if (text === "bad") throw new Error(`${id} is bad`);
        return { text, kind };
      })
      .stage("loud", { match: "?" }, ({ input }) => ({ ...input, text: input.text.toUpperCase() }))
      .gather("group", { by: (_, { kind }) => kind, partial }, async ({ inputs }) => {
        const texts: string[] = [];
        for await (const { output } of inputs) texts.push(output.text);
        return texts.join(" ");
      });
  const why = async (group: string, { id }: { id: string }) => here.hf.builds.why(id, "group", group);
  const first = await here.succeed(docs());
  assert.deepEqual((await why("x", first)).parts, []);
  state["a"] = { text: "ONE", kind: "x" };
  state["b"] = { text: "zwei", kind: "x" };
  delete state["c/d"];
  state["e"] = { text: "four", kind: "x" };
  state["f"] = { text: "five", kind: "x" };
  const second = await here.succeed(docs());
  const { ran, reason, parts } = await why("x", second);
  assert.equal(ran, true);
  assert.equal(reason, 'Ran: members["a"].outputs, members["b"], members["c/d"], members["e"], members["f"] changed.');
  assert.deepEqual(
    parts.filter(({ part }) => part !== 'members["a"].outputs'),
    [
      { part: 'members["b"]', before: output("TWO"), after: output("ZWEI") },
      { part: 'members["c/d"]', before: output("three"), after: undefined },
      { part: 'members["e"]', before: undefined, after: output("FOUR") },
      { part: 'members["f"]', before: undefined, after: output("FIVE") },
    ],
    "`a` comes out the same, of something else",
  );
  assert.equal((await why("x", await here.succeed(docs()))).ran, false);
  state["b"] = { text: "bad", kind: "x" };
  const third = await here.build(docs(true));
  assert.deepEqual(
    (await why("x", third)).parts.map(({ part, before, after }) => [part, before, after]),
    [
      ['members["b"]', output("ZWEI"), undefined],
      ["members.failed", 0, 1],
    ],
  );
});

function output(text: string): string {
  return valueHash(JSON.stringify({ text, kind: "x" })).slice(0, 17);
}

test("a constant estimate, or one that reads nothing, is an upper bound from the first plan on", async () => {
  const costs = pipeline("costs")
    .source(items(() => ["a", "b", "c"], { id: String }))
    .stage("free", { estimate: {} }, ({ input }) => input)
    .stage("constant", { estimate: { usd: 0.04, tokens: 5 } }, ({ input }) => input)
    .stage("function", { estimate: () => ({ usd: 0.01 }) }, ({ input }) => input)
    .stage("looks", { estimate: ({ input }) => ({ usd: input.length }) }, ({ input }) => input)
    .gather("all", { estimate: { usd: 1 } }, () => ["x", "y"])
    .expand("split", {}, ({ input }) => input.map((id) => ({ id, value: id })))
    .stage("each", { estimate: { usd: 2 } }, ({ input }) => input);
  await using hf = await open(":memory:");
  const { stages, ...first } = await hf.builds.plan(costs);
  assert.deepEqual(stages, {
    free: { run: 3, cached: 0, unknown: 0, estimate: { usd: 0, tokens: 0 }, upperBound: true },
    constant: { run: 0, cached: 0, unknown: 3, estimate: { usd: 0.12, tokens: 15 }, upperBound: true },
    function: { run: 0, cached: 0, unknown: 3, estimate: { usd: 0.03, tokens: 0 }, upperBound: true },
    looks: { run: 0, cached: 0, unknown: 3, estimate: {}, incomplete: true },
    all: { run: 0, cached: 0, unknown: 1, estimate: { usd: 1, tokens: 0 }, upperBound: true },
    split: { run: 0, cached: 0, unknown: 1, estimate: {}, incomplete: true },
    // It is not known how many there will be.
    each: { run: 0, cached: 0, unknown: 1, estimate: {}, incomplete: true },
  });
  assert.deepEqual(first, { removed: 0, estimate: { usd: 1.15, tokens: 15 }, incomplete: true, warnings: [] });

  const bound = pipeline("bound")
    .source(items(() => ["a", "b"], { id: String }))
    .stage("one", { estimate: { usd: 0.5 } }, ({ input, cost }) => (cost({ usd: 0.25 }), input))
    .stage("two", { estimate: { usd: 1 } }, ({ input }) => input);
  const { estimate, upperBound, incomplete } = await hf.builds.plan(bound);
  assert.deepEqual([estimate, upperBound, incomplete], [{ usd: 3, tokens: 0 }, true, undefined]);
  const paused = await (await hf.builds.start(bound, { budget: { usd: 0.6 }, concurrency: 1 })).done();
  assert.deepEqual([paused.state, paused.spent.usd], ["BUDGET_PAUSE", 0.25], "the constant is what is reserved");
});

test("an invalid constant estimate is rejected where it is given", async () => {
  const source = pipeline("costs").source(items(() => ["a"], { id: String }));
  const wrong = { usd: -1 };
  assert.throws(() => source.stage("say", { estimate: wrong }, () => 1), refusal("COST_INVALID", /stage "say".usd must be/));
});
