import assert from "node:assert/strict";
import { suite, test } from "node:test";
import * as library from "../../src/index.ts";
import { type Holdfast, HoldfastError, items, job, open, pipeline } from "../../src/index.ts";
import * as server from "../../src/server/index.ts";
import * as testing from "../../src/testing/index.ts";
import { testClock } from "../../src/testing/index.ts";
import { memory } from "./parts.ts";

const send = job({ name: "send", run: () => null });
const docs = pipeline("docs")
  .source(items(() => ["a"], { id: (item) => item }))
  .stage("parse", {}, () => 1);

/** Arguments that the call accepts. `options: true`: the last of them is an object of options. */
interface PublicCall {
  args: readonly unknown[];
  options?: true;
}
type Calls = Record<string, PublicCall>;

const takes = (...args: unknown[]): PublicCall => ({ args });
const takesOptions = (...args: unknown[]): PublicCall => ({ args, options: true });

const BUILD_CALLS: Calls = {
  start: takesOptions(docs, {}),
  resume: takesOptions(docs, "x", {}),
  watch: takesOptions(docs, {}),
  approve: takesOptions("x", { token: "t", budget: {} }),
  mintToken: takes("x"),
  get: takes("x"),
  list: takesOptions({}),
  abandon: takes("x", "reason"),
  refuse: takes("x", "reason"),
  plan: takesOptions(docs, {}),
  why: takes("x", "parse", "a"),
  output: takes("x", "parse", "a"),
  export: takesOptions("x", "folder", {}),
};

interface Part {
  calls: Calls;
  /** Methods for other parts of Holdfast, marked `@internal`. */
  internal?: readonly string[];
  /** The object whose methods are called. */
  of: (hf: Holdfast) => object | Promise<object>;
}

const PARTS: Record<string, Part> = {
  hf: {
    calls: {
      enqueue: takesOptions(send, 1, {}),
      enqueueMany: takesOptions(send, [1], {}),
      transaction: takes(() => 1),
      work: takesOptions([], {}),
      schedule: takesOptions(send, { cron: "@daily", input: 1 }),
      claim: takesOptions("send", { worker: "w" }),
      lock: takes("x"),
      backup: takesOptions("no/such/folder/x.db", {}),
      check: takes(),
      close: takes(),
    },
    internal: ["engine"],
    of: (hf) => hf,
  },
  "hf.jobs": {
    calls: {
      get: takes("x"),
      attempts: takes("x"),
      explain: takes("x"),
      list: takesOptions({}),
      counts: takesOptions({}),
      cancel: takes("x"),
      retry: takes("x"),
      retryAll: takesOptions({}),
      cancelAll: takesOptions({}),
      removeAll: takesOptions({}),
      wait: takesOptions("x", {}),
      watch: takesOptions("x", {}),
    },
    of: (hf) => hf.jobs,
  },
  "hf.queues": {
    calls: { pause: takes("q"), resume: takes("q"), list: takesOptions({}) },
    of: (hf) => hf.queues,
  },
  "hf.schedules": {
    calls: { list: takesOptions({}), remove: takes("x"), pause: takes("x"), resume: takes("x"), trigger: takes("x") },
    internal: ["save"],
    of: (hf) => hf.schedules,
  },
  "hf.builds": { calls: BUILD_CALLS, internal: ["changes", "definitions", "resumeByOperator", "stopAll"], of: (hf) => hf.builds },
  "hf.recovery": {
    calls: {
      recoverStale: takes(),
      stats: takes(),
      reclaimStale: takes("1h"),
      lastReport: takes(),
      history: takes(),
      preview: takes(),
      acknowledge: takes(),
    },
    of: (hf) => hf.recovery,
  },
  "hf.events": { calls: { subscribe: takesOptions(() => {}, {}) }, of: (hf) => hf.events },
  lock: {
    calls: { acquire: takes("me", "1m"), extend: takes("token", "1m"), release: takes("token"), get: takes(), isStale: takes() },
    of: (hf) => hf.lock("x"),
  },
  claim: {
    calls: {
      renew: takes("1m"),
      succeed: takesOptions(1, {}),
      fail: takesOptions(new Error("no"), {}),
      release: takes(),
    },
    internal: ["ref", "signal"],
    of: async (hf) => {
      await hf.enqueue(send, 1);
      const claim = await hf.claim("send", { worker: "w" });
      assert(claim !== null);
      return claim;
    },
  },
  worker: {
    calls: { stop: takesOptions({}) },
    internal: ["untilDrained"],
    of: (hf) => hf.work([]),
  },
  build: {
    calls: { done: takes(), stop: takes(), progress: takes(), output: takes("parse", "a"), outputs: takes("parse") },
    internal: ["attach", "saw"],
    of: (hf) => hf.builds.start(docs),
  },
  pipeline: {
    calls: {
      stage: takes("b", {}, () => 1),
      expand: takes("b", {}, () => []),
      gather: takes("b", {}, () => 1),
    },
    of: () => docs,
  },
  "pipeline without a source": { calls: { source: takes(items(() => [], { id: () => "a" })) }, of: () => pipeline("x") },
  "job definition": { calls: { handle: takes(() => null) }, internal: ["run"], of: () => send },
  "test clock": {
    calls: {
      now: takes(),
      monotonic: takes(),
      set: takes(1),
      after: takes(1, () => {}),
      advance: takes(1),
    },
    internal: ["during"],
    of: () => testClock(),
  },
  holdfast: {
    calls: {
      open: takesOptions(":memory:", {}),
      job: takesOptions({ name: "x", run: () => null }),
      pipeline: takesOptions("x", {}),
      files: takesOptions("*.md", {}),
      items: takesOptions(() => [], { id: () => "a" }),
      secret: takes("x"),
    },
    internal: ["HoldfastError", "LeaseLostError", "NonRetryableError", "RetryAfterError"],
    of: () => library,
  },
  "holdfast/server": {
    calls: { handler: takesOptions({}, {}), nodeHandler: takes(() => Promise.resolve(new Response())) },
    of: () => server,
  },
  "holdfast/testing": {
    calls: {
      call: takesOptions(send, 1, {}),
      testClock: takes(1),
      crashAt: takes("no such point"),
      drain: takes({}, []),
      simulateCrash: takesOptions("no-such-file.ts", { by: "SIGKILL", when: "x" }),
      everyJob: takes({}),
      validateRecovery: takes([], []),
    },
    of: () => testing,
  },
};

const UNKNOWN = { unknwon: 1 };

for (const [name, { calls, internal = [], of }] of Object.entries(PARTS)) {
  suite(`the calls of ${name}`, () => {
    test(`the table of this test has every call of ${name}`, async (t) => {
      const { hf } = await memory(t);
      assert.deepEqual(Object.keys(calls).sort(), methodsOf(await of(hf), internal));
    });

    for (const [method, { args, options }] of Object.entries(calls)) {
      test(`${method} rejects a surplus argument`, async (t) => {
        const { hf } = await memory(t);
        const error = await errorOf(await of(hf), method, [...args, UNKNOWN]);
        assert.match(error.message, /takes (no|\d) arguments?, but argument \d is \{ unknwon \}\.$/);
        assert.match(error.message, new RegExp(`\\b${method}\\b`));
      });

      if (options === undefined) continue;
      test(`${method} rejects an unknown option`, async (t) => {
        const { hf } = await memory(t);
        const given = { ...(args.at(-1) as object), ...UNKNOWN };
        const error = await errorOf(await of(hf), method, [...args.slice(0, -1), given]);
        assert.match(error.message, /has no option "unknwon"\.$/);
      });
    }
  });
}

test("the table of this test has every member of the handle that has methods", async (t) => {
  const { hf } = await memory(t);
  const members = Object.entries(hf)
    .filter(([, value]) => typeof value === "object" && value !== null)
    .map(([name]) => `hf.${name}`);
  assert.deepEqual(
    members.filter((name) => PARTS[name] === undefined),
    [],
  );
  assert.ok(members.length >= 6);
});

test("a call with a surplus argument changes nothing", async (t) => {
  const { hf } = await memory(t);
  const { id } = await hf.enqueue(send, 1);
  await errorOf(hf.jobs, "cancel", [id, { reason: "late" }]);
  assert.equal((await hf.jobs.get(id))?.state, "pending");
  await errorOf(hf, "close", [{ drain: 1 }]);
  assert.equal((await hf.jobs.counts()).pending, 1);
});

test("a surplus argument that is undefined is accepted", async () => {
  const hf = await open(":memory:");
  assert.equal(await Reflect.apply(hf.jobs.get, hf.jobs, ["x", undefined]), null);
  await Reflect.apply(hf.close, hf, [undefined]);
});

function methodsOf(object: object, internal: readonly string[]): string[] {
  const isPlain = [Object.prototype, null].includes(Object.getPrototypeOf(object) as object | null);
  const names = Object.getOwnPropertyNames(isPlain ? object : Object.getPrototypeOf(object));
  return names
    .filter((name) => name !== "constructor" && !internal.includes(name))
    .filter((name) => typeof (object as Record<string, unknown>)[name] === "function")
    .sort();
}

/** The HoldfastError of a call, which may throw it, reject with it or, as an iterator, reject its first item with it. */
async function errorOf(object: object, method: string, args: readonly unknown[]): Promise<HoldfastError> {
  const run = (object as Record<string, (...args: unknown[]) => unknown>)[method];
  assert(run !== undefined);
  try {
    const answer = await run.apply(object, [...args]);
    if (typeof answer === "object" && answer !== null && Symbol.asyncIterator in answer)
      await (answer as AsyncIterable<unknown>)[Symbol.asyncIterator]().next();
  } catch (error) {
    assert(error instanceof HoldfastError, `${method} threw ${(error as Error).stack}`);
    assert.equal(error.code, "OPTION_INVALID", error.message);
    return error;
  }
  assert.fail(`${method} accepted it`);
}
