import assert from "node:assert/strict";
import { test } from "node:test";
import { files, NonRetryableError, pipeline } from "../../src/index.ts";
import { yard } from "./parts.ts";

type Removed = { target: { id: string; parent?: { id: string } } };

test("a child's stage has its parent at hand when it removes, and what it cannot remove is tried again by the next build", async (t) => {
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
  assert.deepEqual([failed.state, failed.errors.map(({ target }) => target)], ["FAILED", ["two"]]);
  assert.deepEqual(removed.sort(), ["read a", "say a one"]);

  broken = false;
  const mended = await here.succeed(docs);
  assert.deepEqual(removed.sort(), ["read a", "say a one", "say a two"], "and each is removed once");
  assert.equal(await mended.handle.output("all"), "THREE");
  await here.succeed(docs);
  assert.equal((await here.hf.builds.plan(docs)).removed, 0);
  assert.equal(removed.length, 3);
});
