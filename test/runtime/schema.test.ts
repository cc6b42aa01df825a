import assert from "node:assert/strict";
import { suite, test } from "node:test";
import * as v from "valibot";
import { z } from "zod";
import { job, type JobContext, type StandardSchema } from "../../src/index.ts";
import { code, memory, see, seeAll, unchecked } from "./parts.ts";

/** The same demands in both libraries: a url, and a width that is text outside and a number inside, 100 by default. */
const zodImage = z.object({ url: z.url(), width: z.string().transform(Number).default(100) });
const valibotImage = v.object({
  url: v.pipe(v.string(), v.url()),
  width: v.optional(v.pipe(v.string(), v.transform(Number)), "100"),
});
const LIBRARIES: [string, StandardSchema<{ url: string; width?: string | undefined }, { url: string; width: number }>][] = [
  ["zod", zodImage],
  ["valibot", valibotImage],
];
const url = "https://example.org/a.png";

for (const [library, schema] of LIBRARIES) {
  suite(`a schema of ${library}`, () => {
    test("enqueue rejects input that does not match, names the place, and stores nothing", async (t) => {
      const { hf } = await memory(t);
      const resize = job({ name: "resize", input: schema, run: () => null });
      for (const bad of [{ url: "no url" }, {}, null, "x", { url, width: 5 }]) {
        await assert.rejects(hf.enqueue(resize, unchecked<{ url: string }>(bad)), code("INPUT_INVALID"));
      }
      await assert.rejects(hf.enqueue(resize, { url: "no url" }), /"resize" does not fit its schema: url: /);
      await assert.rejects(hf.enqueueMany(resize, [{ url }, { url: "no url" }]), code("INPUT_INVALID"));
      assert.deepEqual(await seeAll(hf), []);
    });

    test("the input is stored as given, and the handler gets the parsed value", async (t) => {
      const { hf } = await memory(t);
      const got: unknown[] = [];
      const resize = job({ name: "resize", input: schema, run: ({ input }) => void got.push(input) });
      const { id: full } = await hf.enqueue(resize, { url, width: "640" });
      const { id: bare } = await hf.enqueue(resize, { url });
      assert.deepEqual((await see(hf, full)).input, { url, width: "640" });
      assert.deepEqual((await see(hf, bare)).input, { url });
      hf.work([resize]);
      await hf.jobs.wait(full);
      await hf.jobs.wait(bare);
      assert.deepEqual(got, [
        { url, width: 640 },
        { url, width: 100 },
      ]);
      assert.deepEqual((await see(hf, full)).input, { url, width: "640" }, "still as it was given");
    });

    test("a stored input that no longer matches is quarantined without a retry, and its handler is not called", async (t) => {
      const { hf, clock } = await memory(t);
      const old = job({ name: "resize", run: () => null });
      const { id } = await hf.enqueue(old, { address: url });
      let calls = 0;
      const resize = job({ name: "resize", input: schema, run: () => void calls++ });
      hf.work([resize]);
      const job_ = await hf.jobs.wait(id);
      assert.equal(job_.state, "quarantined");
      assert.equal(job_.error?.code, "INPUT_INVALID");
      assert.match(job_.error.message, /url/);
      assert.deepEqual(job_.input, { address: url }, "nothing of it is lost");
      assert.equal(job_.crashes, 0);
      await clock.advance("2m");
      assert.equal((await see(hf, id)).state, "quarantined");
      assert.equal(calls, 0);
    });

    test("a quarantined input does not delay other jobs, and runs once the schema accepts it", async (t) => {
      const { hf } = await memory(t);
      const old = job({ name: "resize", run: () => null });
      const bad = await hf.enqueue(old, { address: url });
      const good = await hf.enqueue(old, { url });
      const worker = hf.work([job({ name: "resize", input: schema, run: () => "resized" })], { concurrency: 1 });
      assert.equal((await hf.jobs.wait(good)).state, "succeeded");
      assert.equal((await hf.jobs.wait(bad)).state, "quarantined");
      await worker.stop();
      assert.equal(await hf.jobs.retry(bad.id), true);
      hf.work([job({ name: "resize", input: v.object({ address: v.string() }), run: ({ input }) => input.address })]);
      assert.equal((await hf.jobs.wait(bad)).output, url);
    });

    test("a claim by hand from a definition validates, too", async (t) => {
      const { hf } = await memory(t);
      const old = job({ name: "resize", run: () => null });
      const bad = await hf.enqueue(old, { address: url });
      const good = await hf.enqueue(old, { url, width: "7" });
      const resize = job({ name: "resize", input: schema, run: () => null });
      const claim = await hf.claim(resize, { worker: "me" });
      assert.equal(claim?.job.id, good.id);
      assert.deepEqual(claim.job.input, { url, width: "7" });
      assert.equal((await see(hf, bad.id)).state, "quarantined");
    });

    test("a follow-up is validated in the handler that enqueues it", async (t) => {
      const { hf } = await memory(t);
      const resize = job({ name: "resize", input: schema, run: () => null });
      const parent = job({
        name: "parent",
        run: (c: JobContext<unknown>) => {
          assert.throws(() => c.enqueue(resize, { url: "no url" }), code("INPUT_INVALID"));
          return "refused";
        },
      });
      hf.work([parent]);
      assert.equal((await hf.jobs.wait(await hf.enqueue(parent, 1))).output, "refused");
      assert.equal((await hf.jobs.counts({ name: "resize" })).pending, 0);
    });
  });
}

const ASYNC: [string, StandardSchema<string, string>][] = [
  ["zod", z.string().refine(async (text) => Promise.resolve(text !== "bad"), "is bad")],
  [
    "valibot",
    v.pipeAsync(
      v.string(),
      v.checkAsync(async (text) => Promise.resolve(text !== "bad"), "is bad"),
    ),
  ],
];
for (const [library, schema] of ASYNC) {
  suite(`an asynchronous schema of ${library}`, () => {
    test("an asynchronous schema works at enqueue and at the claim", async (t) => {
      const { hf } = await memory(t);
      const check = job({ name: "check", input: schema, run: ({ input }) => input.toUpperCase() });
      await assert.rejects(hf.enqueue(check, "bad"), code("INPUT_INVALID"));
      await assert.rejects(hf.enqueueMany(check, ["good", "bad"]), code("INPUT_INVALID"));
      assert.deepEqual(await seeAll(hf), []);
      const accepted = await hf.enqueue(check, "good");
      const stale = await hf.enqueue(job({ name: "check", run: () => null }), "bad");
      hf.work([check]);
      assert.equal((await hf.jobs.wait(accepted)).output, "GOOD");
      assert.equal((await hf.jobs.wait(stale)).state, "quarantined");
    });

    test("an asynchronous schema in a handler's enqueue is rejected with SCHEMA_ASYNC, and no follow-up is added", async (t) => {
      const { hf } = await memory(t);
      const check = job({ name: "check", input: schema, run: () => null });
      const parent = job({
        name: "parent",
        run: (c: JobContext<string>) => {
          assert.throws(() => c.enqueue(check, c.input), code("SCHEMA_ASYNC"));
          return "refused";
        },
      });
      hf.work([parent]);
      assert.equal((await hf.jobs.wait(await hf.enqueue(parent, "good"))).output, "refused");
      assert.equal((await hf.jobs.wait(await hf.enqueue(parent, "bad"))).output, "refused", "and no rejection is left unhandled");
      assert.deepEqual((await hf.jobs.list({ name: "check" })).items, []);
    });
  });
}

suite("an output schema", () => {
  test("the output is stored as its schema parses it", async (t) => {
    const { hf } = await memory(t);
    const count = job({
      name: "count",
      input: z.string(),
      output: z.coerce.number(),
      run: ({ input }) => unchecked<number>(input),
    });
    hf.work([count]);
    assert.equal((await hf.jobs.wait(await hf.enqueue(count, "42"))).output, 42);
  });

  test("an output that does not match fails without a retry", async (t) => {
    const { hf } = await memory(t);
    let calls = 0;
    const count = job({
      name: "count",
      input: z.string(),
      output: z.number(),
      run: ({ input }) => {
        calls++;
        return unchecked<number>(input);
      },
    });
    hf.work([count]);
    const ended = await hf.jobs.wait(await hf.enqueue(count, "forty-two"));
    assert.equal(ended.state, "failed");
    assert.match(ended.error?.message ?? "", /output of job "count"/);
    assert.equal(ended.output, undefined);
    assert.equal(calls, 1);
  });

  test("an output schema may be asynchronous", async (t) => {
    const { hf } = await memory(t);
    const output = v.pipeAsync(
      v.number(),
      v.checkAsync(async (n) => Promise.resolve(n > 0), "is not positive"),
    );
    const count = job({ name: "count", input: z.number(), output, run: ({ input }) => input });
    hf.work([count]);
    assert.equal((await hf.jobs.wait(await hf.enqueue(count, 1))).output, 1);
    const refused = await hf.jobs.wait(await hf.enqueue(count, -1));
    assert.equal(refused.state, "failed");
    assert.match(refused.error?.message ?? "", /is not positive/);
  });
});
