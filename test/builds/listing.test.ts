import assert from "node:assert/strict";
import { items, pipeline } from "../../src/index.ts";
import { counts, outputsOf, test, yard } from "./parts.ts";

interface Mail {
  id: string;
  at: string;
  text: string;
}

test("an item is another one when its version is, and only then", async (t) => {
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

test("without a version an item is what is in it, in whichever order", async (t) => {
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

test("a list that breaks off goes on behind the last that was written down", async (t) => {
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

test("items that come asynchronously, large ones and thousands are all there", async (t) => {
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

test("a build that is stopped or abandoned in its listing leaves it as it is, at once, and its iterator is told", async (t) => {
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
  assert.ok(performance.now() - since < 8_000, "nobody waited for it");
  state.end = 1_500;
  assert.deepEqual(counts(await here.succeed(docs), "read"), [0, 1, 0, 0]);
});

function mail(id: string, at: string, text: string): Mail {
  return { id, at, text };
}
