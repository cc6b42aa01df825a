import { buildById } from "../../src/store/builds.ts";
import assert from "node:assert/strict";
import { rmSync } from "node:fs";
import { files, items, NonRetryableError, pipeline, type Pipeline, RetryAfterError } from "../../src/index.ts";
import { counts, ONCE, outputsOf, refusal, test, yard } from "./parts.ts";

const WRONG_ESTIMATES: [what: string, estimate: () => unknown, says: RegExp][] = [
  ["is negative", () => ({ usd: -1 }), /estimate of stage "say".usd must be a number .* got -1/],
  ["is not a number", () => ({ tokens: Number.NaN }), /estimate of stage "say".tokens must be a number .* got NaN/],
  ["is a text", () => ({ usd: "1" }), /estimate of stage "say".usd must be a number .* got "1"/],
  ["is no object", () => 5, /estimate of stage "say" must be an object, got 5/],
  ["is a promise", async () => ({ usd: 5 }), /estimate of stage "say" is a promise/],
  ["throws", () => JSON.parse("{"), /`estimate` of stage "say" threw/],
];

test("a target that fails after its retries stops, others continue, and the next build runs only it", async (t) => {
  const here = await yard(t);
  const state = { bad: "b" };
  const docs = () =>
    pipeline("docs")
      .source(items(() => ["a", "b", "c"], { id: (id) => id }))
      .stage("first", {}, ({ input }) => (here.ran.push(`first ${input}`), input))
      .stage("second", { retry: { attempts: 3, delay: 1 } }, ({ input }) => {
        here.ran.push(`second ${input}`);
        if (input === state.bad) throw new Error(`${input} is bad`);
        return input;
      })
      .stage("third", {}, ({ input }) => (here.ran.push(`third ${input}`), input));
  const built = await here.build(docs());
  assert.deepEqual([built.state, built.reason], ["FAILED", "targets_failed"]);
  assert.deepEqual(built.errors, [{ stage: "second", target: "b", message: "b is bad" }]);
  assert.equal(here.taken().filter((one) => one === "second b").length, 3);
  assert.deepEqual(
    [counts(built, "second"), counts(built, "third")],
    [
      [2, 0, 1, 0],
      [2, 0, 0, 0],
    ],
  );
  assert.deepEqual(await outputsOf(built, "second"), { a: "a", c: "c" });
  await assert.rejects(built.handle.output("second", "b"), refusal("TARGET_FAILED", /b is bad/));
  state.bad = "";
  const next = await here.succeed(docs());
  assert.deepEqual(here.taken(), ["second b", "third b"]);
  assert.deepEqual(next.errors, []);
  assert.match((await here.hf.builds.why(next.id, "second", "b")).reason, /the last attempt failed/);
});

test("an error may exclude a retry, or ask for a later one without counting an attempt", async (t) => {
  const here = await yard(t);
  const built = await here.build(
    pipeline("docs")
      .source(items(() => ["late", "never"], { id: (id) => id }))
      .stage("say", { retry: { attempts: 5, delay: 1 } }, ({ input, attempt }) => {
        here.ran.push(input);
        if (input === "never") throw new NonRetryableError("no");
        if (here.ran.filter((one) => one === "late").length < 3) throw new RetryAfterError(1);
        return attempt;
      }),
  );
  assert.deepEqual(here.taken(), ["late", "late", "late", "never"]);
  assert.equal(built.errors.length, 1);
  assert.deepEqual(await outputsOf(built, "say"), { late: 1 });
});

test("past `maxFailures` nothing new starts, and the rest is left to the next build", async (t) => {
  const here = await yard(t);
  const docs = pipeline("docs", { maxFailures: 2 })
    .source(items(() => Array.from({ length: 50 }, (_, n) => n), { id: (n) => `n${String(n).padStart(2, "0")}` }))
    .stage("say", ONCE, ({ input }) => {
      here.ran.push(String(input));
      throw new Error("bad");
    });
  const built = await here.build(docs, { concurrency: 1 });
  assert.deepEqual([built.state, built.reason], ["FAILED", "targets_failed"]);
  assert.ok(here.ran.length >= 3 && here.ran.length < 50, `${here.ran.length} ran`);
  assert.equal(built.errors.length, here.ran.length);
  here.taken();
  const all = await here.build(docs, { maxFailures: 1_000 });
  assert.equal(here.taken().length, 50);
  assert.equal(all.errors.length, 20, "the first are shown");
  assert.deepEqual(counts(all, "say"), [0, 0, 50, 0]);
});

test("a missing root fails the build, and no target counts as removed", async (t) => {
  const here = await yard(t);
  const removed: string[] = [];
  const docs = pipeline("docs")
    .source(files("**/*", { root: here.root }))
    .stage(
      "say",
      { remove: ({ target }) => void removed.push(target.id) },
      ({ target }) => (here.ran.push(target.id), target.size),
    );
  here.write({ a: "1", b: "22" });
  await here.succeed(docs);
  here.taken();
  rmSync(here.root, { recursive: true });
  const built = await here.build(docs);
  assert.deepEqual([built.state, built.reason], ["FAILED", "source_failed"]);
  assert.equal(built.errors.length, 1);
  assert.match(built.errors[0]?.message ?? "", /docs/);
  here.write({ a: "1", b: "22" });
  await here.succeed(docs);
  assert.deepEqual([here.taken(), removed], [[], []], "all that was made is still there");
});

test("an interrupted list is continued, and if that fails no target counts as removed", async (t) => {
  const here = await yard(t);
  const removed: string[] = [];
  const state = { breaks: false, listed: 0 };
  const docs = pipeline("docs")
    .source(
      items(
        function* () {
          state.listed++;
          yield "a";
          if (state.breaks) throw new Error("the line is dead");
          yield "b";
        },
        { id: (id) => id },
      ),
    )
    .stage("say", { remove: ({ target }) => void removed.push(target.id) }, ({ input }) => input);
  await here.succeed(docs);
  state.breaks = true;
  const ended = here.build(docs);
  const built = await ended;
  assert.deepEqual([built.state, built.reason], ["FAILED", "source_failed"]);
  assert.match(built.errors[0]?.message ?? "", /the line is dead/);
  assert.equal(state.listed, 4, "three attempts");
  assert.deepEqual(removed, []);
});

test("missing targets are removed once, with the outputs of their stages, in the build that notices it", async (t) => {
  const here = await yard(t);
  const removed: unknown[] = [];
  const keys = new Set<string>();
  const remove =
    (stage: string) =>
    ({ target, output, idempotencyKey }: { target: { id: string }; output: unknown; idempotencyKey: string }): void => {
      removed.push([stage, target.id, output]);
      keys.add(idempotencyKey);
    };
  const docs = pipeline("docs")
    .source(files("**/*", { root: here.root }))
    .stage("size", { remove: remove("size") }, ({ target }) => target.size)
    .stage("plain", {}, ({ input }) => input)
    .stage("double", { remove: remove("double") }, ({ input }) => input * 2);
  here.write({ a: "1", b: "22", c: "333" });
  await here.succeed(docs);
  here.remove("a", "c");
  assert.equal((await here.hf.builds.plan(docs)).removed, 2);
  const built = await here.succeed(docs);
  assert.deepEqual(removed.sort(), [
    ["double", "a", 2],
    ["double", "c", 6],
    ["size", "a", 1],
    ["size", "c", 3],
  ]);
  assert.equal(keys.size, 4);
  assert.deepEqual(await outputsOf(built, "double"), { b: 4 });
  await here.succeed(docs);
  assert.equal(removed.length, 4);
  assert.equal((await here.hf.builds.plan(docs)).removed, 0);
});

test("a failed removal is retried by the next build, and the target is kept until then", async (t) => {
  const here = await yard(t);
  const state = { fails: true };
  const docs = pipeline("docs")
    .source(files("**/*", { root: here.root }))
    .stage(
      "size",
      {
        ...ONCE,
        remove: ({ target }) => {
          here.ran.push(`remove ${target.id}`);
          if (state.fails) throw new Error("the index is away");
        },
      },
      ({ target }) => target.size,
    );
  here.write({ a: "1", b: "22" });
  await here.succeed(docs);
  here.remove("a");
  const built = await here.build(docs);
  assert.deepEqual([built.state, built.reason], ["FAILED", "targets_failed"]);
  assert.match(built.errors[0]?.message ?? "", /the index is away/);
  state.fails = false;
  await here.succeed(docs);
  assert.deepEqual(here.taken(), ["remove a", "remove a"]);
  await here.succeed(docs);
  assert.deepEqual(here.taken(), []);
});

test("a target that returns runs again if its removal requires it, else is reused", async (t) => {
  const here = await yard(t);
  const docs = pipeline("docs")
    .source(files("**/*", { root: here.root }))
    .stage("size", { remove: () => {} }, ({ target }) => (here.ran.push(target.id), target.size));
  here.write({ a: "1", b: "22" });
  await here.succeed(docs);
  here.remove("a");
  await here.succeed(docs);
  here.write({ a: "1" });
  here.taken();
  const built = await here.succeed(docs);
  assert.deepEqual(await outputsOf(built, "size"), { a: 1, b: 2 });
  assert.deepEqual(here.taken(), ["a"], "what was removed outside has to be made again");
});

test("a repeated effect of a stage with `remove` has a new idempotency key, the same in each attempt", async (t) => {
  const here = await yard(t);
  const keys: string[] = [];
  const docs = pipeline("docs")
    .source(files("**/*", { root: here.root }))
    .stage("size", { retry: { attempts: 2, delay: 1 }, remove: () => {} }, ({ target, attempt, idempotencyKey }) => {
      keys.push(idempotencyKey);
      if (attempt === 1) throw new Error("once more");
      return target.size;
    });
  for (const text of ["1", "22", "1", null, "1"]) {
    if (text === null) here.remove("a");
    else here.write({ a: text });
    await here.succeed(docs);
  }
  assert.equal(keys.length, 8);
  for (const at of [0, 2, 4, 6]) assert.equal(keys[at], keys[at + 1], "the same work");
  assert.equal(new Set(keys).size, 4);
});

test("an output that is not JSON fails its target at once, with the place", async (t) => {
  const here = await yard(t);
  const built = await here.build(
    pipeline("docs")
      .source(items(() => ["map", "bigint", "date", "fine"], { id: (id) => id }))
      .stage("say", {}, ({ input }) => {
        here.ran.push(input);
        return { map: new Map(), bigint: 1n, date: { at: new Date() }, fine: 1 }[input as "fine"];
      }),
  );
  assert.deepEqual(here.taken(), ["bigint", "date", "fine", "map"], "a value that cannot be kept is not retried");
  assert.deepEqual(built.errors.map(({ message }) => message).sort(), [
    'The output of stage "say" for target "bigint" is a bigint, which JSON cannot represent exactly.',
    'The output of stage "say" for target "map" is a Map, which JSON cannot represent exactly.',
    '`at` in the output of stage "say" for target "date" is a Date, which JSON cannot represent exactly.',
  ]);
});

test("nothing of an output that is not JSON is kept, except the cost of its attempt", async (t) => {
  const here = await yard(t);
  let kept = "";
  const built = await here.build(
    pipeline("docs", { budget: { usd: 9 } })
      .source(items(() => ["a"], { id: (id) => id }))
      .stage("make", { estimate: () => ({ usd: 3 }) }, async ({ cost, artifact, checkpoint }) => {
        cost({ usd: 2, tokens: 7 });
        kept = (await artifact("page.html", "<p>")).hash;
        await checkpoint.save({ half: "done" });
        return { pages: [{ at: 1 }, { at: new Date() }] };
      })
      .stage("more", {}, () => void here.ran.push("more")),
  );
  assert.deepEqual([built.state, built.reason], ["FAILED", "targets_failed"]);
  assert.equal(
    built.errors[0]?.message,
    '`pages[1].at` in the output of stage "make" for target "a" is a Date, which JSON cannot represent exactly.',
  );
  assert.deepEqual(built.spent, { usd: 2, tokens: 7 });
  assert.deepEqual([here.ran, counts(built, "make"), counts(built, "more")], [[], [0, 0, 1, 0], [0, 0, 0, 0]]);
  const { work, builds } = here.hf.engine.store;
  assert.deepEqual((await buildById(builds, built.id))?.reserved, { micros: 0, tokens: 0 });
  assert.deepEqual(await work.artifacts({ build: built.id }), []);
  assert.deepEqual(await work.referenced([kept]), new Set(), "the sweep may take it");
  assert.deepEqual(await work.results({ build: built.id, stage: "make", limit: 10 }), []);
});

for (const [what, estimate, says] of WRONG_ESTIMATES) {
  test(`an estimate that ${what} is rejected before there is a build, as by a plan, and nothing changes`, async (t) => {
    const here = await yard(t);
    here.write({ "a.txt": "one", "b.txt": "two" });
    const { store } = here.hf.engine;
    const seen = async () => [
      await here.hf.builds.list(),
      await store.audit.page({ after: 0, limit: 10 }),
      (await store.queries.overview()).queues,
    ];
    const before = await seen();
    for (const source of [items(() => ["a", "b"], { id: (id) => id }), files("*.txt", { root: here.root })]) {
      const docs = pipeline("docs")
        .source(source as never)
        .stage("say", { estimate: estimate as never }, () => void here.ran.push("say"));
      await assert.rejects(here.hf.builds.plan(docs), refusal("COST_INVALID", says));
      await assert.rejects(here.hf.builds.start(docs), refusal("COST_INVALID", says));
    }
    assert.deepEqual(here.ran, []);
    assert.deepEqual(await seen(), before);
    assert.deepEqual(await store.events.page({ after: 0, limit: 10 }), []);
  });
}

test("an estimate of a later stage that is always wrong is rejected before there is a build", async (t) => {
  const here = await yard(t);
  const source = items(() => ["a", "b"], { id: (id) => id });
  const docs = (usd: number) =>
    pipeline("docs")
      .source(source)
      .stage("read", {}, () => void here.ran.push("read"))
      .stage("say", { estimate: () => ({ usd }) }, () => void here.ran.push("say"));
  for (const act of ["plan", "start"] as const) {
    await assert.rejects(
      here.hf.builds[act](docs(-1)),
      refusal("COST_INVALID", /estimate of stage "say".usd must be a number .* got -1/),
    );
  }
  assert.deepEqual((await here.hf.builds.list()).items, []);
  await (await here.hf.builds.start(docs(1))).done();
  assert.deepEqual(here.ran, ["read", "read", "say", "say"]);
  await assert.rejects(here.hf.builds.start(docs(-1)), refusal("COST_INVALID"), "not even where all of it could be reused");
});

test("a wrong estimate for a later target or stage fails that one at once, and nothing runs or is spent", async (t) => {
  const here = await yard(t);
  const ids = [...Array.from({ length: 30 }, (_, n) => `n${10 + n}`), "negative", "throws"];
  const built = await here.build(
    pipeline("docs", { budget: { usd: 100 } })
      .source(items(() => ids, { id: (id) => id }))
      .stage(
        "say",
        {
          estimate: ({ input }) => {
            if (input === "throws") throw new Error("who knows");
            return { usd: input === "negative" ? -1 : 1 };
          },
        },
        ({ input, cost }) => (here.ran.push(input), cost({ usd: 1 }), input),
      )
      .stage("echo", { estimate: ({ input }) => ({ usd: input === "n12" ? Number.NaN : 0 }) }, ({ input }) => input),
  );
  assert.equal(here.ran.length, 30);
  assert.deepEqual(built.errors.map(({ stage, target }) => `${stage} ${target}`).sort(), [
    "echo n12",
    "say negative",
    "say throws",
  ]);
  assert.match(built.errors.map(({ message }) => message).join(), /who knows/);
  assert.deepEqual(built.spent, { usd: 30, tokens: 0 });
});

test("a failing listing fails its build, and not its start, also with estimates", async (t) => {
  const here = await yard(t);
  const broken = pipeline("broken")
    .source(items((): string[] => ["a", 7 as never], { id: (id) => id }))
    .stage("say", { estimate: () => ({ usd: 1 }) }, ({ input }) => input);
  assert.equal((await here.build(broken)).reason, "source_failed");
});

test("an invalid cost is an error of its handler", async (t) => {
  const here = await yard(t);
  const built = await here.build(
    pipeline("docs")
      .source(items(() => ["a"], { id: (id) => id }))
      .stage("say", ONCE, ({ cost }) => cost({ usd: -1 })),
  );
  assert.match(built.errors[0]?.message ?? "", /cost of stage "say"/);
});

test("invalid ids of items, and different items with one id, are reported", async (t) => {
  const here = await yard(t);
  const built = await here.build(numbered(["a", 7]));
  assert.deepEqual([built.state, built.reason], ["FAILED", "source_failed"]);
  assert.match(built.errors[0]?.message ?? "", /id/);
  const twice = await here.build(numbered(["a", "b", "a"]));
  assert.equal(twice.reason, "source_failed");
  assert.match(twice.errors[0]?.message ?? "", /Two different items have the id "a"/);
});

function numbered(ids: unknown[]): Pipeline {
  return pipeline("docs")
    .source(items(() => ids.map((id, n) => ({ id, n })), { id: ({ id }) => id as string }))
    .stage("say", {}, ({ input }) => input.n);
}
