import assert from "node:assert/strict";
import { rmSync } from "node:fs";
import { test } from "node:test";
import { job, open } from "../../src/index.ts";
import { Place } from "../cli/holdfast.ts";
import { killedProducer } from "./killed.ts";
import { flip, place, silent } from "./place.ts";

const JOBS = 300;
const FRAME = 4_096 + 24;
const greet = job<{ name: string }>({ name: "greet", run: () => {} });

test("results and report tell a read-only program about a flipped bit in the WAL", async (t) => {
  const { path } = place(t);
  killedProducer(path, JOBS);
  flip(`${path}-wal`, 32 + 2 * FRAME + 500, 0);
  await using hf = await open(path, { log: silent });
  await assert.rejects(hf.jobs.counts(), { code: "DAMAGED", message: /^Jobs cannot be counted, .* commits .* cannot be read/ });
  assert.ok((await hf.jobs.counts({ incomplete: true })).pending < JOBS);
  assert.match((await hf.jobs.list()).incomplete ?? "", /write-ahead log .* is damaged/);
  await assert.rejects(hf.jobs.get("nowhere"), { code: "DAMAGED", message: /nowhere/ });
  const report = await hf.recovery.lastReport();
  assert.equal(report?.wasSuccessful, false);
  assert.match(report?.errors[0] ?? "", /write-ahead log .* is damaged/);
  assert.ok((report?.commitsMissing ?? 0) >= JOBS - 10);
  assert.deepEqual(await hf.recovery.history(), [report]);
});

test("lists of queues, schedules and builds tell a read-only program about a flipped bit in the WAL", async (t) => {
  const { path } = place(t);
  killedProducer(path, JOBS);
  flip(`${path}-wal`, 32 + 2 * FRAME + 500, 0);
  await using hf = await open(path, { log: silent });
  for (const [what, list] of [
    ["Queues", (o?: { incomplete: boolean }) => hf.queues.list(o)],
    ["Schedules", (o?: { incomplete: boolean }) => hf.schedules.list(o)],
  ] as const) {
    await assert.rejects(list(), {
      code: "DAMAGED",
      message: new RegExp(`^${what} cannot be listed, .* commits .* cannot be read`),
    });
    assert.ok(Array.isArray(await list({ incomplete: true })));
  }
  assert.match((await hf.builds.list()).incomplete ?? "", /write-ahead log .* is damaged/);
  await assert.rejects(hf.builds.get("nowhere"), {
    code: "DAMAGED",
    message: /^Build nowhere was not found, and the database is damaged/,
  });
});

test("a read-only program learns that commits are missing after the WAL was removed", async (t) => {
  const { path } = place(t);
  killedProducer(path, 100);
  rmSync(`${path}-wal`);
  await using hf = await open(path, { log: silent });
  assert.match((await hf.jobs.list()).incomplete ?? "", /100 jobs, were acknowledged and are gone/);
  const report = await hf.recovery.lastReport();
  assert.equal(report?.wasSuccessful, false);
  assert.ok((report?.commitsMissing ?? 0) >= 100);
  assert.equal((await hf.jobs.counts()).pending, 0);
  assert.equal(await hf.jobs.get("nowhere"), null);
});

test("results of an intact database have no flag", async (t) => {
  const { path } = place(t);
  killedProducer(path, 3);
  await using hf = await open(path);
  await hf.enqueue(greet, { name: "me" });
  assert.deepEqual(Object.keys(await hf.jobs.list()), ["items"]);
  assert.deepEqual(Object.keys(await hf.builds.list()), ["items"]);
  assert.equal((await hf.jobs.counts()).pending, 4);
});

test("the command line says that lists of jobs, queues, schedules and builds may be incomplete", async (t) => {
  const cli = await Place.make();
  t.after(() => cli.remove());
  killedProducer(cli.db, JOBS);
  flip(`${cli.db}-wal`, 32 + 2 * FRAME + 500, 0);
  const listed = await cli.run(["jobs", "list"]);
  assert.match(listed.stderr, /database is damaged, and is only read/);
  for (const list of ["jobs", "queues", "schedules", "builds"]) {
    const { incomplete } = await cli.json<{ incomplete: string }>([list, "list"]);
    assert.match(incomplete, /write-ahead log .* is damaged/, list);
  }
});
