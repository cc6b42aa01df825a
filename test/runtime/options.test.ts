import assert from "node:assert/strict";
import { join } from "node:path";
import { after, before, suite, test } from "node:test";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { files, type Holdfast, HoldfastError, items, job, open, pipeline, RetryAfterError } from "../../src/index.ts";
import { call, testClock } from "../../src/testing/index.ts";
import { folder, memory, unchecked } from "./parts.ts";

/** One value of each kind. An option accepts the kinds that its row names; every other value must be rejected. */
const VALUES = {
  string: "?",
  number: 1.5,
  boolean: true,
  bigint: 42n,
  symbol: Symbol("odd"),
  null: null,
  array: [Symbol("odd")],
  bare: Object.assign(Object.create(null), { odd: 1 }) as object,
  object: { odd: 42n },
  function: () => 42n,
};
type Kind = keyof typeof VALUES;

/**
 * For each option the kinds of value that it accepts, or the options of the object that it takes. The name "" has the kinds
 * that are accepted instead of that object.
 */
interface Shape {
  [option: string]: readonly Kind[] | Shape;
}
interface PublicCall {
  name: string;
  /** Options that are needed for the call to succeed. */
  base: object;
  shape: Shape;
  run: (hf: Holdfast, options: never) => unknown;
}

const send = job({ name: "send", run: () => null });
const docs = pipeline("docs").source(items(() => [], { id: () => "a" }));
const RETRY: Shape = { attempts: [], backoff: [], delay: ["number"], maxDelay: ["number"] };
const LIMIT: Shape = { key: ["function"], concurrency: [], rate: [] };
const COST: Shape = { usd: ["number"], tokens: ["number"] };
const RUN: Shape = { version: [], retry: RETRY, crashes: [], lease: [], timeout: ["number"], concurrency: [], limit: LIMIT };
const STAGE: Shape = {
  ...RUN,
  key: ["string", "number", "function", "bare"],
  estimate: { "": ["function"], ...COST },
  reuse: [],
  isolate: [],
  remove: ["function"],
};
const ENQUEUE: Shape = {
  id: ["string"],
  key: ["string"],
  priority: [],
  delay: ["number"],
  runAt: ["number"],
  after: [],
};
const BUILD: Shape = { budget: COST, concurrency: [], maxFailures: [], rerun: [], only: [], signal: [] };

const PUBLIC_CALLS: PublicCall[] = [
  {
    name: "job",
    base: { name: "x", run: () => null },
    shape: {
      ...RUN,
      name: ["string"],
      onInterrupt: [],
      input: [],
      output: [],
      run: ["function"],
      queue: {
        "": ["string"],
        name: ["string"],
        limit: LIMIT,
        events: ["boolean"],
        keep: { succeeded: { "": ["number"], age: ["number"], count: [] } },
      },
    },
    run: (_, options) => job(options),
  },
  {
    name: "open",
    base: {},
    shape: {
      durability: [],
      driver: [],
      schema: ["string"],
      create: ["boolean"],
      recovery: [],
      busyTimeout: ["number"],
      log: { debug: ["function"], info: ["function"], warn: ["function"], error: ["function"] },
      clock: { now: [] },
      artifacts: ["string"],
      backups: { folder: ["string"], every: [], keep: [], artifacts: [], beforeMigration: ["boolean"] },
      journal: [],
      mode: [],
      program: ["string"],
      user: ["string"],
      onStop: ["function"],
      sinks: { console: { type: [] }, file: { type: [], path: ["string"] }, webhook: { type: [], url: [], secret: [] } },
    },
    run: (_, options) => open(":memory:", options).then((hf) => hf.close()),
  },
  { name: "enqueue", base: {}, shape: ENQUEUE, run: (hf, options) => hf.enqueue(send, 1, options) },
  { name: "enqueueMany", base: {}, shape: ENQUEUE, run: (hf, options) => hf.enqueueMany(send, [1], options) },
  {
    name: "enqueue of a handler",
    base: {},
    shape: ENQUEUE,
    run: (_, options) => call(job({ name: "parent", run: (c) => c.enqueue(send, 1, options) }), 1),
  },
  {
    name: "work",
    base: {},
    shape: { concurrency: [], drain: ["number"], signals: ["boolean"] },
    run: (hf, options) => hf.work([], options).stop(),
  },
  { name: "worker.stop", base: {}, shape: { drain: ["number"] }, run: (hf, options) => hf.work([]).stop(options) },
  {
    name: "schedule",
    base: { cron: "@daily", input: 1 },
    shape: { key: ["string"], cron: [], timezone: [], missed: [], within: ["number"], overlap: ["boolean"] },
    run: (hf, options) => hf.schedule(send, options),
  },
  {
    name: "claim",
    base: { worker: "w" },
    shape: { worker: ["string"], lease: ["number"], renew: [], exclusive: ["boolean"], wait: ["number"] },
    run: async (hf, options) => {
      await hf.enqueue(send, 1);
      await (await hf.claim("send", options))?.release();
    },
  },
  {
    name: "claim.fail",
    base: {},
    shape: { retry: ["boolean"], delay: ["number"] },
    run: async (hf, options) => {
      await hf.enqueue(send, 1);
      await using claim = await hf.claim("send", { worker: "w" });
      assert(claim !== null);
      await claim.fail(new Error("no"), options);
    },
  },
  {
    name: "backup",
    base: {},
    shape: { artifacts: ["boolean"], onProgress: ["function"] },
    run: (hf, options) => hf.backup(join("no", "such", "folder", "x.db"), options),
  },
  {
    name: "jobs.list",
    base: {},
    shape: { queue: ["string"], name: ["string"], state: [], limit: [], after: [] },
    run: (hf, options) => hf.jobs.list(options),
  },
  {
    name: "jobs.counts",
    base: {},
    shape: { queue: ["string"], name: ["string"], incomplete: ["boolean"] },
    run: (hf, options) => hf.jobs.counts(options),
  },
  {
    name: "jobs.wait",
    base: {},
    shape: { timeout: ["number"], signal: [] },
    run: async (hf, options) => hf.jobs.wait(await cancelled(hf), options),
  },
  {
    name: "jobs.watch",
    base: {},
    shape: { signal: [] },
    run: async (hf, options) => hf.jobs.watch(await cancelled(hf), options).next(),
  },
  {
    name: "events.subscribe",
    base: {},
    shape: { name: ["string"], types: [] },
    run: (hf, options) => hf.events.subscribe(() => {}, options)(),
  },
  { name: "builds.plan", base: {}, shape: BUILD, run: (hf, options) => hf.builds.plan(docs, options) },
  {
    name: "builds.start",
    base: {},
    shape: BUILD,
    run: (hf, options) => hf.builds.start(docs, options).then((build) => build.stop()),
  },
  {
    name: "builds.resume",
    base: {},
    shape: { ...BUILD, token: ["string"] },
    run: (hf, options) => hf.builds.resume(docs, "x", options),
  },
  {
    name: "builds.approve",
    base: { token: "x", budget: {} },
    shape: { token: ["string"], budget: COST },
    run: (hf, options) => hf.builds.approve("x", options),
  },
  {
    name: "builds.list",
    base: {},
    shape: { pipeline: ["string"], state: [], limit: [], after: [] },
    run: (hf, options) => hf.builds.list(options),
  },
  { name: "builds.export", base: {}, shape: { stages: [] }, run: (hf, options) => hf.builds.export("x", "y", options) },
  {
    name: "files",
    base: {},
    shape: { root: ["string"], ignore: [], snapshot: ["boolean"], dot: ["boolean"] },
    run: (_, options) => files("*", options),
  },
  {
    name: "items",
    base: { id: () => "a" },
    shape: { id: ["function"], version: ["function"], cursor: ["function"] },
    run: (_, options) => items(() => [], options),
  },
  {
    name: "pipeline",
    base: {},
    shape: { budget: COST, maxFailures: [], module: ["string"] },
    run: (_, options) => pipeline("x", options),
  },
  {
    name: "stage",
    base: {},
    shape: { ...STAGE, uses: [], match: ["string", "function"] },
    run: (_, options) => docs.stage("x", options, () => null),
  },
  { name: "expand", base: {}, shape: STAGE, run: (_, options) => docs.expand("x", options, () => []) },
  {
    name: "gather",
    base: {},
    shape: { ...STAGE, by: ["function"], partial: ["boolean"] },
    run: (_, options) => docs.gather("x", options, () => null),
  },
];

/** Settings that a nested object needs beside the option under test. */
const NEEDED: Record<string, object> = {
  "job.limit": { concurrency: 1 },
  "job.queue": { name: "q" },
  "job.queue.limit": { concurrency: 1 },
  "stage.limit": { concurrency: 1 },
  "expand.limit": { concurrency: 1 },
  "gather.limit": { concurrency: 1 },
  "open.log": { debug() {}, info() {}, warn() {}, error() {} },
  "open.clock": { now: () => 0 },
  "open.sinks.console": { type: "console" },
  "open.sinks.file": { type: "file", path: "x" },
  "open.sinks.webhook": { type: "webhook", url: "http://localhost", secret: `whsec_${"A".repeat(43)}=` },
};
/** These objects have the user's own names as keys, or methods that Holdfast does not know. */
const OPEN_ENDED = new Set(["open.sinks", "open.log", "open.clock"]);

// Some values are valid paths, and the calls that accept them create files.
const start = process.cwd();
const workingFolder = mkdtempSync(join(tmpdir(), "holdfast-options-"));
before(() => process.chdir(workingFolder));
after(() => {
  process.chdir(start);
  rmSync(workingFolder, { recursive: true, force: true });
});

suite("every option of every public call is checked", () => {
  for (const publicCall of PUBLIC_CALLS) {
    test(`${publicCall.name} rejects unknown options and values of the wrong kind`, async (t) => {
      const { hf } = await memory(t);
      const attempt = async (path: readonly string[], value: unknown): Promise<string | null> => {
        const options = merge(publicCall.base, withNeeded(publicCall.name, path, value));
        try {
          await publicCall.run(hf, options as never);
          return "accepted";
        } catch (error) {
          return error instanceof HoldfastError ? null : `threw ${(error as Error)?.stack ?? String(error)}`;
        }
      };
      const failures: string[] = [];
      for (const { path, accepts } of leaves(publicCall.shape)) {
        for (const [kind, value] of Object.entries(VALUES)) {
          const problem = await attempt(path, value);
          if (problem === null || (problem === "accepted" && accepts.includes(kind as Kind))) continue;
          failures.push(`${path.join(".")}: ${kind} ${problem}`);
        }
      }
      for (const path of objects(publicCall.shape)) {
        if (OPEN_ENDED.has([publicCall.name, ...path].join("."))) continue;
        const problem = await attempt([...path, "unknwon"], 1);
        if (problem !== null) failures.push(`${[...path, "unknwon"].join(".")} was ${problem}`);
      }
      assert.deepEqual(failures, []);
    });

    test(`${publicCall.name} rejects options that are not an object`, async (t) => {
      const { hf } = await memory(t);
      for (const value of [5, "text", true, [], null, Symbol("odd"), 42n]) {
        await assert.rejects(async () => publicCall.run(hf, value as never), HoldfastError, String(value));
      }
    });
  }
});

const define = (options: object) => () =>
  job(unchecked<{ name: string; run: () => null }>({ name: "x", run: () => null, ...options }));

suite("a misspelled option names the option that was meant", () => {
  test("the hint names a misspelled option in a job's definition, at every depth", () => {
    assert.throws(define({ retry: { attemps: 9 } }), { code: "OPTION_INVALID", hint: /Did you mean "attempts"\?/ });
    assert.throws(define({ retry: { maxAttempts: 5 } }), { code: "OPTION_INVALID", hint: /Options: attempts, / });
    assert.throws(define({ retry: 5 }), { code: "OPTION_INVALID", message: /retry of job "x" must be an object, got 5/ });
    assert.throws(define({ retry: false }), { code: "OPTION_INVALID", message: /got false/ });
    assert.throws(define({ queue: { name: "q", keep: 5 } }), { code: "OPTION_INVALID", message: /keep. of .*got 5/ });
    assert.throws(define({ limt: { concurrency: 1 } }), { code: "OPTION_INVALID", hint: /Did you mean "limit"\?/ });
  });

  test("the hint names a misspelled option in jobs.list and jobs.wait", async (t) => {
    const { hf } = await memory(t);
    await assert.rejects(hf.jobs.list(unchecked({ sate: "failed" })), { code: "OPTION_INVALID", hint: /Did you mean "state"\?/ });
    const { id } = await hf.enqueue(send, 1);
    await assert.rejects(hf.jobs.wait(id, unchecked({ tiemout: 5 })), {
      code: "OPTION_INVALID",
      hint: /Did you mean "timeout"\?/,
    });
  });
});

const TAKES_NUMBERS = new Set(["recovery.reclaimStale", "lock.acquire ttl", "RetryAfterError", "testClock"]);

suite("arguments that are not options", () => {
  test("a path with a zero byte is rejected with TEXT_INVALID", async () => {
    await assert.rejects(open("a\0b", { log: false }), { code: "TEXT_INVALID", message: /`where`/ });
  });

  test("an id, name, token, time or reason of the wrong kind is rejected with a HoldfastError", async (t) => {
    const { hf } = await memory(t);
    const calls: Record<string, (value: never) => unknown> = {
      "jobs.get": (value) => hf.jobs.get(value),
      "jobs.cancel": (value) => hf.jobs.cancel(value),
      "jobs.retry": (value) => hf.jobs.retry(value),
      "jobs.wait": (value) => hf.jobs.wait(value),
      "jobs.watch": (value) => hf.jobs.watch(value).next(),
      "queues.pause": (value) => hf.queues.pause(value),
      "queues.resume": (value) => hf.queues.resume(value),
      "schedules.remove": (value) => hf.schedules.remove(value),
      "schedules.pause": (value) => hf.schedules.pause(value),
      "schedules.resume": (value) => hf.schedules.resume(value),
      "schedules.trigger": (value) => hf.schedules.trigger(value),
      "recovery.reclaimStale": (value) => hf.recovery.reclaimStale(value),
      lock: (value) => hf.lock(value),
      "lock.acquire": (value) => hf.lock("x").acquire(value, 1),
      "lock.acquire ttl": (value) => hf.lock("x").acquire("me", value),
      "lock.extend": (value) => hf.lock("x").extend(value, 1),
      "lock.release": (value) => hf.lock("x").release(value),
      claim: (value) => hf.claim(value, { worker: "w" }),
      enqueue: (value) => hf.enqueue(value, 1),
      enqueueMany: (value) => hf.enqueueMany(send, value),
      work: (value) => hf.work(value),
      backup: (value) => hf.backup(value),
      transaction: (value) => hf.transaction(value),
      "events.subscribe": (value) => hf.events.subscribe(value),
      "builds.get": (value) => hf.builds.get(value),
      "builds.start": (value) => hf.builds.start(value),
      "builds.abandon": (value) => hf.builds.abandon(value, "reason"),
      "builds.abandon reason": (value) => hf.builds.abandon("x", value),
      "builds.mintToken": (value) => hf.builds.mintToken(value),
      "builds.why": (value) => hf.builds.why(value, value, value),
      "builds.output": (value) => hf.builds.output(value, value, value),
      "builds.export": (value) => hf.builds.export(value, value),
      open: (value) => open(value),
      files: (value) => files(value),
      items: (value) => items(value, { id: () => "a" }),
      pipeline: (value) => pipeline(value),
      source: (value) => pipeline("x").source(value),
      stage: (value) => docs.stage(value, {}, () => null),
      "stage handler": (value) => docs.stage("a", {}, value),
      RetryAfterError: (value) => new RetryAfterError(value),
      testClock: (value) => testClock(value),
    };
    const failures: string[] = [];
    for (const [name, run] of Object.entries(calls)) {
      for (const value of [1.5, true, 42n, Symbol("odd"), null, [Symbol("odd")], Object.create(null)] as never[]) {
        if (name === "enqueueMany" && Array.isArray(value)) continue;
        try {
          await run(value);
          if (value !== (1.5 as never) || !TAKES_NUMBERS.has(name)) failures.push(`${name} accepted ${typeof value}`);
        } catch (error) {
          if (!(error instanceof HoldfastError)) failures.push(`${name}, ${typeof value}: ${(error as Error).stack}`);
        }
      }
    }
    assert.deepEqual(failures, []);
  });

  test("an input that is nested too deeply or larger than a row is rejected with NOT_JSON", async (t) => {
    const { hf } = await memory(t);
    let deep: unknown = 1;
    for (let i = 0; i < 100_000; i++) deep = [deep];
    await assert.rejects(hf.enqueue(send, deep as never), { code: "NOT_JSON", message: /nested too deeply/ });
    const block = "x".repeat(2 ** 28);
    await assert.rejects(hf.enqueue(send, [block, block, block] as never), { code: "NOT_JSON", message: /too large/ });
  });

  test("a `tx` that is undefined means no transaction", async (t) => {
    const { hf } = await memory(t);
    const { id } = await hf.enqueue(send, 1, unchecked({ tx: undefined }));
    assert.equal((await hf.jobs.get(id))?.state, "pending");
    const [many] = await hf.enqueueMany(send, [1], unchecked({ tx: undefined }));
    assert.equal(many?.duplicate, false);
  });

  test("a `tx` that is not a transaction is rejected with TX_INVALID", async (t) => {
    const { hf } = await memory(t);
    for (const tx of [null, 5, "tx", {}, [], { db: null }, { db: { prepare: 1 } }, Symbol("odd")]) {
      assert.throws(() => hf.enqueue(send, 1, unchecked<{ tx: never }>({ tx })), { code: "TX_INVALID" });
    }
  });
});

test("a concurrency that one process cannot hold is rejected", async (t) => {
  const { hf } = await memory(t);
  const tooMany = { code: "NUMBER_INVALID", message: /at most 8192, got 8193/ };
  assert.throws(() => hf.work([], { concurrency: 8_193 }), tooMany);
  assert.throws(define({ concurrency: 8_193 }), tooMany);
  await assert.rejects(hf.builds.start(docs, { concurrency: 8_193 }), tooMany);
  await hf.work([], { concurrency: 8_192 }).stop();
});

test("a backup of a database in memory needs a folder, and the error says so", async (t) => {
  const path = join(await folder(t), "x.db");
  await assert.rejects(open(path, unchecked({ backups: { folder: 5 } })), { code: "OPTION_INVALID", message: /backups\.folder/ });
});

async function cancelled(hf: Holdfast): Promise<string> {
  const { id } = await hf.enqueue(send, 1);
  await hf.jobs.cancel(id);
  return id;
}

function* leaves(shape: Shape, above: readonly string[] = []): Generator<{ path: readonly string[]; accepts: readonly Kind[] }> {
  for (const [option, inner] of Object.entries(shape)) {
    if (option === "") continue;
    const path = [...above, option];
    if (isKinds(inner)) yield { path, accepts: inner };
    else {
      yield { path, accepts: (inner[""] as readonly Kind[] | undefined) ?? [] };
      yield* leaves(inner, path);
    }
  }
}

function* objects(shape: Shape, above: readonly string[] = []): Generator<readonly string[]> {
  yield above;
  for (const [option, inner] of Object.entries(shape)) if (!isKinds(inner)) yield* objects(inner, [...above, option]);
}

function isKinds(inner: readonly Kind[] | Shape): inner is readonly Kind[] {
  return Array.isArray(inner);
}

function withNeeded(name: string, path: readonly string[], value: unknown): object {
  const needed = (depth: number) => (depth === 0 ? {} : (NEEDED[[name, ...path.slice(0, depth)].join(".")] ?? {}));
  let built = value;
  for (let depth = path.length - 1; depth >= 0; depth--) built = { ...needed(depth), [path[depth] as string]: built };
  return built as object;
}

function merge(base: object, given: object): object {
  return { ...base, ...given };
}
