import assert from "node:assert/strict";
import { type Build, items, pipeline, type Pipeline } from "../../src/index.ts";
import { counts, ONCE, test, type Yard, yard } from "./parts.ts";

/** Starts a build, and stops it once `isReady`: what the gate holds ends then. */
async function interrupted(here: Yard, made: Pipeline, gate: Gate): Promise<Build> {
  const handle = await here.hf.builds.start(made, { concurrency: 8 });
  await gate.reached;
  const stopping = handle.stop();
  gate.open();
  const build = await stopping;
  assert.deepEqual([build.state, build.reason], ["CRASHED", "stopped"]);
  return build;
}

async function resumed(here: Yard, made: Pipeline, { id }: Build): Promise<Build> {
  const handle = await here.hf.builds.resume(made, id, { concurrency: 8 });
  return handle.done();
}

/** Keeps a handler waiting, and tells when it does. */
class Gate {
  readonly #reached = Promise.withResolvers<void>();
  readonly #opened = Promise.withResolvers<void>();
  readonly reached = this.#reached.promise;
  open = (): void => this.#opened.resolve();
  pass(): Promise<void> {
    this.#reached.resolve();
    return this.#opened.promise;
  }
}

test("a resumed build runs its failed targets again, and nothing else", async (t) => {
  const here = await yard(t);
  const state = { bad: ["b"], gate: new Gate() };
  const docs = pipeline("docs")
    .source(items(() => ["a", "b", "c", "last"], { id: (id) => id }))
    .stage("first", {}, ({ input }) => (here.ran.push(`first ${input}`), input))
    .stage("second", { ...ONCE, estimate: () => ({ usd: 1 }) }, async ({ input, cost }) => {
      here.ran.push(`second ${input}`);
      cost({ usd: 1 });
      if (input === "last") {
        while (here.ran.filter((one) => one.startsWith("second")).length < 4) await new Promise(setImmediate);
        await state.gate.pass();
      }
      if (state.bad.includes(input)) throw new Error(`${input} is bad`);
      return input;
    })
    .stage("third", {}, ({ input }) => (here.ran.push(`third ${input}`), input));
  const stopped = await interrupted(here, docs, state.gate);
  assert.deepEqual([counts(stopped, "second")[2], stopped.errors.length], [1, 1]);
  here.taken();
  state.bad = [];
  const built = await resumed(here, docs, stopped);
  assert.equal(built.state, "SUCCESS", built.reason);
  const again = here.taken().filter((one) => !one.startsWith("third"));
  assert.deepEqual(again, ["second b"]);
  assert.deepEqual(
    ["first", "second", "third"].map((stage) => counts(built, stage)),
    Array.from({ length: 3 }, () => [4, 0, 0, 0]),
  );
  assert.deepEqual([built.spent.usd, built.errors], [5, []], "both attempts at b were paid for");
});

test("a target that fails again after the resume counts once, and `maxFailures` counts from the resume", async (t) => {
  const here = await yard(t);
  const state = { bad: ["a", "b"], gate: new Gate() };
  const docs = pipeline("docs", { maxFailures: 3 })
    .source(items(() => ["a", "b", "last", "x", "y", "z"], { id: (id) => id }))
    .stage("say", ONCE, async ({ input }) => {
      here.ran.push(input);
      if (input === "last") await state.gate.pass();
      if (state.bad.includes(input)) throw new Error("bad");
      return input;
    });
  const handle = await here.hf.builds.start(docs, { concurrency: 1 });
  await state.gate.reached;
  const stopping = handle.stop();
  state.gate.open();
  const stopped = await stopping;
  assert.deepEqual([stopped.state, ...counts(stopped, "say")], ["CRASHED", 1, 0, 2, 3]);
  state.bad = ["a", "x", "y"];
  const built = await resumed(here, docs, stopped);
  assert.deepEqual([built.state, built.reason], ["FAILED", "targets_failed"]);
  assert.deepEqual(counts(built, "say"), [3, 0, 3, 0], "with those of before the resume, the limit would have been passed");
  assert.deepEqual(built.errors.map(({ target }) => target).sort(), ["a", "x", "y"]);
});

test("failed members run again first, and a gather that ran without them runs again with them", async (t) => {
  for (const partial of [true, false]) {
    const here = await yard(t);
    const state = { bad: partial ? ["b"] : [], badGather: !partial, gate: new Gate() };
    const docs = pipeline("docs")
      .source(items(() => ["a", "b"], { id: (id) => id }))
      .stage("say", ONCE, ({ input }) => {
        here.ran.push(`say ${input}`);
        if (state.bad.includes(input)) throw new Error("bad");
        return input;
      })
      .gather(
        "all",
        { ...ONCE, partial, by: (target) => (target.id === "a" ? "x" : "y") },
        async ({ inputs, target, failed }) => {
          here.ran.push(`all ${target.id}`);
          const members: string[] = [];
          for await (const { output } of inputs) members.push(output);
          if (state.badGather) throw new Error("bad");
          return { members, failed };
        },
      )
      .stage("end", ONCE, async ({ input, target }) => {
        here.ran.push(`end ${target.id}`);
        await state.gate.pass();
        return input;
      })
      .gather("sum", { ...ONCE, partial: true }, async ({ inputs }) => {
        const groups: unknown[] = [];
        for await (const { output } of inputs) groups.push(output);
        await state.gate.pass();
        return groups;
      })
      .stage("tail", ONCE, ({ input }) => input);
    const stopped = await interrupted(here, docs, state.gate);
    here.taken();
    Object.assign(state, { bad: [], badGather: false });
    const built = await resumed(here, docs, stopped);
    assert.deepEqual([built.state, built.errors], ["SUCCESS", []], built.reason);
    const ran = here.taken();
    assert.deepEqual(
      ran.filter((one) => one.startsWith("say")),
      partial ? ["say b"] : [],
    );
    const whole = [
      { members: ["a"], failed: 0 },
      { members: ["b"], failed: 0 },
    ];
    assert.deepEqual(await here.hf.builds.output(built.id, "sum"), whole);
    for (const stage of ["say", "all", "end", "sum", "tail"]) assert.deepEqual(counts(built, stage).slice(2), [0, 0], stage);
    await here.close();
  }
});

test("failed children, expands and definition functions are retried", async (t) => {
  const here = await yard(t);
  const state = { isBad: true, gate: new Gate() };
  const isBad = (what: string, id: string): boolean => state.isBad && id === what;
  const docs = pipeline("docs")
    .source(items(() => ["by", "child", "expand", "key"], { id: (id) => id }))
    .expand("split", ONCE, ({ input }) => {
      here.ran.push(`split ${input}`);
      if (isBad("expand", input)) throw new Error("bad expand");
      return ["1", "2"].map((id) => ({ id, value: input }));
    })
    .stage(
      "say",
      {
        ...ONCE,
        key: ({ target }: { target: { id: string; parent?: { id: string } } }) => {
          if (isBad("key", target.parent?.id ?? "") && target.id === "1") throw new Error("bad key");
          return 1;
        },
      },
      ({ input, target }) => {
        here.ran.push(`say ${input} ${target.id}`);
        if (isBad("child", input) && target.id === "1") throw new Error("bad child");
        return input;
      },
    )
    .gather(
      "all",
      {
        ...ONCE,
        partial: true,
        by: (target, output) => {
          if (isBad("by", output) && target.id === "1") throw new Error("bad by");
          return output;
        },
      },
      async ({ target }) => {
        here.ran.push(`all ${target.id}`);
        await state.gate.pass();
        return target.id;
      },
    )
    .stage("end", ONCE, ({ input }) => input);
  const stopped = await interrupted(here, docs, state.gate);
  assert.deepEqual(stopped.errors.map(({ message }) => message).sort(), [
    '`by` of stage "all" threw: bad by',
    '`key` of stage "say" threw: bad key',
    "bad child",
    "bad expand",
  ]);
  here.taken();
  state.isBad = false;
  const built = await resumed(here, docs, stopped);
  assert.deepEqual([built.state, built.errors], ["SUCCESS", []], built.reason);
  const ran = here.taken().filter((one) => !one.startsWith("all"));
  assert.deepEqual(ran, ["say child 1", "say expand 1", "say expand 2", "say key 1", "split expand"]);
  assert.deepEqual(counts(built, "split"), [4, 0, 0, 0]);
  assert.deepEqual(counts(built, "say"), [8, 0, 0, 0]);
  assert.deepEqual(counts(built, "all").slice(2), [0, 0]);
});

test("a build that resumes from a budget pause runs its failed targets again", async (t) => {
  const here = await yard(t);
  const state = { bad: "n0" };
  const docs = pipeline("docs", { budget: { usd: 2 } })
    .source(items(() => [0, 1, 2, 3], { id: (n) => `n${n}` }))
    .stage("pay", { ...ONCE, estimate: () => ({ usd: 1 }) }, ({ target, cost }) => {
      here.ran.push(target.id);
      cost({ usd: 1 });
      if (target.id === state.bad) throw new Error("bad");
      return 1;
    });
  const paused = await here.build(docs, { concurrency: 1 });
  assert.deepEqual([paused.state, paused.errors.length], ["BUDGET_PAUSE", 1]);
  state.bad = "";
  const handle = await here.hf.builds.resume(docs, paused.id, { token: paused.token as string, budget: { usd: 10 } });
  const built = await handle.done();
  assert.equal(built.state, "SUCCESS", built.reason);
  assert.deepEqual([counts(built, "pay"), built.spent.usd], [[4, 0, 0, 0], 5]);
});

test("a failed removal is retried when the build is resumed", async (t) => {
  const here = await yard(t);
  const state = { ids: ["a", "gone"], isBad: true, gate: null as Gate | null };
  const docs = pipeline("docs")
    .source(items(() => state.ids, { id: (id) => id }))
    .stage(
      "send",
      {
        ...ONCE,
        remove: ({ target }) => {
          here.ran.push(`remove ${target.id}`);
          if (state.isBad) throw new Error("cannot remove");
        },
      },
      async ({ input }) => {
        if (input === "new") {
          while (!here.ran.includes("remove gone")) await new Promise(setImmediate);
          await state.gate?.pass();
        }
        return input;
      },
    )
    .stage("end", ONCE, ({ input }) => input);
  await here.succeed(docs);
  state.ids = ["a", "new"];
  state.gate = new Gate();
  const stopped = await interrupted(here, docs, state.gate);
  assert.equal(stopped.errors.length, 1, JSON.stringify(stopped.errors));
  here.taken();
  state.isBad = false;
  const built = await resumed(here, docs, stopped);
  assert.deepEqual([built.state, built.errors], ["SUCCESS", []], built.reason);
  assert.deepEqual(here.taken(), ["remove gone"]);
  await here.succeed(docs);
  assert.deepEqual(here.taken(), [], "nothing is left to remove");
});
