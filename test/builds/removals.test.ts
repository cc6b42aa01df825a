import assert from "node:assert/strict";
import { files, items, NonRetryableError, pipeline } from "../../src/index.ts";
import { refusal, test, yard } from "./parts.ts";

type Removed = { target: { id: string; parent?: { id: string } } };

test("a child's `remove` gets its parent, and a failed removal is retried by the next build", async (t) => {
  const here = await yard(t);
  const removed: string[] = [];
  let broken = true;
  const docs = pipeline("docs")
    .source(files("**/*", { root: here.root }))
    .stage("read", { remove: ({ target }: Removed) => void removed.push(`read ${target.id}`) }, async ({ target }) =>
      new TextDecoder().decode(await target.bytes()),
    )
    .expand("split", {}, ({ input }) => input.split(" ").map((word) => ({ id: word, value: word })))
    .stage(
      "say",
      {
        remove: async ({ target }: Removed) => {
          await new Promise((resolve) => setImmediate(resolve)); // its parent's removal is done before
          if (broken && target.id === "two") throw new NonRetryableError("not now");
          removed.push(`say ${target.parent?.id} ${target.id}`);
        },
      },
      ({ input }) => input.toUpperCase(),
    )
    .gather("all", {}, async ({ inputs }) => {
      const said: string[] = [];
      for await (const { output } of inputs) said.push(output);
      return said.join(" ");
    });
  here.write({ a: "one two", b: "three" });
  await here.succeed(docs);

  here.remove("a");
  const failed = await here.build(docs);
  assert.deepEqual([failed.state, failed.errors.map(({ target }) => target)], ["FAILED", ["a/two"]]);
  assert.deepEqual(removed.sort(), ["read a", "say a one"]);

  broken = false;
  const mended = await here.succeed(docs);
  assert.deepEqual(removed.sort(), ["read a", "say a one", "say a two"], "and each is removed once");
  assert.equal(await mended.handle.output("all"), "THREE");
  await here.succeed(docs);
  assert.equal((await here.hf.builds.plan(docs)).removed, 0);
  assert.equal(removed.length, 3);
});

test("the result of a stage that no longer matches is removed before its target continues, by the next build if needed", async (t) => {
  const here = await yard(t);
  let [draft, broken] = [false, true];
  const removed: string[] = [];
  const docs = pipeline("docs")
    .source(
      items(
        () => [
          { id: "a", draft },
          { id: "b", draft: false },
        ],
        { id: ({ id }) => id },
      ),
    )
    .stage(
      "publish",
      {
        match: (_, note) => !note.draft,
        remove: async ({ target, output }) => {
          if (broken) throw new NonRetryableError("not now");
          removed.push(`${target.id} ${JSON.stringify(output)}`);
        },
      },
      ({ target }) => `page of ${target.id}`,
    )
    .stage("count", {}, ({ input }) => (typeof input === "string" ? 1 : 0))
    .gather("pages", {}, async ({ inputs }) => {
      let sum = 0;
      for await (const { output } of inputs) sum += output;
      return sum;
    });
  assert.equal(await (await here.succeed(docs)).handle.output("pages"), 2);

  draft = true;
  const failed = await here.build(docs);
  assert.deepEqual([failed.state, failed.errors[0]?.stage, failed.stages["count"]?.ran], ["FAILED", "publish", 0]);
  assert.equal((await here.hf.builds.plan(docs)).stages["publish"]?.run, 0, "a removal is no run");

  broken = false;
  // One that is stopped before anything of it has run, and abandoned by the next.
  const stop = new AbortController();
  const handle = await here.hf.builds.start(docs, { signal: stop.signal });
  stop.abort();
  await handle.done();
  const mended = await here.succeed(docs);
  assert.deepEqual(removed, ['a "page of a"']);
  assert.equal(await mended.handle.output("pages"), 1);
  await assert.rejects(mended.handle.output("publish", "a"));
  const again = await here.succeed(docs);
  assert.deepEqual([removed.length, again.stages["publish"]], [1, { ran: 0, cached: 1, failed: 0, left: 0 }]);

  draft = false;
  assert.equal(await (await here.succeed(docs)).handle.output("publish", "a"), "page of a");
});

test("a target that returns while its results are being removed is processed again afterwards", async (t) => {
  const here = await yard(t);
  const [published, indexed] = [new Set<string>(), new Set<string>()];
  const begun = Promise.withResolvers<void>();
  const held = Promise.withResolvers<void>();
  let list = ["a", "b"];
  const docs = pipeline("docs")
    .source(items(() => list, { id: (id) => id }))
    .stage("publish", { remove: ({ target }) => void published.delete(target.id) }, ({ input }) => {
      here.ran.push(`publish ${input}`);
      published.add(input);
      return input;
    })
    .stage(
      "index",
      {
        remove: async ({ target }) => {
          here.ran.push(`remove ${target.id}`);
          begun.resolve();
          await held.promise;
          indexed.delete(target.id);
        },
      },
      ({ input }) => (here.ran.push(`index ${input}`), indexed.add(input), input),
    );
  await here.succeed(docs);
  assert.deepEqual([published, indexed], [new Set(list), new Set(list)]);
  here.taken();

  // The listing fails after it has found that one is gone; when it lists again, that one is back.
  const { work } = here.hf.engine.store;
  const listed = work.listed.bind(work);
  work.listed = async (lease, batch) => {
    const fate = await listed(lease, batch);
    if (batch.gone === undefined || list.length > 1) return fate;
    await begun.promise;
    while (published.has("a")) await new Promise((resolve) => setTimeout(resolve, 1));
    list = ["a", "b", "c"];
    throw new Error("cut off");
  };
  list = ["b"];
  const handle = await here.hf.builds.start(docs);
  // What was listed after it, and is new, has gone all the way: so would it have, did it not wait.
  while (!indexed.has("c")) await new Promise((resolve) => setTimeout(resolve, 1));
  assert.deepEqual(here.taken(), ["index c", "publish c", "remove a"], "it waits");
  held.resolve();
  const built = await handle.done();
  assert.equal(built.state, "SUCCESS", JSON.stringify(built.errors));
  assert.deepEqual(here.taken(), ["index a", "publish a"]);
  assert.deepEqual([published, indexed], [new Set(list), new Set(list)]);
});

test("a missing base folder of the globs removes nothing, and fails the plan, too", async (t) => {
  const here = await yard(t);
  const removed: string[] = [];
  const docs = pipeline("docs")
    .source(files("notes/**/*.md", { root: here.root }))
    .stage("publish", { remove: ({ target }) => void removed.push(target.id) }, ({ target }) => target.id);
  here.write({ "notes/a.md": "a", "notes/b.md": "b" });
  await here.succeed(docs);

  here.remove("notes");
  const { state, errors } = await here.build(docs);
  assert.equal(state, "FAILED");
  assert.match(errors[0]?.message ?? "", /notes, does not exist/);
  await assert.rejects(here.hf.builds.plan(docs), refusal("SOURCE_MISSING"));
  assert.deepEqual(removed, []);

  here.write({ "notes/a.md": "a" });
  await here.succeed(docs);
  assert.deepEqual(removed, ["notes/b.md"]);
});

for (const [name, version] of [
  ["without a change of the stage", 1],
  ["after a change of its version", 2],
] as const)
  test(`two identical files with reuse "bytes" and remove are not run again ${name}, and the missing one is removed`, async (t) => {
    const here = await yard(t);
    const ran: string[] = [];
    const removed: string[] = [];
    const docs = (version: number) =>
      pipeline("docs")
        .source(files("**/*", { root: here.root }))
        .stage(
          "read",
          { version, reuse: "bytes", remove: ({ target }: Removed) => void removed.push(target.id) },
          ({ target }) => void ran.push(target.id),
        );
    const rounds = async (n: number): Promise<number> => {
      ran.length = 0;
      await here.succeed(docs(n));
      return ran.length;
    };
    here.write({ a: "same", b: "same" });
    assert.equal(await rounds(1), 2, "each acts outside");
    if (version !== 1) assert.equal(await rounds(version), 2);
    for (let i = 0; i < 3; i++) assert.equal(await rounds(version), 0, "nothing has changed");
    here.remove("a");
    assert.equal(await rounds(version), 0, "the other's result stays");
    assert.deepEqual(removed, ["a"]);
    assert.equal(await rounds(version), 0);
    here.remove("b");
    assert.equal(await rounds(version), 0);
    assert.deepEqual(removed, ["a", "b"]);
  });

test("a file that returns unchanged has its earlier outputs, also of stages that do not run again", async (t) => {
  const here = await yard(t);
  const docs = pipeline("docs")
    .source(files("**/*", { root: here.root }))
    .stage("read", {}, async ({ target }) => new TextDecoder().decode(await target.bytes()))
    .expand("split", {}, ({ input }) => input.split(" ").map((word) => ({ id: word, value: word })))
    .stage("say", { remove: () => {} }, ({ input }) => input.toUpperCase());
  here.write({ a: "one two", b: "three" });
  await here.succeed(docs);
  here.remove("b");
  await here.succeed(docs);

  here.write({ b: "three" });
  const { handle } = await here.succeed(docs);
  assert.deepEqual(await all(handle.outputs("read")), [
    { target: "a", output: "one two" },
    { target: "b", output: "three" },
  ]);
});

async function all<T>(iterable: AsyncIterable<T>): Promise<T[]> {
  const found: T[] = [];
  for await (const one of iterable) found.push(one);
  return found;
}
