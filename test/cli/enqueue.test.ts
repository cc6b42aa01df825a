import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { open } from "../../src/index.ts";
import { selectFrom } from "../selection.ts";
import { fixture, JOBS, type JsonError, Place } from "./holdfast.ts";

let place: Place;
before(async () => (place = await Place.make()));
after(() => place.remove());

test("enqueue makes the database, prints the id, and takes a definition's queue and all options", async () => {
  const first = await place.run(["enqueue", "echo", '{"text":"hello"}']);
  assert.equal(first.code, 0, first.stderr);
  assert.match(first.stdout, /^[0-9a-z]{17}\n$/);

  const args = ["enqueue", "double", "-", "--module", JOBS, "--id", "d1", "--key", "k1", "--priority", "-5", "--delay", "2h"];
  const second = await place.run(args, { input: " 21\n" });
  assert.equal(second.stdout, "d1\n", second.stderr);
  const again = await place.json<{ id: string; duplicate: boolean }>([...args.slice(0, 2), "21", ...args.slice(3)]);
  assert.deepEqual(again, { id: "d1", duplicate: true });
  const said = await place.run(["enqueue", "double", "1", "--key", "k1"]);
  assert.equal(said.stdout, "d1 duplicate\n");

  const third = await place.json<{ id: string }>(["enqueue", "echo", "--queue", "mail", "--run-at", "2099-01-01T00:00:00Z"]);

  await using hf = await open(place.db);
  const echo = await hf.jobs.get(first.stdout.trim());
  assert.deepEqual([echo?.name, echo?.queue, echo?.input], ["echo", "echo", { text: "hello" }]);
  const double = await hf.jobs.get("d1");
  assert.deepEqual([double?.queue, double?.key, double?.priority, double?.input], ["sums", "k1", -5, 21]);
  assert.equal((double?.runAt ?? 0) - (double?.createdAt ?? 0), 7_200_000);
  const mail = await hf.jobs.get(third.id);
  assert.deepEqual([mail?.queue, mail?.input, mail?.runAt], ["mail", undefined, Date.parse("2099-01-01T00:00:00Z")]);
});

test("enqueue --after makes a job that waits for all of them, and refuses one that is not there", async () => {
  const [a, b] = [await place.json<{ id: string }>(["enqueue", "echo"]), await place.json<{ id: string }>(["enqueue", "echo"])];
  const last = await place.json<{ id: string }>(["enqueue", "echo", "--after", a.id, b.id, "--json"]);
  await using hf = await open(place.db);
  assert.equal((await hf.jobs.get(last.id))?.state, "waiting");
  const before = await hf.jobs.counts();
  const { error } = await place.json<JsonError>(["enqueue", "echo", "--after", a.id, "--after", "absent"], 1);
  assert.equal(error.code, "NO_SUCH_JOB");
  assert.deepEqual(await hf.jobs.counts(), before);
  await hf.jobs.cancel(b.id);
  assert.equal((await hf.jobs.get(last.id))?.error?.code, "UPSTREAM_ENDED", "the second counts, too");
});

test("enqueue --replace gives a pending job the new input, and --tag its tags", async () => {
  const enqueue = ["enqueue", "debounced", "--key", "one", "--delay", "1h"];
  const { id } = await place.json<{ id: string }>([...enqueue, "1"]);
  assert.deepEqual(await place.json([...enqueue, "2", "--replace", "--tag", "a", "--tag", "b"]), { id, duplicate: true });
  const { input, tags } = await place.json<{ input: unknown; tags: string[] }>(["jobs", "show", id]);
  assert.deepEqual([input, tags], [2, ["a", "b"]]);
  assert.equal((await place.run(["enqueue", "debounced", "3", "--replace"])).code, 2);
});

test("bad input is refused with exit 2 and changes nothing", async () => {
  const known: [string[], string, RegExp][] = [
    [["enqueue", "echo", "{text"], "USAGE", /not valid JSON/],
    [["enqueue", "double", '"x"', "--module", JOBS], "INPUT_INVALID", /does not fit its schema: Give a number/],
    [["enqueue", "nope", "--module", JOBS], "USAGE", /exports no job "nope"/],
    [["enqueue", "echo", "--module", "missing.ts"], "MODULE_INVALID", /no file missing\.ts/],
    [["enqueue", "echo", "--delay", "soon"], "DURATION_INVALID", /"soon"/],
    [["enqueue", "echo", "--run-at", "soon"], "USAGE", /Give a date/],
  ];
  const cases = selectFrom(known, 2);
  await using hf = await open(place.db);
  const before = await hf.jobs.counts();
  const answers = await Promise.all(cases.map(([args]) => place.json<JsonError>(args, 2)));
  for (const [i, { error }] of answers.entries()) {
    const [, code, message] = cases[i] as (typeof known)[number];
    assert.equal(error.code, code);
    assert.match(error.message, message);
    assert.notEqual(error.hint, "");
  }
  assert.deepEqual(await hf.jobs.counts(), before);
});

test("a mistyped job name is answered with the one that the module exports", async () => {
  const { error } = await place.json<JsonError>(["enqueue", "duoble", "1", "--module", JOBS], 2);
  assert.match(error.hint, /^Did you mean "double"\? Available jobs: /);
});

test("an id that belongs to another job exits 1", async () => {
  const { code, stderr } = await place.run(["enqueue", "echo", "--id", "d1"]);
  assert.equal(code, 1);
  assert.match(stderr, /error: The id d1 belongs to a job "double"/);
});

test("a module that throws is refused with the line that throws", async () => {
  const { code, stderr } = await place.run(["enqueue", "echo", "--module", fixture("throws.ts")]);
  assert.equal(code, 2);
  assert.match(stderr, /^error: .*throws\.ts:1 does not load: this module is broken \[MODULE_INVALID\]\nhint: /);
});
