import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { type Holdfast, job, open } from "../../src/index.ts";
import { fixture, JOBS, type JsonError, Place } from "./holdfast.ts";

let place: Place;
let hf: Holdfast;
before(async () => {
  place = await Place.make();
  hf = await open(place.db);
});
after(async () => {
  await hf.close();
  await place.remove();
});

const named = (name: string) => job({ name, run: () => {} });

test("work runs every job that a module exports with a handler, and the first signal stops it with exit 0", async () => {
  const worker = place.start(["work", JOBS, "--concurrency", "4"]);
  const ids = await Promise.all([
    hf.enqueue(named("echo"), { text: "good morning" }),
    hf.enqueue(job({ name: "double", queue: "sums", run: () => {} }), 4),
  ]);
  await worker.said("4 jobs at once");
  const [echo, double] = await Promise.all(ids.map((one) => hf.jobs.wait(one)));
  assert.deepEqual([echo?.state, echo?.output], ["succeeded", { text: "good morning" }]);
  assert.deepEqual([double?.state, double?.output], ["succeeded", 8]);

  await hf.enqueue(named("hang"), 1);
  await worker.said("hanging");
  worker.child.kill("SIGTERM");
  await worker.said("Stopping");
  // What still runs has its time to finish; cancelled, it ends at once.
  for (const { id } of (await hf.jobs.list({ state: "running" })).items) await hf.jobs.cancel(id);
  const { code, stdout, stderr } = await worker.ended;
  assert.equal(code, 0, stderr);
  assert.match(
    stdout,
    /^Working on .*work\.db: echo, double, hang, deaf \(pid \d+, at most 4 jobs at once\)\nStopping: .* 10s .*\nStopped\.\n$/,
  );
  assert.match(stderr, /info echo says good morning/);
});

test("with --json work prints a line of JSON for each event, and what does not finish in time is given back", async () => {
  const worker = place.start(["work", JOBS, "--drain", "0s", "--json"]);
  const { id } = await hf.enqueue(named("hang"), 1);
  await worker.said("hanging");
  worker.child.kill("SIGINT");
  const { code, stdout } = await worker.ended;
  assert.equal(code, 0);
  const events = stdout
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line) as Record<string, unknown>);
  assert.deepEqual(events[0], {
    event: "working",
    pid: worker.child.pid,
    db: place.db,
    concurrency: 10,
    jobs: [
      { name: "echo", version: 1, queue: "echo" },
      { name: "double", version: 1, queue: "sums" },
      { name: "hang", version: 1, queue: "hang" },
      { name: "deaf", version: 1, queue: "deaf" },
    ],
  });
  assert.deepEqual(events.slice(1), [{ event: "stopping", signal: "SIGINT", drain: 0 }, { event: "stopped" }]);
  const given = await hf.jobs.get(id);
  assert.deepEqual([given?.state, given?.attempt], ["pending", 0]);
  await hf.jobs.cancel(id);
});

test("a second signal exits at once with 130", async () => {
  const worker = place.start(["work", JOBS]);
  const { id } = await hf.enqueue(named("deaf"), 1);
  await worker.said("deaf runs");
  worker.child.kill("SIGINT");
  await worker.said("Stopping");
  worker.child.kill("SIGINT");
  const { code, stdout } = await worker.ended;
  assert.equal(code, 130);
  assert.doesNotMatch(stdout, /Stopped/);
  await hf.jobs.cancel(id);
});

test("modules without a job to run are refused with exit 2", async () => {
  const cases: [string[], string, RegExp][] = [
    [["work", fixture("nothing.ts")], "NO_HANDLER", /No job is exported by/],
    [["work", fixture("")], "MODULE_INVALID", /is not a module/],
    [["work", JOBS, "--drain", "long"], "DURATION_INVALID", /--drain must be a duration, got "long"/],
  ];
  const answers = await Promise.all(cases.map(([args]) => place.json<JsonError>(args, 2)));
  for (const [i, { error }] of answers.entries()) {
    const [, code, message] = cases[i] as (typeof cases)[number];
    assert.equal(error.code, code);
    assert.match(error.message, message);
  }
});
