import assert from "node:assert/strict";
import { files, items, pipeline } from "../../src/index.ts";
import { counts, outputsOf, refusal, test, yard } from "./parts.ts";

interface Mail {
  id: string;
  at: string;
  text: string;
}

test("an item with `version` changes only with its version", async (t) => {
  const here = await yard(t);
  const state = { mails: [mail("a", "1", "one"), mail("b", "1", "two")] };
  const docs = pipeline("mails")
    .source(items(() => state.mails, { id: ({ id }) => id, version: ({ at }) => at }))
    .stage("read", {}, ({ input }) => (here.ran.push(input.id), input.text));
  await here.succeed(docs);
  assert.deepEqual(here.taken(), ["a", "b"]);
  state.mails = [mail("a", "1", "other words"), mail("b", "2", "three")];
  assert.deepEqual(await outputsOf(await here.succeed(docs), "read"), { a: "one", b: "three" });
  assert.deepEqual(here.taken(), ["b"]);
});

test("an item without a version changes with its content, whatever the order of properties", async (t) => {
  const here = await yard(t);
  const state: { things: object[] } = { things: [{ id: "a", x: 1, y: undefined }] };
  const docs = pipeline("things")
    .source(items(() => state.things, { id: (one) => (one as { id: string }).id }))
    .stage("read", {}, ({ input }) => (here.ran.push(JSON.stringify(input)), input));
  await here.succeed(docs);
  state.things = [{ x: 1, id: "a" }];
  await here.succeed(docs);
  assert.equal(here.taken().length, 1);
  state.things = [{ x: 2, id: "a" }];
  await here.succeed(docs);
  assert.equal(here.taken().length, 1);
});

test("an interrupted list continues after the last stored item", async (t) => {
  const here = await yard(t);
  const asked: (string | undefined)[] = [];
  const docs = pipeline("mails")
    .source(
      items(
        function* (cursor) {
          asked.push(cursor);
          const from = cursor === undefined ? 0 : Number(cursor) + 1;
          for (let n = from; n < 1_200; n++) {
            if (n === 700 && asked.length === 1) throw new Error("the line is dead");
            yield n;
          }
        },
        { id: (n) => `n${n}`, cursor: String },
      ),
    )
    .stage("read", {}, ({ input }) => input);
  const built = await here.succeed(docs);
  assert.deepEqual(asked, [undefined, "499"]);
  assert.deepEqual(counts(built, "read"), [1_200, 0, 0, 0]);
});

test("asynchronous, large and thousands of items are all listed", async (t) => {
  const here = await yard(t);
  const large = "x".repeat(100_000);
  const docs = pipeline("many")
    .source(
      items(
        async function* () {
          yield { id: "large", text: large };
          for (let n = 0; n < 1_100; n++) yield { id: `n${n}`, text: String(n) };
        },
        { id: ({ id }) => id },
      ),
    )
    .stage("size", {}, ({ input }) => input.text.length);
  const built = await here.succeed(docs, { concurrency: 16 });
  assert.deepEqual(counts(built, "size"), [1_101, 0, 0, 0]);
  assert.equal(await built.handle.output("size", "large"), 100_000);
  assert.deepEqual(counts(await here.succeed(docs), "size"), [0, 1_101, 0, 0]);
});

test("a build stopped or abandoned in its listing leaves it at once, and closes its iterator", async (t) => {
  const here = await yard(t);
  const state = { told: 0, cursors: [] as (string | undefined)[], end: Number.POSITIVE_INFINITY };
  let listed = Promise.withResolvers<void>();
  const docs = pipeline("endless")
    .source(
      items(
        async function* (cursor) {
          state.cursors.push(cursor);
          try {
            for (let n = cursor === undefined ? 0 : Number(cursor) + 1; n < state.end; n++) {
              if (n % 1_000 === 999) listed.resolve();
              yield n;
            }
          } finally {
            state.told++;
          }
        },
        { id: (n) => `n${n}`, cursor: String },
      ),
    )
    .stage("read", { match: "n1" }, ({ input }) => input);
  const since = performance.now();
  const handle = await here.hf.builds.start(docs);
  await listed.promise;
  const left = await handle.stop();
  assert.deepEqual([left.state, left.reason, state.told], ["CRASHED", "stopped", 1]);
  listed = Promise.withResolvers();
  const again = await here.hf.builds.resume(docs, handle.id);
  await listed.promise;
  await here.hf.builds.abandon(again.id, "it never ends");
  assert.equal((await again.done()).state, "ABANDONED");
  assert.equal(state.told, 2);
  assert.ok(Number(state.cursors[1]) >= 499, "it went on where it was");
  assert.ok(performance.now() - since < 8_000, "no caller waited for it");
  state.end = 1_500;
  assert.deepEqual(counts(await here.succeed(docs), "read"), [0, 1, 0, 0]);
});

test("two different items with one id fail the build, and a plan, before either is processed", async (t) => {
  const here = await yard(t);
  const state = { mails: [mail("a", "1", "one"), mail("b", "1", "two"), mail("a", "1", "other words")] };
  const docs = pipeline("mails")
    .source(items(() => state.mails, { id: ({ id }) => id }))
    .stage("read", {}, ({ input }) => (here.ran.push(input.id), input.text));
  const built = await here.build(docs);
  assert.deepEqual([built.state, built.reason], ["FAILED", "source_failed"]);
  assert.match(built.errors[0]?.message ?? "", /Two different items have the id "a"/);
  assert.deepEqual(here.taken(), []);
  await assert.rejects(here.hf.builds.plan(docs), refusal("TARGET_TWICE"));
  state.mails = [mail("a", "1", "one"), mail("b", "1", "two"), mail("a", "1", "one")];
  assert.deepEqual(await outputsOf(await here.succeed(docs), "read"), { a: "one", b: "two" });
  assert.deepEqual(here.taken(), ["a", "b"]);
});

test("a continued listing may meet an id again that changed since", async (t) => {
  const here = await yard(t);
  let listings = 0;
  const docs = pipeline("mails")
    .source(
      items(
        function* (cursor) {
          listings++;
          for (let n = cursor === undefined ? 0 : Number(cursor) + 1; n < 600; n++) {
            if (n === 550 && listings === 1) throw new Error("the line is dead");
            yield { id: `n${n}`, at: n, text: "old" };
          }
          if (listings > 1) yield { id: "n0", at: 600, text: "new" };
        },
        { id: ({ id }) => id, cursor: ({ at }) => String(at) },
      ),
    )
    .stage("read", { match: "n0" }, ({ input }) => input.text);
  const built = await here.succeed(docs);
  assert.deepEqual(await outputsOf(built, "read"), { n0: "new" });
});

test("a continued listing of files finds and removes files that disappeared since they were stored", async (t) => {
  const here = await yard(t);
  const outside = new Set<string>();
  const state: { leaving: AbortController | null } = { leaving: null };
  const docs = pipeline("docs")
    .source(files("*", { root: here.root }))
    .stage(
      "put",
      {
        match: "{f000*,f0999,f1050}",
        key: ({ target }) => {
          if (target.id === "f0999") state.leaving?.abort();
          return 1;
        },
        remove: ({ target }) => void outside.delete(target.id),
      },
      async ({ target }) => (outside.add(target.id), new TextDecoder().decode(await target.bytes())),
    )
    .gather("all", {}, async ({ inputs }) => {
      const ids: string[] = [];
      for await (const { target } of inputs) ids.push(target.id);
      return ids;
    });
  const all = Array.from({ length: 1_100 }, (_, n) => `f${String(n).padStart(4, "0")}`);
  here.write(Object.fromEntries(all.map((id) => [id, id])));
  await here.succeed(docs);

  // The second batch has one that is looked at closely; then the listing is left, with two batches of three written down.
  here.write({ f0002: "changed", f0999: "changed" });
  state.leaving = new AbortController();
  const left = await here.build(docs, { signal: state.leaving.signal });
  assert.deepEqual([left.state, left.reason], ["CRASHED", "stopped"]);
  const gone = ["f0001", "f0002", "f0003", "f0600", "f0999", "f1050"];
  here.remove(...gone);
  const handle = await here.hf.builds.resume(docs, left.id);
  assert.equal((await handle.done()).state, "SUCCESS");
  const there = all.filter((id) => !gone.includes(id));
  assert.deepEqual(await handle.output("all"), there);
  assert.deepEqual(
    [...outside].sort(),
    there.filter((id) => id.startsWith("f000")),
  );
  assert.equal((await here.hf.builds.plan(docs)).removed, 0);
});

test("a continued list without a cursor removes items that do not come again, with their children", async (t) => {
  const here = await yard(t);
  const outside = new Set<string>();
  const leaving = new AbortController();
  const said = Promise.withResolvers<void>();
  const many = new Set(["n1", "n2", "n3"]);
  let ids = Array.from({ length: 510 }, (_, n) => `n${n}`);
  let listings = 0;
  const docs = pipeline("docs")
    .source(
      items(
        async function* () {
          listings++;
          yield* ids;
          if (listings > 1) return;
          await said.promise;
          leaving.abort();
          for (;;) yield "n509";
        },
        { id: (id) => id },
      ),
    )
    .expand("split", {}, ({ input }) => (many.has(input) ? ["x", "y"] : []).map((id) => ({ id, value: `${input} ${id}` })))
    .stage("say", { remove: ({ output }) => void outside.delete(output as string) }, ({ input }) => {
      outside.add(input);
      said.resolve();
      return input;
    })
    .gather("all", {}, async ({ inputs }) => {
      const outputs: string[] = [];
      for await (const { output } of inputs) outputs.push(output);
      return outputs;
    });
  const left = await here.build(docs, { signal: leaving.signal });
  assert.deepEqual([left.state, left.reason], ["CRASHED", "stopped"]);
  assert.ok(outside.size > 0, "something was made");
  const gone = new Set([...outside].map((output) => output.split(" ")[0]));
  ids = ids.filter((id) => !gone.has(id) && id !== "n2");
  const handle = await here.hf.builds.resume(docs, left.id);
  assert.equal((await handle.done()).state, "SUCCESS");
  const there = ["n1", "n3"].flatMap((id) => (gone.has(id) ? [] : [`${id} x`, `${id} y`]));
  assert.deepEqual(await handle.output("all"), there);
  assert.deepEqual([...outside].sort(), there);
  assert.equal(listings, 2);
  await here.succeed(docs);
  assert.equal((await here.hf.builds.plan(docs)).removed, 0);
});

for (const kind of ["files", "items"] as const) {
  test(`a mistyped id in \`only\` of ${kind} fails the build before anything is worked on, and says what may be meant`, async (t) => {
    const here = await yard(t);
    const ids = ["notes/bowline.md", "notes/reef-knot.md", "src/a[1].ts", "src/b.ts"];
    here.write(Object.fromEntries(ids.map((id) => [id, id])));
    const source = kind === "files" ? files("**", { root: here.root }) : items(() => ids, { id: (id) => id });
    const docs = pipeline("docs")
      .source(source as ReturnType<typeof items<string>>)
      .stage("words", {}, ({ target }) => (here.ran.push(target.id), target.id));
    const said = async (only: string[]): Promise<string> => {
      const built = await here.build(docs, { only });
      assert.deepEqual([built.state, built.reason], ["FAILED", "source_failed"]);
      assert.deepEqual(here.taken(), []);
      await assert.rejects(here.hf.builds.plan(docs, { only }), refusal("TARGET_UNKNOWN"));
      return built.errors[0]?.message ?? "";
    };
    assert.equal(
      await said(["notes/bowlin.md", "src/b.ts"]),
      '"notes/bowlin.md" in `only` is no target and no stage of this pipeline, so nothing was done. Did you mean "notes/bowline.md"?',
    );
    assert.match(await said(["reef-knot.md"]), /Did you mean "notes\/reef-knot\.md"\?$/);
    assert.match(await said(["wrods"]), /Did you mean "words"\?$/);
    assert.match(await said(["docs/**", "nothing like it"]), /^"docs\/\*\*", "nothing like it" in `only` are no targets/);
    await here.succeed(docs, { only: ["src/a[1].ts", "notes"] });
    assert.deepEqual(here.taken(), ["notes/bowline.md", "notes/reef-knot.md", "src/a[1].ts"]);
    await assert.rejects(here.hf.builds.start(docs, { only: ["src/[a"] }), refusal("OPTION_INVALID", /`only`/));
  });
}

test("targets named by `only` are processed when the last of them is found, however far apart they are", async (t) => {
  const here = await yard(t);
  const docs = pipeline("many")
    .source(items(() => Array.from({ length: 2_500 }, (_, n) => n), { id: (n) => `n${n}`, cursor: String }))
    .stage("same", {}, ({ input }) => input);
  const built = await here.succeed(docs, { only: ["n1*", "n2400"] });
  assert.deepEqual(counts(built, "same"), [1_112, 0, 0, 0]);
});

function mail(id: string, at: string, text: string): Mail {
  return { id, at, text };
}
