import assert from "node:assert/strict";
import { suite, test } from "node:test";
import * as v from "valibot";
import { z } from "zod";
import { type HoldfastError, job, type JobContext, type JobDef, NonRetryableError } from "../../src/index.ts";
import { call } from "../../src/testing/index.ts";
import { code, unchecked } from "./parts.ts";

type C<In = unknown> = JobContext<In>;
const schema = z.object({ url: z.string().min(1), width: z.string().transform(Number) });
const resize = job({ name: "resize", input: schema, run: ({ input }) => ({ ...input, area: input.width ** 2 }) });
const whole = job<Partial<C>, unknown>({ name: "whole", run: () => null });

suite("call", () => {
  test("call runs the handler with the parsed input and returns its output", async () => {
    assert.deepEqual(await call(resize, { url: "a", width: "3" }), { url: "a", width: 3, area: 9 });
    const late = job({
      name: "late",
      input: v.pipeAsync(
        v.string(),
        v.transformAsync(async (text) => text.length),
      ),
      run: async ({ input }) => Promise.resolve(input + 1),
    });
    assert.equal(await call(late, "abc"), 4);
    assert.equal(await call(job({ name: "none", run: () => undefined }), null), undefined);
  });

  test("call rejects input that does not match the schema or is not JSON before it calls the handler", async () => {
    let called = false;
    const def = resize.handle(() => {
      called = true;
      return { url: "", width: 0, area: 0 };
    });
    await assert.rejects(call(def, { url: "", width: "3" }), code("INPUT_INVALID"));
    await assert.rejects(call(def, unchecked({ url: "a" })), code("INPUT_INVALID"));
    await assert.rejects(call(job({ name: "x", run: () => null }), new Date(0)), code("NOT_JSON"));
    assert.equal(called, false);
  });

  test("the handler gets a copy of the input, as it would come back from a database", async () => {
    const given = { list: [1], none: undefined };
    const def = job({ name: "copy", run: ({ input }: C<{ list: number[] }>) => input.list.push(Object.keys(input).length) });
    assert.equal(await call(def, given), 2);
    assert.deepEqual(given.list, [1]);
  });

  test("call rejects output that does not match its schema or is not JSON, and returns the parsed output", async () => {
    const def = job({ name: "out", input: z.string(), output: z.number() });
    await assert.rejects(call(def.handle(unchecked(() => "text")), "x"), code("INPUT_INVALID"));
    assert.equal(
      await call(
        def.handle(({ input }) => input.length),
        "abc",
      ),
      3,
    );
    const trimmed = job({ name: "trim", input: z.string(), output: z.string().trim(), run: ({ input }) => input });
    assert.equal(await call(trimmed, " x "), "x");
    await assert.rejects(call(job({ name: "date", run: () => new Date(0) }), 1), code("NOT_JSON"));
  });

  test("call rethrows what the handler throws", async () => {
    for (const thrown of [new NonRetryableError("no"), new TypeError("oops"), "a text", undefined]) {
      const [now, later] = [
        job({
          name: "now",
          run: () => {
            throw thrown;
          },
        }),
        job({ name: "later", run: () => Promise.reject(thrown) }),
      ];
      for (const def of [now, later]) {
        const outcome = await call(def, 1).then(
          () => assert.fail("it was not thrown"),
          (error: unknown) => ({ error }),
        );
        assert.equal(outcome.error, thrown);
      }
    }
  });

  test("call rejects a definition without a handler with NO_HANDLER, and other values with NOT_A_JOB", async () => {
    await assert.rejects(call(job({ name: "bare", input: z.string() }), "x"), code("NO_HANDLER"));
    await assert.rejects(call(unchecked<JobDef>({}), 1), code("NOT_A_JOB"));
  });

  test("the context is that of a first attempt, with its own id and key and a signal that does not abort", async () => {
    const seen: C[] = [];
    const def = whole.handle((c) => void seen.push(unchecked<C>(c)));
    await call(def, {});
    await call(def, {});
    const [one, two] = seen as [C, C];
    assert.deepEqual([one.attempt, one.scheduledFor, one.signal.aborted], [1, null, false]);
    assert.notEqual(one.id, two.id);
    assert.notEqual(one.idempotencyKey, two.idempotencyKey);
    one.progress(0.5, "half");
    assert.throws(() => one.progress(2), code("NUMBER_INVALID"));
    one.log.info("not printed");
  });

  test("a checkpoint is kept in memory, as JSON", async () => {
    const def = whole.handle(async ({ checkpoint }) => {
      const before = await checkpoint.load();
      const value = { step: 1 };
      await checkpoint.save(value);
      value.step = 2;
      await assert.rejects(checkpoint.save(new Map()), code("NOT_JSON"));
      return [before ?? "nothing", await checkpoint.load()];
    });
    assert.deepEqual(await call(def, {}), ["nothing", { step: 1 }]);
  });

  test("follow-ups are validated and get an id", async () => {
    const late = job({
      name: "late",
      input: v.pipeAsync(
        v.string(),
        v.checkAsync(async () => true),
      ),
      run: () => null,
    });
    const def = whole.handle((c) => {
      assert.throws(() => c.enqueue(resize, unchecked({ url: 1 })), code("INPUT_INVALID"));
      assert.throws(() => c.enqueue(resize, { url: "a", width: "1" }, unchecked({ prioroty: 1 })), code("OPTION_INVALID"));
      assert.throws(() => c.enqueue(late, "x"), code("SCHEMA_ASYNC"));
      const chosen = c.enqueue(resize, { url: "a", width: "1" }, { id: "mine" });
      assert.throws(() => c.enqueue(whole, {}, { id: "mine" }), code("ID_TAKEN"));
      return [chosen, c.enqueue(resize, { url: "a", width: "1" }), c.enqueue(resize, { url: "b", width: "1" })];
    });
    const ids = unchecked<{ id: string }[]>(await call(def, {}, { id: "me" }));
    assert.deepEqual(ids, [{ id: "mine" }, { id: "me-2" }, { id: "me-3" }]);
  });

  test("parts of the context can be replaced, but the input is always the one passed", async () => {
    const followed: unknown[] = [];
    const said: unknown[] = [];
    const stop = AbortSignal.abort(new Error("stop"));
    const def = whole.handle((c) => {
      c.log.warn("careful");
      c.enqueue(resize, { url: "a", width: "1" });
      return [c.id, c.attempt, c.idempotencyKey, c.signal.reason.message, c.input];
    });
    const answer = await call(
      def,
      { attempt: 7 },
      {
        id: "order-7",
        attempt: 3,
        signal: stop,
        input: "another",
        log: { ...console, warn: (message) => void said.push(message) },
        enqueue: (def, input) => ({ id: `${def.name}${followed.push(input)}` }),
      },
    );
    assert.deepEqual(answer, ["order-7", 3, "test:order-7", "stop", { attempt: 7 }]);
    assert.deepEqual([said, followed], [["careful"], [{ url: "a", width: "1" }]]);
  });

  test("a misspelled part of the context is rejected", async () => {
    await assert.rejects(call(whole, {}, unchecked({ atempt: 2 })), ({ hint }: HoldfastError) => {
      assert.match(hint, /^Did you mean "attempt"\?/);
      return true;
    });
    await assert.rejects(call(whole, {}, unchecked(null)), code("OPTION_INVALID"));
  });
});
