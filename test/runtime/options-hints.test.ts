import assert from "node:assert/strict";
import { suite, test } from "node:test";
import { items, job, open, pipeline } from "../../src/index.ts";
import { crashAt, drain, everyJob, simulateCrash, validateRecovery } from "../../src/testing/index.ts";
import { memory, unchecked } from "./parts.ts";

const send = job({ name: "send", run: () => null });
const withoutKey = job({ name: "lk", limit: { key: unchecked<() => string>(() => undefined), concurrency: 1 }, run: () => null });
const docs = pipeline("docs")
  .source(items(() => ["a"], { id: (item) => item }))
  .stage("parse", {}, () => 1);

const define = (options: object) => () =>
  job(unchecked<{ name: string; run: () => null }>({ name: "x", run: () => null, ...options }));

suite("a misspelled name is answered with the name that was meant", () => {
  test("the hint names a misspelled part of a cost", async (t) => {
    const { hf } = await memory(t);
    const meansUsd = { code: "COST_INVALID", hint: /^Did you mean "usd"\? / };
    assert.throws(() => docs.stage("x", { estimate: unchecked<{ usd: number }>({ dollars: 1 }) }, () => 1), meansUsd);
    assert.throws(() => pipeline("x", { budget: unchecked({ us: 1 }) }), meansUsd);
    await assert.rejects(hf.builds.start(docs, { budget: unchecked({ US: 1 }) }), meansUsd);
    await assert.rejects(hf.builds.approve("x", { token: "t", budget: unchecked({ usdd: 1 }) }), meansUsd);
    assert.throws(() => pipeline("x", { budget: unchecked({ token: 1 }) }), { hint: /^Did you mean "tokens"\? / });
  });

  test("the hint names a misspelled part of a recorded cost", async () => {
    await using hf = await open(":memory:");
    const costly = pipeline("costly")
      .source(items(() => ["a"], { id: (item) => item }))
      .stage("pay", { retry: { attempts: 1 } }, ({ cost }) => {
        assert.throws(() => cost(unchecked({ dollar: 1 })), { code: "COST_INVALID", hint: /^Did you mean "usd"\? / });
      });
    const build = await (await hf.builds.start(costly)).done();
    assert.deepEqual(build.errors, []);
    assert.equal(build.state, "SUCCESS");
  });

  test("the hint names a misspelled stage in rerun, only and uses", async (t) => {
    const { hf } = await memory(t);
    const meansParse = { hint: /^Did you mean "parse"\? / };
    await assert.rejects(hf.builds.start(docs, { rerun: ["prase"] }), { code: "STAGE_UNKNOWN", ...meansParse });
    await assert.rejects(hf.builds.plan(docs, { rerun: ["prase"] }), { code: "STAGE_UNKNOWN", ...meansParse });
    await assert.rejects(hf.builds.plan(docs, { only: ["prase"] }), {
      code: "TARGET_UNKNOWN",
      message: /Did you mean "parse"\?$/,
    });
    assert.throws(() => docs.stage("x", { uses: unchecked<"parse"[]>(["prase"]) }, () => 1), {
      code: "STAGE_UNKNOWN",
      ...meansParse,
    });
  });

  test("the hint names a misspelled stage in builds.output and builds.export", async () => {
    await using hf = await open(":memory:");
    const { id } = await (await hf.builds.start(docs)).done();
    await assert.rejects(hf.builds.output(id, "prase", "a"), { hint: /Did you mean "parse"\?/ });
    await assert.rejects(hf.builds.export(id, "folder", { stages: ["prase"] }), { hint: /Did you mean "parse"\?/ });
  });

  test("the hint names a misspelled schedule", async (t) => {
    const { hf } = await memory(t);
    await hf.schedule(send, { key: "nightly", cron: "@daily", input: 1 });
    const meansNightly = { code: "NO_SUCH_SCHEDULE", hint: /^Did you mean "nightly"\? Schedules: nightly\.$/ };
    await assert.rejects(hf.schedules.pause("nigthly"), meansNightly);
    await assert.rejects(hf.schedules.trigger("nightl"), meansNightly);
  });

  test("the hint names a misspelled crash point", () => {
    assert.throws(() => crashAt("settle:writen"), { code: "NO_SUCH_POINT", hint: /^Did you mean "settle:written"\? / });
    assert.throws(() => crashAt("settle commited"), { code: "NO_SUCH_POINT", hint: /^Did you mean "settle:committed"\? / });
    assert.throws(() => crashAt(unchecked(42n)), { code: "NO_SUCH_POINT", message: /the bigint 42n/ });
  });

  test("the hint names a misspelled group of events", async (t) => {
    const { hf } = await memory(t);
    const subscribe = (types: string[]) => hf.events.subscribe(() => {}, { types });
    assert.throws(() => subscribe(["jobs.*"]), { code: "OPTION_INVALID", hint: /^Did you mean "job\.\*"\? / });
    await subscribe(["jobs.removed"])();
    await subscribe(["job.*"])();
  });

  test("the hint names a misspelled state in `keep`, among the states that `keep` accepts", () => {
    const misspelled = define({ queue: { name: "q", keep: { suceeded: "1d" } } });
    assert.throws(misspelled, {
      code: "OPTION_INVALID",
      hint: 'Did you mean "succeeded"? Options: succeeded, failed, cancelled, quarantined.',
    });
    assert.throws(define({ queue: { name: "q", keep: { pending: "1d" } } }), { message: /only finished jobs are removed/ });
  });
});

test("the hint for an option of BullMQ names its equivalent", async (t) => {
  const { hf } = await memory(t);
  const enqueue = (option: string) => () => hf.enqueue(send, 1, unchecked({ [option]: 1 }));
  const schedule = (option: string) => () => hf.schedule(send, unchecked({ cron: "@daily", input: 1, [option]: 1 }));
  const here: [() => unknown, RegExp][] = [
    [define({ attempts: 5 }), /`attempts` is `retry: \{ attempts \}` of job\(\)/],
    [enqueue("attempts"), /`retry: \{ attempts \}` of job\(\)/],
    [enqueue("backoff"), /`retry: \{ backoff, delay \}` of job\(\)/],
    [enqueue("jobId"), /`id` of hf\.enqueue/],
    [enqueue("repeat"), /hf\.schedule\(job, \{ cron, input \}\)/],
    [schedule("pattern"), /`cron` of hf\.schedule/],
    [() => hf.work([], unchecked({ limiter: {} })), /`limit: \{ rate: "10\/s" \}` of job\(\)/],
    [enqueue("removeOnComplete"), /keep: \{ succeeded/],
    [enqueue("removeOnFail"), /keep: \{ failed/],
    [enqueue("lifo"), /`priority` of hf\.enqueue/],
    [
      define({ limit: { max: 10, duration: 1_000 } }),
      /^BullMQ's `max` and `duration` are `rate` here: .* is \{ rate: "10\/s" \}\. /,
    ],
  ];
  for (const [run, hint] of here) await assert.rejects(async () => run(), { code: "OPTION_INVALID", hint });
});

suite("a hint fits the call", () => {
  test("a missing required option is named", async (t) => {
    const { hf } = await memory(t);
    const calls: [() => unknown, RegExp][] = [
      [() => hf.events.subscribe(unchecked({ types: ["job.*"] })), /events\.subscribe\(on, \{ types \}\)/],
      [() => Reflect.apply(job, null, ["x", () => null]), /job\(\{ name, run \}\)/],
      [() => Reflect.apply(job, null, [5]), /^Give an object\. Options: name, /],
      [() => hf.schedule(send, unchecked("@daily")), /^Give an object\. Options: key, cron, /],
      [() => hf.builds.approve("x", unchecked("token")), /^Give an object\. Options: token, budget\.$/],
    ];
    for (const [run, hint] of calls) await assert.rejects(async () => run(), { code: "OPTION_INVALID", hint });
  });

  test("an argument of the wrong kind is named", async (t) => {
    const { hf } = await memory(t);
    const calls: [() => unknown, string, string | RegExp][] = [
      [
        () =>
          hf.work(
            [send],
            unchecked(() => null),
          ),
        "The second argument of hf.work must be an options object, got a function.",
        /`run` of job/,
      ],
      [() => hf.work(unchecked("x")), "work needs an array of jobs and pipelines.", "Call hf.work([resize])."],
      [
        () => hf.enqueue(unchecked<typeof send>("mail"), 1),
        'hf.enqueue needs a job definition, got "mail".',
        'Define it with const mail = job({ name: "mail", run }), and pass mail instead of "mail".',
      ],
      [() => hf.work([unchecked(5)]), "hf.work needs a job definition, got 5.", "Create one with job({ name, run })."],
      [() => hf.enqueue(withoutKey, null), '`limit.key` of job "lk" must return a string, got undefined.', /synchronously/],
      [
        () => job({ name: "q", limit: { rate: unchecked("2/min") }, run: () => null }),
        '`limit.rate` of job "q" must look like "10/s" or "50/m", got "2/min".',
        /50\/m/,
      ],
      [
        () =>
          job({
            name: "q",
            limit: [{ concurrency: 1 }, { key: unchecked<() => string>("host"), concurrency: 1 }],
            run: () => null,
          }),
        '`limit[1].key` of job "q" must be a function, got "host".',
        /returns a string/,
      ],
      [
        () => hf.enqueue(send, unchecked({ a: new Date() })),
        "`input.a` is a Date, which JSON cannot represent exactly.",
        /plain/,
      ],
    ];
    for (const [run, message, hint] of calls) await assert.rejects(async () => run(), { message, hint });
  });
});

test("the functions of holdfast/testing reject bad arguments with a HoldfastError", async (t) => {
  const { hf } = await memory(t);
  const { id } = await hf.enqueue(send, 1);
  const calls: [() => unknown, RegExp][] = [
    [
      () => validateRecovery(unchecked({ before: [] }), []),
      /`before` of validateRecovery must be an array of jobs, got an object/,
    ],
    [
      () => validateRecovery([{ id }], unchecked(undefined)),
      /`after` of validateRecovery must be an array of jobs, got undefined/,
    ],
    [() => validateRecovery(unchecked([null]), []), /got null in it/],
    [() => validateRecovery(unchecked([undefined]), []), /got undefined in it/],
    [() => drain(unchecked({}), [send]), /drain needs a handle/],
    [() => drain(hf, unchecked(send)), /work needs an array/],
    [() => everyJob(unchecked(null)), /everyJob needs a handle, got null/],
    [
      () => simulateCrash(unchecked(5), { by: "SIGKILL", when: "x" }),
      /The file of simulateCrash must be a non-empty string, got 5/,
    ],
    [() => simulateCrash("x.ts", { by: unchecked("SIGKIL"), when: "x" }), /`by` of simulateCrash must be one of/],
  ];
  for (const [run, message] of calls) await assert.rejects(async () => run(), { code: "OPTION_INVALID", message });
});
