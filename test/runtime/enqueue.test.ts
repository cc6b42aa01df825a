import assert from "node:assert/strict";
import { suite } from "node:test";
import { type EnqueueOptions, type Holdfast, job, type JobDef, type JobOptions } from "../../src/index.ts";
import { code, memory, see, seeAll, test, unchecked } from "./parts.ts";

const send = job({ name: "send", run: (_c: { input: unknown }) => null });
const resize = job({ name: "resize", queue: "images", run: () => null });

suite("enqueue", () => {
  test("an accepted job is stored as it was given", async (t) => {
    const { hf, clock } = await memory(t);
    const input = { to: "a@b.c", parts: [1, null, true, "x", { deep: [] }], skipped: undefined };
    const { id, duplicate } = await hf.enqueue(send, input, { key: "a", priority: 5 });
    assert.equal(duplicate, false);
    assert.deepEqual(await see(hf, id), {
      id,
      name: "send",
      queue: "send",
      key: "a",
      state: "pending",
      input: { to: "a@b.c", parts: [1, null, true, "x", { deep: [] }] },
      attempt: 0,
      crashes: 0,
      priority: 5,
      createdAt: clock.now(),
      runAt: clock.now(),
    });
  });

  test("tags are stored once each, and invalid tags are rejected", async (t) => {
    const { hf } = await memory(t);
    const { id } = await hf.enqueue(send, 1, { tags: ["a", "b", "a"] });
    assert.deepEqual((await see(hf, id)).tags, ["a", "b"]);
    const many = Array.from({ length: 21 }, (_, n) => `tag ${n}`);
    for (const tags of [[""], ["x".repeat(201)], [1], "a", many, ["\ud800"], ["a\0b"], [undefined], null])
      await assert.rejects(
        hf.enqueue(send, 1, { tags: unchecked(tags) }),
        code(tags?.[0] === "a\0b" ? "TEXT_INVALID" : "OPTION_INVALID"),
      );
    assert.equal((await hf.enqueue(send, 1, { tags: many.slice(1) })).duplicate, false);
  });

  test("a replacing job needs a key, and accepts neither an id nor upstream jobs", async (t) => {
    const { hf } = await memory(t);
    const { id } = await hf.enqueue(send, 1, { key: "k" });
    for (const options of [{}, { key: "k", id: "x" }, { key: "k", after: [id] }])
      await assert.rejects(hf.enqueue(send, 2, { ...options, onDuplicate: "replace" }), code("OPTION_INVALID"));
    await assert.rejects(hf.enqueue(send, 2, { key: "k", onDuplicate: unchecked("drop") }), code("OPTION_INVALID"));
    assert.deepEqual(await hf.enqueue(send, 2, { key: "k", onDuplicate: "keep" }), { id, duplicate: true });
    assert.equal((await see(hf, id)).input, 1);
    assert.deepEqual(await hf.enqueue(send, 3, { key: "k", onDuplicate: "replace" }), { id, duplicate: true });
    assert.equal((await see(hf, id)).input, 3);
    await hf.enqueueMany(send, [4, 5], { key: "k", onDuplicate: "replace" });
    assert.deepEqual(
      (await seeAll(hf)).map(({ input }) => input),
      [5],
    );
  });

  test("the queue is the job's name unless the definition names one", async (t) => {
    const { hf } = await memory(t);
    const inObject = job({ name: "other", queue: { name: "lane" }, run: () => null });
    assert.equal((await see(hf, (await hf.enqueue(send, 1)).id)).queue, "send");
    assert.equal((await see(hf, (await hf.enqueue(resize, 1)).id)).queue, "images");
    assert.equal((await see(hf, (await hf.enqueue(inObject, 1)).id)).queue, "lane");
  });

  test("every JSON value is a valid input, and so is no input", async (t) => {
    const { hf } = await memory(t);
    for (const input of [
      null,
      0,
      -0,
      [{ a: -0 }],
      "",
      false,
      [],
      {},
      "\u0000\n\u2028",
      1e21,
      Number.MAX_SAFE_INTEGER,
      { "": { a: [[]] } },
    ]) {
      assert.deepEqual((await see(hf, (await hf.enqueue(send, input)).id)).input, input);
    }
    assert.equal((await see(hf, (await hf.enqueue(send, undefined)).id)).input, undefined);
  });

  test("an input of a megabyte comes back whole", async (t) => {
    const { hf } = await memory(t);
    const input = { text: "ä".repeat(1_000_000) };
    assert.deepEqual((await see(hf, (await hf.enqueue(send, input)).id)).input, input);
  });

  test("changes to the input after the call do not change the stored job", async (t) => {
    const { hf } = await memory(t);
    const input = { n: 1 };
    const accepted = hf.enqueue(send, input);
    input.n = 2;
    assert.deepEqual((await see(hf, (await accepted).id)).input, { n: 1 });
  });

  test("generated ids sort by creation", async (t) => {
    const { hf, clock } = await memory(t);
    const ids: string[] = [];
    for (let round = 0; round < 5; round++) {
      ids.push((await hf.enqueue(send, round)).id, ...(await hf.enqueueMany(send, [1, 2, 3])).map(({ id }) => id));
      await clock.advance(round * 7);
    }
    assert.deepEqual(ids.toSorted(), ids);
    assert.equal(new Set(ids).size, 20);
  });
});

suite("an id is one job ever", () => {
  test("a repeated id is a duplicate, whatever the other options are", async (t) => {
    const { hf } = await memory(t);
    assert.deepEqual(await hf.enqueue(send, 1, { id: "x" }), { id: "x", duplicate: false });
    assert.deepEqual(await hf.enqueue(send, 2, { id: "x", priority: 9, delay: "1h" }), { id: "x", duplicate: true });
    const jobs = await seeAll(hf);
    assert.deepEqual(
      jobs.map(({ id, input, priority }) => [id, input, priority]),
      [["x", 1, 0]],
    );
  });

  test("an id stays a duplicate in every final state", async (t) => {
    const { hf } = await memory(t);
    await hf.enqueue(send, 1, { id: "done" });
    await (await hf.claim(send, { worker: "me" }))?.succeed();
    await hf.enqueue(send, 1, { id: "failed" });
    await (await hf.claim(send, { worker: "me" }))?.fail("no", { retry: false });
    await hf.enqueue(send, 1, { id: "cancelled" });
    await hf.jobs.cancel("cancelled");
    for (const id of ["done", "failed", "cancelled"]) {
      assert.deepEqual(await hf.enqueue(send, 2, { id }), { id, duplicate: true });
    }
    assert.equal((await hf.jobs.counts()).pending, 0);
  });

  test("an id of a job with another name is rejected with ID_TAKEN", async (t) => {
    const { hf } = await memory(t);
    await hf.enqueue(send, 1, { id: "x" });
    await assert.rejects(hf.enqueue(resize, 1, { id: "x" }), code("ID_TAKEN"));
    assert.equal((await seeAll(hf)).length, 1);
  });

  test("a generated id can be given as an id: it is that job, or taken", async (t) => {
    const { hf } = await memory(t);
    const { id } = await hf.enqueue(send, 1);
    assert.deepEqual(await hf.enqueue(send, 2, { id }), { id, duplicate: true });
    await assert.rejects(hf.enqueue(resize, 2, { id }), code("ID_TAKEN"));
  });

  test("ten concurrent enqueues with one id create one job", async (t) => {
    const { hf } = await memory(t);
    const answers = await Promise.all(Array.from({ length: 10 }, (_, n) => hf.enqueue(send, n, { id: "x" })));
    assert.deepEqual(
      answers.map(({ duplicate }) => duplicate),
      [false, ...Array<boolean>(9).fill(true)],
    );
    assert.equal((await seeAll(hf)).length, 1);
  });
});

suite("a key is one unfinished job of that name", () => {
  test("while a key's job is pending, delayed or running, enqueue returns its id", async (t) => {
    const { hf } = await memory(t);
    const { id } = await hf.enqueue(send, 1, { key: "k", delay: "1m" });
    assert.deepEqual(await hf.enqueue(send, 2, { key: "k" }), { id, duplicate: true });
    await hf.jobs.cancel(id);
    const second = await hf.enqueue(send, 3, { key: "k" });
    assert.equal(second.duplicate, false);
    const claim = await hf.claim(send, { worker: "me" });
    assert.equal(claim?.job.id, second.id);
    assert.deepEqual(await hf.enqueue(send, 4, { key: "k" }), { id: second.id, duplicate: true });
    await claim.succeed();
    assert.equal((await hf.enqueue(send, 5, { key: "k" })).duplicate, false);
  });

  test("the same key under another name is another key", async (t) => {
    const { hf } = await memory(t);
    await hf.enqueue(send, 1, { key: "k" });
    assert.equal((await hf.enqueue(resize, 1, { key: "k" })).duplicate, false);
  });

  test("the same key under another version of the name is the same key", async (t) => {
    const { hf } = await memory(t);
    const { id } = await hf.enqueue(send, 1, { key: "k" });
    const next = job({ name: "send", version: 2, run: () => null });
    assert.deepEqual(await hf.enqueue(next, 1, { key: "k" }), { id, duplicate: true });
  });

  test("a job between its retries keeps its key", async (t) => {
    const { hf } = await memory(t);
    const { id } = await hf.enqueue(send, 1, { key: "k" });
    await (await hf.claim(send, { worker: "me" }))?.fail(new Error("again"));
    assert.deepEqual(await hf.enqueue(send, 1, { key: "k" }), { id, duplicate: true });
  });
});

suite("when and in which order", () => {
  test("a higher priority runs first, then first in, first out; negative priorities run last", async (t) => {
    const { hf } = await memory(t);
    for (const [input, priority] of [
      ["a", 0],
      ["b", 5],
      ["low", -1],
      ["c", 5],
      ["d", 0],
    ] as const) {
      await hf.enqueue(send, input, { priority });
    }
    assert.deepEqual(await order(hf), ["b", "c", "a", "d", "low"]);
  });

  test("a delayed job stays pending until its time, to the millisecond", async (t) => {
    const { hf, clock } = await memory(t);
    const { id } = await hf.enqueue(send, 1, { delay: "1.5s" });
    const seen = await see(hf, id);
    assert.deepEqual([seen.state, seen.runAt], ["pending", clock.now() + 1_500]);
    await clock.advance(1_499);
    assert.equal(await hf.claim(send, { worker: "me" }), null);
    await clock.advance(1);
    assert.equal((await hf.claim(send, { worker: "me" }))?.job.id, id);
  });

  test("runAt is a Date or milliseconds, and a past time means now", async (t) => {
    const { hf, clock } = await memory(t);
    await hf.enqueue(send, "date", { runAt: new Date(clock.now() + 1_000) });
    await hf.enqueue(send, "number", { runAt: clock.now() + 2_000 });
    await hf.enqueue(send, "past", { runAt: 0 });
    assert.deepEqual(await order(hf), ["past"]);
    await clock.advance(1_000);
    assert.deepEqual(await order(hf), ["date"]);
    await clock.advance(1_000);
    assert.deepEqual(await order(hf), ["number"]);
  });

  test("a delayed job that is due takes its place by creation time", async (t) => {
    const { hf, clock } = await memory(t);
    await hf.enqueue(send, "first", { delay: 10 });
    await hf.enqueue(send, "second");
    await clock.advance(10);
    assert.deepEqual(await order(hf), ["first", "second"]);
  });
});

suite("enqueueMany", () => {
  test("enqueueMany answers in the order of its inputs, with duplicates among them", async (t) => {
    const { hf } = await memory(t);
    await hf.enqueue(send, 0, { id: "b" });
    const answers = await hf.enqueueMany(send, ["a", "b", "c", "a"], (input) => ({ id: input as string }));
    assert.deepEqual(answers, [
      { id: "a", duplicate: false },
      { id: "b", duplicate: true },
      { id: "c", duplicate: false },
      { id: "a", duplicate: true },
    ]);
    assert.deepEqual(
      (await seeAll(hf)).map(({ id, input }) => [id, input]),
      [
        ["b", 0],
        ["a", "a"],
        ["c", "c"],
      ],
    );
  });

  test("options of enqueueMany apply to all jobs, or are computed for each input and index", async (t) => {
    const { hf } = await memory(t);
    await hf.enqueueMany(send, [1, 2], { priority: 3 });
    await hf.enqueueMany(send, [3, 4], (input, index) => ({ priority: Number(input) * 10 + index }));
    assert.deepEqual(
      (await seeAll(hf)).map(({ priority }) => priority),
      [3, 3, 30, 41],
    );
  });

  test("one bad input in the middle inserts nothing", async (t) => {
    const { hf } = await memory(t);
    await assert.rejects(hf.enqueueMany(send, [1, new Date(), 3]), code("NOT_JSON"));
    await assert.rejects(
      hf.enqueueMany(send, [1, 2], (_, i) => (i === 1 ? { priority: Number.NaN } : {})),
      code("NUMBER_INVALID"),
    );
    assert.deepEqual(await seeAll(hf), []);
  });

  test("one taken id in the middle inserts nothing", async (t) => {
    const { hf } = await memory(t);
    await hf.enqueue(resize, 0, { id: "taken" });
    await assert.rejects(
      hf.enqueueMany(send, ["a", "taken", "c"], (input) => ({ id: input as string })),
      code("ID_TAKEN"),
    );
    assert.deepEqual(
      (await seeAll(hf)).map(({ id }) => id),
      ["taken"],
    );
    assert.deepEqual(await hf.enqueue(send, 1, { id: "a" }), { id: "a", duplicate: false });
  });

  test("a rejected batch does not fail other calls of the same turn", async (t) => {
    const { hf } = await memory(t);
    await hf.enqueue(resize, 0, { id: "taken" });
    const [before, refused, after] = await Promise.allSettled([
      hf.enqueue(send, "before"),
      hf.enqueueMany(send, ["a", "taken"], (input) => ({ id: input as string })),
      hf.enqueue(send, "after"),
    ]);
    assert.deepEqual([before.status, refused.status, after.status], ["fulfilled", "rejected", "fulfilled"]);
    assert.deepEqual(
      (await hf.jobs.list({ name: "send" })).items.map(({ input }) => input),
      ["before", "after"],
    );
  });

  test("an empty batch is accepted", async (t) => {
    const { hf } = await memory(t);
    assert.deepEqual(await hf.enqueueMany(send, []), []);
  });

  test("a thousand jobs are inserted by one call, in order", async (t) => {
    const { hf } = await memory(t);
    const inputs = Array.from({ length: 1_000 }, (_, n) => n);
    const answers = await hf.enqueueMany(send, inputs);
    const jobs = await seeAll(hf);
    assert.deepEqual(
      jobs.map(({ input }) => input),
      inputs,
    );
    assert.deepEqual(
      jobs.map(({ id }) => id),
      answers.map(({ id }) => id),
    );
  });
});

suite("bad input changes nothing", () => {
  const cycle: { self?: unknown } = {};
  cycle.self = { deep: [cycle] };
  let deep: unknown = 1;
  for (let i = 0; i < 100_000; i++) deep = [deep];
  class Point {
    x = 1;
  }
  const bent: Record<string, unknown> = {
    "a Date": new Date(),
    "a Map": new Map([["a", 1]]),
    "a Set": new Set(),
    "a bigint": 1n,
    "a function": () => 1,
    "a symbol": Symbol("s"),
    NaN: Number.NaN,
    Infinity: Number.POSITIVE_INFINITY,
    "a class instance": new Point(),
    "a Buffer": Buffer.from("x"),
    "a RegExp": /x/,
    "an Error": new Error("x"),
    "a boxed string": Object("x"),
    "an object with toJSON": { toJSON: () => 1 },
    "an undefined array item": [1, undefined],
    // oxlint-disable-next-line no-sparse-arrays
    "a hole in an array": [1, , 2],
    "an array with names": Object.assign([1], { more: 2 }),
    "a symbol for a name": { [Symbol("s")]: 1 },
    "a cycle": cycle,
    "a nesting too deep": deep,
  };
  for (const [what, value] of Object.entries(bent)) {
    test(`${what} is rejected as an input, and deep inside one`, async (t) => {
      const { hf } = await memory(t);
      await assert.rejects(hf.enqueue(send, value), code("NOT_JSON"));
      await assert.rejects(hf.enqueue(send, { list: [{ value }] }), code("NOT_JSON"));
      assert.deepEqual(await seeAll(hf), []);
    });
  }

  test("the message names the place in the input", async (t) => {
    const { hf } = await memory(t);
    await assert.rejects(hf.enqueue(send, { a: [{ when: new Date() }] }), /`input\.a\[0\]\.when` is a Date/);
  });

  test("the same object twice is not a cycle", async (t) => {
    const { hf } = await memory(t);
    const shared = { x: 1 };
    assert.deepEqual((await see(hf, (await hf.enqueue(send, { a: shared, b: [shared] })).id)).input, {
      a: { x: 1 },
      b: [{ x: 1 }],
    });
  });

  const options: [string, object, string][] = [
    ["an unknown unit", { delay: "5 minutes" }, "DURATION_INVALID"],
    ["a negative delay", { delay: -1 }, "DURATION_INVALID"],
    ["a negative delay as text", { delay: "-1s" }, "DURATION_INVALID"],
    ["a delay of NaN", { delay: Number.NaN }, "DURATION_INVALID"],
    ["an endless delay", { delay: Number.POSITIVE_INFINITY }, "DURATION_INVALID"],
    ["an empty delay", { delay: "" }, "DURATION_INVALID"],
    ["a delay of null", { delay: null }, "DURATION_INVALID"],
    ["an invalid Date", { runAt: new Date(Number.NaN) }, "OPTION_INVALID"],
    ["a runAt of text", { runAt: "tomorrow" }, "OPTION_INVALID"],
    ["delay and runAt together", { delay: 1, runAt: 1 }, "OPTION_INVALID"],
    ["a fractional priority", { priority: 0.5 }, "NUMBER_INVALID"],
    ["a priority of text", { priority: "5" }, "NUMBER_INVALID"],
    ["a huge priority", { priority: 2 ** 53 }, "NUMBER_INVALID"],
    ["a priority of more than 32 bits", { priority: 2 ** 31 }, "NUMBER_INVALID"],
    ["a negative priority of more than 32 bits", { priority: -(2 ** 31) - 1 }, "NUMBER_INVALID"],
    ["an option that there is not", { prioritty: 3 }, "OPTION_INVALID"],
    ["an empty id", { id: "" }, "OPTION_INVALID"],
    ["half a surrogate pair in an id", { id: "a\ud800" }, "OPTION_INVALID"],
    ["half a surrogate pair in a key", { key: "a\ud800" }, "OPTION_INVALID"],
    ["an id of a number", { id: 7 }, "OPTION_INVALID"],
    ["an id of a megabyte", { id: "x".repeat(1_000_000) }, "OPTION_INVALID"],
    ["an empty key", { key: "" }, "OPTION_INVALID"],
    ["a key that is null", { key: null }, "OPTION_INVALID"],
  ];
  for (const [what, given, expected] of options) {
    test(`${what} is rejected with ${expected}`, async (t) => {
      const { hf } = await memory(t);
      await assert.rejects(hf.enqueue(send, 1, unchecked<EnqueueOptions>(given)), code(expected));
      assert.deepEqual(await seeAll(hf), []);
    });
  }

  test("a value that is not a definition is rejected with NOT_A_JOB", async (t) => {
    const { hf } = await memory(t);
    for (const def of [null, undefined, "send", {}, { name: "send" }, () => 1]) {
      await assert.rejects(hf.enqueue(unchecked<JobDef>(def), 1), code("NOT_A_JOB"));
      assert.throws(() => hf.work([unchecked<JobDef>(def)]), code("NOT_A_JOB"));
    }
  });
});

suite("a definition is checked when it is made", () => {
  const bad: [string, object, string][] = [
    ["an empty name", { name: "" }, "NAME_INVALID"],
    ["no name", { name: undefined }, "NAME_INVALID"],
    ["a name with a line break", { name: "a\nb" }, "NAME_INVALID"],
    ["a name that is too long", { name: "x".repeat(201) }, "NAME_INVALID"],
    ["an empty queue", { queue: "" }, "NAME_INVALID"],
    ["an unnamed queue", { queue: {} }, "NAME_INVALID"],
    ["no attempts", { retry: { attempts: 0 } }, "NUMBER_INVALID"],
    ["half an attempt", { retry: { attempts: 1.5 } }, "NUMBER_INVALID"],
    ["an unknown backoff", { retry: { backoff: "linear" } }, "OPTION_INVALID"],
    ["a malformed backoff", { retry: { delay: "soon" } }, "DURATION_INVALID"],
    ["a malformed longest backoff", { retry: { maxDelay: -1 } }, "DURATION_INVALID"],
    ["no crashes", { crashes: 0 }, "NUMBER_INVALID"],
    ["no lease", { lease: 0 }, "DURATION_INVALID"],
    ["a lease too short to renew", { lease: 10 }, "DURATION_INVALID"],
    ["no timeout", { timeout: 0 }, "DURATION_INVALID"],
    ["an endless timeout", { timeout: Number.POSITIVE_INFINITY }, "DURATION_INVALID"],
    ["no concurrency", { concurrency: 0 }, "NUMBER_INVALID"],
    ["a negative version", { version: -1 }, "NUMBER_INVALID"],
    ["an unknown onInterrupt", { onInterrupt: "ignore" }, "OPTION_INVALID"],
    ["an input that is no schema", { input: { type: "string" } }, "OPTION_INVALID"],
    ["an output that is no schema", { output: "string" }, "OPTION_INVALID"],
  ];
  for (const [what, given, expected] of bad) {
    test(`${what} is rejected with ${expected}`, () => {
      assert.throws(
        () => job(unchecked<JobOptions & { run: () => null }>({ name: "x", run: () => null, ...given })),
        code(expected),
      );
    });
  }
});

suite("after close", () => {
  test("after close every call is rejected with CLOSED, and a second close is not an error", async (t) => {
    const { hf } = await memory(t);
    const lock = hf.lock("x");
    await hf.close();
    await hf.close();
    await assert.rejects(hf.enqueue(send, 1), code("CLOSED"));
    await assert.rejects(hf.enqueueMany(send, [1]), code("CLOSED"));
    await assert.rejects(hf.claim(send, { worker: "me" }), code("CLOSED"));
    await assert.rejects(hf.jobs.get("x"), code("CLOSED"));
    await assert.rejects(hf.jobs.list(), code("CLOSED"));
    await assert.rejects(hf.jobs.counts(), code("CLOSED"));
    await assert.rejects(hf.jobs.cancel("x"), code("CLOSED"));
    await assert.rejects(hf.jobs.retry("x"), code("CLOSED"));
    await assert.rejects(hf.jobs.wait("x"), code("CLOSED"));
    await assert.rejects(hf.jobs.watch("x").next(), code("CLOSED"));
    await assert.rejects(hf.recovery.recoverStale(), code("CLOSED"));
    await assert.rejects(hf.recovery.stats(), code("CLOSED"));
    await assert.rejects(hf.recovery.reclaimStale(0), code("CLOSED"));
    await assert.rejects(lock.acquire("me", 1), code("CLOSED"));
    await assert.rejects(lock.get(), code("CLOSED"));
    assert.throws(() => hf.work([send]), code("CLOSED"));
  });

  test("calls made before close are still executed", async (t) => {
    const { hf } = await memory(t);
    const accepted = hf.enqueue(send, 1);
    await hf.close();
    assert.equal((await accepted).duplicate, false);
  });
});

/** Claims and settles until there is nothing more to claim. */
async function order(hf: Holdfast): Promise<unknown[]> {
  const inputs: unknown[] = [];
  for (let claim = await hf.claim(send, { worker: "me" }); claim; claim = await hf.claim(send, { worker: "me" })) {
    inputs.push(claim.job.input);
    await claim.succeed();
  }
  return inputs;
}
