import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import { test, type TestContext } from "node:test";
import { job, open } from "../../src/index.ts";
import { offsetOf, PAGE, rootOf, scribble } from "../damage/place.ts";
import { type ParsedFamily, parseExposition } from "../unit/exposition-parser.ts";
import { JOBS, Place } from "./holdfast.ts";

const note = job({ name: "note", run: () => {} });

test("after a crash the figures say what was recovered, by whom it is worked on, and what stands open", async (t) => {
  const place = await placeFor(t);
  const worker = place.start(["work", JOBS]);
  await worker.said("Working on");
  {
    await using hf = await open(place.db);
    await hf.enqueue(job({ name: "hang", run: () => {} }), 2);
    await worker.said("hanging");
    worker.child.kill("SIGKILL");
    await worker.ended;
  }
  const before = await figures(place);
  assert.equal(value(before, "processes", { life: "dead" }), 1);
  assert.equal(value(before, "alarms", { code: "LEFT_BEHIND" }), 1);
  assert.equal(value(before, "healthy"), 0);
  assert.equal(value(before, "recoveries_total"), 0);
  assert.equal(before.has("holdfast_recovery_last_timestamp_seconds"), false, "there was none so far");
  {
    await using hf = await open(place.db);
    const report = await hf.recovery.lastReport();
    const { store, self: by } = hf.engine;
    const findings = { errors: ["3 commits are gone"], commitsMissing: 3, walFramesReplayed: 0 };
    const begun = await store.recoveries.begin({ dead: [], by, opening: true, alone: true, findings });
    await store.recoveries.close({ report: begun?.report as number, by, ending: { jobsPending: 0, ...findings } });
    const after = await figures(place);
    assert.equal(value(after, "recoveries_total"), 2);
    assert.equal(value(after, "recoveries_open"), 1);
    assert.equal(value(after, "recovery_jobs_recovered_total"), 1);
    assert.equal(value(after, "recovery_jobs_reset_to_pending_total"), 1);
    assert.equal(value(after, "recovery_commits_missing_total"), 3);
    assert.equal(value(after, "recovery_seconds_total"), (report?.recoveryDurationMs ?? Number.NaN) / 1_000);
    assert.equal(value(after, "recovery_last_successful"), 0);
    assert.equal(value(after, "recovery_last_commits_missing"), 3);
    assert.equal(value(after, "recovery_last_jobs_recovered"), 0, "that was the one before");
    assert.equal(value(after, "alarms", { code: "RECOVERY_FAILED" }), 1);
    await hf.recovery.acknowledge();
  }
  const acknowledged = await figures(place);
  assert.deepEqual([value(acknowledged, "recoveries_open"), value(acknowledged, "recoveries_total")], [0, 2]);
});

test("the figures are those of status: queues, schedules, sinks and backups, as text and as JSON", async (t) => {
  const place = await placeFor(t);
  {
    await using hf = await open(place.db, { sinks: { out: { type: "file", path: join(place.folder, "events") } } });
    await hf.enqueueMany(note, [{}, {}, {}]);
    const { id } = await hf.enqueue(job({ name: "odd", queue: 'a "b" \\', run: () => {} }), {});
    await hf.jobs.cancel(id);
    await hf.queues.pause("note");
    await hf.schedule(note, { key: "nightly", cron: "0 0 1 1 *", input: {} });
    await hf.schedules.pause("nightly");
  }
  await place.json(["backup"]);
  const families = await figures(place);
  assert.equal(value(families, "up"), 1);
  assert.equal(value(families, "jobs", { queue: "note", state: "pending" }), 3);
  assert.equal(value(families, "queue_paused", { queue: "note" }), 1);
  assert.equal(value(families, "jobs_ended_total", { queue: 'a "b" \\' }), 1);
  assert.equal(value(families, "schedules", { state: "paused" }), 1);
  assert.ok((value(families, "sink_behind_events", { sink: "out", kind: "file" }) ?? -1) >= 0);
  assert.equal(value(families, "backups"), 1);
  assert.ok((value(families, "database_size_bytes") ?? 0) > 10_000);
  const { families: listed } = await place.json<{ families: { name: string; samples: object[] }[] }>(["metrics"]);
  assert.deepEqual(
    listed.map(({ name, samples }) => [name, samples.length]),
    [...families].map(([name, { samples }]) => [name, samples.length]),
  );
});

test("a damaged database is reported as far as it can be read, and nothing of it changes", async (t) => {
  const place = await placeFor(t);
  {
    await using hf = await open(place.db);
    await hf.enqueueMany(
      note,
      Array.from({ length: 200 }, () => ({})),
    );
  }
  scribble(place.db, offsetOf(rootOf(place.db, "holdfast_sinks")), Buffer.alloc(PAGE));
  await place.run(["doctor"]);
  const before = readFileSync(place.db);
  const damaged = await figures(place);
  assert.deepEqual([value(damaged, "up"), value(damaged, "damaged"), value(damaged, "healthy")], [1, 1, 0]);
  assert.equal(value(damaged, "jobs", { queue: "note", state: "pending" }), 200);
  assert.equal(value(damaged, "recoveries_total"), 0);
  assert.equal(damaged.has("holdfast_sink_lag_seconds"), false, "that cannot be read");
  assert.deepEqual(readFileSync(place.db), before);
});

test("a database that cannot be opened, and a server that does not answer, are not up", async (t) => {
  const place = await placeFor(t);
  await (await open(place.db)).close();
  scribble(place.db, 0, Buffer.alloc(PAGE, 7));
  for (const [where, isDamaged] of [
    [place.db, 1],
    ["postgres://localhost:1/shop", 0],
  ] as const) {
    const { code, stdout, stderr } = await place.run(["metrics", "--db", where]);
    assert.equal(code, 0, stderr);
    const families = parseExposition(stdout);
    assert.deepEqual([value(families, "up"), value(families, "damaged"), value(families, "healthy")], [0, isDamaged, 0]);
    assert.notEqual(stderr, "", "and why, for the reader of the log");
  }
});

test("where recovery waits for an operator, the figures say that", async (t) => {
  const place = await placeFor(t);
  const worker = place.start(["work", JOBS]);
  await worker.said("Working on");
  worker.child.kill("SIGKILL");
  await worker.ended;
  await writeFile(join(place.folder, "holdfast.config.ts"), 'export default { modules: [], recovery: "manual" };\n');
  const sealed = await figures(place);
  assert.deepEqual([value(sealed, "recovery_pending"), value(sealed, "alarms", { code: "RECOVERY_PENDING" })], [1, 1]);
  assert.equal((await place.run(["recover", "--apply"])).code, 0);
  const applied = await figures(place);
  assert.deepEqual([value(applied, "recovery_pending"), value(applied, "recoveries_total")], [0, 1]);
});

test("a path without a database is wrong usage, and no figure", async (t) => {
  const place = await placeFor(t);
  const { code, stdout } = await place.run(["metrics"]);
  assert.deepEqual([code, stdout], [2, ""]);
});

async function placeFor(t: TestContext): Promise<Place> {
  const place = await Place.make();
  t.after(() => place.remove());
  return place;
}

async function figures(place: Place): Promise<Map<string, ParsedFamily>> {
  const { code, stdout, stderr } = await place.run(["metrics"]);
  assert.equal(code, 0, stderr);
  return parseExposition(stdout);
}

function value(families: Map<string, ParsedFamily>, name: string, labels: Record<string, string> = {}): number | undefined {
  const wanted = Object.entries(labels);
  return families
    .get(`holdfast_${name}`)
    ?.samples.find((sample) => wanted.every(([label, value]) => sample.labels[label] === value))?.value;
}
